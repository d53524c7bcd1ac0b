"""A hold: being the one writer of a log, from a claim until another claims it, or it is handed off.

A hold writes its own page (ownpage.py), and decides alone about the rest of the log: which pages may be read
(the floor), what of a sealed page was rolled back or has ended its life. It finds those pages by the chain,
from a page at or above the floor by ``next`` to its own. A sealed page is changed from its head as read
*before* its cells, so that no other change of it can come between reading and writing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from broker.errors import BrokerError, OutcomeUnknown, Unavailable
from broker.model import RowId, timestamp_of
from broker.storage import entry as entries
from broker.storage import head as heads
from broker.storage.columns import (
    ENTRIES_END,
    column_from,
    has_life,
    is_rolled_column,
    last_of,
    pointer_of,
    rolled_column,
)
from broker.storage.head import Head, PageState
from broker.storage.keys import page_key, page_of
from broker.storage.ownpage import OwnPage, PageBounds
from broker.storage.resolve import Pauses
from broker.storage.root import Root

HEADS_AT_ONCE: Final = 256
CELLS_AT_ONCE: Final = 64

Pages = list[tuple[RowId, Head]]
Edit = Callable[[Head], Awaitable[tuple[dict[bytes, bytes], int]]]
"""From a page's head: the cells to put, and when the first lifetime in it ends then."""


