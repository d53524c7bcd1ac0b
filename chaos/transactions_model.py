"""A model of the transaction service: Tephra's rules without conflicts, and a service with slow and lost answers.

``TransactionModel`` is the state of the service, as a function of calls and time::

    begin ──▶ in progress ──commit──▶ visible          pointers at or below the read pointer are visible,
                   │ ├──────abort────▶ visible, too    unless in progress or invalid: a client that aborts
                   │ └────invalidate─▶ invalid         has rolled its writes back, or must invalidate
                   └─timeout──────────▶ invalid ──abort──▶ visible

A pointer is the transaction's start time in ns, or the last pointer plus one if that is higher. A snapshot is
the state at the start of its transaction. ``ModelService`` gives the model to clients: an answer may be slow,
or be lost, before or after the call was done.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from broker.clock import Clock
from broker.errors import OutcomeUnknown, RequestError
from broker.model import POINTER_MAX, POINTERS_PER_MS, Snapshot

Result = TypeVar("Result")

LATENCY_S: Final = 0.005


class NotInProgress(RequestError):
    """The transaction has ended, or has timed out and is invalid."""


class Begun(NamedTuple):
    """A new transaction: its write pointer and its snapshot."""

    pointer: int
    snapshot: Snapshot


class TransactionModel:
    """The state of the service. Times are ms since 1970."""

    def __init__(self, now_ms: int) -> None:
        """Begin without a transaction."""
        self.last = now_ms * POINTERS_PER_MS
        self.read_pointer = self.last
        self.in_progress: dict[int, int] = {}
        """The time-outs of the transactions in progress, by pointer, in the order of pointers."""
        self.invalid: set[int] = set()

    def begin(self, now_ms: int, timeout_ms: int) -> Begun:
        """Begin a short transaction."""
        self.expire(now_ms)
        pointer = max(self.last + 1, now_ms * POINTERS_PER_MS)
        begun = Begun(pointer, self._snapshot(pointer))
        self.last = pointer
        self.in_progress[pointer] = now_ms + timeout_ms
        return begun

    def look(self, now_ms: int) -> Snapshot:
        """Return the snapshot of a transaction that begins now."""
        self.expire(now_ms)
        return self._snapshot(self.last + 1)

    def _snapshot(self, pointer: int) -> Snapshot:
        return Snapshot(
            transaction_id=pointer,
            read_pointer=self.read_pointer,
            invalids=sorted(self.invalid),
            in_progress=list(self.in_progress),
            first_short_in_progress=min(self.in_progress, default=POINTER_MAX),
        )

    def commit(self, now_ms: int, pointer: int) -> None:
        """Commit a transaction. Raises NotInProgress."""
        self.expire(now_ms)
        self._leave(pointer)
        self.read_pointer = max(self.read_pointer, pointer)

    def abort(self, now_ms: int, pointer: int) -> None:
        """Abort a transaction whose writes are rolled back, also one that has timed out.

        Raises:
            NotInProgress: it has ended in another way, or never began.
        """
        self.expire(now_ms)
        if pointer in self.invalid:
            self.invalid.remove(pointer)
        else:
            self._leave(pointer)
        self.read_pointer = max(self.read_pointer, pointer)

    def invalidate(self, now_ms: int, pointer: int) -> None:
        """Make a transaction invalid, which hides its writes for ever. Raises NotInProgress."""
        self.expire(now_ms)
        self._leave(pointer)
        self._hide(pointer)

    def expire(self, now_ms: int) -> None:
        """Make the transactions invalid that have timed out."""
        for pointer, ends_ms in list(self.in_progress.items()):
            if ends_ms <= now_ms:
                del self.in_progress[pointer]
                self._hide(pointer)

    def _leave(self, pointer: int) -> None:
        if self.in_progress.pop(pointer, None) is None:
            raise NotInProgress(f"Transaction {pointer} is not in progress.")

    def _hide(self, pointer: int) -> None:
        self.invalid.add(pointer)
        self.read_pointer = max(self.read_pointer, pointer)


class ModelService:
    """The model as a service for clients. Calls raise NotInProgress, or OutcomeUnknown at random.

    Args:
        clock: the service's own clock.
        chance: the random source of slow and lost answers.
        timeout_s: how long a transaction may take.
        slow: the share of slow calls.
        slow_s: the longest delay of a slow call, on its way to the service or back.
        lost: the share of calls whose answer is lost; half of them are done.
    """

    def __init__(
        self,
        clock: Clock,
        chance: random.Random,
        *,
        timeout_s: float,
        slow: float = 0.05,
        slow_s: float = 5.0,
        lost: float = 0.02,
    ) -> None:
        self.model = TransactionModel(clock.now_ms())
        self._clock = clock
        self._chance = chance
        self._timeout_ms = int(timeout_s * 1000)
        self._slow = slow
        self._slow_s = slow_s
        self._lost = lost

    async def begin(self) -> Begun:
        """Begin a transaction; if the answer is lost, the transaction times out."""
        return await self._call(lambda now_ms: self.model.begin(now_ms, self._timeout_ms))

    async def look(self) -> Snapshot:
        """Return the snapshot of a transaction that begins now."""
        return await self._call(self.model.look)

    async def commit(self, pointer: int) -> None:
        """Commit a transaction."""
        await self._call(lambda now_ms: self.model.commit(now_ms, pointer))

    async def abort(self, pointer: int) -> None:
        """Abort a transaction whose writes are rolled back."""
        await self._call(lambda now_ms: self.model.abort(now_ms, pointer))

    async def invalidate(self, pointer: int) -> None:
        """Make a transaction invalid, which hides its writes for ever."""
        await self._call(lambda now_ms: self.model.invalidate(now_ms, pointer))

    def end_all(self) -> None:
        """Let all transactions in progress time out now."""
        self.model.expire(max(self.model.in_progress.values(), default=0))

    async def _call(self, call: Callable[[int], Result]) -> Result:
        """Do a call after a delay, and answer after another one; sometimes lose the call or the answer."""
        await self._pass()
        lost = self._chance.random() < self._lost
        if lost and self._chance.random() < 0.5:
            raise OutcomeUnknown("the transaction service did not answer")
        result = call(self._clock.now_ms())
        await self._pass()
        if lost:
            raise OutcomeUnknown("the transaction service's answer was lost")
        return result

    async def _pass(self) -> None:
        is_slow = self._chance.random() < self._slow
        longest_s = self._slow_s if is_slow else LATENCY_S
        await self._clock.sleep(self._chance.uniform(0, longest_s))
