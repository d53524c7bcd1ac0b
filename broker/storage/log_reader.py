"""Reading a log from storage, without a hold: page by page, in either direction (rule 5).

A reader never leaves out a message between two that it shows. It finds the page at or before the wanted id by a
reverse scan of heads, and takes the page's entries in order. It goes on to the next page only from a page that
it read as sealed, and only after it read that page up to its pointer::

    sealed, last entry below the pointer    a stale read: read again
    open, with entries                      the end
    absent, gone, or open without entries   read the root again: if the floor is above, go on from there

A sealed page stays sealed, so a reader that knows its head needs no second scan.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from broker.long_work import Pace
from broker.model import LOG_KEY_MAX, LOG_KEY_MIN, LogKey, log_key_after, log_key_before
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
"""The size of a cell with one message, without the payload."""


class LogReader:
    """Reads the entries in ``(after, through]`` of one log. ``ended`` is True once it has read all of them.

    Reading forwards, the last entry may end behind ``through``.
    """

    def __init__(
        self, resolver: Resolver, log: LogId, after: LogKey, through: LogKey | None = None
    ) -> None:
        """Begin behind ``after``. If ``through`` is None, read to the end that the log has when it is reached."""
        self.after = after
        self.ended = False
        self.is_closed = False
        """True if the end was a closed page: no entry will ever come behind it."""
        self.reaches_through = False
        """Backwards: True if the log reached ``through`` when the reader looked for it."""
        self.root: Root | None = None
        """The root that was read last; None: not read yet."""
        self.gathers = True
        """True if small entries are joined into one, which lacks their marks."""
        self._resolver = resolver
        self._is_checked = resolver.table.checks_values
        self._log = log
        self._space = space_of(log)
        self._through = LOG_KEY_MAX if through is None else through
        self._page: LogKey | None = None
        self._head: Head | None = None
        self._left: list[bytes] | None = None
        """Backwards: the columns of the page's entries that are still to be read."""
        self._seen = LOG_KEY_MIN
        """Backwards: the last id that a read of the page's columns has shown. A later read that ends before is stale."""
        self._came_by_prev = False
        """True if ``prev`` of the page behind it led to the page: then the page existed."""
        self._pauses: Pauses | None = None
        """The pauses since the first stale read; None after a read that brought entries."""

    @property
    def reached(self) -> LogKey:
        """The id up to which the reader has read all entries that the log still has."""
        # Entries below the floor are gone.
        return self.after if self.root is None else max(self.after, log_key_before(self.root.floor))

    def go_on(self, through: LogKey | None = None) -> None:
        """Go on reading after the end: the log may have grown."""
        self.ended = False
        self._through = LOG_KEY_MAX if through is None else through
        self._head = None

    def back_to(self, after: LogKey) -> None:
        """Go back to an id that was read already, if the caller took less than was read."""
        if after == self.after:
            return
        self.after = after
        self.ended = False
        if self._page is not None and after < self._page:
            self._page = self._head = None

    async def next(self, bytes_max: int, messages_max: int | None = None) -> list[Entry]:
        """Return the next entries with messages behind ``after``, of about ``bytes_max`` bytes.

        ``messages_max`` is how many messages the caller will take: it reads about that many. An empty list
        does not mean the end: see ``ended``.

        Raises:
            Unavailable: storage does not answer, or gives only stale reads.
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

        ``forwards``: an earlier page is enough, because ``next`` leads from it to the pages behind.
        """
        self.root = root = await self._read_root()
        if root is None:
            self.ended = True
            return False
        wanted = max(log_key_after(self.after), root.floor)
        if forwards and wanted >= root.page:
            self._page, self._head = root.page, None
            return True
        known = self._resolver.sealed.find(self._log, wanted)
        if known is not None:
            self._page, self._head = known
            return True
        found = await self._resolver.read(
            lambda: self._resolver.table.scan(
                self._space,
                page_key(self._log, root.floor),
                page_key(self._log, wanted),
                limit=1,
                reverse=True,
            )
        )
        if found:
            self._page, self._head = page_of(found[0][0]), heads.decode(found[0][1].value)
            self._resolver.sealed.learn(self._log, self._page, self._head)
        else:
            self._page, self._head = root.floor, None
        return True

    async def _read_root(self) -> Root | None:
        cell = await self._resolver.head(self._space, root_key(self._log))
        root = None if cell is None else roots.decode(cell.value)
        if root is None or root.generation != self._log.generation:
            return None
        return None if root.state is RootState.DELETED else root

    async def _head_of(self, page: LogKey) -> Head | None:
        cell = await self._resolver.head(self._space, page_key(self._log, page))
        if cell is None:
            return None
        head = heads.decode(cell.value)
        self._resolver.sealed.learn(self._log, page, head)
        return head

    async def _entries(
        self, page: LogKey, head: Head, cells_max: int, bytes_max: int
    ) -> list[Entry]:
        """Return entries of a page that exists, and go on to the next page where its head says so."""
        async with self._resolver.room.taken(head.size):
            cells = await self._cells(page, (self.after, self._through), cells_max, bytes_max)
        if self.gathers:
            found = gathered(cells.cells, is_checked=self._is_checked)
        else:
            found = list(entries_in(cells.cells, is_checked=self._is_checked))
        if found:
            # Packing may have joined the first entry with entries that were shown before.
            found[0] = found[0].within(self.after, LOG_KEY_MAX)
            self.after = max(self.after, found[-1].last)
            self._pauses = None
        if cells.more:
            return found
        if is_short(head, self.after, self._through):
            # Keep the entries of a stale read, and read again for the rest.
            self._head = None
            await self._pause()
            return found
        following = await self._following(head)
        if following is None:
            self.ended = True
            self.is_closed = head.state is PageState.CLOSED
        else:
            self._page, self._head = following, None
        return found

    async def _following(self, head: Head) -> LogKey | None:
        """Return the key of the next page; None: the log, or what is to be read, ends with this one."""
        return head.next if head.is_sealed and self.after < self._through else None

    async def _pause(self) -> None:
        if self._pauses is None:
            self._pauses = self._resolver.pauses()
        await self._pauses.again()

    async def _look_at_root(self, page: LogKey) -> None:
        """Go on from the floor if it is above ``page``, which does not exist; else this is the end."""
        root = await self._read_root()
        if root is None or root.floor <= page:
            self.ended = True
            return
        self.root = root
        self._page, self._head = root.floor, None
        self.after = max(self.after, log_key_before(root.floor))

    async def _cells(
        self, page: LogKey, between: tuple[LogKey, LogKey], cells_max: int, bytes_max: int
    ) -> Cells:
        """Return cells of a page; the last entry is returned with its x cell, or left out."""
        row, table = page_key(self._log, page), self._resolver.table
        after, through = between
        first = column_from(log_key_after(after))
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
        # If the entry is not there, the page is gone meanwhile, and its x cells too.
        there = both if column in seen else ()
        return Cells([(each, seen[each].value) for each in there if each in seen], more=True)

    # Backwards, and single pages.

    async def before(self, cells_max: int, bytes_max: int) -> list[Entry]:
        """Return the next entries from ``through`` downwards, the last one first.

        An empty list does not mean the end: see ``ended``.

        Raises:
            Unavailable: storage does not answer, or gives only stale reads.
        """
        if self._page is None and not await self._locate_through():
            return []
        assert self._page is not None
        if self._head is None:
            self._head = await self._head_of(self._page)
        if self._head is None or self._head.state is PageState.GONE:
            await self._look_for_floor(self._page)
            return []
        if self._came_by_prev and self._head.is_open:
            # A stale read: a page is sealed before the page behind it is made. Its pointer may be stale, too.
            self._head = None
            await self._pause()
            return []
        if self._left is None:
            self._left = await self._columns_left(self._page, self._head)
        async with self._resolver.room.taken(self._head.size):
            found = await self._take_last(self._page, self._left, cells_max, bytes_max)
        if found is None:
            # The read was stale, or the page was packed meanwhile and has other columns.
            self._left = None
            await self._pause()
            return []
        if found:
            self._through = log_key_before(found[-1].first)
        self._pauses = None
        if not self._left:
            self._step_back(self._page, self._head)
        return found

    async def _locate_through(self) -> bool:
        """Find the page that holds ``through``, or the last one; False if there is nothing to read.

        A scan may show stale heads, so this reads the head of each page again.
        """
        after, self.after = self.after, log_key_before(self._through)
        there = await self._locate()
        self.after = after
        self._left, self._seen = None, LOG_KEY_MIN
        page, head = self._page, None
        while page is not None and (found := await self._head_of(page)) is not None:
            self._page = page
            self._head = head = found
            page = head.next if head.is_sealed and head.next <= self._through else None
        self.is_closed = head is not None and head.state is PageState.CLOSED
        self.reaches_through = head is not None and head.pointer >= self._through
        return there

    def _step_back(self, page: LogKey, head: Head) -> None:
        assert self.root is not None
        if page > max(self.after, self.root.floor):
            self._page, self._head, self._left = head.prev, None, None
            self._seen = LOG_KEY_MIN
            self._came_by_prev = True
        else:
            self.ended = True

    async def _look_for_floor(self, page: LogKey) -> None:
        """Decide about a page that does not exist: below the floor it is the end, else the read was stale."""
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

    async def _columns_left(self, page: LogKey, head: Head) -> list[bytes] | None:
        """Return the columns of a page's entries that can lie in ``(after, through]``.

        None: the read was stale, as it does not reach the page's pointer.
        """
        if not head.cells or head.pointer <= self.after:
            return []
        row, first = page_key(self._log, page), column_from(log_key_after(self.after))
        columns = await self._resolver.read(
            lambda: self._resolver.table.columns(self._space, row, first, ENTRIES_END)
        )
        columns = [column for column in columns if not is_rolled_column(column)]
        if not columns or last_of(columns[-1]) < max(head.pointer, self._seen):
            return None
        self._seen = last_of(columns[-1])
        # The entry that holds ``through`` may end behind it.
        stop = bisect_left(columns, self._through, key=last_of)
        return columns[: stop + 1]

    async def _take_last(
        self, page: LogKey, left: list[bytes] | None, cells_max: int, bytes_max: int
    ) -> list[Entry] | None:
        """Read the entries of the last columns in ``left``, and remove those columns from it.

        None: the read was stale, or the page has other columns now.
        """
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

    async def page_entries(self, page: LogKey, head: Head) -> list[Entry]:
        """Return the entries of one page in ``(after, through]``, up to its pointer.

        Raises:
            Unavailable: storage does not answer, or gives only stale reads.
        """
        after, end = self.after, min(head.pointer, self._through)
        found: list[Entry] = []
        if not head.cells:
            return found
        pauses, pace = self._resolver.pauses(), Pace()
        while after < end:
            cells = await self._cells(page, (after, end), CELLS_AT_ONCE, 1 << 20)
            await pace.step()
            before = after
            for entry in entries_in(cells.cells, is_checked=self._is_checked):
                found.append(entry.within(before, LOG_KEY_MAX))
                after = max(after, entry.last)
                await pace.step()
            if not cells.more and after < end:
                await pauses.again()
        return found


def _message_bytes(head: Head) -> int:
    """Return about how many bytes a message's cell takes, by the log's average payload."""
    return CELL_OVERHEAD_BYTES + head.bytes // max(head.total, 1)


def is_short(head: Head, reached: LogKey, through: LogKey) -> bool:
    """True if a sealed or closed page must have more entries than were read, up to its pointer."""
    return not head.is_open and head.cells > 0 and reached < min(head.pointer, through)


def _cut(found: Cells, through: LogKey) -> Cells:
    """Return the cells up to the entry that holds ``through``, with its x cell."""
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
