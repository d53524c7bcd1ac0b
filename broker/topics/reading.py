"""Reading a topic as a consumer: pages of a poll's reply, from the cache or from storage.

One Reading is one poll. It goes through the message log row by row, and into the payload log of each
reference that its consumer may see, until its limit, the pointer at its beginning, or a row that holds
it. Where the cache covers what comes next, whole slices of it are taken as they are, ready for the
wire; a row is looked at one by one only where something must be decided.

A committed reference whose payload log shows no seal is impossible in a store that answers truly. So
it is never skipped: the read is repeated, and refused if it stays so.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

from broker import guards
from broker.errors import Unavailable
from broker.model import (
    MESSAGE_ID_BYTES,
    ROW_ID_MAX,
    ROW_ID_MIN,
    Message,
    MessageId,
    Poll,
    RowId,
    Topic,
)
from broker.storage.control import State
from broker.storage.keys import LogId
from broker.storage.ports import PlainRows, Row, Rows
from broker.topics.cache import PlainEntry, TopicCache
from broker.topics.fetch import Verdict, judge, lives, oldest_live, start_of
from broker.topics.surroundings import Surroundings
from broker.wire.blocks import PollDecoder, encode_block, encode_inline_block

STALE_READS_MAX = 5
STALE_READ_PAUSE_S = 0.02
NO_LIMIT = 1 << 62
_SEALED = frozenset({State.SEALED, State.PUBLISHED, State.DROPPED})


class _Reference(NamedTuple):
    """A reference that is being read: the next payloads lie above ``after``."""

    row: RowId
    number: int
    lifetime_ms: int | None
    after: RowId


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
        self._ids: list[MessageId] = []
        self._payloads: list[bytes] = []
        self._blocks: list[bytes | memoryview] = []
        self._bytes = 0

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
        self.ended = self._left <= 0

    async def page(self, cache: TopicCache | None, bytes_max: int) -> bytes:
        """Return the next messages as blocks for the wire; no bytes means the end.

        ``cache`` is that of the topic's leader here, if there is one. It is asked for on every page,
        since leaders come and go while a long reply is being read.

        Raises:
            Unavailable: what storage answers is stale, and stayed so.
        """
        self._bytes = 0
        while not self.ended and self._bytes < bytes_max:
            if self._reference is not None:
                await self._read_payloads(self._reference, bytes_max)
            elif cache is not None and cache.covers(self._after, self._through):
                await self._read_cache(cache, bytes_max)
            else:
                await self._read_storage(bytes_max)
            if self._left <= 0:
                self.ended = True
        self._flush()
        blocks, self._blocks = self._blocks, []
        return b"".join(blocks)

    # The message log.

    async def _read_cache(self, cache: TopicCache, bytes_max: int) -> None:
        self._around.metrics.cache_read(hit=True)
        if self._through is None:
            self._through = cache.pointer
        through = self._through
        for entry, first, stop in cache.runs(self._after, through):
            if isinstance(entry, PlainEntry):
                whole = self._take_run(entry, first, stop, bytes_max)
                if not whole or self._left <= 0 or self._bytes >= bytes_max:
                    return
            else:
                # Judging may wait for storage, during which entries may go: begin again after it.
                end = entry.stop_within(first, stop, bytes_max - self._bytes)
                await self._take_rows(entry.rows(first, end), bytes_max)
                return
        self._after = max(self._after, through)
        self.ended = True

    def _take_run(self, entry: PlainEntry, first: int, stop: int, bytes_max: int) -> bool:
        """Take rows as they are; False if the page is full before the last of them."""
        ids = entry.ids
        bound = oldest_live(self._around.clock.now_ms(), self._topic.ttl_ms)
        if ids[first] == self._start.row and not self._start.inline:
            first += 1
        first = max(first, bisect_left(ids, bound, 0, stop) if ids[0] < bound else first)
        self._after = ids[stop - 1]
        if first >= stop:
            return True
        last = stop
        stop = entry.stop_within(first, min(stop, first + self._left), bytes_max - self._bytes)
        self._flush()
        parts = entry.parts(first, stop)
        self._blocks += parts
        self._bytes += sum(map(len, parts))
        self._count(stop - first)
        self._after = ids[stop - 1]
        return stop == last

    async def _read_storage(self, bytes_max: int) -> None:
        settings = self._around.settings
        self._around.metrics.cache_read(hit=False)
        page = await self._around.store.scan(
            self._log,
            self._after,
            ROW_ID_MAX if self._through is None else self._through,
            rows_max=min(settings.page_rows_max, max(self._left, 16)),
            bytes_max=min(settings.page_bytes_max, bytes_max),
        )
        if self._through is None:
            self._through = page.control.pointer if page.control is not None else ROW_ID_MIN
        if await self._take_rows(page.rows, bytes_max):
            self._after = max(self._after, page.seen)
            self.ended = self.ended or not page.more

    async def _take_rows(self, rows: Sequence[Row], bytes_max: int) -> bool:
        """Take rows in order; False if it stopped before the last of them."""
        now_ms = self._around.clock.now_ms()
        if isinstance(rows, PlainRows):
            return self._take_plain(rows.ids, rows.payloads, now_ms)
        first = 0
        for judged in _to_judge(rows, transactional=self._snapshot is not None):
            if not self._take_unjudged(rows[first:judged], now_ms):
                return False
            first = judged + 1
            if not await self._take_row(rows[judged], now_ms, bytes_max):
                return False
        return self._take_unjudged(rows[first:], now_ms)

    def _take_unjudged(self, rows: Sequence[Row], now_ms: int) -> bool:
        ids = [row[0] for row in rows]
        return self._take_plain(ids, [row[1] or b"" for row in rows], now_ms)

    def _take_plain(self, ids: Sequence[RowId], payloads: Sequence[bytes], now_ms: int) -> bool:
        """Take rows that need no judgement but by their age; False if the limit came before."""
        if not ids:
            return True
        self._after = ids[-1]
        bound = oldest_live(now_ms, self._topic.ttl_ms)
        first = bisect_left(ids, bound) if ids[0] < bound else 0
        if first < len(ids) and ids[first] == self._start.row and not self._start.inline:
            first += 1
        stop = min(len(ids), first + self._left)
        if first < stop:
            self._flush()
            block = encode_inline_block(ids[first:stop], payloads[first:stop])
            self._blocks.append(block)
            self._bytes += len(block)
            self._count(stop - first)
        return self._left > 0

    async def _take_row(self, row: Row, now_ms: int, bytes_max: int) -> bool:
        """Judge one row and take what it shows; False if reading stops there."""
        if row.id == self._start.row and row.payload is not None and not self._start.inline:
            # Whoever begins after this message has it: it may be open and yet holds nothing up.
            self._after = row.id
            return True
        verdict = judge(row.pointer, self._snapshot)
        if verdict is Verdict.HOLD:
            self.blocked_by = row.pointer
            self.ended = True
            return False
        self._after = row.id
        if verdict is Verdict.SKIP or not lives(
            row.id, row.lifetime_ms, now_ms, self._topic.ttl_ms
        ):
            return True
        if row.payload is None:
            await self._enter(row, bytes_max)
        else:
            self._emit(row.id + ROW_ID_MIN, row.payload)
        return self._left > 0 and self._reference is None and self._bytes < bytes_max

    # Payload logs.

    async def _enter(self, row: Row, bytes_max: int) -> None:
        number = row.payload_log
        assert number is not None
        after = self._start.payload_after if row.id == self._start.row else ROW_ID_MIN
        reference = _Reference(row.id, number, row.lifetime_ms, after)
        await self._read_payloads(reference, bytes_max)

    async def _read_payloads(self, reference: _Reference, bytes_max: int) -> None:
        """Read what fits of a reference's payloads; what is left is ``self._reference``."""
        self._reference = reference
        while self._left > 0 and self._bytes < bytes_max:
            page = await scan_payloads(
                self._around,
                self._topic,
                reference.number,
                reference.after,
                self._left,
                bytes_max=bytes_max - self._bytes,
            )
            self._take_payloads(reference, page.rows)
            reference = reference._replace(after=page.seen)
            if not page.more:
                self._reference = None
                return
            self._reference = reference

    def _take_payloads(self, reference: _Reference, rows: Sequence[Row]) -> None:
        now_ms = self._around.clock.now_ms()
        if isinstance(rows, PlainRows):
            if lives(reference.row, reference.lifetime_ms, now_ms, self._topic.ttl_ms):
                self._ids += [reference.row + row for row in rows.ids]
                self._payloads += rows.payloads
                self._bytes += sum(map(len, rows.payloads)) + MESSAGE_ID_BYTES * len(rows)
                self._count(len(rows))
            return
        for row in rows:
            life_ms = shorter(reference.lifetime_ms, row.lifetime_ms)
            if lives(reference.row, life_ms, now_ms, self._topic.ttl_ms):
                self._emit(reference.row + row.id, row.payload or b"")

    # What goes out.

    def _emit(self, identifier: MessageId, payload: bytes) -> None:
        self._ids.append(identifier)
        self._payloads.append(payload)
        self._bytes += len(payload) + len(identifier)
        self._count(1)

    def _count(self, count: int) -> None:
        self._left -= count
        self.messages += count

    def _flush(self) -> None:
        if self._ids:
            self._blocks.append(encode_block(self._ids, self._payloads))
            self._ids, self._payloads = [], []


