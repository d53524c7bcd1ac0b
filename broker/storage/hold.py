"""A hold: the right to write a log, from a claim until another node claims the log, or a handoff.

A hold writes its own page (ownpage.py). It alone decides about the rest of the log: which pages may be read
(the floor), and which messages of a sealed page are rolled back or expired. It finds those pages by the chain:
from a page at or above the floor it follows ``next`` to its own page. To change a sealed page it reads the head
*before* the cells, and expects that head. So the change fails if another change came after the read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, NamedTuple

from broker.errors import BrokerError, OutcomeUnknown, Unavailable
from broker.long_work import ASIDE_BYTES_MIN, aside
from broker.model import LOG_KEY_MIN, LogKey
from broker.storage import entry as entries
from broker.storage import hashchain
from broker.storage import head as heads
from broker.storage.columns import (
    ENTRIES_END,
    column_from,
    has_life,
    is_rolled_column,
    last_of,
    pointer_of,
    rolled_column,
    up_to,
)
from broker.storage.hashchain import ChainRecord, Kind
from broker.storage.head import Head, PageState
from broker.storage.keys import page_key
from broker.storage.ownchain import OwnChain
from broker.storage.root import Root

CELLS_AT_ONCE: Final = 64
ROLLED_AT_ONCE: Final = 256
"""How many x cells one change puts. It is limited, because appends go on between two changes."""

Edit = Callable[[Head], Awaitable[tuple[dict[bytes, bytes], int]]]
"""Given a page's head, return the cells to put, and the new ``first_end_ms`` of the page."""


class _Slice(NamedTuple):
    """Entries that one change rolls back: their messages in ``[first, last]``."""

    first: LogKey
    last: LogKey
    columns: list[bytes]


class PageInversion(NamedTuple):
    """The result of inverting one page.

    ``low`` and ``high``: the least and the greatest write pointer in its columns; None if it has none.
    ``inverted``: the transactions with messages that this call inverted. ``last``: the last id that it checked.
    """

    low: int | None = None
    high: int | None = None
    inverted: frozenset[int] = frozenset()
    last: LogKey = LOG_KEY_MIN


