"""Marks: notes in entries for later requests, and the rows that index them (rule 9).

A mark is part of its entry, so it commits with its messages. The mark's own row is only an index::

    append (entry with mark) ──confirmed──▶ pending in memory ──later, in batches──▶ row (kind, key, first id)
                                                                                       │
                                           head.marked rises to the mark's last id ◀───┘

Until its row is put, ``find`` finds a mark in memory. A claim reads the entries above ``marked``, and puts the
rows of their marks before ``marked`` rises. How long a mark counts is the leader's affair (topics/mark_window.py).

There are two kinds. The mark of an idempotency key counts for its window. Of the marks of a producer's numbers
only the newest counts, until the producer was silent for long. A producer's numbers rise with its ids. So a row
with a newer one behind it can be removed at once, or need not be put at all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final, NamedTuple

from broker.errors import Fenced
from broker.model import LOG_KEY_BYTES, LOG_KEY_MAX, LogKey
from broker.shield import begin, result_of
from broker.storage import entry as entries
from broker.storage.entry import MARK_KEY_BYTES, Entry, Mark
from broker.storage.keys import LogId, mark_prefix, prefix_end, space_of
from broker.storage.resolve import Resolver
from broker.storage.table import Cell

IDEMPOTENCY: Final = 1
"""The kind of an idempotency key's mark. Its body is the hash of the request's body."""
PRODUCER: Final = 2
"""The kind of a producer's mark. Its body begins with the producer's number."""

PRODUCER_LIFE_MS: Final = 7 * 24 * 3600 * 1000
"""How long the mark of a silent producer is kept, beyond the topic's ttl."""

PENDING_MAX: Final = 1000
PENDING_BYTES_MAX: Final = 4 << 20
PENDING_MARKS_MAX: Final = 10_000
"""How far the index may lag behind, in entries, bytes and marks. A claim has to read that much."""
PUT_AT: Final = 256
PUT_AFTER_S: Final = 0.5
ROWS_AT_ONCE: Final = 256
MARKS_AT_ONCE: Final = 1024
"""How many marks one put covers at most. Of a producer's marks it puts the newest alone."""
FOUND_MAX: Final = 100


