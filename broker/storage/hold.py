"""A hold: being the one writer of a log, from a claim until another claims it, or it is handed off.

All that a hold may write is its own **page**, the tail of the chain, by changes that expect exactly the head
confirmed last; and what a leader decides alone: the root, rollbacks and ends of lifetimes in sealed pages.
One change of the page is in flight at a time. The next one is built when it is resolved::

    append ──change──▶ confirmed ──page full: the same change sealed it──▶ roll: make the next page, link it
                          │
                          └─▶ answered at once; what comes next waits for the roll

A hold that was fenced, or whose change has an unknown outcome, is *done*: claim the log again.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Sequence
from typing import Final, NoReturn

from broker.errors import BrokerError, Fenced, OutcomeUnknown, RequestError, Unavailable
from broker.model import RowId, timestamp_of
from broker.storage import entry as entries
from broker.storage import head as heads
from broker.storage import root as roots
from broker.storage.entry import Entry
from broker.storage.head import Head, PageState, Verdict
from broker.storage.keys import LogId, page_key, page_of, root_key, space_of
from broker.storage.marks import Marks
from broker.storage.resolve import Resolver, Tokens
from broker.storage.root import Root
from broker.storage.shared import SharedRead

HEADS_AT_ONCE: Final = 256
CELLS_AT_ONCE: Final = 64


@dataclasses.dataclass(frozen=True, slots=True)
class PageBounds:
    """When a page is full."""

    bytes_max: int = 2 << 20
    cells_max: int = 4096


class Hold:
    """The hold on one log. ``head`` and ``root`` are the values confirmed last."""

    def __init__(  # noqa: PLR0913 - Made by a claim alone.
        self,
        log: LogId,
        resolver: Resolver,
        tokens: Tokens,
        bounds: PageBounds,
        *,
        page: RowId,
        head: Head,
        root: Root,
    ) -> None:
        """Begin with what the claim confirmed."""
        self.log = log
        self.page = page
        self.head = head
        self.root = root
        self.done = False
        """Whether it was fenced, handed off or given up: every further change is refused."""
        self.before_server_ms: int | None = None
        """When the head was written before this claim, by the server's clock; None: no clock tells."""
        self.claimed_server_ms: int | None = None
        """When this claim was written, by the server's clock. It is never less than the one before."""
        self._resolver = resolver
        self._tokens = tokens
        self._bounds = bounds
        self._space = space_of(log)
        self._turn = asyncio.Lock()
        """Held while a change of the own page is in flight, and until the page is rolled."""
        self._root_turn = asyncio.Lock()
        self._rolling: asyncio.Task[None] | None = None
        self.marks = Marks(log, resolver, head.marked)
        self._read_head = SharedRead(self._head_of_page)

    @property
    def epoch(self) -> int:
        """The epoch of this hold."""
        return self.head.epoch

    @property
    def pointer(self) -> RowId:
        """The last id that is confirmed."""
        return self.head.pointer

    @property
    def is_alone(self) -> bool:
        """Whether the store tells nothing old, and no other process writes to it."""
        return self._resolver.table.is_alone

    # Appending.

    async def append(self, added: Sequence[Entry], *, messages: int, payload_bytes: int) -> None:
        """Write entries with ids above the pointer; on disk and counting on return.

        ``messages`` and ``payload_bytes`` are what the log's totals rise by.

        Raises:
            BodyTooLarge, Unavailable: certainly not done; the hold goes on.
            Fenced: certainly not done, now or later.
            OutcomeUnknown, StorageFull: it may have been done.
        """
        await self._turn.acquire()
        try:
            self._must_go_on()
            await self._marks_kept_up()
            new = self._appended(added, messages, payload_bytes)
            cells = {entry.column: entries.encode(entry) for entry in added}
            await self._change_page(new, cells)
            self.marks.confirmed(new.pointer, added)
            if new.is_sealed and not self.done:
                self._rolling = asyncio.ensure_future(self._roll_and_let_go())
        finally:
            if self._rolling is None:
                self._turn.release()

    def _appended(self, added: Sequence[Entry], messages: int, payload_bytes: int) -> Head:
        head = self.head
        last = added[-1].last
        ends = [head.first_end_ms]
        size = head.size
        for entry in added:
            size += entry.stored_bytes
            if entry.lifetime_ms is not None:
                ends.append(timestamp_of(entry.last) + entry.lifetime_ms)
        cells = head.cells + len(added)
        is_full = size >= self._bounds.bytes_max or cells >= self._bounds.cells_max
        return head._replace(
            token=self._tokens.fresh(),
            pointer=last,
            state=PageState.SEALED if is_full else PageState.OPEN,
            total=head.total + messages,
            bytes=head.bytes + payload_bytes,
            marked=self.marks.marked_with(last, added),
            first_end_ms=min(ends),
            cells=min(cells, 0xFFFF),
            size=min(size, 0xFFFFFFFF),
        )

    async def _change_page(self, new: Head, cells: dict[bytes, bytes]) -> None:
        """Change the own page; the caller has the turn."""
        row = page_key(self.log, self.page)
        try:
            verdict = await self._resolver.append(self._space, row, self.head, new, cells)
        except (RequestError, Unavailable):
            raise
        except BaseException:
            self._end()
            raise
        if verdict is Verdict.APPLIED:
            self.head = new
            return
        self._end()
        if verdict is Verdict.NEVER:
            self._fenced()
        if verdict is Verdict.UNKNOWN:
            raise OutcomeUnknown("Whether it was stored can't be found out in time.")

    async def _marks_kept_up(self) -> None:
        try:
            await self.marks.kept_up()
        except BrokerError as error:
            raise Unavailable(error.message) from error

    # Rolling.

    async def _roll_and_let_go(self) -> None:
        try:
            await self._roll()
        except BrokerError:
            # The page is sealed, and what was appended is confirmed: the next claim goes on from here.
            self._end()
        except BaseException:
            self._end()
            raise
        finally:
            self._rolling = None
            self._turn.release()

    async def _roll(self) -> None:
        """Make and link the page after the own one, which is sealed (rule 4); the caller has the turn."""
        page = self.head.next
        head = heads.following(
            self.head, self.page, self.epoch, self.head.owner, self._tokens.fresh()
        )
        row = page_key(self.log, page)
        if not await self._resolver.swap(self._space, row, None, heads.encode(head)):
            self._fenced()
        await self._change_root(page=page)
        self.page, self.head = page, head

    async def _change_root(self, **fields: object) -> None:
        async with self._root_turn:
            new = self.root._replace(token=self._tokens.fresh(), **fields)  # type: ignore[arg-type]
            before, after = roots.encode(self.root), roots.encode(new)
            if not await self._resolver.swap(self._space, root_key(self.log), before, after):
                self._fenced()
            self.root = new

    async def _rolled(self) -> None:
        """Wait while the page is being rolled."""
        while (rolling := self._rolling) is not None:
            await asyncio.wait((rolling,))

    # Proof of leading.

    async def proof(self) -> bool:
        """Whether a reading begun after this call shows that no other node took over before (rule 6).

        Raises:
            Unavailable: storage does not answer.
        """
        while not self.done:
            await self._rolled()
            if self.is_alone:
                return not self.done
            confirmed, page = self.head.token, self.page
            seen = await self._read_head()
            if self.page != page or (seen is not None and self._is_mine(seen, PageState.SEALED)):
                await asyncio.sleep(0)  # The page is being rolled.
                continue
            if seen is None:
                return False
            if self._is_mine(seen, PageState.OPEN) and seen.token >= confirmed:
                return not self.done
            if seen.epoch > self.epoch or seen.state is PageState.CLOSED:
                self._end()
            return False
        return False

    def _is_mine(self, seen: Head, state: PageState) -> bool:
        return seen.state is state and self._tokens.is_mine(seen.token)

    async def _head_of_page(self) -> Head | None:
        cell = await self._resolver.head(self._space, page_key(self.log, self.page))
        return None if cell is None else heads.decode(cell.value)

    # Rolling back.

    async def rollback(self, pointer: int, first: RowId, last: RowId) -> None:
        """Roll back a transaction's messages in ``[first, last]`` (rule 7). May be repeated.

        Raises:
            Unavailable, Fenced: nothing was done.
            OutcomeUnknown: some of it may have been done.
        """
        self._must_go_on()
        last = min(last, self.pointer)
        pages = await self.chain(first, last) if first <= last else []
        own = None
        try:
            for page, head in pages:
                if page == self.page:
                    own = page
                else:
                    await self._roll_back_sealed(
                        page, pointer, first, last, min(last, head.pointer)
                    )
            await self._last_step(own, pointer, first, last)
        except (BrokerError, asyncio.CancelledError) as error:
            raise OutcomeUnknown(f"Part of the rollback may be missing: {error}") from error

    async def _last_step(self, own: RowId | None, pointer: int, first: RowId, last: RowId) -> None:
        """Change the own head, always: this shows that the leader led until all else was done.

        ``own`` was the own page before the turn came; it may be sealed by now.
        """
        async with self._turn:
            self._must_go_on()
            puts: dict[bytes, bytes] = {}
            if own == self.page:
                puts = await self._rolled_cells(own, pointer, first, last, last)
            elif own is not None:
                await self._roll_back_sealed(own, pointer, first, last, last)
            await self._change_own_head(puts, edits=self.head.edits + 1)

    async def _change_own_head(self, puts: dict[bytes, bytes], **fields: object) -> None:
        """Change the own head with other cells than entries; the caller has the turn."""
        new = self.head._replace(token=self._tokens.fresh(), **fields)  # type: ignore[arg-type]
        row = page_key(self.log, self.page)
        before, after = heads.encode(self.head), heads.encode(new)
        try:
            if not await self._resolver.swap(self._space, row, before, after, puts):
                self._fenced()
        except (RequestError, Unavailable):
            raise
        except BaseException:
            self._end()
            raise
        self.head = new

    async def _roll_back_sealed(
        self, page: RowId, pointer: int, first: RowId, last: RowId, through: RowId
    ) -> None:
        """Set the x cells of a page that is not the own one."""
        puts = await self._rolled_cells(page, pointer, first, last, through)
        if puts:
            await self.change_sealed(page, puts)

    async def change_sealed(self, page: RowId, puts: dict[bytes, bytes], **fields: object) -> bool:
        """Change cells of a sealed page from its head as read; False if the page is gone.

        Raises:
            Fenced: the page is open, so another writes to it.
        """
        row = page_key(self.log, page)
        while True:
            cell = await self._resolver.head(self._space, row)
            head = None if cell is None else heads.decode(cell.value)
            if cell is None or head is None or head.state is PageState.GONE:
                return False
            if head.is_open:
                self._fenced()
            new = head._replace(
                token=self._tokens.fresh(),
                edits=head.edits + 1,
                **fields,  # type: ignore[arg-type]
            )
            if await self._resolver.swap(self._space, row, cell.value, heads.encode(new), puts):
                return True

    async def _rolled_cells(
        self, page: RowId, pointer: int, first: RowId, last: RowId, through: RowId
    ) -> dict[bytes, bytes]:
        """Return the x cells that a rollback puts into a page: entries are found by their columns.

        The page has entries up to ``through`` at least; an answer without them is from before.
        """
        row = page_key(self.log, page)
        table = self._resolver.table
        columns = await self._columns(row, entries.column_from(first), through)
        found = rolled_targets(columns, pointer, last)
        there = set(columns)
        known = [x for x in map(entries.rolled_column, found) if x in there]
        before = (
            await self._resolver.read(lambda: table.get(self._space, row, known)) if known else {}
        )
        puts = {}
        for column in found:
            x = entries.rolled_column(column)
            ranges = entries.decode_rolled(before[x].value) if x in before else ()
            puts[x] = entries.encode_rolled(entries.merged((*ranges, (first, last))))
        return puts

    async def _columns(self, row: bytes, start: bytes, through: RowId) -> list[bytes]:
        """Return a page's columns from ``start`` on, which reach ``through``. Raises Unavailable."""
        pauses = self._resolver.pauses()
        while True:
            columns = await self._resolver.read(
                lambda: self._resolver.table.columns(self._space, row, start, entries.ENTRIES_END)
            )
            if columns and entries.last_of(columns[-1]) >= through:
                return columns
            if start > entries.column_from(through):
                return columns
            if not await pauses.next():
                raise Unavailable("Storage answers with what was before. Try again.")

    # What a leader reads for its own decisions.

    async def chain(self, first: RowId, last: RowId) -> list[tuple[RowId, Head]]:
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
            if low >= self.page:
                return [(self.page, self.head)]
            found = await self._walk(low, last)
            if found is not None:
                return found
            if not await pauses.next():
                raise Unavailable("Storage answers with what was before. Try again.")

    async def _walk(self, low: RowId, last: RowId) -> list[tuple[RowId, Head]] | None:
        start = await self._resolver.read(
            lambda: self._resolver.table.scan(
                self._space,
                page_key(self.log, self.root.floor),
                page_key(self.log, low),
                limit=1,
                reverse=True,
            )
        )
        if not start:
            return None
        out: list[tuple[RowId, Head]] = []
        wanted = page_of(start[0][0])
        end = page_key(self.log, self.page)
        while True:
            rows = await self._resolver.read(
                lambda wanted=wanted: self._resolver.table.scan(  # type: ignore[misc]
                    self._space, page_key(self.log, wanted), end, limit=HEADS_AT_ONCE
                )
            )
            for row, cell in rows:
                page, head = page_of(row), heads.decode(cell.value)
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
            if not rows:
                return None

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
        await self._ending(self._change_root(floor=floor))

    async def note_gone(self, gone: RowId) -> None:
        """Note in the root that every page below a key is gone."""
        if gone > self.root.gone:
            self._must_go_on()
            await self._ending(self._change_root(gone=gone))

    async def roll_expired(self) -> None:
        """Seal the own page as it is and go on in the next one, if it has entries."""
        async with self._turn:
            self._must_go_on()
            if not self.head.cells:
                return
            await self._change_own_head({}, state=PageState.SEALED)
            await self._ending(self._roll())

    async def end_lives(self, page: RowId, before_ms: int) -> int:
        """Replace entries of a page by stubs whose lifetime ended before a time.

        Returns when the next lifetime in it ends, ms since 1970; NO_END if none does.
        """
        if page == self.page:
            async with self._turn:
                self._must_go_on()
                if page == self.page:
                    stubs, end_ms = await self._ended(page, before_ms)
                    await self._change_own_head(stubs, first_end_ms=end_ms)
                    return end_ms
        self._must_go_on()
        stubs, end_ms = await self._ended(page, before_ms)
        await self._ending(self.change_sealed(page, stubs, first_end_ms=end_ms))
        return end_ms

    async def _ended(self, page: RowId, before_ms: int) -> tuple[dict[bytes, bytes], int]:
        """Return stubs for what ended before a time, and when the next lifetime of the page ends."""
        row, table = page_key(self.log, page), self._resolver.table
        columns = await self._resolver.read(
            lambda: table.columns(self._space, row, b"e", entries.ENTRIES_END)
        )
        alive = [column for column in columns if entries.has_life(column)]
        stubs: dict[bytes, bytes] = {}
        end_ms = heads.NO_END
        for first in range(0, len(alive), CELLS_AT_ONCE):
            some = alive[first : first + CELLS_AT_ONCE]
            cells = await self._resolver.read(
                lambda some=some: table.get(self._space, row, some)  # type: ignore[misc]
            )
            for column, cell in cells.items():
                entry = entries.decode(cell.value)
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
        async with self._turn:
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
            BrokerError: the next claim does without.
        """
        await self._flush_marks()
        async with self._turn:
            if self.done:
                return False
            marked = self.marks.marked_with(self.pointer, ())
            try:
                await self._change_own_head({}, owner="", marked=marked)
            finally:
                self._end()
        return True

    async def _flush_marks(self) -> None:
        await self.marks.flush()

    async def settled(self) -> None:
        """Wait until nothing is in flight."""
        async with self._turn:
            return

    async def _ending(self, change: Awaitable[object]) -> None:
        """Make a change that ends the hold if its outcome is not certain."""
        try:
            await change
        except (RequestError, Unavailable):
            raise
        except BaseException:
            self._end()
            raise

    def end(self) -> None:
        """Give the hold up: every further change is refused."""
        self._end()

    def _end(self) -> None:
        self.done = True
        self.marks.close()

    def _must_go_on(self) -> None:
        if self.done:
            raise Fenced(f"No hold on {self.log.topic} any more.")

    def _fenced(self) -> NoReturn:
        self._end()
        raise Fenced(f"Another leads topic '{self.log.topic}'.")


def rolled_targets(columns: Sequence[bytes], pointer: int, last: RowId) -> list[bytes]:
    """Return the columns of entries of a transaction that can have messages up to ``last``."""
    found = []
    for column in columns:
        if entries.is_rolled_column(column):
            continue
        if entries.pointer_of(column) == pointer:
            found.append(column)
        if entries.last_of(column) >= last:
            break
    return found
