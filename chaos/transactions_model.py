"""A model of the transaction service: Tephra's rules, without conflicts, and a service that can be slow.

``TransactionModel`` is what the service knows, as a function of calls and time::

    begin ──▶ in progress ──commit──▶ visible          pointers at or below the read pointer are visible
                   │ ├──────abort────▶ visible, too    unless in progress or invalid: who aborts has undone
                   │ └────invalidate─▶ invalid         what was written, or must invalidate
                   └─timeout──────────▶ invalid ──abort──▶ visible

A pointer is the time of its beginning in ns, or the next number. A snapshot is what was so when
its transaction began. ``ModelService`` is the model as clients meet it: an answer may take long,
and may be lost, after the call was carried out or before.
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
    """A transaction: its write pointer and what it may see."""

    pointer: int
    snapshot: Snapshot


class TransactionModel:
    """What the service knows. Times are ms since 1970."""

    def __init__(self, now_ms: int) -> None:
        """Begin without any transaction."""
        self.last = now_ms * POINTERS_PER_MS
        self.read_pointer = self.last
        self.in_progress: dict[int, int] = {}
        """When each transaction in progress times out, by pointer, in the order of pointers."""
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
        """Return what a transaction that began now would see."""
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
        """Commit. Raises NotInProgress."""
        self.expire(now_ms)
        self._leave(pointer)
        self.read_pointer = max(self.read_pointer, pointer)

    def abort(self, now_ms: int, pointer: int) -> None:
        """Abort a transaction that has undone its writes, also one that has timed out.

        Raises:
            NotInProgress: it has ended otherwise, or never begun.
        """
        self.expire(now_ms)
        if pointer in self.invalid:
            self.invalid.remove(pointer)
        else:
            self._leave(pointer)
        self.read_pointer = max(self.read_pointer, pointer)

    def invalidate(self, now_ms: int, pointer: int) -> None:
        """Hide the writes of a transaction for good. Raises NotInProgress."""
        self.expire(now_ms)
        self._leave(pointer)
        self._hide(pointer)

    def expire(self, now_ms: int) -> None:
        """Make invalid what has timed out."""
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
    """The model as clients meet it. Calls raise NotInProgress, or OutcomeUnknown by chance.

    Args:
        clock: the service's own.
        chance: of answers that are late or lost.
        timeout_s: how long a transaction may take.
        slow: the share of calls that take long, up to ``slow_s``.
        lost: the share of calls whose answer is lost; half of them were carried out.
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
        """Begin a transaction; one whose answer is lost times out."""
        return await self._call(lambda now_ms: self.model.begin(now_ms, self._timeout_ms))

    async def look(self) -> Snapshot:
        """Return what a transaction that began now would see."""
        return await self._call(self.model.look)

    async def commit(self, pointer: int) -> None:
        """Commit a transaction."""
        await self._call(lambda now_ms: self.model.commit(now_ms, pointer))

    async def abort(self, pointer: int) -> None:
        """Abort a transaction that has undone its writes."""
        await self._call(lambda now_ms: self.model.abort(now_ms, pointer))

    async def invalidate(self, pointer: int) -> None:
        """Hide the writes of a transaction for good."""
        await self._call(lambda now_ms: self.model.invalidate(now_ms, pointer))

    def end_all(self) -> None:
        """Let everything that is in progress time out now."""
        self.model.expire(max(self.model.in_progress.values(), default=0))

    async def _call(self, call: Callable[[int], Result]) -> Result:
        """Carry a call out at some moment, or not, and answer at a later one, or not."""
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