class LogHold(OwnChain):
    """The hold on one log."""

    before_server_ms: int | None = None
    """When the head was last written before this claim, by the server's clock; None: there is no such clock."""
    claimed_server_ms: int | None = None
    """When this claim was written, by the server's clock. It is never less than ``before_server_ms``."""

    # Rolling back.

    async def rollback(self, pointer: int, first: LogKey, last: LogKey) -> None:
        """Roll back a transaction's messages in ``[first, last]`` (rule 7). May be repeated.

        It works slice by slice. If this process stops between two slices, part of the rollback is done, and
        the caller has had no answer.

        Raises:
            Unavailable, Fenced: nothing was done.
            OutcomeUnknown: part of it may have been done, also if another node fenced this one in the last step.
        """
        self._must_go_on()
        last = min(last, self.pointer)
        pages = await self.chain(first, last)
        number = None
        try:
            for page, _ in pages:
                for part in await self._slices(page, pointer, first, last):
                    if number is None:
                        number = await self._announce(
                            ChainRecord(Kind.ROLL, first, last, 0, (pointer,))
                        )
                    await self._roll_back(page, part)
            await self._last_change(number)
        except BrokerError as error:
            raise OutcomeUnknown(f"Part of the rollback may be missing: {error}") from error

    async def _slices(
        self, page: LogKey, pointer: int, first: LogKey, last: LogKey
    ) -> list[_Slice]:
        """Return the entries of a page to roll back, in slices. A page that is gone has none."""
        head = self.head
        if page != self.page:
            found = await self._sealed_head(page, self._resolver.pauses())
            if found is None:
                return []
            _, head = found
        if not head.cells:
            return []
        row = page_key(self.log, page)
        through = min(last, head.pointer)
        columns = await self._columns(row, column_from(first), ENTRIES_END, through)
        targets = rolled_targets(columns, pointer, last)
        return [
            _Slice(first, last, targets[at : at + ROLLED_AT_ONCE])
            for at in range(0, len(targets), ROLLED_AT_ONCE)
        ]

    async def _roll_back(self, page: LogKey, part: _Slice) -> None:
        """Set the x cells of one slice, in one change of its page."""
        if page == self.page:
            async with self._exclusive_turn():
                self._must_go_on()
                if page == self.page:
                    await self._change_own_head(
                        await self._rolled_cells(page, part), edits=self.head.edits + 1
                    )
                    return
        # The page was sealed before the rollback, or while this task waited for its turn.

        async def edit(head: Head) -> tuple[dict[bytes, bytes], int]:
            return await self._rolled_cells(page, part), head.first_end_ms

        await self._change_sealed(page, edit)

    async def _announce(self, record: ChainRecord) -> int | None:
        """Record an edit before its first change, if the log has a hash chain. Return the record's number.

        A chain that begins after this call lies behind every entry that the edit changes.
        """
        if not self.is_chained:
            return None
        async with self._exclusive_turn():
            self._must_go_on()
            return await self._record(record)

    async def _last_change(self, number: int | None = None) -> None:
        """Change the own head, always: success shows that this node led until all other changes were done.

        ``number``: the record of the edit that is done now.
        """
        async with self._exclusive_turn():
            self._must_go_on()
            if number is None:
                await self._change_own_head({}, edits=self.head.edits + 1)
            else:
                await self._record(ChainRecord(Kind.DONE, of=number))

    async def _change_sealed(self, page: LogKey, edit: Edit) -> None:
        """Change cells of a sealed page, expecting its head as read. A page that is gone is not changed.

        Raises:
            Fenced: the page is open, so another node writes to it.
            Unavailable: another change of its head came first at each try.
        """
        row, pauses = page_key(self.log, page), self._resolver.pauses()
        while (found := await self._sealed_head(page, pauses)) is not None:
            before, head = found
            puts, end_ms = await edit(head)
            if not puts and end_ms == head.first_end_ms:
                return
            new = head._replace(
                token=self._tokens.fresh(), edits=head.edits + 1, first_end_ms=end_ms
            )
            if await self._resolver.swap(self._space, row, before, heads.encode(new), puts):
                return
            await pauses.again()

    async def _rolled_cells(self, page: LogKey, part: _Slice) -> dict[bytes, bytes]:
        """Return the x cells for one slice of a rollback, joined with the x cells that the page has now."""
        row, found = page_key(self.log, page), part.columns
        # Other rollbacks may have put x cells since ``_slices`` read the page.
        columns = await self._columns(row, found[0], rolled_column(found[-1]), last_of(found[-1]))
        there = set(columns)
        known = [x for x in map(rolled_column, found) if x in there]
        before = await self._values(row, known)
        puts = {}
        for column in found:
            x = rolled_column(column)
            ranges = entries.decode_rolled(before[x]) if x in before else ()
            puts[x] = entries.encode_rolled(entries.merged((*ranges, (part.first, part.last))))
        return puts

    # Inverting messages of invalid transactions.

    async def invert(self, page: LogKey, is_invalid: Callable[[int], bool]) -> PageInversion:
        """Roll back all messages of invalid transactions in a page (rule 7). May be repeated.

        The columns hold the write pointers, so this reads no payload. The caller does this for all pages, and
        then calls ``end_inverting``.

        Raises:
            Unavailable, Fenced, OutcomeUnknown: part of it may be done.
        """
        self._must_go_on()
        head = self.head
        if page != self.page:
            found = await self._sealed_head(page, self._resolver.pauses())
            if found is None:
                return PageInversion()
            _, head = found
        if not head.cells:
            return PageInversion()
        row = page_key(self.log, page)
        columns = await self._columns(row, column_from(page), ENTRIES_END, head.pointer)
        pointers = {
            column: pointer
            for column in columns
            if not is_rolled_column(column) and (pointer := pointer_of(column)) is not None
        }
        if not pointers:
            return PageInversion(last=head.pointer)
        invalid = [column for column, pointer in pointers.items() if is_invalid(pointer)]
        targets = await self._to_invert(page, invalid, set(columns))
        number = None
        if targets:
            inverted = tuple(sorted({pointers[column] for column in targets}))
            number = await self._announce(
                ChainRecord(Kind.ROLL, page, last_of(targets[-1]), 0, inverted)
            )
        for at in range(0, len(targets), ROLLED_AT_ONCE):
            some = targets[at : at + ROLLED_AT_ONCE]
            await self._roll_back(page, _Slice(page, last_of(some[-1]), some))
        if number is not None:
            await self._last_change(number)
        low, high = min(pointers.values()), max(pointers.values())
        return PageInversion(
            low, high, frozenset(pointers[column] for column in targets), head.pointer
        )

    async def _to_invert(
        self, page: LogKey, columns: Sequence[bytes], there: Collection[bytes]
    ) -> list[bytes]:
        """Return the columns of those entries that are not rolled back completely.

        An entry is rolled back completely if one range goes from the page's key to the entry's last id.
        """
        known = [x for x in map(rolled_column, columns) if x in there]
        values = await self._values(page_key(self.log, page), known)

        def is_inverted(column: bytes) -> bool:
            value = values.get(rolled_column(column))
            ranges = () if value is None else entries.decode_rolled(value)
            return any(first <= page and last_of(column) <= last for first, last in ranges)

        return [column for column in columns if not is_inverted(column)]

    async def end_inverting(self) -> None:
        """Change the own head after inverting all pages.

        Success shows that this node led until all other changes were done. No earlier change of the own page
        can be applied after it.

        Raises:
            Fenced, OutcomeUnknown: another node may have led meanwhile.
        """
        await self._last_change()

    # Retention.

    async def raise_floor(self, floor: LogKey) -> None:
        """Raise the floor to the key of a page, at most the own page. A lower floor is a no-op.

        The marks below the new floor are put first (rule 8).

        Raises:
            Unavailable: nothing was done.
            Fenced, OutcomeUnknown: the hold is done.
        """
        self._must_go_on()
        if not self.root.floor < floor <= self.page:
            return
        await self.marks.flush()
        await self._announce(ChainRecord(Kind.FLOOR, floor))
        await self._raise_root(floor=floor)

    async def note_gone(self, gone: LogKey) -> None:
        """Note in the root that every page below a key is gone."""
        await self._raise_root(gone=gone)

    async def _raise_root(self, *, floor: LogKey | None = None, gone: LogKey | None = None) -> None:
        self._must_go_on()

        def raised(root: Root) -> Root:
            return root._replace(
                floor=max(root.floor, floor or root.floor), gone=max(root.gone, gone or root.gone)
            )

        await self._change_root(raised)

    async def roll_expired(self, bound: LogKey) -> None:
        """Seal the own page and go on in the next one, if it has entries and all of them are below ``bound``.

        Raises:
            Unavailable: nothing was done.
            Fenced, OutcomeUnknown: the hold is done.
        """
        if self.head.pointer >= bound:
            return
        await self._turn.acquire()
        try:
            await self._none_in_flight()
            self._must_go_on()
            if self.head.cells and self.head.pointer < bound:
                await self._change_own_head({}, state=PageState.SEALED)
                self._rolling = asyncio.ensure_future(self._roll_and_release())
        finally:
            if self._rolling is None:
                self._turn.release()
        await self._rolled()
        self._must_go_on()

    async def end_lives(self, page: LogKey, before_ms: int) -> int:
        """Replace the entries of a page whose lifetime ended before ``before_ms`` by stubs.

        Returns when the next lifetime in the page ends, ms since 1970; NO_END if no entry has one.

        Raises:
            Unavailable, Fenced, OutcomeUnknown: part of it may have been done.
        """
        async with self._exclusive_turn():
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

        await self._end_if_uncertain(self._change_sealed(page, edit))
        return next_ms

    async def _ended(
        self, page: LogKey, head: Head, before_ms: int
    ) -> tuple[dict[bytes, bytes], int]:
        """Return stubs for entries that ended before ``before_ms``, and when the page's next lifetime ends."""
        stubs: dict[bytes, bytes] = {}
        end_ms = heads.NO_END
        if not head.cells:
            return stubs, end_ms
        row = page_key(self.log, page)
        columns = await self._columns(row, column_from(page), ENTRIES_END, head.pointer)
        alive = [column for column in columns if has_life(column)]
        for first in range(0, len(alive), CELLS_AT_ONCE):
            values = await self._values(row, alive[first : first + CELLS_AT_ONCE])
            for column, value in values.items():
                entry = entries.decode(value, is_checked=self._resolver.table.checks_values)
                if entry.is_stub or (ends_ms := entry.end_ms) is None:
                    continue
                if ends_ms < before_ms:
                    digest = await _digest(value) if head.chain else b""
                    stubs[column] = entries.encode(entries.stub_of(entry, digest))
                else:
                    end_ms = min(end_ms, ends_ms)
        return stubs, end_ms

    async def server_ms(self) -> int | None:
        """Return the time by the clock of the server that has the log; None: the store has no clock.

        It changes the own head, with a new token only, and takes the time of that write.

        Raises:
            Unavailable: the head's time did not rise, so it is not of that write: HBase never lets it fall.
            Fenced, OutcomeUnknown: the hold is done.
        """
        if self.is_alone:
            return None
        async with self._exclusive_turn():
            self._must_go_on()
            before = await self._resolver.head(self._space, page_key(self.log, self.page))
            await self._change_own_head({})
            after = await self._resolver.head(self._space, page_key(self.log, self.page))
        if before is None or after is None or after.server_ms is None:
            return None
        if before.server_ms is not None and after.server_ms <= before.server_ms:
            raise Unavailable("The time of a cell only rises, and that of the head did not.")
        return after.server_ms

    # Ends.

    async def hand_off(self) -> bool:
        """End the hold after all its changes are confirmed, and clear the owner; False if it was done before.

        Raises:
            BrokerError: the hold is done too, and the owner may not be cleared. The next claim works anyway.
        """
        try:
            if not self.done:
                await self.marks.flush()
            async with self._exclusive_turn():
                if self.done:
                    return False
                marked = self.marks.marked_with(self.pointer, ())
                await self._change_own_head({}, owner="", marked=marked)
        finally:
            self.end()
        return True


async def _digest(value: bytes) -> bytes:
    if len(value) < ASIDE_BYTES_MIN:
        return hashchain.content_hash(value)
    return await aside(lambda: hashchain.content_hash(value))


def rolled_targets(columns: Sequence[bytes], pointer: int, last: LogKey) -> list[bytes]:
    """Return the columns of a transaction's entries that can have messages up to ``last``."""
    return [column for column in up_to(last, columns) if pointer_of(column) == pointer]
