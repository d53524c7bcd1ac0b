"""Ranges of a topic: where it begins and ends, how much lies between two ids, and how that is divided.

A range is ``(after, through]``, by the ids of rows; a reference's messages have the id of their reference, so
no range divides them. Nothing can appear in a range any more whose end is at or below the latest id: so a second
reading finds the same, but for what expired or was rolled back. No message is read for it: see
storage/numbering.py.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final, NamedTuple

from broker.model import RowId, Topic, row_before
from broker.storage.keys import LogId
from broker.storage.numbering import Count, Numbering
from broker.topics.fetch import oldest_live
from broker.topics.surroundings import Surroundings

HEADS_MAX: Final = 100_000
"""Heads of pages that are kept, of all topics together: some 20 MB."""
PARTS_MAX: Final = 1000
AMOUNT_MAX: Final = 1 << 62
"""No log has so many messages, or bytes."""


class RangeQuery(NamedTuple):
    """What is asked for. Behind ``after`` (None: the earliest), through an id (None: the latest).

    At most so many messages and bytes of payloads, but one entry in any case; in about equal ``parts``.
    """

    after: RowId | None = None
    through: RowId | None = None
    messages_max: int = AMOUNT_MAX
    bytes_max: int = AMOUNT_MAX
    parts: int = 1


class Range(NamedTuple):
    """A range ``(after, through]`` and how much it has; ``ends`` are the last ids of its parts.

    Behind ``earliest`` lies all that can be read. Behind ``latest`` lies nothing yet, and what comes lies there.
    ``lost``: how many messages were published behind ``after`` and can't be read any more, at least.
    """

    earliest: RowId
    latest: RowId
    after: RowId
    through: RowId
    messages: int
    bytes: int
    lost: int
    ends: list[RowId]


class _Known:
    """A numbering, which one request at a time may use."""

    def __init__(self, numbering: Numbering) -> None:
        self.numbering = numbering
        self.lock = asyncio.Lock()


class Ranges:
    """The numberings of topics that were asked for lately."""

    def __init__(self, around: Surroundings) -> None:
        """Begin with none."""
        self._around = around
        self._known: OrderedDict[LogId, _Known] = OrderedDict()

    async def range(self, topic: Topic, query: RangeQuery) -> Range:
        """Return a range. Raises Unavailable."""
        known = self._of(topic)
        async with known.lock:
            await known.numbering.refresh()
            self._forget_some()
            return await self._range(topic, query, known.numbering)

    async def behind(self, topic: Topic, row: RowId) -> int:
        """Return how many messages were published behind an id. Raises Unavailable."""
        known = self._of(topic)
        async with known.lock:
            await known.numbering.refresh()
            self._forget_some()
            numbering = known.numbering
            return numbering.all.messages - (await numbering.count(row)).messages

    def _of(self, topic: Topic) -> _Known:
        log = LogId(topic.id, topic.generation)
        known = self._known.get(log)
        if known is None:
            known = self._known[log] = _Known(Numbering(self._around.logs, log))
        self._known.move_to_end(log)
        return known

    def _forget_some(self) -> None:
        kept = sum(known.numbering.size + 1 for known in self._known.values())
        while kept > HEADS_MAX and len(self._known) > 1:
            kept -= self._known.popitem(last=False)[1].numbering.size + 1

    async def _range(self, topic: Topic, query: RangeQuery, numbering: Numbering) -> Range:
        now_ms = self._around.clock.now_ms()
        bound = max(numbering.floor, row_before(oldest_live(now_ms, topic.ttl_ms)))
        bound = min(bound, numbering.tail)
        after = bound if query.after is None else query.after
        begin = max(after, bound)
        through = numbering.tail if query.through is None else min(query.through, numbering.tail)
        through = max(through, begin)
        start = await numbering.count(begin)
        found = await numbering.seek(start.plus(Count(query.messages_max, query.bytes_max)))
        if found <= begin < through:
            found = await numbering.next_id(begin)
        through = min(through, max(found, begin))
        stop = await numbering.count(through)
        lost = 0
        if after < bound:
            lost = max(start.messages - (await numbering.count_ever(after)).messages, 0)
        ends = await self._ends(numbering, begin, through, query.parts, start, stop)
        return Range(
            bound,
            numbering.tail,
            after,
            through,
            stop.messages - start.messages,
            stop.bytes - start.bytes,
            lost,
            ends,
        )

    @staticmethod
    async def _ends(
        numbering: Numbering, begin: RowId, through: RowId, parts: int, start: Count, stop: Count
    ) -> list[RowId]:
        """Return the last ids of parts with about as many messages each; of less than that, fewer parts."""
        if through <= begin:
            return []
        ends: list[RowId] = []
        for part in range(1, parts):
            wanted = start.messages + (stop.messages - start.messages) * part // parts
            end = await numbering.seek(Count(wanted, AMOUNT_MAX))
            if (ends[-1] if ends else begin) < end < through:
                ends.append(end)
        return [*ends, through]
