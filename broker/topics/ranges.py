"""Describe ranges of a topic: its start and end, the messages and bytes between two ids, and a division into parts.

A range is ``(after, through]``, by log keys. Messages of a reference count with the key of their reference, so
no range divides them. The broker gives every later message an id above the latest one. So a range that ends at or
below the latest id does not change, except that messages expire or are rolled back. The heads of pages have all
these numbers. This code reads entries only if a range begins or ends inside a page (storage/ordinals.py).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from broker.model import LogKey, Topic, log_key_before
from broker.operations.parameters import AMOUNT_MAX
from broker.storage.gaps import Gap, decode_gaps, gaps_key
from broker.storage.keys import LogId
from broker.storage.ordinals import LogCount, Numbering
from broker.storage.records import RecordStore
from broker.topics.fetch import oldest_live
from broker.topics.surroundings import Surroundings

KEPT_MAX: Final = 100_000
"""The most pages and entries kept in memory, of all topics together: about 30 MB."""
PAGES_A_PART: Final = 8
"""If parts have at least this many pages on average, they end where pages end, and no page is read for them."""


class RangeQuery(NamedTuple):
    """Asks for the range behind ``after`` (None: from the earliest) up to ``through`` (None: to the latest).

    The range has at most ``messages_max`` messages and ``bytes_max`` bytes of payloads, but at least one entry. It
    is divided into about equal ``parts``. ``generation`` is that of the bounds; None: any.
    """

    after: LogKey | None = None
    through: LogKey | None = None
    messages_max: int = AMOUNT_MAX
    bytes_max: int = AMOUNT_MAX
    parts: int = 1
    generation: int | None = None


class Range(NamedTuple):
    """A range ``(after, through]`` with its messages and bytes; ``ends`` are the last ids of its parts.

    All readable messages lie behind ``earliest``. No message lies behind ``latest`` yet, and all later ones will.
    ``lost`` is the least number of messages that were published behind ``after``, up to ``through``, and can't be read
    any more: they have expired, or a repair of the store did not find them.
    """

    earliest: LogKey
    latest: LogKey
    after: LogKey
    through: LogKey
    messages: int
    bytes: int
    lost: int
    ends: list[LogKey]
    generation: int


class Unread(NamedTuple):
    """The messages behind a place: the number of readable ones, of unreadable ones, and the oldest readable one."""

    messages: int
    lost: int
    oldest: LogKey | None


class _KnownNumbering:
    """A numbering that one request at a time may use."""

    def __init__(self, numbering: Numbering) -> None:
        self.numbering = numbering
        self.lock = asyncio.Lock()
        self.size = 0
        """The pages and entries counted for it."""
        self.gaps: Sequence[Gap] | None = None
        """None: not read yet. They don't change while this process has the store open."""


class TopicNumberings:
    """The numberings of recently requested topics."""

    def __init__(self, around: Surroundings, records: RecordStore) -> None:
        """Begin without a numbering. ``records`` has the topics' gaps."""
        self._records = records
        self._around = around
        self._known: OrderedDict[LogId, _KnownNumbering] = OrderedDict()
        self._kept = 0

    async def range(self, topic: Topic, query: RangeQuery) -> Range:
        """Return a range. Raises Unavailable."""
        known = self._of(topic)
        async with known.lock:
            try:
                await known.numbering.refresh()
                return await self._range(topic, query, known)
            finally:
                self._count(known)

    async def behind(self, topic: Topic, key: LogKey) -> int:
        """Return the number of messages published behind an id. Raises Unavailable."""
        known = self._of(topic)
        async with known.lock:
            numbering = known.numbering
            try:
                await numbering.refresh()
                return numbering.all.messages - (await numbering.count(key)).messages
            finally:
                self._count(known)

    async def unread(self, topic: Topic, after: LogKey | None) -> Unread:
        """Return the messages behind an id, or all messages for None. Raises Unavailable."""
        known = self._of(topic)
        async with known.lock:
            numbering = known.numbering
            try:
                await numbering.refresh()
                found = await self._range(topic, RangeQuery(after), known)
                if found.messages <= 0:
                    return Unread(0, found.lost, None)
                oldest = await numbering.next_id(max(found.after, found.earliest))
                return Unread(found.messages, found.lost, oldest)
            finally:
                self._count(known)

    def _of(self, topic: Topic) -> _KnownNumbering:
        log = LogId(topic.id, topic.generation)
        known = self._known.get(log)
        if known is None:
            known = self._known[log] = _KnownNumbering(Numbering(self._around.logs, log))
        self._known.move_to_end(log)
        return known

    def _count(self, known: _KnownNumbering) -> None:
        """Count the pages and entries that a request left in memory; forget the least recently requested topics."""
        if self._known.get(known.numbering.log) is not known:
            return  # It was forgotten while the request waited for its turn.
        size = known.numbering.size + 1
        self._kept += size - known.size
        known.size = size
        while self._kept > KEPT_MAX and len(self._known) > 1:
            self._kept -= self._known.popitem(last=False)[1].size

    async def _gaps(self, known: _KnownNumbering) -> Sequence[Gap]:
        if known.gaps is None:
            log = known.numbering.log
            record = await self._records.get(gaps_key(log.topic))
            known.gaps = () if record is None else decode_gaps(record.value, log.generation)
        return known.gaps

    async def _range(self, topic: Topic, query: RangeQuery, known: _KnownNumbering) -> Range:
        numbering = known.numbering
        now_ms = self._around.clock.now_ms()
        bound = max(numbering.floor, log_key_before(oldest_live(topic, now_ms)))
        bound = min(bound, numbering.tail)
        after = bound if query.after is None else query.after
        begin = max(after, bound)
        through = numbering.tail if query.through is None else min(query.through, numbering.tail)
        through = max(through, begin)
        start = await numbering.count(begin)
        found = await numbering.seek(start.plus(LogCount(query.messages_max, query.bytes_max)))
        if found <= begin < through:
            found = await numbering.next_id(begin)
        through = min(through, max(found, begin))
        stop = await numbering.count(through)
        lost = sum(gap.messages for gap in await self._gaps(known) if begin < gap.last <= through)
        if after < bound:
            lost += max(start.messages - (await numbering.count_ever(after)).messages, 0)
        ends = await self._ends(numbering, begin, through, query.parts, start, stop)
        return Range(
            earliest=bound,
            latest=numbering.tail,
            after=after,
            through=through,
            messages=stop.messages - start.messages,
            bytes=stop.bytes - start.bytes,
            lost=lost,
            ends=ends,
            generation=topic.generation,
        )

    @staticmethod
    async def _ends(
        numbering: Numbering,
        begin: LogKey,
        through: LogKey,
        parts: int,
        start: LogCount,
        stop: LogCount,
    ) -> list[LogKey]:
        """Return the last ids of parts with about the same number of messages; a small range has fewer parts."""
        if through <= begin:
            return []
        ends: list[LogKey] = []
        is_long = numbering.pages_between(begin, through) >= PAGES_A_PART * parts
        for part in range(1, parts):
            wanted = start.messages + (stop.messages - start.messages) * part // parts
            most = LogCount(wanted, AMOUNT_MAX)
            end = numbering.seek_page(most) if is_long else await numbering.seek(most)
            if (ends[-1] if ends else begin) < end < through:
                ends.append(end)
        return [*ends, through]
