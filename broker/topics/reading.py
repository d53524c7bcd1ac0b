"""Reading a topic as a consumer: pages of a poll's reply, from the cache or from storage.

One Reading is one poll. It goes through the message log entry by entry, and into the payload log of each
reference that its consumer may see, until its limit, the end at its beginning, or an entry that holds it.
Entries are stored as the wire has them, so what is taken is copied; an entry is looked into only where its
edges, its transaction or its lifetime must be judged, once for all its messages.

A committed reference whose payload log is not closed is impossible in a store that answers truly. So it is
never skipped: the read is repeated, and refused if it stays so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Final, Protocol

from broker.errors import Unavailable
from broker.model import ROW_ID_MAX, ROW_ID_MIN, Message, Poll, RowId, Topic
from broker.storage.entry import Entry
from broker.storage.keys import LogId
from broker.storage.reading import LogReader
from broker.storage.root import RootState
from broker.topics.cache import TopicCache
from broker.topics.fetch import Verdict, judge, lives, oldest_live, start_of
from broker.topics.surroundings import Surroundings
from broker.wire.blocks import PollDecoder
from broker.wire.varint import encode_long

STALE_READS_MAX: Final = 5
STALE_READ_PAUSE_S: Final = 0.02
NO_LIMIT: Final = 1 << 62
AT_ONCE_BYTES: Final = 512 * 1024
"""The bytes that a poll reads from storage in one call, and holds while its consumer is slow."""


class _Reference:
    """A reference that is being read, and how far."""

    def __init__(self, entry: Entry, payloads: PayloadReader) -> None:
        self.row = entry.first
        self.lifetime_ms = entry.lifetime_ms
        self.payloads = payloads


class Reading:
    """The state of one poll. ``blocked_by`` is the write pointer at which its scan ended, if one did."""

    def __init__(self, around: Surroundings, topic: Topic, poll: Poll) -> None:
        """Begin where the poll asks, or at the oldest message that lives."""
        self.blocked_by: int | None = None
        self.messages = 0
        self.proven: object | None = None
        """The leader that was shown to lead since this reading began: its cache may be read."""
        self._around = around
        self._topic = topic
        self._log = LogId(topic.id, topic.generation)
        self._snapshot = poll.snapshot
        self._start = start_of(poll, oldest_live(around.clock.now_ms(), topic.ttl_ms))
        self._after = self._start.after
        self._through: RowId | None = None
        limits = (NO_LIMIT, poll.limit, around.settings.poll_messages_max)
        self._left = min(limit for limit in limits if limit is not None)
        self.ended = self._left <= 0
        self._reference: _Reference | None = None
        self._reader: LogReader | None = None
        self._ahead: deque[Entry] = deque()
        """Entries that the reader has read and this poll has not taken yet."""
        self._items: list[bytes] = []
        self._taken = 0
        self._bytes = 0
        self._now_ms = 0
        """When the page began, which the ages of its messages go by."""
        self._oldest = ROW_ID_MIN
        """The oldest id that lives then, by the topic's ttl."""

    @property
    def has_snapshot(self) -> bool:
        """Whether it reads as a transaction does."""
        return self._snapshot is not None

    def follow(self, topic: Topic) -> None:
        """Go by the topic as it is now, if it still is this one: its ttl may have changed."""
        if topic.generation == self._topic.generation:
            self._topic = topic

    def go_on(self) -> None:
        """Read further after an end, since the log has changed: something new may be there.

        Where a transaction held the reading, it may have been rolled back meanwhile.
        """
        self.blocked_by = None
        self._through = None
        self._reader = None
        self.ended = self._left <= 0

    async def page(self, cache: TopicCache | None, bytes_max: int) -> bytes:
        """Return the next messages as blocks for the wire; no bytes means the end.

        ``cache`` is that of the topic's leader here, if there is one. It is asked for on every page,
        since leaders come and go while a long reply is being read.

        Raises:
            Unavailable: what storage answers is stale, and stayed so.
        """
        self._bytes = 0
        self._now_ms = self._around.clock.now_ms()
        self._oldest = oldest_live(self._now_ms, self._topic.ttl_ms)
        while not self.ended and self._bytes < bytes_max:
            if self._reference is not None:
                await self._read_payloads(self._reference, bytes_max)
            elif cache is not None and cache.covers(self._after, self._through):
                await self._read_cache(cache, bytes_max)
            else:
                await self._read_storage(cache, bytes_max)
            if self._left <= 0:
                self.ended = True
        items, taken = self._items, self._taken
        self._items, self._taken = [], 0
        return b"".join((encode_long(taken), *items)) if taken else b""

    # The message log.

    async def _read_cache(self, cache: TopicCache, bytes_max: int) -> None:
        self._around.metrics.cache_read(hit=True)
        self._reader = None
        if self._through is None:
            self._through = cache.pointer
        for entry in cache.entries(self._after, self._through):
            if not self._take(entry, bytes_max):
                if self._reference is not None:
                    # Entries may go while storage is asked: begin again after it.
                    await self._read_payloads(self._reference, bytes_max)
                return
        self._after = max(self._after, self._through)
        self.ended = True

    async def _read_storage(self, cache: TopicCache | None, bytes_max: int) -> None:
        settings = self._around.settings
        self._around.metrics.cache_read(hit=False)
        if self._through is None and cache is not None:
            self._through = cache.pointer
        reader = self._reader
        if reader is None:
            reader = self._around.logs.reader(self._log, self._after, self._through)
            self._reader = reader
            self._ahead.clear()
        if not self._ahead:
            reader.back_to(self._after)
            # One call to storage costs as much as reading several pages.
            self._ahead.extend(
                await reader.next(
                    min(settings.page_bytes_max, AT_ONCE_BYTES),
                    max(min(self._left, settings.page_rows_max), 1),
                )
            )
        while self._ahead:
            if not self._take(self._ahead[0], bytes_max):
                return
            self._ahead.popleft()
        self._after = max(self._after, reader.after)
        if reader.ended:
            self.ended = True

    def _take(self, entry: Entry, bytes_max: int) -> bool:
        """Take what a consumer gets of an entry; False if reading stops before its end."""
        if (
            entry.is_plain
            and not entry.is_stub
            and entry.first > max(self._after, self._start.row or ROW_ID_MIN)
            and entry.first >= self._oldest
            and entry.count <= self._left
            and len(entry.items) <= bytes_max - self._bytes
        ):
            # Most entries are taken whole.
            self._emit(entry.items, entry.count)
            self._after = entry.last
            return self._left > 0 and self._bytes < bytes_max
        first = entry.place_after(self._after)
        if first < entry.count and not self._start.inline and not entry.is_reference:
            # The consumer that begins after this message has it: it may be open and yet holds nothing up.
            first += entry.id(first) == self._start.row
        if first >= entry.count or entry.is_stub:
            self._after = max(self._after, entry.last)
            return True
        if entry.is_plain:
            return self._take_run(entry, first, entry.count, bytes_max)
        return self._take_judged(entry, first, bytes_max)

    def _take_judged(self, entry: Entry, first: int, bytes_max: int) -> bool:
        """Judge an entry whose messages share a transaction, a lifetime or a reference."""
        rolled = bool(entry.rolled) and self._snapshot is not None
        for start, stop in _not_rolled_back(entry, first) if rolled else [(first, entry.count)]:
            verdict = judge(entry.pointer, self._snapshot)
            if verdict is Verdict.HOLD:
                self.blocked_by = entry.pointer
                self.ended = True
                return False
            if verdict is Verdict.SKIP:
                continue
            if entry.is_reference:
                self._after = entry.last
                return self._enter(entry)
            if not self._take_run(entry, start, stop, bytes_max):
                return False
        self._after = max(self._after, entry.last)
        return True

    def _take_run(self, entry: Entry, first: int, stop: int, bytes_max: int) -> bool:
        """Take messages as they are, but for their age; False if the page is full before the last."""
        bound = self._oldest
        if entry.lifetime_ms is not None and entry.lifetime_ms < self._topic.ttl_ms:
            bound = oldest_live(self._now_ms, entry.lifetime_ms)
        if entry.first < bound:
            first = max(first, entry.place_at(bound))
            if first >= stop:
                self._after = max(self._after, entry.id(stop - 1))
                return True
        end = min(stop, first + self._left)
        end = entry.stop_within(first, end, max(bytes_max - self._bytes, 1))
        self._emit(entry.run(first, end), end - first)
        self._after = entry.last if end == entry.count else entry.id(end - 1)
        return end == stop and self._left > 0 and self._bytes < bytes_max

    # Payload logs.

    def _enter(self, entry: Entry) -> bool:
        if not lives(entry.first, entry.lifetime_ms, self._now_ms, self._topic.ttl_ms):
            return True
        assert entry.number is not None
        after = self._start.payload_after if entry.first == self._start.row else ROW_ID_MIN
        payloads = PayloadReader(self._around, self._topic, entry.number, after)
        self._reference = _Reference(entry, payloads)
        return False

    async def _read_payloads(self, reference: _Reference, bytes_max: int) -> None:
        """Read what fits of a reference's payloads; then ``self._reference`` is None, or what is left."""
        payloads = reference.payloads
        while self._left > 0 and self._bytes < bytes_max and not payloads.ended:
            messages_max = min(self._left, self._around.settings.page_rows_max)
            for entry in await payloads.next(bytes_max - self._bytes, messages_max):
                life_ms = shorter(reference.lifetime_ms, entry.lifetime_ms)
                first = entry.place_after(payloads.taken)
                if lives(reference.row, life_ms, self._now_ms, self._topic.ttl_ms):
                    stop = min(entry.count, first + self._left)
                    if first < stop:
                        self._emit(entry.framed(reference.row, first, stop), stop - first)
                    if stop < entry.count:
                        return
                payloads.taken = entry.last
        if payloads.ended:
            self._reference = None

    # What goes out.

    def _emit(self, items: bytes, count: int) -> None:
        self._items.append(items)
        self._bytes += len(items)
        self._taken += count
        self._left -= count
        self.messages += count


