"""Check the numbers of producers: each producer numbers its publishes, so that none is stored twice.

A producer gives each publish a higher number than the one before; gaps are allowed. The number is a mark of the entry
that the publish stores, so it commits with the messages. If a publish has a number at or below its producer's last
one, it stores nothing and is answered as a duplicate: it was done before, or it came too late.

A success would be wrong if the number was published in another transaction, or was rolled back (effects.py). So a mark
also has its write pointer, and the *run*: the numbers up to this one that had no other pointer::

    number     1    2    3    4    6    7         a repetition of 6 in B: a duplicate, unless B's messages since 4
    pointer    A    A    A    B    B    B         were rolled back; of 6 in A, or of 2: refused
                              ^since    ^last

Publishes of one producer are written one at a time, in the order in which they came: the leader checks the next
number when the outcome of the publish before is known. Storage keeps the marks, and has a number that this memory has
forgotten. A producer that was silent for long is forgotten (mark_window.py).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, nullcontext
from typing import Final, NamedTuple

from broker.clock import Clock
from broker.errors import AlreadyPublished
from broker.long_work import soon
from broker.model import LOG_KEY_MIN, LogKey, first_log_key_at, timestamp_of
from broker.shield import to_its_end
from broker.storage.hold import LogHold
from broker.storage.marks import PRODUCER
from broker.topics.batches import ProducerRun, producer_run
from broker.topics.dedupe import KeyBudget, key_hash
from broker.topics.effects import in_transaction, named, refuse_other, refuse_rolled_back
from broker.topics.overdue import in_time
from broker.topics.settings import Producer, PublishedIds
from broker.topics.write import ProducerMark

KNOWN_MAX: Final = 10_000
"""The most producers of one topic that are kept in memory."""


class _Last(NamedTuple):
    """The last publish of a producer: its numbers, and the answer to repeat."""

    run: ProducerRun
    ids: PublishedIds


class _ProducerOrder:
    """Orders the publishes of one producer."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class Producers:
    """The last numbers of the producers of one topic, while one hold lasts."""

    def __init__(
        self, clock: Clock, hold: LogHold, passed: Callable[[], LogKey], budget: KeyBudget
    ) -> None:
        """Begin without a known producer. ``passed`` returns the id below which no producer's mark counts.

        ``budget`` counts each producer like a key.
        """
        self._budget = budget
        self._closed = False
        self._clock = clock
        self._hold = hold
        self._passed = passed
        self._known: OrderedDict[bytes, _Last] = OrderedDict()
        self._turns: dict[bytes, _ProducerOrder] = {}
        self._under_way: set[asyncio.Task[PublishedIds]] = set()

    @property
    def busy(self) -> bool:
        """Return whether a publish is in progress, or waits for its turn."""
        return bool(self._under_way)

    async def idle(self) -> None:
        """Wait until no publish is in progress."""
        while self._under_way:
            await asyncio.wait(set(self._under_way))

    async def once(
        self,
        producer: Producer,
        pointer: int | None,
        work: Callable[[ProducerMark], Awaitable[PublishedIds]],
        deadline: float | None,
    ) -> PublishedIds:
        """Do ``work`` if the producer's number is above its last one, else return the answer to a duplicate.

        ``work`` gets the mark to put into the batch that it writes. It continues if the caller is cancelled.

        Raises:
            AlreadyPublished: the number was published under another write pointer, or rolled back.
            Unavailable: the producer's last number can't be looked up, or the deadline passed before its turn.
        """
        turn = self._in_turn(producer, pointer, work, deadline)
        return await to_its_end(turn, self._under_way)

    async def _in_turn(
        self,
        producer: Producer,
        pointer: int | None,
        work: Callable[[ProducerMark], Awaitable[PublishedIds]],
        deadline: float | None,
    ) -> PublishedIds:
        hashed = key_hash(producer.id)
        turns = self._turns.setdefault(hashed, _ProducerOrder())
        turns.users += 1
        try:
            async with AsyncExitStack() as turn:
                may_wait = self._may_wait(turns, hashed, producer.number)
                async with in_time(self._clock, deadline) if may_wait else nullcontext():
                    await turn.enter_async_context(turns.lock)
                    last = await self._last(hashed)
                    repeated = last if last and producer.number <= last.run.number else None
                    if repeated is not None:
                        await self._check_effect(producer, pointer, repeated)
                if repeated is not None:
                    return _duplicate(producer.number, pointer, repeated)
                mark = ProducerMark(hashed, producer.number, *_run_of(producer, pointer, last))
                published = await work(mark)
                if (
                    not published.replayed
                ):  # Else the effect is another request's, and left no mark of this number.
                    since_ms = (
                        timestamp_of(published.first) if mark.since_ms is None else mark.since_ms
                    )
                    run = ProducerRun(mark.number, mark.since, since_ms, pointer)
                    self._remember(hashed, _Last(run, published))
                return published
        finally:
            turns.users -= 1
            if not turns.users:
                del self._turns[hashed]

    def _may_wait(self, turns: _ProducerOrder, hashed: bytes, number: int) -> bool:
        """Return whether a publish waits for another one or for storage before it is appended."""
        known = self._known.get(hashed)
        return turns.lock.locked() or known is None or number <= known.run.number

    async def _check_effect(self, producer: Producer, mine: int | None, last: _Last) -> None:
        """Refuse a duplicate whose first publish has another write pointer, or was rolled back (rule 9)."""
        what = f"Number {producer.number} of producer {producer.id!r}"
        run, ids = last
        if producer.number < run.since:
            raise AlreadyPublished(
                f"{what} came too late to tell in which transaction it was published before: the producer's last "
                f"number is {run.number}, {in_transaction(run.pointer)}{named(ids.first, ids.last)}."
            )
        is_last = producer.number == run.number
        told = named(ids.first, ids.last) if is_last else ""
        refuse_other(what, run.pointer, mine, told)
        first = ids.first if is_last else first_log_key_at(run.since_ms)
        await refuse_rolled_back(self._hold, what, mine, first, ids.last, told)

    async def _last(self, hashed: bytes) -> _Last | None:
        known = self._known.get(hashed)
        if known is None:
            mark = await self._hold.marks.newest(PRODUCER, hashed)
            if mark is None:
                return None
            known = _Last(producer_run(mark), PublishedIds(mark.first, mark.last))
            self._remember(hashed, known)
        return None if known.ids.first < self._passed() else known

    def _remember(self, hashed: bytes, answer: _Last) -> None:
        if self._closed:
            return
        is_new = hashed not in self._known
        self._known[hashed] = answer
        self._known.move_to_end(hashed)
        if is_new:
            self._budget.take(self)
        if len(self._known) > KNOWN_MAX:
            self.forget_oldest()

    def forget_oldest(self) -> bool:
        """Forget the producer that was silent longest: its next publish looks it up. Return False if there is none."""
        if not self._known:
            return False
        self._known.popitem(last=False)
        self._budget.give()
        return True

    def close(self) -> None:
        """Forget all producers: the hold is done."""
        self._closed = True
        self._budget.leave(self)
        soon(iter(self.forget_oldest, False))


def _run_of(producer: Producer, pointer: int | None, last: _Last | None) -> tuple[int, int | None]:
    """Return the least number of the run that a publish begins or continues, and the time of the run's first message."""
    if last is None:
        return 0, None  # No number of this producer is known.
    if last.run.pointer == pointer:
        return last.run.since, last.run.since_ms
    return producer.number, None


def _duplicate(number: int, pointer: int | None, last: _Last) -> PublishedIds:
    """Return the answer to a duplicate. It has ids only for the last number: those of lower numbers are forgotten."""
    if number == last.run.number:
        return last.ids._replace(pointer=pointer, replayed=True)
    return PublishedIds(LOG_KEY_MIN, LOG_KEY_MIN, replayed=True)
