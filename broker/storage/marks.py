"""Marks: what entries carry for later requests, and the rows by which they are found (rule 9).

A mark stands in its entry, so it commits with its messages; a row of its own is only an index::

    append (entry with mark) ──confirmed──▶ pending here ──in bulk, behind──▶ row (kind, key, first id)
                                                                                │
                                           head.marked rises to there  ◀────────┘

Until its row is put, a mark is found here. A claim reads the headers above ``marked`` and puts their rows
itself before it raises ``marked``. A row that is there counts, whatever any clock did.

Two kinds: the mark of an idempotency key, which counts by itself for its window; and that of a producer's number,
of which the newest alone counts, until the producer was silent for long. A producer's numbers rise with its ids,
so a row with a newer one behind it can go at once, and need not be put.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final, NamedTuple

from broker.errors import Fenced
from broker.model import ROW_ID_BYTES, ROW_ID_MAX, RowId
from broker.storage import entry as entries
from broker.storage.entry import MARK_KEY_BYTES, Entry, Mark
from broker.storage.keys import LogId, mark_prefix, prefix_end, space_of
from broker.storage.resolve import Resolver
from broker.storage.table import Cell

IDEMPOTENCY: Final = 1
"""The kind of a mark that an idempotency key leaves; its body is the hash of the request's."""
PRODUCER: Final = 2
"""The kind of a mark that a producer leaves; its body begins with the producer's number."""

PRODUCER_LIFE_MS: Final = 7 * 24 * 3600 * 1000
"""How long a producer that is silent is remembered, beyond the topic's ttl."""

PENDING_MAX: Final = 1000
PENDING_BYTES_MAX: Final = 4 << 20
"""How far the index may lag behind, in entries and their bytes: what a claim has to read."""
PUT_AT: Final = 256
PUT_AFTER_S: Final = 0.5
ROWS_AT_ONCE: Final = 256
FOUND_MAX: Final = 100


class Marks:
    """The marks of one log under one hold."""

    def __init__(self, log: LogId, resolver: Resolver, marked: RowId) -> None:
        """Begin with everything up to ``marked`` on disk."""
        self.marked = marked
        """Marks of ids up to there are on disk."""
        self._log = log
        self._resolver = resolver
        self._pending: dict[tuple[int, bytes], list[Mark]] = {}
        self._order: list[Mark] = []
        self._lag_entries = self._lag_bytes = 0
        self._in_flight = 0
        """Marks of appends under way."""
        self._timer: asyncio.TimerHandle | None = None
        self._putting: asyncio.Task[None] | None = None
        self._closed = False

    def marked_with(self, pointer: RowId, added: Sequence[Entry]) -> RowId:
        """Return ``marked`` for the head of an append that ends at ``pointer``."""
        if self._order or self._in_flight or any(entry.marks for entry in added):
            return self.marked
        return pointer

    def sent(self, added: Sequence[Entry]) -> None:
        """Take note of an append that is under way; ``landed`` when it is not any more."""
        self._in_flight += sum(len(entry.marks) for entry in added)

    def landed(self, added: Sequence[Entry]) -> None:
        """Take note that an append has its outcome."""
        self._in_flight -= sum(len(entry.marks) for entry in added)

    def confirmed(self, pointer: RowId, added: Sequence[Entry]) -> None:
        """Take note of an append that is confirmed."""
        marks = [mark for entry in added for mark in entry.marks]
        if not marks and not self._order:
            self.marked = pointer
            return
        self._lag_entries += len(added)
        self._lag_bytes += sum(entry.size for entry in added)
        self.take(marks)

    def take(self, marks: Sequence[Mark]) -> None:
        """Have rows put for marks that are in the log."""
        for mark in marks:
            self._pending.setdefault((mark.kind, mark.key), []).append(mark)
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
            self._putting = asyncio.ensure_future(self._put())
            self._putting.add_done_callback(self._put_ended)

    def _put_ended(self, done: asyncio.Task[None]) -> None:
        self._putting = None
        if not done.cancelled():
            done.exception()  # Looked at here: without rows the marks stay pending.
        if self._order and not self._closed and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PUT_AFTER_S, self._put_soon)

    @property
    def lags(self) -> bool:
        """True if the index lags further behind than it may: then it is flushed before an append."""
        lag = self._lag_entries >= PENDING_MAX or self._lag_bytes >= PENDING_BYTES_MAX
        return lag and bool(self._order)

    async def flush(self) -> None:
        """Put the rows of all marks that are pending.

        Raises:
            Fenced: the hold was done before; the next claim puts them.
            Unavailable, StorageFull: storage does not take them.
        """
        while self._order:
            if self._closed:
                raise Fenced("Marks are put by the next claim of the log.")
            self._put_soon()
            assert self._putting is not None
            await asyncio.shield(self._putting)

    async def _put(self) -> None:
        order = self._order[:]
        lag_entries, lag_bytes = self._lag_entries, self._lag_bytes
        needed = _that_count(order)
        for first in range(0, len(needed), ROWS_AT_ONCE):
            some = needed[first : first + ROWS_AT_ONCE]
            rows = {mark_key(self._log, mark): encode_mark(mark) for mark in some}
            await self._resolver.read(
                lambda rows=rows: self._resolver.table.put(space_of(self._log), rows)  # type: ignore[misc]
            )
        del self._order[: len(order)]
        for mark in order:
            pending = self._pending[mark.kind, mark.key]
            pending.remove(mark)
            if not pending:
                del self._pending[mark.kind, mark.key]
        self._lag_entries -= lag_entries
        self._lag_bytes -= lag_bytes
        if order:
            self.marked = max(self.marked, order[-1].last)

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
                space_of(self._log), low, low + b"\xff" * ROW_ID_BYTES, limit=limit, reverse=True
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
        """Put nothing more: the hold is done."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()


def mark_key(log: LogId, mark: Mark) -> bytes:
    """Return the row key of a mark."""
    return mark_prefix(log) + bytes([mark.kind]) + mark.key + mark.first


def encode_mark(mark: Mark) -> bytes:
    """Encode the value of a mark's row; kind, key and first id are its key."""
    return entries.checked(mark.last + mark.body)


