"""Read a topic as a consumer: pages of a poll or of a bulk read, from the cache or from storage.

One TopicReading is one poll or one bulk read. It goes through the message log entry by entry, and into the payload
log of each reference that its consumer may see. It stops at its limit, at an entry that blocks it, or at the log's
end, which it notes when it begins. Entries are stored in the wire's format, so a reading takes runs of messages
(pages.py). It looks into an entry only to judge its edges, its transaction or its lifetime, once for all its messages.

A **bounded** reading has all messages through an id that the broker gave to the caller, so the log has that id. If
storage shows less, that is a stale read: the reading reads again, and is refused if storage still shows less. A
bounded reading never ends with fewer messages.

If a committed reference has an open payload log, that is also a stale read: it is impossible in an up-to-date store.
So a reading never skips the reference: it reads again, and is refused if the log still shows no end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from broker.errors import BadRequest, Unavailable
from broker.http.budget import BudgetKind, Usage
from broker.long_work import Pace
from broker.model import LOG_KEY_BYTES, LOG_KEY_MAX, LOG_KEY_MIN, LogKey, Poll, Topic
from broker.storage.entry import Entry
from broker.storage.keys import LogId
from broker.storage.log_reader import LogReader
from broker.topics.cache import TopicCache
from broker.topics.fetch import FetchAction, judge, lives, oldest_live, start_of
from broker.topics.pages import PollPage, Run
from broker.topics.payload_reader import (
    STALE_READ_PAUSE_S,
    STALE_READS_MAX,
    PayloadReader,
    shorter,
)
from broker.topics.surroundings import Surroundings

NO_LIMIT: Final = 1 << 62
AT_ONCE_BYTES: Final = 512 * 1024
"""The bytes that a reading takes from storage in one call, unless its pages are larger. It keeps them in memory while
its consumer is slow."""
MESSAGES_AT_ONCE: Final = 256
"""The entries of one step of a reading. After a step it counts them, and may let other work run."""
_LEAD_BYTES: Final = 1 + LOG_KEY_BYTES
"""The bytes that an item in a reply has before those of an item in a payload log."""


class _Reference:
    """A reference that is being read, with its reader."""

    def __init__(self, entry: Entry, payloads: PayloadReader) -> None:
        self.key = entry.first
        self.lifetime_ms = entry.lifetime_ms
        self.payloads = payloads


class TopicReading:
    """The state of one reading. ``blocked_by`` is the write pointer that blocks it, if one does."""

    def __init__(
        self,
        around: Surroundings,
        topic: Topic,
        poll: Poll,
        through: LogKey | None = None,
        usage: Usage | None = None,
    ) -> None:
        """Begin at the start of ``poll``, or at the oldest live message.

        With ``through`` the reading is bounded: it has all messages up to that id, and no limit counts. ``usage`` is
        the request's: it counts the entries that were read since the last page with messages.
        """
        self.blocked_by: int | None = None
        self.proven: object | None = None
        """The leader that has proven its leadership since this reading began: this reading may use its cache."""
        self._around = around
        self._usage = usage or Usage(None)
        self._pace: Pace | None = None
        self._topic = topic
        self._log = LogId(topic.id, topic.generation)
        self._snapshot = poll.snapshot
        self._start = start_of(poll, oldest_live(topic, around.clock.now_ms()))
        self._start_key = self._start.key or LOG_KEY_MIN
        self._after = self._start.after
        self._through = through
        """The id at which this reading ends; None until its first page finds the log's end."""
        self._bound = through
        self._last = LOG_KEY_MAX if through is None else through
        limits = (NO_LIMIT, poll.limit, around.settings.poll_messages_max)
        self._left = min(limit for limit in limits if limit is not None)
        if through is not None:
            self._left = NO_LIMIT
        self.ended = self._left <= 0 or self._after >= self._last
        self._reference: _Reference | None = None
        self._reader: LogReader | None = None
        self._ahead: deque[Entry] = deque()
        """Entries that the reader has read, and this reading has not taken yet."""
        self._messages_min = 1
        """The least number of messages of the next read of storage. It doubles with each read that brings none."""
        self._tries = STALE_READS_MAX
        """The number of stale reads that a bounded reading still allows."""
        self._runs: list[Run] = []
        self._left_before_page = self._left
        """The value of ``_left`` before this page."""
        self._bytes = 0
        self._now_ms = 0
        """The time when the page began. The ages of its messages are measured at this time."""
        self._oldest = LOG_KEY_MIN
        """The oldest live id at this time, by the topic's ttl and its purge."""

    @property
    def generation(self) -> int:
        """Return the generation of the topic that it reads."""
        return self._log.generation

    @property
    def has_snapshot(self) -> bool:
        """Return whether it reads with a transaction's snapshot."""
        return self._snapshot is not None

    def follow(self, topic: Topic) -> None:
        """Adopt the topic's present record, if the generation is the same: its ttl may have changed, or a purge."""
        if topic.generation == self._topic.generation:
            self._topic = topic

    def go_on(self) -> None:
        """Let a poll read on after its end, because the log has changed: it may have new messages.

        If a transaction blocked the reading, it may have been rolled back meanwhile.
        """
        self.blocked_by = None
        self._through = None
        self._reader = None
        self.ended = self._left <= 0

    async def page(self, cache: TopicCache | None, bytes_max: int) -> PollPage:
        """Return the next messages, of about ``bytes_max`` bytes. A page without messages means the end.

        ``cache`` is that of the topic's leader on this node, if there is one. The caller passes it for every page,
        because leaders change while a consumer reads a long reply.

        Raises:
            Unavailable: storage gives stale reads, and keeps doing so.
            BadRequest: a bounded reading asks for more than the log has.
            Overloaded: it read too many rows without finding a message.
        """
        self._bytes = 0
        self._now_ms = self._around.clock.now_ms()
        self._oldest = oldest_live(self._topic, self._now_ms)
        while not self.ended and self._bytes < bytes_max:
            if self._reference is not None:
                await self._read_payloads(self._reference, bytes_max)
            elif cache is not None and cache.covers(self._after, self._through):
                await self._read_cache(cache, bytes_max)
            else:
                await self._read_storage(cache, bytes_max)
            if self._left <= 0:
                self.ended = True
        page = PollPage(self._runs, self._left_before_page - self._left, self._bytes)
        self._runs, self._left_before_page = [], self._left
        if page.count and self._pace is not None:
            self._usage.give(BudgetKind.ROWS)
        return page

    async def _count_step(self, rows: int = MESSAGES_AT_ONCE) -> None:
        """Count one step's rows, and let other work run if this took long."""
        self._usage.take(BudgetKind.ROWS, rows)
        if self._pace is None:
            self._pace = Pace()
        await self._pace.step()

    # The message log.

    async def _read_cache(self, cache: TopicCache, bytes_max: int) -> None:
        self._around.metrics.cache_reads.add("hit")
        self._reader = None
        if self._through is None:
            self._through = cache.pointer
        while self._take_cached(cache, self._through, bytes_max):
            await self._count_step()
            # Entries may have been evicted meanwhile, and the leader may have ended.
            if not cache.covers(self._after, self._through):
                return
        if self._reference is not None:
            await self._read_payloads(self._reference, bytes_max)

    def _take_cached(self, cache: TopicCache, through: LogKey, bytes_max: int) -> bool:
        """Take a step's entries. Return False at the end of the page or cache, or at a reference to read first."""
        for count, entry in enumerate(cache.entries(self._after, through)):
            if count == MESSAGES_AT_ONCE:
                return True
            if not self._take(entry, bytes_max):
                return False
        self._after = max(self._after, through)
        self.ended = True
        return False

    async def _read_storage(self, cache: TopicCache | None, bytes_max: int) -> None:
        settings = self._around.settings
        self._around.metrics.cache_reads.add("miss")
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
                    min(settings.page_bytes_max, max(bytes_max, AT_ONCE_BYTES)),
                    min(max(self._left, self._messages_min), settings.page_messages_max),
                )
            )
        if not await self._take_all_ahead(bytes_max):
            return
        self._after = max(self._after, reader.after)
        if reader.ended:
            self.ended = self._is_complete(reader)
            if not self.ended:
                await self._wait_before_rereading()

    async def _take_all_ahead(self, bytes_max: int) -> bool:
        """Take the entries that were read. Return False if reading stops before the end of one."""
        left = self._left
        while len(self._ahead) > MESSAGES_AT_ONCE:
            if not self._take_ahead(MESSAGES_AT_ONCE, bytes_max):
                return False
            await self._count_step()
        count = len(self._ahead)
        if not self._take_ahead(count, bytes_max):
            return False
        if self._left < left:
            self._messages_min = 1
        elif count:
            self._messages_min = min(2 * self._messages_min, MESSAGES_AT_ONCE)
            await self._count_step(count)
        return True

    def _take_ahead(self, count: int, bytes_max: int) -> bool:
        """Take ``count`` of the entries that were read. Return False if reading stops before the end of one."""
        for _ in range(count):
            if not self._take(self._ahead[0], bytes_max):
                return False
            self._ahead.popleft()
        return True

    def _is_complete(self, reader: LogReader) -> bool:
        """Return whether storage showed all messages that the reading must have."""
        return self._bound is None or reader.reached >= self._bound

    async def _wait_before_rereading(self) -> None:
        """Wait before reading storage again: it showed less than the reading must have."""
        if self._around.is_alone:
            # No other node writes to this storage, so a read is never stale.
            raise BadRequest(
                "through lies behind the topic's latest message. Ask for a range that ends at that message."
            )
        self._tries -= 1
        if not self._tries:
            raise Unavailable(
                "This node finds no message at or behind through in storage just now. Try again."
            )
        await self._around.clock.sleep(STALE_READ_PAUSE_S)
        self._reader = None

    def _take(self, entry: Entry, bytes_max: int) -> bool:
        """Take the messages of an entry that the consumer gets. Return False if reading stops before its end."""
        if (
            entry.is_plain
            and not entry.is_stub
            and entry.first > self._after
            and entry.first > self._start_key
            and entry.first >= self._oldest
            and entry.last <= self._last
            and entry.count <= self._left
            and len(entry.items) <= bytes_max - self._bytes
            and not entry.attributed
        ):
            # The fast path: most entries are taken whole.
            count = entry.count
            self._runs.append((entry, 0, count, None))
            self._bytes += len(entry.items)
            self._left -= count
            self._after = entry.last
            return self._left > 0 and self._bytes < bytes_max
        if entry.last > self._last:
            if entry.first > self._last:
                self.ended = True
                return False
            entry = entry.within(LOG_KEY_MIN, self._last)
        first = entry.place_after(self._after)
        if first < entry.count and not self._start.inline and not entry.is_reference:
            # The consumer begins after this message, and has it: even if it is open, it blocks nothing.
            first += entry.id(first) == self._start.key
        # An expired message is never shown, so it blocks nothing either, even if it is open.
        first = max(first, entry.place_at(self._oldest_of(entry)))
        if first >= entry.count or entry.is_stub:
            self._around.gaps.note(self._topic.id, entry)
            self._after = max(self._after, entry.last)
            return True
        if entry.is_plain:
            return self._take_run(entry, first, entry.count, bytes_max)
        return self._take_judged(entry, first, bytes_max)

    def _oldest_of(self, entry: Entry) -> LogKey:
        """Return the oldest live id for an entry's messages."""
        if entry.lifetime_ms is None:
            return self._oldest
        return oldest_live(self._topic, self._now_ms, entry.lifetime_ms)

    def _take_judged(self, entry: Entry, first: int, bytes_max: int) -> bool:
        """Judge an entry whose messages share a transaction, a lifetime or a reference."""
        rolled = bool(entry.rolled) and self._snapshot is not None
        for start, stop in _not_rolled_back(entry, first) if rolled else [(first, entry.count)]:
            verdict = judge(entry.pointer, self._snapshot)
            if verdict is FetchAction.BLOCK:
                self.blocked_by = entry.pointer
                self.ended = True
                return False
            if verdict is FetchAction.SKIP:
                continue
            if entry.is_reference:
                self._after = entry.last
                self._open_reference(entry)
                return False
            if not self._take_run(entry, start, stop, bytes_max):
                return False
        self._after = max(self._after, entry.last)
        return True

    def _take_run(self, entry: Entry, first: int, stop: int, bytes_max: int) -> bool:
        """Take live messages without further judgement. Return False if the page is full before the last one."""
        end = min(stop, first + self._left)
        end = entry.stop_within(first, end, max(bytes_max - self._bytes, 1))
        self._emit(entry, first, end, entry.run_bytes(first, end))
        self._after = entry.last if end == entry.count else entry.id(end - 1)
        return end == stop and self._left > 0 and self._bytes < bytes_max

    # Payload logs.

    def _open_reference(self, entry: Entry) -> None:
        assert entry.number is not None
        after = self._start.payload_after if entry.first == self._start.key else LOG_KEY_MIN
        payloads = PayloadReader(self._around, self._topic, entry.number, after)
        self._reference = _Reference(entry, payloads)

    async def _read_payloads(self, reference: _Reference, bytes_max: int) -> None:
        """Read as many of a reference's payloads as fit. Clear ``self._reference`` if none are left."""
        payloads = reference.payloads
        while self._left > 0 and self._bytes < bytes_max and not payloads.ended:
            messages_max = min(self._left, self._around.settings.page_messages_max)
            for entry in await payloads.next(bytes_max - self._bytes, messages_max):
                self._around.gaps.note(self._topic.id, entry)
                life_ms = shorter(reference.lifetime_ms, entry.lifetime_ms)
                first = entry.place_after(payloads.taken)
                if lives(self._topic, reference.key, life_ms, self._now_ms):
                    stop = min(entry.count, first + self._left)
                    if first < stop:
                        size = entry.run_bytes(first, stop) + _LEAD_BYTES * (stop - first)
                        self._emit(entry, first, stop, size, reference.key)
                    if stop < entry.count:
                        return
                payloads.taken = entry.last
        if payloads.ended:
            self._reference = None

    # The page.

    def _emit(
        self, entry: Entry, first: int, stop: int, size: int, reference: LogKey | None = None
    ) -> None:
        self._runs.append((entry, first, stop, reference))
        if entry.attributed:
            size += sum([len(each) for _, each in entry.attributes(first, stop)])
        self._bytes += size
        self._left -= stop - first


def _not_rolled_back(entry: Entry, first: int) -> Iterator[tuple[int, int]]:
    """Yield the places (first, stop) of runs of an entry's messages that were not rolled back."""
    for low, high in entry.rolled:
        stop = max(entry.place_at(low), first)
        if first < stop:
            yield first, stop
        first = max(first, entry.place_after(high))
    if first < entry.count:
        yield first, entry.count
