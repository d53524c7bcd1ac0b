"""Recent messages, in memory, encoded for the wire when they are first read.

A topic's cache is an unbroken run of its newest committed rows: everything between its first row and
the pointer is in it, so a reader that starts inside needs no storage. It consists of entries in order::

    plain entry    ids and payloads, each its own message: no pointer, no reference, the topic's ttl.
                   Small commits are gathered into one entry. A full one, or one of some size that is
                   read, is closed and encoded once: any slice of it is a ready block of a reply. A
                   small open one is encoded as it is asked for.
    mixed entry    rows as they are, to be judged one by one.

All caches of a node share one budget in bytes, and the oldest entry of all goes first. Entries of one
topic are admitted in order, so what goes is always the left end of some topic: the run stays unbroken.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from broker.model import ROW_ID_MIN, RowId, row_before
from broker.storage.ports import Batch, Row, Segment
from broker.wire.blocks import EncodedItems, encode_inline_block, encode_inline_items

ENTRY_BYTES_MAX = 512 * 1024
ENTRY_ROWS_MAX = 2048
CLOSED_ROWS_MIN = 64
"""An entry with so many rows is closed when it is read, and so encoded once for all its readers."""
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

    def parts(self, first: int, stop: int) -> Sequence[bytes | memoryview]:
        """Return the parts of a block of a poll's reply: rows ``first`` to ``stop`` (exclusive)."""
        if self._encoded is None:
            if self.open and len(self.ids) < CLOSED_ROWS_MIN:
                return (encode_inline_block(self.ids[first:stop], self.payloads[first:stop]),)
            self._encoded = self._encode()
        return self._encoded.parts(first, stop)

    def stop_within(self, first: int, stop: int, bytes_max: int) -> int:
        """Return how far the rows from ``first`` go in about ``bytes_max``; one goes in any case.

        A commit may be as large as a request, and a reply is never made of so much at once.
        """
        if self._encoded is None:
            if self.bytes <= bytes_max:
                return stop
            self._encoded = self._encode()
        return min(stop, self._encoded.stop_within(first, bytes_max))

    def _encode(self) -> EncodedItems:
        self.open = False
        encoded = encode_inline_items(self.ids, self.payloads)
        self.payloads = []
        return encoded

    def release(self) -> None:
        """Let go of what is kept, since nothing will be read from here any more."""
        self.ids, self.payloads, self._encoded = [], [], None


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

    def stop_within(self, first: int, stop: int, bytes_max: int) -> int:
        """Return how far the rows from ``first`` go in about ``bytes_max``; one goes in any case."""
        rows = bytes_max * len(self.ids) // self.bytes
        return min(stop, first + max(rows, 1))

    def release(self) -> None:
        """Let go of what is kept, since nothing will be read from here any more."""
        self.ids, self._rows = [], []

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
        self._entries: OrderedDict[Entry, None] = OrderedDict()

    def admit(self, entry: Entry) -> None:
        """Count a new entry in, and let the oldest of all go while over the bound."""
        self._entries[entry] = None
        self.grow(entry.bytes)

    def grow(self, size: int) -> None:
        """Count further bytes of an entry that is in already."""
        self.bytes += size
        while self.bytes > self.bytes_max and self._entries:
            entry, _ = self._entries.popitem(last=False)
            self.bytes -= entry.bytes
            entry.owner.forget_oldest(entry)

    def withdraw(self, entries: Sequence[Entry]) -> None:
        """Stop counting entries that their topic drops by itself."""
        for entry in entries:
            del self._entries[entry]
            self.bytes -= entry.bytes


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
        """How many entries at the left have gone, and are not yet cut off the lists."""
        self._closed = False
        self.after = pointer
        self.pointer = pointer
        self.floor = ROW_ID_MIN
        """Rows below are not read any more, as storage does not give them out either."""

    def add(self, batch: Batch) -> None:
        """Add a batch that was just committed."""
        if self._closed:
            return
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
            self._append(PlainEntry(self, ids, payloads))

    def _append(self, entry: Entry) -> None:
        if self._entries and isinstance(self._entries[-1], PlainEntry):
            self._entries[-1].open = False
        self._entries.append(entry)
        self._firsts.append(entry.ids[0])
        self._budget.admit(entry)

    def forget_oldest(self, entry: Entry) -> None:
        """Let the oldest entry go."""
        assert self._entries[self._gone] is entry, "entries go in the order in which they came"
        self.after = entry.ids[-1]
        entry.release()
        self._gone += 1
        if self._gone > 64 and self._gone * 2 > len(self._entries):
            del self._entries[: self._gone], self._firsts[: self._gone]
            self._gone = 0

    def close(self) -> None:
        """Forget everything, and take nothing more: the hold has ended."""
        self._closed = True
        entries = self._entries[self._gone :]
        self._budget.withdraw(entries)
        for entry in entries:
            entry.release()
        self._entries, self._firsts, self._gone = [], [], 0
        self.after = self.pointer

    def covers(self, after: RowId, through: RowId | None) -> bool:
        """Whether every committed row in ``(after, through]`` is here; None: up to what is newest.

        Storage may be ahead of this by a batch that is committed and not yet told.
        """
        return after >= self.after and (through is None or through <= self.pointer)

    def runs(self, after: RowId, through: RowId) -> Iterator[tuple[Entry, int, int]]:
        """Yield (entry, first, stop) for the rows in ``(after, through]``, in order.

        The caller takes each run before the next await: entries may go in between.
        """
        after = max(after, row_before(self.floor))
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
