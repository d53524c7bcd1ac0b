"""Reading a log from storage, without a hold: page by page, in either direction (rule 5).

A reader shows a prefix of the log, and never another one. It finds the page at or before the wanted id by
a reverse scan of heads, takes its entries in order, and goes on to the next page only from one that it read as
sealed, up to that page's pointer::

    sealed, last entry below the pointer    an answer from before: read again
    open, with entries                      the end
    absent, gone, or open without entries   read the root again: if the floor is above, go on from there

A sealed page stays sealed, so a head that was read once needs no second scan.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from broker.errors import Unavailable
from broker.model import ROW_ID_MAX, RowId, row_after, row_before
from broker.slices import Slice
from broker.storage import head as heads
from broker.storage import root as roots
from broker.storage.columns import (
    ENTRIES_END,
    column_from,
    is_rolled_column,
    last_of,
    pointer_of,
    rolled_column,
)
from broker.storage.entry import Entry
from broker.storage.head import Head, PageState
from broker.storage.keys import LogId, page_key, page_of, root_key, space_of
from broker.storage.page_entries import entries_in, gathered
from broker.storage.resolve import Pauses, Resolver
from broker.storage.root import Root, RootState
from broker.storage.table import Cells

CELLS_AT_ONCE: Final = 1024
CELL_OVERHEAD_BYTES: Final = 96
"""The bytes of a message's own cell beside its payload."""