def decode_mark(row: bytes, value: bytes) -> Mark:
    """Decode a mark's row. Raises StorageCorrupt."""
    body = entries.unchecked(value, "a mark")
    tail = row[-(1 + MARK_KEY_BYTES + ROW_ID_BYTES) :]
    return Mark(
        tail[0],
        tail[1 : 1 + MARK_KEY_BYTES],
        tail[1 + MARK_KEY_BYTES :],
        body[:ROW_ID_BYTES],
        body[ROW_ID_BYTES:],
    )


class MarksBefore(NamedTuple):
    """Marks of which ids may go: of keys those below ``keys``, of silent producers those below ``producers``."""

    keys: RowId
    producers: RowId


ALL_MARKS: Final = MarksBefore(ROW_ID_MAX, ROW_ID_MAX)


async def sweep_marks(
    resolver: Resolver, log: LogId, marked: RowId, before: MarksBefore, after: bytes, limit: int
) -> tuple[int, bytes | None]:
    """Remove marks that count no more, from row ``after`` on: old ones, and those of producers with newer ones.

    Old ones go only at or below ``marked``. Returns how many went and the row from which the next slice goes on;
    None at the end.

    Raises:
        Unavailable: storage does not answer.
    """
    prefix = mark_prefix(log)
    last = prefix_end(prefix)
    limit = max(limit, 2)  # A slice may begin with the row that ended the one before.
    found = await resolver.read(
        lambda: resolver.table.scan(space_of(log), max(prefix, after), last, limit=limit)
    )
    rows = [row for row, _ in found]
    is_end = len(rows) < limit
    # Whether the last row of a slice has a newer one behind it is told by the next slice.
    judged = rows if is_end else rows[:-1]
    old = [
        row
        for row, following in zip_longest(judged, rows[1 : len(judged) + 1], fillvalue=b"")
        if _may_go(row, following, len(prefix), marked, before)
    ]
    if old:
        await resolver.read(lambda: resolver.table.delete(space_of(log), old))
    return len(old), None if is_end else rows[-1]


def _may_go(row: bytes, following: bytes, kind_at: int, marked: RowId, before: MarksBefore) -> bool:
    """True if a mark's row may go, by the row that follows it."""
    first = row[-ROW_ID_BYTES:]
    if row[kind_at] == PRODUCER:
        is_newest = row[:-ROW_ID_BYTES] != following[:-ROW_ID_BYTES]
        return not is_newest or (first < before.producers and first <= marked)
    return first < before.keys and first <= marked


def _that_count(order: Sequence[Mark]) -> list[Mark]:
    """Return marks without those of producers that have a newer one among them."""
    newest = {mark.key: mark for mark in order if mark.kind == PRODUCER}
    return [mark for mark in order if mark.kind != PRODUCER or newest[mark.key] is mark]


async def forget_marks(resolver: Resolver, log: LogId) -> int:
    """Remove every mark of a log that takes no requests any more; return how many went.

    Raises:
        Unavailable: storage does not answer.
    """
    went, after = 0, b""
    while True:
        some, following = await sweep_marks(
            resolver, log, ROW_ID_MAX, ALL_MARKS, after, ROWS_AT_ONCE
        )
        went += some
        if following is None:
            return went
        after = following