class Hold(OwnPage):
    """The hold on one log."""

    before_server_ms: int | None = None
    """When the head was written before this claim, by the server's clock; None: no clock tells."""
    claimed_server_ms: int | None = None
    """When this claim was written, by the server's clock. It is never less than the one before."""

    # Rolling back.

    async def rollback(self, pointer: int, first: RowId, last: RowId) -> None:
        """Roll back a transaction's messages in ``[first, last]`` (rule 7). May be repeated.

        Raises:
            Unavailable, Fenced: nothing was done.
            OutcomeUnknown: some of it may have been done; so after a fencing by another in the last step.
        """
        self._must_go_on()
        last = min(last, self.pointer)
        pages = await self.chain(first, last)
        own = None
        try:
            for page, _ in pages:
                if page == self.page:
                    own = page
                else:
                    await self._roll_back_sealed(page, pointer, first, last)
            await self._last_step(own, pointer, first, last)
        except BrokerError as error:
            raise OutcomeUnknown(f"Part of the rollback may be missing: {error}") from error

    async def _last_step(self, own: RowId | None, pointer: int, first: RowId, last: RowId) -> None:
        """Change the own head, always: this shows that the leader led until all else was done.

        ``own`` was the own page before the turn came; it may be sealed by now.
        """
        async with self._page_to_itself():
            self._must_go_on()
            puts: dict[bytes, bytes] = {}
            if own == self.page:
                puts = await self._rolled_cells(own, self.head, pointer, first, last)
            elif own is not None:
                await self._roll_back_sealed(own, pointer, first, last)
            await self._last_change(puts)

    async def _last_change(self, puts: dict[bytes, bytes]) -> None:
        await self._change_own_head(puts, edits=self.head.edits + 1)

    async def _roll_back_sealed(self, page: RowId, pointer: int, first: RowId, last: RowId) -> None:
        """Set the x cells of a page that is not the own one."""

        async def edit(head: Head) -> tuple[dict[bytes, bytes], int]:
            cells = await self._rolled_cells(page, head, pointer, first, last)
            return cells, head.first_end_ms

        await self._change_sealed(page, edit)

    async def _change_sealed(self, page: RowId, edit: Edit) -> None:
        """Change cells of a sealed page from its head as read; a page that is gone stays as it is.

        Raises:
            Fenced: the page is open, so another writes to it.
            Unavailable: its head changed again and again.
        """
        row, pauses = page_key(self.log, page), self._resolver.pauses()
        while True:
            cell = await self._resolver.head(self._space, row)
            if cell is not None:
                head = heads.decode(cell.value)
                if head.state is PageState.GONE:
                    return
                if head.is_open:
                    self._fenced()
                puts, end_ms = await edit(head)
                if not puts and end_ms == head.first_end_ms:
                    return
                new = head._replace(
                    token=self._tokens.fresh(), edits=head.edits + 1, first_end_ms=end_ms
                )
                if await self._resolver.swap(self._space, row, cell.value, heads.encode(new), puts):
                    return
            await _again(pauses)

    async def _rolled_cells(
        self, page: RowId, head: Head, pointer: int, first: RowId, last: RowId
    ) -> dict[bytes, bytes]:
        """Return the x cells that a rollback puts into a page: entries are found by their columns."""
        if not head.cells:
            return {}
        row = page_key(self.log, page)
        through = min(last, head.pointer)
        columns = await self._columns(row, column_from(first), through)
        found = rolled_targets(columns, pointer, last)
        there = set(columns)
        known = [x for x in map(rolled_column, found) if x in there]
        before = await self._values(row, known)
        puts = {}
        for column in found:
            x = rolled_column(column)
            ranges = entries.decode_rolled(before[x]) if x in before else ()
            puts[x] = entries.encode_rolled(entries.merged((*ranges, (first, last))))
        return puts

    async def _columns(self, row: bytes, start: bytes, through: RowId) -> list[bytes]:
        """Return a page's columns from ``start`` on, which reach ``through``. Raises Unavailable."""
        pauses = self._resolver.pauses()
        while True:
            columns = await self._resolver.read(
                lambda: self._resolver.table.columns(self._space, row, start, ENTRIES_END)
            )
            if columns and last_of(columns[-1]) >= through:
                return columns
            if start > column_from(through):
                return columns
            await _again(pauses)

    async def _values(self, row: bytes, columns: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the values of cells that are known to be there. Raises Unavailable."""
        pauses = self._resolver.pauses()
        while columns:
            found = await self._resolver.read(
                lambda: self._resolver.table.get(self._space, row, columns)
            )
            if len(found) == len(columns):
                return {column: cell.value for column, cell in found.items()}
            await _again(pauses)
        return {}

    # What a leader reads for its own decisions.

    async def chain(self, first: RowId, last: RowId) -> Pages:
        """Return the pages that can hold ids in ``[first, last]``, in order, as they are now (rule 5).

        It counts because it goes by ``next`` from a page of the chain to the own one, or to a sealed page
        that reaches ``last``. Nothing below the floor is returned.

        Raises:
            Unavailable: storage does not answer, or only answers from before.
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
            await _again(pauses)

    async def _walk(self, low: RowId, last: RowId) -> Pages | None:
        """Walk from the page at or before ``low``; None: the answers don't fit together."""
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
                    return _cut_short(out)
                if page == self.page:
                    return [*out, (page, self.head)]
                if not head.is_sealed:
                    return _cut_short(out)
                out.append((page, head))
                if head.pointer >= last:
                    return out
                wanted = head.next
        return _cut_short(out)

    async def _heads(self, first: RowId, last: RowId) -> Pages:
        rows = await self._resolver.read(
            lambda: self._resolver.table.scan(
                self._space,
                page_key(self.log, first),
                page_key(self.log, last),
                limit=HEADS_AT_ONCE,
            )
        )
        return [(page_of(row), heads.decode(cell.value)) for row, cell in rows]

    # Retention.

    async def raise_floor(self, floor: RowId) -> None:
        """Raise the floor to the key of a page, not above the own one; a lower one changes nothing.

        The marks below are put first (rule 8).

        Raises:
            Unavailable: nothing was done.
            Fenced, OutcomeUnknown: the hold is done.
        """
        self._must_go_on()
        if not self.root.floor < floor <= self.page:
            return
        await self._flush_marks()
        await self._raise_root(floor=floor)

    async def note_gone(self, gone: RowId) -> None:
        """Note in the root that every page below a key is gone."""
        await self._raise_root(gone=gone)

    async def _raise_root(self, *, floor: RowId | None = None, gone: RowId | None = None) -> None:
        self._must_go_on()

        def raised(root: Root) -> Root:
            return root._replace(
                floor=max(root.floor, floor or root.floor), gone=max(root.gone, gone or root.gone)
            )

        await self._change_root(raised)

    async def roll_expired(self, bound: RowId) -> None:
        """Seal the own page and go on in the next one, if it has entries, and all lie below ``bound``.

        Raises:
            Unavailable: nothing was done.
            Fenced, OutcomeUnknown: the hold is done.
        """
        if self.head.pointer >= bound:
            return
        await self._turn.acquire()
        try:
            await self._landed()
            self._must_go_on()
            if self.head.cells and self.head.pointer < bound:
                await self._change_own_head({}, state=PageState.SEALED)
                self._rolling = asyncio.ensure_future(self._roll_and_let_go())
        finally:
            if self._rolling is None:
                self._turn.release()
        await self._rolled()
        self._must_go_on()

    async def end_lives(self, page: RowId, before_ms: int) -> int:
        """Replace entries of a page by stubs whose lifetime ended before a time.

        Returns when the next lifetime in it ends, ms since 1970; NO_END if none does.

        Raises:
            Unavailable, Fenced, OutcomeUnknown: it may have been done in part.
        """
        async with self._page_to_itself():
            self._must_go_on()
            if page == self.page:
                stubs, end_ms = await self._ended(page, self.head, before_ms)
                await self._change_own_head(stubs, first_end_ms=end_ms)
                return end_ms
        next_ms = heads.NO_END

        async def edit(head: Head) -> tuple[dict[bytes, bytes], int]:
            nonlocal next_ms
            stubs, next_ms = await self._ended(page, head, before_ms)
            return stubs, next_ms

        await self._ending(self._change_sealed(page, edit))
        return next_ms

    async def _ended(
        self, page: RowId, head: Head, before_ms: int
    ) -> tuple[dict[bytes, bytes], int]:
        """Return stubs for what ended before a time, and when the next lifetime of the page ends."""
        stubs: dict[bytes, bytes] = {}
        end_ms = heads.NO_END
        if not head.cells:
            return stubs, end_ms
        row = page_key(self.log, page)
        columns = await self._columns(row, column_from(page), head.pointer)
        alive = [column for column in columns if has_life(column)]
        for first in range(0, len(alive), CELLS_AT_ONCE):
            values = await self._values(row, alive[first : first + CELLS_AT_ONCE])
            for column, value in values.items():
                entry = entries.decode(value)
                if entry.is_stub or entry.lifetime_ms is None:
                    continue
                ends_ms = timestamp_of(entry.last) + entry.lifetime_ms
                if ends_ms < before_ms:
                    stubs[column] = entries.encode(entries.stub_of(entry))
                else:
                    end_ms = min(end_ms, ends_ms)
        return stubs, end_ms

    async def server_ms(self) -> int | None:
        """Return what time it is where the log lies, by a write that changes nothing else; None: no clock."""
        if self.is_alone:
            return None
        async with self._page_to_itself():
            self._must_go_on()
            before = await self._resolver.head(self._space, page_key(self.log, self.page))
            await self._change_own_head({})
            after = await self._resolver.head(self._space, page_key(self.log, self.page))
        if before is None or after is None or after.server_ms is None:
            return None
        if before.server_ms is not None and after.server_ms <= before.server_ms:
            return None
        return after.server_ms

    # Ends.

    async def hand_off(self) -> bool:
        """Let go in good order if all is confirmed; False if the hold was done before.

        Raises:
            BrokerError: the hold is done, too, and the next claim does without.
        """
        try:
            if not self.done:
                await self._flush_marks()
            async with self._page_to_itself():
                if self.done:
                    return False
                marked = self.marks.marked_with(self.pointer, ())
                await self._change_own_head({}, owner="", marked=marked)
        finally:
            self._end()
        return True

    async def _flush_marks(self) -> None:
        await self.marks.flush()


def rolled_targets(columns: Sequence[bytes], pointer: int, last: RowId) -> list[bytes]:
    """Return the columns of entries of a transaction that can have messages up to ``last``."""
    found = []
    for column in columns:
        if is_rolled_column(column):
            continue
        if pointer_of(column) == pointer:
            found.append(column)
        if last_of(column) >= last:
            break
    return found


def _cut_short(_: Pages) -> Pages | None:
    """Return what a reading is worth that does not reach its end: nothing."""
    return None


async def _again(pauses: Pauses) -> None:
    if not await pauses.next():
        raise Unavailable("Storage gave an outdated answer. Try again.")


__all__ = ["Hold", "PageBounds", "rolled_targets"]
