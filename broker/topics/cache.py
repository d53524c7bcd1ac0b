"""Recent messages, in memory, encoded for the wire when they are first read.

A topic's cache is an unbroken run of its newest committed rows: everything between its first row and
the pointer is in it, so a reader that starts inside needs no storage. It consists of entries in order::

    plain entry    ids and payloads, each its own message: no pointer, no reference, the topic's ttl.
                   Small commits are gathered into one entry. A full one is encoded once, and any
                   slice of it is a ready block of a reply; an open one is encoded as it is asked for.
    mixed entry    rows as they are, to be judged one by one.

All caches of a node share one budget in bytes, and the oldest entry of all goes first. Entries of one
topic are admitted in order, so what goes is always the left end of some topic: the run stays unbroken.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain

from broker.model import RowId
from broker.storage.ports import Batch, Row, Segment
from broker.wire.blocks import EncodedItems, encode_inline_items

ENTRY_BYTES_MAX = 512 * 1024
ENTRY_ROWS_MAX = 2048
ROW_OVERHEAD_BYTES = 120
"""What Python keeps beside a payload: two bytes objects and their places in lists."""


class PlainEntry:
    """Rows that every consumer takes, as parallel lists of ids and payloads."""

    __slots__ = ("_encoded", "bytes", "ids", "open", "owner", "payloads")

    def __init__(self, owner: TopicCache, ids: Sequence[RowId], payloads: Sequence[bytes]) -> None:
        """Begin with the rows of one commit."""
        self.owner = owner
        self.ids = list(ids)
        self.payloads = list(payloads)
        self.bytes = _plain_bytes(payloads)
        self.open = True
        self._encoded: EncodedItems | None = None

    def extend(self, ids: Sequence[RowId], payloads: Sequence[bytes]) -> int:
        """Add rows behind; return the bytes that they take."""
        self.ids += ids
        self.payloads += payloads
        added = _plain_bytes(payloads)
        self.bytes += added
        return added

    def fits_more(self) -> bool:
        """Whether further rows may be gathered here."""
        return self.open and self.bytes < ENTRY_BYTES_MAX and len(self.ids) < ENTRY_ROWS_MAX

    def block(self, first: int, stop: int) -> bytes:
        """Return rows ``first`` to ``stop`` (exclusive) as a block of a poll's reply."""
        if self.open:
            return encode_inline_items(self.ids[first:stop], self.payloads[first:stop]).block()
        if self._encoded is None:
            self._encoded = encode_inline_items(self.ids, self.payloads)
            self.payloads = []
        return self._encoded.block(first, stop)

    def rows(self, first: int, stop: int) -> list[Row]:
        """Return rows ``first`` to ``stop`` (exclusive)."""
        if self._encoded is None:
            payloads = self.payloads[first:stop]
        else:
            payloads = [self._payload(index) for index in range(first, stop)]
        return [Row(i, p) for i, p in zip(self.ids[first:stop], payloads, strict=True)]

    def _payload(self, index: int) -> bytes:
        # An item is its id's length (1 byte), 20 bytes of id, the payload's length (7 bits a byte,
        # the last one below 128), and the payload.
        assert self._encoded is not None
        data, offsets = self._encoded.data, self._encoded.offsets
        start = offsets[index] + 21
        while data[start] >= 0x80:
            start += 1
        return data[start + 1 : offsets[index + 1]]


def _plain_bytes(payloads: Sequence[bytes]) -> int:
    return sum(map(len, payloads)) + ROW_OVERHEAD_BYTES * len(payloads)


class MixedEntry:
    """Rows that must be judged."""

    __slots__ = ("_rows", "bytes", "ids", "owner")

    def __init__(self, owner: TopicCache, rows: list[Row]) -> None:
        """Keep the rows of one commit."""
        self.owner = owner
        self.ids = [row.id for row in rows]
        self._rows = rows
        self.bytes = sum(len(row.payload or b"") + 2 * ROW_OVERHEAD_BYTES for row in rows)

    def rows(self, first: int, stop: int) -> list[Row]:
        """Return rows ``first`` to ``stop`` (exclusive)."""
        return self._rows[first:stop]

    def negate(self, first: RowId, last: RowId, pointer: int) -> None:
        """Mark the rows in ``[first, last]`` with this pointer as rolled back."""
        self._rows = [
            row._replace(pointer=-pointer)
            if first <= row.id <= last and row.pointer == pointer
            else row
            for row in self._rows
        ]


Entry = PlainEntry | MixedEntry


