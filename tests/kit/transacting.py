"""Clients of a transaction service that remember all answers, and report a later answer that contradicts them.

``ask`` sends one request to the service, wherever it runs: the same clients test one node that is killed, a simulated
cluster, and real processes. They only know the service's interface. They report::

    reused          a write pointer was given twice, or is below one given before its request
    lost_commit     a commit was acknowledged, and a later snapshot does not show it
    lost_end        an invalidation or abort was acknowledged, and a later snapshot does not show it
    lost_start      a transaction is in progress, and a later snapshot or answer does not know it
    backwards       the read pointer of a later snapshot is lower
    both_committed  two transactions with a common changed key committed, and neither saw the other
    undone          a commit was refused, and yet it is visible
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from broker.client.transactions import TransactionService
from broker.errors import BrokerError
from broker.model import Snapshot
from broker.wire.transaction import decode_snapshot, encode_snapshot

PATH: Final = "/v1/transactions"
KEYS: Final = [b"key %d" % number for number in range(6)]
TRIES_MAX: Final = 200


class Told(NamedTuple):
    """An answer: ``outcome`` is ok, fail (it has no effect) or unknown."""

    outcome: str
    code: str = ""
    body: Any = None


Ask = Callable[[str, str, bytes], Awaitable[Told]]
"""Sends method, path and body. The outcome of a lost answer is unknown."""


def told_by(status: int, headers: Mapping[str, str], body: bytes) -> Told:
    """Return the outcome of an HTTP answer."""
    value = json.loads(body)
    if status == 200:
        return Told("ok", "", value)
    is_refused = headers.get("Broker-Outcome") == "refused"
    return Told("fail" if is_refused else "unknown", value.get("code", ""), value)


def asking(service: TransactionService) -> Ask:
    """Return a function that sends requests with the shipped client."""

    async def ask(method: str, path: str, body: bytes) -> Told:
        try:
            return Told("ok", "", await _called(service, method, path, body))
        except BrokerError as error:
            return Told("fail" if error.outcome == "refused" else "unknown", error.code)

    return ask


async def _called(service: TransactionService, method: str, path: str, body: bytes) -> Any:
    sent = json.loads(body) if body else {}
    parts = path.removeprefix(PATH).strip("/").split("/")
    if parts == ["snapshot"]:
        return encode_snapshot(await service.snapshot())
    if parts == [""]:
        assert method == "POST", "clients begin transactions, and list none"
        return encode_snapshot(await service.start(**sent))
    transaction, verb = int(parts[0]), parts[1]
    if verb == "can-commit":
        keys = [base64.b64decode(key) for key in sent["changes"]]
        return await service.can_commit(transaction, keys)
    if verb == "checkpoint":
        return encode_snapshot(await service.checkpoint(transaction))
    calls = {
        "commit": service.commit,
        "abort": service.abort,
        "invalidate": service.invalidate,
    }
    return await calls[verb](transaction)


class Committed(NamedTuple):
    """A transaction whose commit was acknowledged, or was visible in a snapshot."""

    began: Snapshot
    keys: frozenset[bytes]


async def pause(milliseconds: float) -> None:
    """Wait for some milliseconds of the loop's time."""
    await asyncio.sleep(milliseconds / 1000)


