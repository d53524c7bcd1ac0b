"""Packing a sealed page: one change replaces its small entries by few large ones (rule 15).

Messages that were committed one at a time have a cell each, and a cell costs more to read than a message. So the
broker rewrites a page with small entries once, after it is sealed::

    sealed │ a │ b │ c │ tx d │ e │ f │   ──one change──▶   packed │ a b c │ tx d │ e f │

It joins neighbours of one epoch that are visible to every consumer; the other entries stay. Behind each id a
reader finds the same messages before and after packing. So a reader may go on in the packed page, and leaves out
messages that it has shown. A former leader may still try to resolve its append, but the cell of that append may
be joined with others. So the head says *packed*, and an append to a packed page never has the outcome "never
stored".

A hold packs only where no other process uses the table. On other stores each deleted cell leaves a marker, and
readers pay as much for markers as for cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker.long_work import Pace
from broker.storage import entry as entries
from broker.storage import head as heads
from broker.storage import walk
from broker.storage.columns import PLAIN_COLUMN_BYTES, last_of
from broker.storage.entry import ENTRY_BYTES_MAX, Entry
from broker.storage.head import Head, PageState
from broker.storage.keys import LogId, page_key, space_of
from broker.storage.page_entries import joined
from broker.storage.resolve import Resolver, Tokens

SMALL_BYTES: Final = 1024
"""A page is worth packing if its entries have fewer bytes than this on average."""
CELLS_MAX: Final = 0xFFFF


def is_worth_it(head: Head, cells_min: int) -> bool:
    """True if a sealed page has enough entries, and small enough ones, to be packed."""
    return cells_min <= head.cells < CELLS_MAX and head.size < SMALL_BYTES * head.cells


class Packed:
    """The cells that packing puts and deletes. It takes the cells of a page in order."""

    def __init__(self) -> None:
        """Begin without cells."""
        self.puts: dict[bytes, bytes] = {}
        self.deletes: list[bytes] = []
        self.saved_bytes = 0
        self._run: list[Entry] = []
        self._bytes = 0

    def take(self, column: bytes, value: bytes) -> None:
        """Take a cell. Raises StorageCorrupt."""
        if len(column) != PLAIN_COLUMN_BYTES:
            self.end()
            return
        entry = entries.decode(value)
        fits = self._bytes + entry.content_bytes <= ENTRY_BYTES_MAX and entry.is_plain
        if self._run and not (fits and entry.epoch == self._run[0].epoch):
            self.end()
        if entry.is_plain:
            self._run.append(entry)
            self._bytes += entry.content_bytes

    def end(self) -> None:
        """Join the entries taken since the last join."""
        run, self._run, self._bytes = self._run, [], 0
        if len(run) < 2:
            return
        one = packed_of(run)
        self.puts[one.column] = entries.encode(one)
        self.deletes += [entry.column for entry in run[:-1]]
        self.saved_bytes += sum(entry.stored_bytes for entry in run) - one.stored_bytes


def packed_of(run: Sequence[Entry]) -> Entry:
    """Return consecutive plain entries of one epoch as one entry, with their marks."""
    one = joined(run)
    one.marks = tuple(mark for entry in run for mark in entry.marks)
    return one


async def pack(resolver: Resolver, tokens: Tokens, log: LogId, page: bytes) -> bool:
    """Pack a sealed page; False if no entries can be joined, or the page was changed meanwhile.

    Raises:
        Unavailable, StorageFull: nothing was done.
        OutcomeUnknown: it may be done; the caller need not know.
        StorageCorrupt: an entry can't be decoded; nothing was done.
    """
    space, row = space_of(log), page_key(log, page)
    cell = await resolver.head(space, row)
    head = None if cell is None else heads.decode(cell.value)
    if cell is None or head is None or head.state is not PageState.SEALED or head.chain:
        return False  # A hash chain is over the entries as they were appended (rule 16).
    packed, last, pace = Packed(), b"", Pace()
    async for column, value in walk.cells(resolver, space, row):
        packed.take(column, value)
        last = last_of(column)
        await pace.step()
    packed.end()
    if last != head.pointer or not packed.puts:
        return False
    new = head._replace(
        state=PageState.PACKED,
        token=tokens.fresh(),
        edits=head.edits + 1,
        cells=head.cells - len(packed.deletes),
        size=head.size - packed.saved_bytes,
    )
    return await resolver.swap(
        space, row, cell.value, heads.encode(new), packed.puts, deletes=packed.deletes
    )