class Marks:
    """The marks of one log under one hold."""

    def __init__(self, log: LogId, resolver: Resolver, marked: LogKey) -> None:
        """Begin; the rows of all marks up to ``marked`` are on disk."""
        self.marked = marked
        """The rows of marks of ids up to this one are on disk."""
        self._log = log
        self._resolver = resolver
        self._pending: dict[tuple[int, bytes], deque[Mark]] = {}
        self._order: deque[Mark] = deque()
        self._removed = 0
        """How many marks have left ``_order``."""
        self._lag_entries = self._lag_bytes = 0
        self._in_flight = 0
        """How many marks are in appends in flight."""
        self._timer: asyncio.TimerHandle | None = None
        self._putting: asyncio.Task[None] | None = None
        self._closed = False

    def marked_with(self, pointer: LogKey, added: Sequence[Entry]) -> LogKey:
        """Return ``marked`` for the head of an append that ends at ``pointer``."""
        if self._order or self._in_flight or any(entry.marks for entry in added):
            return self.marked
        return pointer

    def sent(self, added: Sequence[Entry]) -> None:
        """Count the marks of an append that is now in flight. The caller calls ``landed`` when it ends."""
        self._in_flight += sum(len(entry.marks) for entry in added)

    def landed(self, added: Sequence[Entry]) -> None:
        """Stop counting the marks of an append: it is not in flight any more."""
        self._in_flight -= sum(len(entry.marks) for entry in added)

    def confirmed(self, pointer: LogKey, added: Sequence[Entry]) -> None:
        """Take the marks of a confirmed append, to put their rows."""
        marks = [mark for entry in added for mark in entry.marks]
        if not marks and not self._order:
            self.marked = pointer
            return
        self._lag_entries += len(added)
        self._lag_bytes += sum(entry.size for entry in added)
        self.take(marks)

    def take(self, marks: Sequence[Mark]) -> None:
        """Keep marks that are in the log, and put their rows soon."""
        for mark in marks:
            self._pending.setdefault((mark.kind, mark.key), deque()).append(mark)
            self._order.append(mark)
        if not self._order or self._closed:
            return
        if len(self._order) >= PUT_AT:
            self._put_soon()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PUT_AFTER_S, self._put_soon)

    def _put_soon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._putting is None and not self._closed:
            # After an error the marks stay pending, and a later put tries again.
            self._putting = begin(self._put_pending())

    async def _put_pending(self) -> None:
        try:
            await self._put()
        finally:
            # Here, not in a callback: a flush that begins in between would wait for a task that is done.
            self._putting = None
            if self._order and not self._closed and self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(PUT_AFTER_S, self._put_soon)

    @property
    def lags(self) -> bool:
        """True if the index lags too far behind: then the hold flushes it before the next append."""
        return bool(self._order) and (
            self._lag_entries >= PENDING_MAX
            or self._lag_bytes >= PENDING_BYTES_MAX
            or len(self._order) >= PENDING_MARKS_MAX
        )

    async def flush(self) -> None:
        """Put the rows of all marks that are pending now. Marks that are confirmed meanwhile may stay pending.

        Raises:
            Fenced: the hold was done before; the next claim puts them.
            Unavailable, StorageFull: storage does not take the rows.
        """
        through = self._removed + len(self._order)
        while self._removed < through:
            if self._closed:
                raise Fenced("The next claim of the log puts its marks.")
            self._put_soon()
            assert self._putting is not None
            await result_of(self._putting)

    async def _put(self) -> None:
        """Put the rows of the marks that are pending now, slice by slice, and stop keeping them."""
        through = self._removed + len(self._order)
        lag_entries, lag_bytes = self._lag_entries, self._lag_bytes
        while self._removed < through:
            some, needed = self._slice()
            rows = {mark_key(self._log, mark): encode_mark(mark) for mark in needed}
            if rows:
                await self._resolver.read(
                    lambda rows=rows: self._resolver.table.put(space_of(self._log), rows)  # type: ignore[misc]
                )
            self._remove(some)
            # A slice of producers' older marks has no row to wait for.
            await asyncio.sleep(0)
        self._lag_entries -= lag_entries
        self._lag_bytes -= lag_bytes

    def _slice(self) -> tuple[int, list[Mark]]:
        """Return how many of the first marks one put covers, and those of them that need a row.

        Of a producer's marks only the newest needs one. Marks of one request have the same last id, and ``marked``
        rises to it: so they are in one slice.
        """
        needed: list[Mark] = []
        some, last = 0, LOG_KEY_MAX
        for mark in self._order:
            is_full = len(needed) >= ROWS_AT_ONCE or some >= MARKS_AT_ONCE
            if is_full and mark.last != last:
                break
            some, last = some + 1, mark.last
            if mark.kind != PRODUCER or self._pending[mark.kind, mark.key][-1] is mark:
                needed.append(mark)
        return some, needed

    def _remove(self, some: int) -> None:
        """Stop keeping the first marks: their rows are on disk, or no request needs them."""
        for _ in range(some):
            mark = self._order.popleft()
            self.marked = max(self.marked, mark.last)
            pending = self._pending[mark.kind, mark.key]
            pending.popleft()
            if not pending:
                del self._pending[mark.kind, mark.key]
        self._removed += some

    async def find(self, kind: int, key: bytes) -> list[Mark]:
        """Return the last marks of a key, the oldest first. Raises Unavailable, StorageCorrupt."""
        pending = tuple(self._pending.get((kind, key), ()))
        found = await self._rows(kind, key, FOUND_MAX)
        marks = [decode_mark(row, cell.value) for row, cell in reversed(found)]
        return [*marks, *(mark for mark in pending if mark not in marks)]

    async def _rows(self, kind: int, key: bytes, limit: int) -> list[tuple[bytes, Cell]]:
        low = mark_prefix(self._log) + bytes([kind]) + key
        return await self._resolver.read(
            lambda: self._resolver.table.scan(
                space_of(self._log), low, low + b"\xff" * LOG_KEY_BYTES, limit=limit, reverse=True
            )
        )

    async def newest(self, kind: int, key: bytes) -> Mark | None:
        """Return the last mark of a key. Raises Unavailable, StorageCorrupt."""
        pending = self._pending.get((kind, key))
        if pending:
            return pending[-1]
        found = await self._rows(kind, key, 1)
        return decode_mark(found[0][0], found[0][1].value) if found else None

    def close(self) -> None:
        """Put no more rows: the hold is done."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()


def mark_key(log: LogId, mark: Mark) -> bytes:
    """Return the row key of a mark."""
    return mark_prefix(log) + bytes([mark.kind]) + mark.key + mark.first


def encode_mark(mark: Mark) -> bytes:
    """Encode the value of a mark's row; kind, key and first id are in the row's key."""
    return entries.checked(mark.last + mark.body)


def decode_mark(row: bytes, value: bytes) -> Mark:
    """Decode a mark's row. Raises StorageCorrupt."""
    body = entries.unchecked(value, "a mark")
    tail = row[-(1 + MARK_KEY_BYTES + LOG_KEY_BYTES) :]
    return Mark(
        tail[0],
        tail[1 : 1 + MARK_KEY_BYTES],
        tail[1 + MARK_KEY_BYTES :],
        body[:LOG_KEY_BYTES],
        body[LOG_KEY_BYTES:],
    )