class Transactors:
    """Clients of one service, and their knowledge of it."""

    def __init__(
        self, ask: Ask, chance: random.Random, pause: Callable[[float], Awaitable[None]]
    ) -> None:
        """Begin without knowledge. ``pause`` waits so many ms."""
        self.violations: list[str] = []
        self.progress = asyncio.Event()
        """Set with every commit."""
        self.commits: list[Committed] = []
        self.starts = 0
        self.conflicts = 0
        self.unknown = 0
        self._ask = ask
        self._chance = chance
        self._pause = pause
        self._pointers: set[int] = set()
        self._greatest = 0
        self._read_pointer = 0
        self._visible: list[int] = []
        """Committed or aborted: visible for ever."""
        self._invalid: list[int] = []
        self._open: dict[int, None] = {}
        """Transactions in progress: no request that ends them was sent."""

    def _wrong(self, kind: str, text: str) -> None:
        self.violations.append(f"{kind}: {text}")

    async def _call(self, method: str, path: str = "", sent: Any = None) -> Told:
        body = b"" if sent is None else json.dumps(sent).encode()
        told = await self._ask(method, PATH + path, body)
        self.unknown += told.outcome == "unknown"
        return told

    async def _insist(self, method: str, path: str, sent: Any = None) -> Told:
        """Repeat an idempotent request until it is answered."""
        told = Told("unknown")
        for _ in range(TRIES_MAX):
            told = await self._call(method, path, sent)
            if told.outcome == "ok" or told.code.startswith(("transaction_", "not_found")):
                return told
            await self._pause(20)
        raise AssertionError(f"{method} {path} was not answered {TRIES_MAX} times: {told}")

    # Snapshots.

    async def look(self) -> Snapshot:
        """Request a snapshot, and compare it with all answers from before the request."""
        known = self._known()
        told = await self._insist("GET", "/snapshot")
        return self._compared(decode_snapshot(told.body), known)

    def _known(self) -> tuple[int, int, int, list[int]]:
        return len(self._visible), len(self._invalid), self._read_pointer, list(self._open)

    def _compared(self, seen: Snapshot, known: tuple[int, int, int, list[int]]) -> Snapshot:
        visible, invalid, read_pointer, begun = known
        for pointer in self._visible[:visible]:
            if not seen.is_visible(pointer):
                self._wrong("lost_commit", f"{pointer} in {seen}")
        for pointer in self._invalid[:invalid]:
            if not seen.is_invalid(pointer):
                self._wrong("lost_end", f"{pointer} in {seen}")
        for pointer in begun:
            if pointer in self._open and pointer not in seen.in_progress:
                self._wrong("lost_start", f"{pointer} in {seen}")
        if seen.read_pointer < read_pointer:
            self._wrong("backwards", f"{seen.read_pointer} after {read_pointer}")
        self._read_pointer = max(self._read_pointer, seen.read_pointer)
        return seen

    def _given(self, pointer: int, greatest: int) -> None:
        if pointer in self._pointers or pointer <= greatest:
            self._wrong("reused", f"{pointer}, and {greatest} was given before its request")
        self._pointers.add(pointer)
        self._greatest = max(self._greatest, pointer)

    # Transactions.

    async def transact(self) -> None:
        """Run one transaction: begin it, and commit, abort or invalidate it."""
        greatest, known = self._greatest, self._known()
        told = await self._call("POST", "", {"timeout_s": 600})
        if told.outcome != "ok":
            await self._pause(5)
            return
        began = decode_snapshot(told.body)
        self.starts += 1
        self._given(began.transaction_id, greatest)
        self._compared(began, known)
        self._open[began.transaction_id] = None
        await self._pause(self._chance.expovariate(1 / 10))
        pointers = [began.transaction_id]
        if self._chance.random() < 0.2:
            pointers += await self._checkpoint(began.transaction_id)
        draw = self._chance.random()
        if draw < 0.7:
            await self._commit(began, pointers)
        elif draw < 0.85:
            await self._end(pointers, "abort", self._visible)
        else:
            await self._end(pointers, "invalidate", self._invalid)

    async def _checkpoint(self, transaction: int) -> list[int]:
        greatest = self._greatest
        told = await self._call("POST", f"/{transaction}/checkpoint")
        if told.outcome == "ok":
            pointer = decode_snapshot(told.body).write_pointer
            self._given(pointer, greatest)
            return [pointer]
        if told.code.startswith("transaction_"):
            self._wrong("lost_start", f"{transaction}: {told}")
        return []

    async def _end(self, pointers: list[int], verb: str, where: list[int]) -> None:
        self._open.pop(pointers[0], None)
        await self._insist("POST", f"/{pointers[0]}/{verb}")
        where += pointers

    async def _commit(self, began: Snapshot, pointers: list[int]) -> None:
        transaction = began.transaction_id
        keys = frozenset(self._chance.sample(KEYS, self._chance.randint(0, 2)))
        changes = [base64.b64encode(key).decode() for key in sorted(keys)]
        told = await self._insist("POST", f"/{transaction}/can-commit", {"changes": changes})
        if told.outcome == "ok":
            await self._pause(self._chance.expovariate(1 / 5))
            self._open.pop(transaction, None)
            told = await self._committed(transaction)
        if told.outcome == "ok":
            self._check_conflicts(Committed(began, keys))
            self._visible += pointers
            return
        if told.code != "transaction_conflict":
            self._wrong("lost_start", f"{transaction}: {told}")
        self.conflicts += 1
        if (await self.look()).is_visible(transaction):
            self._wrong("undone", f"{transaction}: {told}")
        await self._end(pointers, "abort", self._visible)

    async def _committed(self, transaction: int) -> Told:
        """Commit; if the outcome is unknown, find it in a new snapshot."""
        for _ in range(TRIES_MAX):
            told = await self._call("POST", f"/{transaction}/commit")
            if told.outcome == "ok" or told.code == "transaction_conflict":
                return told
            seen = await self.look()
            if seen.is_visible(transaction):
                return Told("ok")
            if transaction not in seen.in_progress:
                return told
            await self._pause(20)
        raise AssertionError(f"the commit of {transaction} was not answered {TRIES_MAX} times")

    def _check_conflicts(self, made: Committed) -> None:
        for other in self.commits:
            if not made.keys & other.keys:
                continue
            saw = made.began.is_visible(other.began.transaction_id)
            if not saw and not other.began.is_visible(made.began.transaction_id):
                self._wrong("both_committed", f"{made} and {other}")
        self.commits.append(made)
        self.progress.set()