def _not_rolled_back(entry: Entry, first: int) -> Iterator[tuple[int, int]]:
    """Yield the places (first, stop) of an entry's messages that were not rolled back."""
    for low, high in entry.rolled:
        stop = max(entry.place_at(low), first)
        if first < stop:
            yield first, stop
        first = max(first, entry.place_after(high))
    if first < entry.count:
        yield first, entry.count


def shorter(one_ms: int | None, other_ms: int | None) -> int | None:
    """Return the shorter of two lives, None being the topic's."""
    if one_ms is None or other_ms is None:
        return other_ms if one_ms is None else one_ms
    return min(one_ms, other_ms)


class PayloadReader:
    """Reads a payload log whose reference is committed, to its closed end or until it was dropped."""

    def __init__(
        self,
        around: Surroundings,
        topic: Topic,
        number: int,
        after: RowId = ROW_ID_MIN,
        through: RowId | None = None,
    ) -> None:
        """Begin behind ``after``."""
        self.taken = after
        """How far the caller has taken messages; the entry that holds it may come once more."""
        self.ended = after >= (ROW_ID_MAX if through is None else through)
        self._around = around
        self._number = number
        self._log = LogId(topic.id, topic.generation, number)
        self._through = through
        self._reader = around.logs.reader(self._log, after, through)
        self._tries = STALE_READS_MAX

    async def next(self, bytes_max: int, messages_max: int = 4096) -> list[Entry]:
        """Return the next entries. Raises Unavailable: the log shows no end, and it stayed so."""
        found = await self._reader.next(bytes_max, messages_max)
        if self._reader.ended and not await self._is_whole():
            await self.read_again()
        return found

    async def backwards(self, cells_max: int, bytes_max: int) -> AsyncGenerator[Entry, None]:
        """Yield all entries, the last one first. Raises Unavailable, as ``next`` does."""
        while not self._reader.ended:
            found = await self._reader.before(cells_max, bytes_max)
            if not self._begins_at_the_end():
                await self.read_again()
                continue
            for entry in found:
                yield entry

    def _begins_at_the_end(self) -> bool:
        """Whether what is read backwards began where nothing can come behind it any more."""
        reader = self._reader
        is_dropped = reader.root is not None and reader.root.state is RootState.DROPPED
        return reader.is_closed or reader.reaches_through or is_dropped

    async def _is_whole(self) -> bool:
        reader = self._reader
        if (
            reader.is_closed
            or (self._through is not None and reader.after >= self._through)
            or (reader.root is not None and reader.root.state is RootState.DROPPED)
        ):
            self.ended = True
        return self.ended

    async def read_again(self) -> None:
        """Wait, and begin again behind what was read. Raises Unavailable after some times."""
        self._tries -= 1
        if not self._tries:
            raise Unavailable(
                f"The payloads of transaction {self._number} can't be read just now. Try again."
            )
        await self._around.clock.sleep(STALE_READ_PAUSE_S)
        self._reader = self._around.logs.reader(self._log, self._reader.after, self._through)