class CacheBudget:
    """The bytes that all caches of a node share, and the order in which entries go."""

    def __init__(self, bytes_max: int) -> None:
        """Start empty; ``bytes_max`` 0 switches caching off."""
        self.bytes_max = bytes_max
        self.bytes = 0
        self._entries: deque[Entry] = deque()

    def admit(self, entry: Entry) -> None:
        """Count a new entry in, and let the oldest of all go while over the bound."""
        self._entries.append(entry)
        self.grow(entry.bytes)

    def grow(self, size: int) -> None:
        """Count further bytes of an entry that is in already."""
        self.bytes += size
        while self.bytes > self.bytes_max and self._entries:
            self._leave(self._entries.popleft())

    def _leave(self, entry: Entry) -> None:
        if entry.owner.forget_oldest(entry):
            self.bytes -= entry.bytes

    def withdraw(self, entries: Sequence[Entry]) -> None:
        """Stop counting entries that their topic dropped by itself."""
        self.bytes -= sum(entry.bytes for entry in entries)


class TopicCache:
    """The newest rows of one topic under one hold. Empty until the first commit under it.

    ``after`` is the id above which everything committed is here.
    """

    def __init__(self, budget: CacheBudget, pointer: RowId) -> None:
        """Start empty at the claim's pointer."""
        self._budget = budget
        self._entries: list[Entry] = []
        self._firsts: list[RowId] = []
        self._gone = 0
        self.after = pointer
        self.pointer = pointer

    def add(self, batch: Batch) -> None:
        """Add a batch that was just committed."""
        for segment in batch.segments:
            if _is_plain(segment):
                self._add_plain(segment.ids, segment.payloads or ())
            else:
                self._append(MixedEntry(self, rows_of(segment)))
        self.pointer = batch.last

    def _add_plain(self, ids: Sequence[RowId], payloads: Sequence[bytes]) -> None:
        newest = self._entries[-1] if len(self._entries) > self._gone else None
        if isinstance(newest, PlainEntry) and newest.fits_more():
            self._budget.grow(newest.extend(ids, payloads))
        else:
            if isinstance(newest, PlainEntry):
                newest.open = False
            self._append(PlainEntry(self, ids, payloads))

    def _append(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._firsts.append(entry.ids[0])
        self._budget.admit(entry)

    def forget_oldest(self, entry: Entry) -> bool:
        """Let the oldest entry go; False if it had gone already."""
        if len(self._entries) <= self._gone or self._entries[self._gone] is not entry:
            return False
        self.after = entry.ids[-1]
        self._gone += 1
        if self._gone > 64 and self._gone * 2 > len(self._entries):
            del self._entries[: self._gone], self._firsts[: self._gone]
            self._gone = 0
        return True

    def clear(self) -> None:
        """Forget everything: the hold has ended."""
        self._budget.withdraw(self._entries[self._gone :])
        self._entries, self._firsts, self._gone = [], [], 0
        self.after = self.pointer

    def covers(self, after: RowId) -> bool:
        """Whether every committed row above ``after`` is here."""
        return after >= self.after

    def runs(self, after: RowId, through: RowId) -> Iterator[tuple[Entry, int, int]]:
        """Yield (entry, first, stop) for the rows in ``(after, through]``, in order.

        The caller takes each run before the next await: entries may go in between.
        """
        index = max(bisect_right(self._firsts, after, self._gone) - 1, self._gone)
        while index < len(self._entries):
            entry = self._entries[index]
            first = bisect_right(entry.ids, after)
            stop = bisect_right(entry.ids, through)
            if first < stop:
                yield entry, first, stop
            if stop < len(entry.ids):
                return
            index += 1

    def negate(self, first: RowId, last: RowId, pointer: int) -> None:
        """Mark rows as rolled back, after the storage did."""
        for entry in self._entries[self._gone :]:
            if isinstance(entry, MixedEntry) and entry.ids[0] <= last and entry.ids[-1] >= first:
                entry.negate(first, last, pointer)


def _is_plain(segment: Segment) -> bool:
    return (
        segment.pointer is None
        and segment.payloads is not None
        and segment.lifetime_ms is None
        and segment.number is None
    )


def rows_of(segment: Segment) -> list[Row]:
    """Return the rows of a segment."""
    shared = (segment.pointer, segment.number, segment.lifetime_ms)
    payloads = segment.payloads if segment.payloads is not None else [None] * len(segment.ids)
    return [Row(i, p, *shared) for i, p in zip(segment.ids, payloads, strict=True)]


def all_rows(batch: Batch) -> list[Row]:
    """Return the rows of a batch, in order."""
    return list(chain.from_iterable(rows_of(segment) for segment in batch.segments))