class MarksBefore(NamedTuple):
    """Bounds for removing marks by their first id.

    Marks of idempotency keys below ``keys`` may be removed, and marks of silent producers below ``producers``.
    """

    keys: LogKey
    producers: LogKey


ALL_MARKS: Final = MarksBefore(LOG_KEY_MAX, LOG_KEY_MAX)


async def sweep_marks(
    resolver: Resolver, log: LogId, marked: LogKey, before: MarksBefore, after: bytes, limit: int
) -> tuple[int, bytes | None]:
    """Remove a slice of the marks that no longer count, from row ``after`` on.

    These are old marks, and marks of producers that have a newer one. Old marks are removed only at or below
    ``marked``. Returns how many it removed, and the row at which the next slice begins (None: it was the last).

    Raises:
        Unavailable: storage does not answer.
    """
    prefix = mark_prefix(log)
    last = prefix_end(prefix)
    limit = max(limit, 2)  # Each slice begins with the last row of the slice before.
    found = await resolver.read(
        lambda: resolver.table.scan(space_of(log), max(prefix, after), last, limit=limit)
    )
    rows = [row for row, _ in found]
    is_end = len(rows) < limit
    # The next slice shows whether the last row of this one has a newer row behind it.
    judged = rows if is_end else rows[:-1]
    old = [
        row
        for row, following in zip_longest(judged, rows[1 : len(judged) + 1], fillvalue=b"")
        if _may_go(row, following, len(prefix), marked, before)
    ]
    if old:
        await resolver.read(lambda: resolver.table.delete(space_of(log), old))
    return len(old), None if is_end else rows[-1]


def _may_go(
    row: bytes, following: bytes, kind_at: int, marked: LogKey, before: MarksBefore
) -> bool:
    """True if a mark's row may be removed, given the row that follows it."""
    first = row[-LOG_KEY_BYTES:]
    if row[kind_at] == PRODUCER:
        is_newest = row[:-LOG_KEY_BYTES] != following[:-LOG_KEY_BYTES]
        return not is_newest or (first < before.producers and first <= marked)
    return first < before.keys and first <= marked


async def forget_marks(resolver: Resolver, log: LogId) -> int:
    """Remove every mark of a log that takes no more requests; return how many it removed.

    Raises:
        Unavailable: storage does not answer.
    """
    went, after = 0, b""
    while True:
        some, following = await sweep_marks(
            resolver, log, LOG_KEY_MAX, ALL_MARKS, after, ROWS_AT_ONCE
        )
        went += some
        if following is None:
            return went
        after = following