class PollStream:
    """A poll's reply. Its first page is read already; the others are read as they are asked for."""

    def __init__(self, reading: Reading, first: bytes, source: PageSource) -> None:
        """Keep the reading and its first page."""
        self._reading = reading
        self._first = first
        self._source = source
        self.empty = not first
        """Whether there is no message."""

    @property
    def ended(self) -> bool:
        """Whether all that there is has been read."""
        return self._reading.ended

    @property
    def blocked_by(self) -> int | None:
        """The write pointer of the open transaction at which the reply ends, if it ends at one."""
        return self._reading.blocked_by

    @property
    def first(self) -> bytes:
        """The first page; the whole reply if ``ended``."""
        return self._first

    async def blocks(self) -> AsyncIterator[bytes]:
        """Yield blocks for the wire, without the final zero block. Can be asked for once."""
        page, self._first = self._first, b""  # A slow reader's stream holds one page, not two.
        if page:
            yield page
        while not self._reading.ended:
            page = await self._source.next_page(self._reading)
            if page:
                yield page

    async def messages(self) -> AsyncIterator[list[Message]]:
        """Yield the messages."""
        decoder = PollDecoder()
        async for block in self.blocks():
            yield decoder.feed(block)


class PageSource(Protocol):
    """Where a stream gets its next page: the topic's cache of the moment, or storage."""

    async def next_page(self, reading: Reading) -> bytes:
        """Return the next page of a reading."""
