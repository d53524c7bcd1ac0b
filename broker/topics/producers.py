"""Check the numbers of producers: each producer numbers its publishes, so that none is stored twice.

A producer gives each publish a higher number than the one before; gaps are allowed. The number is a mark of the entry
that the publish stores, so it commits with the messages. If a publish has a number at or below its producer's last
one, it stores nothing and is answered as a duplicate: it was done before, or it came too late.

Publishes of one producer are written one at a time, in the order in which they came: the leader checks the next
number when the outcome of the publish before is known. Storage keeps the marks; only the sweeper forgets a producer
that was silent for long (storage/marks.py). So storage still has a number that this memory has forgotten.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from broker.model import ROW_ID_MIN
from broker.shield import to_its_end
from broker.storage.hold import LogHold
from broker.storage.marks import PRODUCER
from broker.topics.batches import producer_number
from broker.topics.dedupe import key_hash
from broker.topics.settings import Producer, PublishedIds
from broker.topics.write import ProducerMark

KNOWN_MAX: Final = 10_000
"""The most producers of one topic that are kept in memory."""

Answer = tuple[int, PublishedIds]
"""The last number of a producer, and the answer to repeat for its publish."""


class _ProducerTurns:
    """Orders the publishes of one producer."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class Producers:
    """The last numbers of the producers of one topic, while one hold lasts."""

    def __init__(self, hold: LogHold) -> None:
        """Begin without a known producer."""
        self._hold = hold
        self._known: OrderedDict[bytes, Answer] = OrderedDict()
        self._turns: dict[bytes, _ProducerTurns] = {}
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
    ) -> PublishedIds:
        """Do ``work`` if the producer's number is above its last one, else return the answer to a duplicate.

        ``work`` gets the mark to put into the batch that it writes. It continues if the caller is cancelled.

        Raises:
            Unavailable: the producer's last number can't be looked up.
        """
        return await to_its_end(self._in_turn(producer, pointer, work), self._under_way)

    async def _in_turn(
        self,
        producer: Producer,
        pointer: int | None,
        work: Callable[[ProducerMark], Awaitable[PublishedIds]],
    ) -> PublishedIds:
        hashed = key_hash(producer.id)
        turns = self._turns.setdefault(hashed, _ProducerTurns())
        turns.users += 1
        try:
            async with turns.lock:
                last = await self._last_answer(hashed)
                if last is not None and producer.number <= last[0]:
                    return _duplicate(producer.number, pointer, last)
                published = await work((hashed, producer.number))
                self._remember(hashed, (producer.number, published))
                return published
        finally:
            turns.users -= 1
            if not turns.users:
                del self._turns[hashed]

    async def _last_answer(self, hashed: bytes) -> Answer | None:
        known = self._known.get(hashed)
        if known is None:
            mark = await self._hold.marks.newest(PRODUCER, hashed)
            if mark is None:
                return None
            known = producer_number(mark), PublishedIds(mark.first, mark.last)
            self._remember(hashed, known)
        return known

    def _remember(self, hashed: bytes, answer: Answer) -> None:
        self._known[hashed] = answer
        self._known.move_to_end(hashed)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)


def _duplicate(number: int, pointer: int | None, last: Answer) -> PublishedIds:
    """Return the answer to a duplicate. It has ids only for the last number: those of lower numbers are forgotten."""
    if number == last[0]:
        return last[1]._replace(pointer=pointer, replayed=True)
    return PublishedIds(ROW_ID_MIN, ROW_ID_MIN, replayed=True)
