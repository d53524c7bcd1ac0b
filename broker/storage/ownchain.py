"""The reads of a writer in its own log: the pages of the chain, and cells that must be there.

A hold decides by these reads, so a stale read must not mislead it. It finds pages by the chain: from a page at
or above the floor it follows ``next`` to its own page. It repeats a read until the answer has all pages or cells
that it knows to be there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from broker.model import LogKey
from broker.storage import entry as entries
from broker.storage import head as heads
from broker.storage.columns import (
    ENTRIES_END,
    column_from,
    last_of,
    pointer_of,
    rolled_column,
    up_to,
)
from broker.storage.head import Head, PageState
from broker.storage.keys import page_key, page_of
from broker.storage.ownpage import OwnPage
from broker.storage.resolve import Pauses

HEADS_AT_ONCE: Final = 256

Pages = list[tuple[LogKey, Head]]


class Effect(NamedTuple):
    """An entry with messages in a range: its last id and write pointer, and whether any of those was rolled back."""

    last: LogKey
    pointer: int | None
    is_rolled_back: bool


class OwnChain(OwnPage):
    """The chain that ends in the own page."""

    async def chain(self, first: LogKey, last: LogKey) -> Pages:
        """Return the pages that can hold ids in ``[first, last]``, in order, as they are now (rule 5).

        The result is complete, because the walk follows ``next`` from a page of the chain to the own page, or
        to a sealed page that reaches ``last``. It returns no page below the floor.

        Raises:
            Unavailable: storage does not answer, or gives only stale reads.
        """
        pauses = self._resolver.pauses()
        while True:
            await self._rolled()
            low = max(first, self.root.floor)
            if low > last:
                return []
            if low >= self.page:
                return [(self.page, self.head)]
            found = await self._walk(low, last)
            if found is not None:
                return found
            await pauses.again()

    async def _walk(self, low: LogKey, last: LogKey) -> Pages | None:
        """Walk from the page at or before ``low``; None: a read was stale, so the chain has a gap."""
        start = await self._resolver.read(
            lambda: self._resolver.table.scan(
                self._space,
                page_key(self.log, self.root.floor),
                page_key(self.log, low),
                limit=1,
                reverse=True,
            )
        )
        out: Pages = []
        wanted = page_of(start[0][0]) if start else None
        while wanted is not None and wanted <= self.page:
            rows = await self._heads(wanted, self.page)
            if not rows:
                break
            for page, head in rows:
                if page != wanted:
                    return None
                if page == self.page:
                    return [*out, (page, self.head)]
                if not head.is_sealed:
                    return None
                out.append((page, head))
                if head.pointer >= last:
                    return out
                wanted = head.next
        return None

    async def _heads(self, first: LogKey, last: LogKey) -> Pages:
        rows = await self._resolver.read(
            lambda: self._resolver.table.scan(
                self._space,
                page_key(self.log, first),
                page_key(self.log, last),
                limit=HEADS_AT_ONCE,
            )
        )
        return [(page_of(row), heads.decode(cell.value)) for row, cell in rows]

    async def _sealed_head(self, page: LogKey, pauses: Pauses) -> tuple[bytes, Head] | None:
        """Return the head of a sealed page of the chain, encoded and decoded; None: the page is gone.

        Raises:
            Fenced: the page is open, so another node writes to it.
            Unavailable: storage does not answer, or gives only stale reads.
        """
        while True:
            cell = await self._resolver.head(self._space, page_key(self.log, page))
            if cell is not None:
                head = heads.decode(cell.value)
                if head.state is PageState.GONE:
                    return None
                if head.is_open:
                    self._fenced()
                return cell.value, head
            await pauses.again()

    # Cells.

    async def effects(self, first: LogKey, last: LogKey) -> list[Effect]:
        """Return the entries with messages in ``[first, last]``, as they are now. Both ids are in the log.

        Entries of pages that are gone are missing.

        Raises:
            Fenced: another node writes to the log.
            Unavailable: storage does not answer, or gives only stale reads.
        """
        found: list[Effect] = []
        for page, head in await self.chain(first, last):
            if not head.cells:
                continue
            row, through = page_key(self.log, page), min(last, head.pointer)
            columns = await self._columns(row, column_from(first), ENTRIES_END, through)
            own = list(up_to(last, columns))
            there = set(columns)
            rolled = await self._values(row, [x for x in map(rolled_column, own) if x in there])
            for column in own:
                value = rolled.get(rolled_column(column))
                ranges = () if value is None else entries.decode_rolled(value)
                is_rolled_back = any(low <= last and high >= first for low, high in ranges)
                found.append(Effect(last_of(column), pointer_of(column), is_rolled_back))
        return found

    async def _columns(self, row: bytes, start: bytes, end: bytes, through: LogKey) -> list[bytes]:
        """Return a page's columns in ``[start, end]``; it reads until they reach ``through``, or the page is gone.

        Raises:
            Unavailable: storage does not answer, or gives only stale reads.
        """
        pauses = self._resolver.pauses()
        while True:
            columns = await self._resolver.read(
                lambda: self._resolver.table.columns(self._space, row, start, end)
            )
            if columns and last_of(columns[-1]) >= through:
                return columns
            if start > column_from(through):
                return columns
            cell = await self._resolver.head(self._space, row)
            if cell is not None and heads.decode(cell.value).state is PageState.GONE:
                return []
            await pauses.again()

    async def _values(self, row: bytes, columns: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the values of cells that are known to be there. Raises Unavailable."""
        pauses = self._resolver.pauses()
        while columns:
            found = await self._resolver.read(
                lambda: self._resolver.table.get(self._space, row, columns)
            )
            if len(found) == len(columns):
                return {column: cell.value for column, cell in found.items()}
            await pauses.again()
        return {}