class LogReader:
    """Reads the entries in ``(after, through]`` of one log. ``ended`` once all of them were read.

    Forwards the last entry may end behind it.
    """

    def __init__(
        self, resolver: Resolver, log: LogId, after: RowId, through: RowId | None = None
    ) -> None:
        """Begin behind ``after``; ``through`` None reads to the end as it is when that is reached."""
        self.after = after
        self.ended = False
        self.is_closed = False
        """True if the end was a closed page: nothing will ever come behind it."""
        self.reaches_through = False
        """Backwards: whether ``through`` was in a page as it was found."""
        self.root: Root | None = None
        """The root as it was read, if it was."""
        self.gathers = True
        """True if small entries come as one, which lacks their marks."""
        self._resolver = resolver
        self._is_checked = resolver.table.checks_values
        self._log = log
        self._space = space_of(log)
        self._through = ROW_ID_MAX if through is None else through
        self._page: RowId | None = None
        self._head: Head | None = None
        self._left: list[bytes] | None = None
        """Backwards: the columns of the page's entries that are still to be read."""
        self._came_by_prev = False
        """True if the page was found by the one behind it, so that it was there."""
        self._pauses: Pauses | None = None
        """Begun with the first answer from before since something was read."""

    @property
    def reached(self) -> RowId:
        """The id up to which all that the log still has was read."""
        # What lies below the floor has gone.
        return self.after if self.root is None else max(self.after, row_before(self.root.floor))

    def go_on(self, through: RowId | None = None) -> None:
        """Read further after an end: the log may have grown."""
        self.ended = False
        self._through = ROW_ID_MAX if through is None else through
        self._head = None

    def back_to(self, after: RowId) -> None:
        """Go on behind an id that was read already, if less was taken than read."""
        if after == self.after:
            return
        self.after = after
        self.ended = False
        if self._page is not None and after < self._page:
            self._page = self._head = None

    async def next(self, bytes_max: int, messages_max: int | None = None) -> list[Entry]:
        """Return the next entries with messages behind ``after``, of about ``bytes_max`` bytes.

        ``messages_max`` is how many the caller will take: more than about so many are not read. None at
        all does not mean the end: see ``ended``.

        Raises:
            Unavailable: storage does not answer, or only answers from before.
        """
        if self.after >= self._through:
            self.ended = True
        if self.ended or (self._page is None and not await self._locate(forwards=True)):
            return []
        assert self._page is not None
        if self._head is None:
            self._head = await self._head_of(self._page)
        if self._head is None or self._head.state is PageState.GONE or self._is_empty(self._head):
            await self._look_at_root(self._page)
            return []
        cells_max = CELLS_AT_ONCE
        if messages_max is not None:
            cells_max = messages_max
            bytes_max = min(bytes_max, messages_max * _message_bytes(self._head))
        return await self._entries(self._page, self._head, cells_max, bytes_max)

    @staticmethod
    def _is_empty(head: Head) -> bool:
        return head.is_open and not head.cells

    async def _locate(self, *, forwards: bool = False) -> bool:
        """Find the page at or before the wanted id; False if there is nothing to read.

        ``forwards``: an earlier page does, as ``next`` leads from it to those behind.
        """
        self.root = await self._read_root()
        if self.root is None:
            self.ended = True
            return False
        wanted = max(row_after(self.after), self.root.floor)
        if forwards and wanted >= self.root.page:
            self._page, self._head = self.root.page, None
            return True
        known = self._resolver.sealed.find(self._log, wanted)
        if known is not None:
            self._page, self._head = known
            return True
        found = await self._resolver.read(
            lambda: self._resolver.table.scan(
                self._space,
                page_key(self._log, self._floor(self.root)),
                page_key(self._log, wanted),
                limit=1,
                reverse=True,
            )
        )
        if found:
            self._page, self._head = page_of(found[0][0]), heads.decode(found[0][1].value)
            self._resolver.sealed.learn(self._log, self._page, self._head)
        else:
            self._page, self._head = self._floor(self.root), None
        return True

    async def _read_root(self) -> Root | None:
        cell = await self._resolver.head(self._space, root_key(self._log))
        root = None if cell is None else roots.decode(cell.value)
        if root is None or root.generation != self._log.generation:
            return None
        return None if root.state is RootState.DELETED else root

    @staticmethod
    def _floor(root: Root | None) -> RowId:
        assert root is not None
        return root.floor

    async def _head_of(self, page: RowId) -> Head | None:
        cell = await self._resolver.head(self._space, page_key(self._log, page))
        if cell is None:
            return None
        head = heads.decode(cell.value)
        self._resolver.sealed.learn(self._log, page, head)
        return head

    async def _entries(
        self, page: RowId, head: Head, cells_max: int, bytes_max: int
    ) -> list[Entry]:
        """Take entries of a page that is there; what it says of its end is where this goes on."""
        cells = await self._cells(page, (self.after, self._through), cells_max, bytes_max)
        if self.gathers:
            found = gathered(cells.cells, is_checked=self._is_checked)
        else:
            found = list(entries_in(cells.cells, is_checked=self._is_checked))
        if found:
            # It may hold what was shown before, since packing joined it with that.
            found[0] = found[0].within(self.after, ROW_ID_MAX)
            self.after = max(self.after, found[-1].last)
            self._pauses = None
        if cells.more:
            return found
        if is_short(head, self.after, self._through):
            # Keep what an answer from before shows, and ask again for the rest.
            self._head = None
            await self._pause()
            return found
        following = await self._following(page, head) if self.after < self._through else None
        if following is None:
            self.ended = True
            self.is_closed = head.state is PageState.CLOSED
        else:
            self._page, self._head = following, None
        return found

    async def _following(self, page: RowId, head: Head) -> RowId | None:
        """Return where the log goes on behind a page; None: it ends there."""
        del page
        return head.next if head.is_sealed else None

    async def _pause(self) -> None:
        if self._pauses is None:
            self._pauses = self._resolver.pauses()
        if not await self._pauses.next():
            raise Unavailable("Storage gave an outdated answer. Try again.")

    async def _look_at_root(self, page: RowId) -> None:
        """Go on from the floor if it is above a page that is not there; else this is the end."""
        root = await self._read_root()
        if root is None or root.floor <= page:
            self.ended = True
            return
        self.root = root
        self._page, self._head = root.floor, None
        self.after = max(self.after, row_before(root.floor))

    async def _cells(
        self, page: RowId, between: tuple[RowId, RowId], cells_max: int, bytes_max: int
    ) -> Cells:
        """Return cells of a page; the last entry comes with its x cell, or not at all."""
        row, table = page_key(self._log, page), self._resolver.table
        after, through = between
        first = column_from(row_after(after))
        # The entry that holds ``through`` may end behind it, so the range has no upper end.
        found = await self._resolver.read(
            lambda: table.cells(
                self._space,
                row,
                first,
                ENTRIES_END,
                cells_max=cells_max,
                bytes_max=bytes_max,
            )
        )
        return await self._with_last_x(row, _cut(found, through))

    async def _with_last_x(self, row: bytes, found: Cells) -> Cells:
        if not found.more or not found.cells:
            return found
        column = found.cells[-1][0]
        if is_rolled_column(column) or pointer_of(column) is None:
            return found
        if len(found.cells) > 1:
            return Cells(found.cells[:-1], more=True)
        both = (column, rolled_column(column))
        seen = await self._resolver.read(lambda: self._resolver.table.get(self._space, row, both))
        # Without the entry the page has gone meanwhile, and what was rolled back in it with it.
        there = both if column in seen else ()
        return Cells([(each, seen[each].value) for each in there if each in seen], more=True)

    # Backwards, and single pages.

    async def before(self, cells_max: int, bytes_max: int) -> list[Entry]:
        """Return the next entries from ``through`` downwards, the last one first.

        None at all does not mean the end: see ``ended``.

        Raises:
            Unavailable: storage does not answer, or only answers from before.
        """
        if self._page is None and not await self._locate_through():
            return []
        assert self._page is not None
        if self._head is None:
            self._head = await self._head_of(self._page)
        if self._head is None or self._head.state is PageState.GONE:
            await self._look_for_floor(self._page)
            return []
        if self._left is None:
            self._left = await self._columns_left(self._page, self._head)
        found = await self._take_last(self._page, self._left, cells_max, bytes_max)
        if found is None:
            # From before, or packed meanwhile: then the page has other columns.
            self._left = None
            await self._pause()
            return []
        if found:
            self._through = row_before(found[-1].first)
        self._pauses = None
        if not self._left:
            self._step_back(self._page, self._head)
        return found

    async def _locate_through(self) -> bool:
        """Find the page that holds ``through``, or the last one; False if there is nothing to read.

        A scan may show heads from before, so the pages that it found are looked at again.
        """
        after, self.after = self.after, row_before(self._through)
        there = await self._locate()
        self.after = after
        self._left = None
        page, head = self._page, None
        while page is not None and (found := await self._head_of(page)) is not None:
            self._page = page
            self._head = head = found
            page = head.next if head.is_sealed and head.next <= self._through else None
        self.is_closed = head is not None and head.state is PageState.CLOSED
        self.reaches_through = head is not None and head.pointer >= self._through
        return there

    def _step_back(self, page: RowId, head: Head) -> None:
        assert self.root is not None
        if page > max(self.after, self.root.floor):
            self._page, self._head, self._left = head.prev, None, None
            self._came_by_prev = True
        else:
            self.ended = True

    async def _look_for_floor(self, page: RowId) -> None:
        """Decide about a page that is not there: below the floor is the end; else an answer is from before."""
        if self._head is None and not self._came_by_prev:
            self.ended = True
            return
        root = await self._read_root()
        is_gone = root is None or root.state is RootState.DROPPED
        if is_gone or (self._came_by_prev and root is not None and root.floor > page):
            self.ended = True
            return
        self._head = None
        if not self._came_by_prev:
            self._page = None
        await self._pause()

    async def _columns_left(self, page: RowId, head: Head) -> list[bytes] | None:
        """Return the columns of a page's entries that can lie in ``(after, through]``.

        None: the answer is from before, and does not reach the page's pointer.
        """
        if not head.cells or head.pointer <= self.after:
            return []
        row, first = page_key(self._log, page), column_from(row_after(self.after))
        columns = await self._resolver.read(
            lambda: self._resolver.table.columns(self._space, row, first, ENTRIES_END)
        )
        columns = [column for column in columns if not is_rolled_column(column)]
        if not columns or last_of(columns[-1]) < head.pointer:
            return None
        # The entry that holds ``through`` may end behind it.
        stop = bisect_left(columns, self._through, key=last_of)
        return columns[: stop + 1]

    async def _take_last(
        self, page: RowId, left: list[bytes] | None, cells_max: int, bytes_max: int
    ) -> list[Entry] | None:
        """Read the last of the columns that are left, and take them off; None: an answer from before."""
        if not left:
            return left if left is None else []
        row, table = page_key(self._log, page), self._resolver.table
        found = await self._resolver.read(
            lambda: table.cells(
                self._space,
                row,
                left[0],
                left[-1] + b"\xff",
                cells_max=cells_max,
                bytes_max=bytes_max,
                reverse=True,
            )
        )
        cells = found.cells[::-1]
        if cells and is_rolled_column(cells[0][0]):
            cells = cells[1:] if len(cells) > 1 else await self._with_entry(row, cells)
        columns = [column for column, _ in cells if not is_rolled_column(column)]
        if not columns or columns != left[-len(columns) :]:
            return None
        del left[-len(columns) :]
        out = list(entries_in(cells, is_checked=self._is_checked))[::-1]
        return [
            entry.within(self.after, self._through) for entry in out if entry.first <= self._through
        ]

    async def _with_entry(
        self, row: bytes, cells: list[tuple[bytes, bytes]]
    ) -> list[tuple[bytes, bytes]]:
        column = cells[0][0][:-1]
        found = await self._resolver.read(
            lambda: self._resolver.table.get(self._space, row, (column,))
        )
        return [*((column, cell.value) for cell in found.values()), *cells]

    async def page_entries(self, page: RowId, head: Head) -> list[Entry]:
        """Return the entries of one page in ``(after, through]``, up to its pointer.

        Raises:
            Unavailable: storage does not answer, or only answers from before.
        """
        after, end = self.after, min(head.pointer, self._through)
        found: list[Entry] = []
        if not head.cells:
            return found
        pauses, piece = self._resolver.pauses(), Slice()
        while after < end:
            cells = await self._cells(page, (after, end), CELLS_AT_ONCE, 1 << 20)
            await piece.go_on()
            before = after
            for entry in entries_in(cells.cells, is_checked=self._is_checked):
                found.append(entry.within(before, ROW_ID_MAX))
                after = max(after, entry.last)
                await piece.go_on()
            if not cells.more and after < end and not await pauses.next():
                raise Unavailable("Storage gave an outdated answer. Try again.")
        return found


def _message_bytes(head: Head) -> int:
    """Return about how many bytes of cells a message takes, of payloads as the log has had them."""
    return CELL_OVERHEAD_BYTES + head.bytes // max(head.total, 1)


def is_short(head: Head, reached: RowId, through: RowId) -> bool:
    """True if more entries of a page that is sealed or closed are to come, up to its pointer."""
    return not head.is_open and head.cells > 0 and reached < min(head.pointer, through)


def _cut(found: Cells, through: RowId) -> Cells:
    """Leave out what lies behind the entry that holds ``through``."""
    if not found.cells or last_of(found.cells[-1][0]) < through:
        return found
    for place, (column, _) in enumerate(found.cells):
        if not is_rolled_column(column) and last_of(column) >= through:
            stop = place + 1
            if stop < len(found.cells) and is_rolled_column(found.cells[stop][0]):
                stop += 1
            has_x = stop > place + 1 or stop < len(found.cells) or not found.more
            return Cells(found.cells[:stop], more=not has_x)
    return found