def _to_judge(rows: Sequence[Row], *, transactional: bool) -> list[int]:
    """Return the places of the rows that are not simply taken by every consumer of this kind."""
    if transactional:
        return [
            place
            for place, (_, payload, pointer, _, lifetime_ms) in enumerate(rows)
            if pointer is not None or payload is None or lifetime_ms is not None
        ]
    return [
        place
        for place, (_, payload, _, _, lifetime_ms) in enumerate(rows)
        if payload is None or lifetime_ms is not None
    ]


def shorter(one_ms: int | None, other_ms: int | None) -> int | None:
    """Return the shorter of two lives, None being the topic's."""
    if one_ms is None or other_ms is None:
        return other_ms if one_ms is None else one_ms
    return min(one_ms, other_ms)


async def scan_payloads(  # noqa: PLR0913 - Each is named by its callers.
    around: Surroundings,
    topic: Topic,
    number: int,
    after: RowId,
    rows_max: int,
    *,
    through: RowId = ROW_ID_MAX,
    reverse: bool = False,
    bytes_max: int | None = None,
) -> Rows:
    """Return a page of a payload log whose reference is committed.

    Raises:
        Unavailable: the log shows no seal, so what answered is stale, and stayed so.
    """
    settings = around.settings
    for _ in range(STALE_READS_MAX):
        page = await around.store.scan(
            LogId(topic.id, topic.generation, number),
            after,
            through,
            rows_max=min(settings.page_rows_max, rows_max),
            bytes_max=min(settings.page_bytes_max, bytes_max or settings.page_bytes_max),
            reverse=reverse,
        )
        sealed = page.control is not None and page.control.state in _SEALED
        if sealed or not guards.holds("seal-first"):
            return page
        await around.clock.sleep(STALE_READ_PAUSE_S)
    raise Unavailable(f"The payloads of transaction {number} can't be read just now. Try again.")


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
