"""The page that a hold writes: appending, rolling, and proving that this node still leads.

From its claim until another node's claim, the writer changes its **own page**, the tail of the chain. Each change
expects exactly the head confirmed last. One change of the page is in flight at a time, and the next is built
when the first is resolved. If the table keeps the order of changes, the next change is sent while the first is in
flight, and expects the head of the first::

    append ──change──▶ confirmed ──page full: the same change sealed it──▶ roll: make the next page, link it
                          │
                          └─▶ answered at once; the next change waits for the roll

A hold is *done* if its page was fenced, if a change has an unknown outcome, or if a sealed page could not be
rolled. Then the node must claim the log again before its next change.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, NoReturn, TypeVar

from broker.errors import BrokerError, Fenced, OutcomeUnknown, RequestError, Unavailable
from broker.long_work import ASIDE_BYTES_MIN, ASIDE_ITEMS_MIN, aside
from broker.model import LogKey
from broker.storage import entry as entries
from broker.storage import hashchain
from broker.storage import head as heads
from broker.storage import root as roots
from broker.storage.entry import Entry
from broker.storage.hashchain import ChainRecord, Kind
from broker.storage.head import ChangeVerdict, Head, PageState
from broker.storage.keys import LogId, page_key, root_key, space_of
from broker.storage.marks import Marks
from broker.storage.page_packer import is_worth_it, pack
from broker.storage.resolve import Resolver, Tokens
from broker.storage.root import Root
from broker.storage.shared import SharedRead

Answer = TypeVar("Answer")
IN_FLIGHT_IN_ORDER: Final = 2
"""The store syncs one change while the writer builds and sends the next."""


@dataclasses.dataclass(frozen=True, slots=True)
class PageBounds:
    """When a page is full."""

    bytes_max: int = 2 << 20
    cells_max: int = 4096
    packed_from: int = 64
    """A sealed page is packed if it has at least this many entries, and they are small."""


class OwnPage:
    """The page that this writer writes. ``head`` and ``root`` are the values confirmed last."""

    def __init__(  # noqa: PLR0913 - Made by a claim alone.
        self,
        log: LogId,
        resolver: Resolver,
        tokens: Tokens,
        bounds: PageBounds,
        *,
        page: LogKey,
        head: Head,
        root: Root,
    ) -> None:
        """Begin with the values that the claim confirmed."""
        self.log = log
        self.page = page
        self.head = head
        self.root = root
        self.done = False
        """True if the hold was fenced, handed off or given up: every further change is refused."""
        self._resolver = resolver
        self._tokens = tokens
        self._bounds = bounds
        self._space = space_of(log)
        self._turn = asyncio.Lock()
        """Held while a change of the own page is in flight, and until the page is rolled.

        If the table keeps the order of changes, an append holds it only while it is built."""
        self._newest = head
        """The head of the change that was sent last; ``head`` if none is in flight."""
        self._last: asyncio.Future[None] | None = None
        """Done when the change sent last has its outcome; None: no change is in flight."""
        self._root_turn = asyncio.Lock()
        self._rolling: asyncio.Task[None] | None = None
        self._packing: asyncio.Task[None] | None = None
        self.marks = Marks(log, resolver, head.marked)
        self._read_head = SharedRead(self._head_of_page)

    @property
    def epoch(self) -> int:
        """The epoch of this writer."""
        return self.head.epoch

    @property
    def pointer(self) -> LogKey:
        """The last id that is confirmed."""
        return self.head.pointer

    @property
    def in_flight_max(self) -> int:
        """How many appends may be in flight: more than one only if the table keeps the order of changes."""
        return IN_FLIGHT_IN_ORDER if self._resolver.table.keeps_order else 1

    @property
    def is_alone(self) -> bool:
        """True if no other process uses the store, and no read is stale."""
        return self._resolver.table.is_alone

    # Appending.

    async def append(self, added: Sequence[Entry], *, messages: int, payload_bytes: int) -> None:
        """Write entries with ids above the pointer. They are on disk and count on return.

        ``messages`` and ``payload_bytes`` are added to the log's totals.

        Raises:
            BodyTooLarge, Unavailable: certainly not done; the hold goes on.
            Fenced: certainly not done, now or later.
            OutcomeUnknown, StorageFull: it may have been done.
        """
        await self._turn.acquire()
        try:
            self._must_go_on()
            size = sum([len(entry.items) for entry in added])
            build = partial(_built, added, is_chained=self.is_chained)
            if size >= ASIDE_BYTES_MIN or len(added) >= ASIDE_ITEMS_MIN:
                cells, links = await aside(build)
                self._must_go_on()
            else:
                cells, links = build()
            if self.marks.lags:
                await self._marks_kept_up()
            new = self._appended(added, messages, payload_bytes, links)
        except BaseException:
            self._turn.release()
            raise
        if self._resolver.table.keeps_order and not new.is_sealed:
            # The next append gets its turn only after this task has sent its change to the table.
            self._turn.release()
            await self._change_page(new, cells, added)
            return
        try:
            await self._change_page(new, cells, added)
            if new.is_sealed and not self.done:
                self._rolling = asyncio.ensure_future(self._roll_and_release())
        finally:
            if self._rolling is None:
                self._turn.release()

    def _appended(
        self, added: Sequence[Entry], messages: int, payload_bytes: int, links: Sequence[bytes]
    ) -> Head:
        head = self._newest
        assert head.is_open, "a sealed page takes nothing"
        assert added[0].first > head.pointer, "ids rise"
        last = added[-1].last
        size, end_ms = head.size, head.first_end_ms
        for entry in added:
            size += entry.stored_bytes
            if entry.end_ms is not None:
                end_ms = min(end_ms, entry.end_ms)
        cells = head.cells + len(added)
        is_full = size >= self._bounds.bytes_max or cells >= self._bounds.cells_max
        return Head(  # Half the time of _replace.
            epoch=head.epoch,
            owner=head.owner,
            token=self._tokens.fresh(),
            pointer=last,
            state=PageState.SEALED if is_full else PageState.OPEN,
            total=head.total + messages,
            bytes=head.bytes + payload_bytes,
            edits=head.edits,
            marked=max(head.marked, self.marks.marked_with(last, added)),
            first_end_ms=end_ms,
            prev=head.prev,
            cells=min(cells, 0xFFFF),
            size=min(size, 0xFFFFFFFF),
            before=head.before,
            chain=hashchain.extended(head.chain, links) if links else head.chain,
        )

    async def _change_page(
        self, new: Head, cells: dict[bytes, bytes], added: Sequence[Entry]
    ) -> None:
        """Change the own page, expecting the head sent last. Changes are confirmed in the order of sending."""
        row, before = page_key(self.log, self.page), self._newest
        self._newest = new
        previous, mine = self._last, asyncio.get_running_loop().create_future()
        self._last = mine
        self.marks.sent(added)
        try:
            verdict = await self._end_if_uncertain(
                self._resolver.append(self._space, row, before, new, cells)
            )
            if previous is not None and not previous.done():
                # If this is cancelled, the hold does not take the new head, so it must not go on.
                await self._end_if_uncertain(asyncio.wait((previous,)))
            self._note(verdict, new)
            self.marks.confirmed(new.pointer, added)
        finally:
            self.marks.landed(added)
            mine.set_result(None)
            if self._last is mine:
                # A change that the table refuses at once may end before the change sent before it.
                is_first = previous is None or previous.done()
                self._last, self._newest = (None, self.head) if is_first else (previous, before)

    def _note(self, verdict: ChangeVerdict, new: Head) -> None:
        """Act on the outcome of a change of the own page: take the new head, or end the hold and raise."""
        if verdict is ChangeVerdict.APPLIED:
            self.head = new
            return
        self.end()
        if verdict is ChangeVerdict.NEVER:
            self._fenced()
        if verdict is ChangeVerdict.UNKNOWN:
            raise OutcomeUnknown("The broker can't find out in time whether it was stored.")

    async def _change_own_head(self, puts: dict[bytes, bytes], **fields: object) -> None:
        """Change the own head, and put cells that are not entries; the caller has the page to itself."""
        new = self.head._replace(token=self._tokens.fresh(), **fields)  # type: ignore[arg-type]
        row = page_key(self.log, self.page)
        before, after = heads.encode(self.head), heads.encode(new)
        if not await self._end_if_uncertain(
            self._resolver.swap(self._space, row, before, after, puts)
        ):
            self._fenced()
        self.head = self._newest = new

    # The hash chain (rule 16).

    @property
    def is_chained(self) -> bool:
        """True if the log has a hash chain."""
        return bool(self.head.chain)

    async def begin_chain(self) -> None:
        """Begin the log's hash chain behind the pointer. If it has one, this is a no-op: a chain has no end.

        Raises:
            Unavailable: nothing was done.
            Fenced, OutcomeUnknown: the hold is done.
        """
        async with self._exclusive_turn():
            self._must_go_on()
            if not self.is_chained:
                start = hashchain.genesis(self.log)
                await self._record(ChainRecord(Kind.BEGIN, first=self.root.floor), before=start)

    async def _record(
        self, record: ChainRecord, puts: Mapping[bytes, bytes] | None = None, *, before: bytes = b""
    ) -> int:
        """Put a record into the chain, in one change of the own head. Return its number.

        The caller has the page to itself. ``before``: the genesis, if the record begins the chain.
        """
        head, number = self.head, self.head.edits + 1
        cell = hashchain.cell_of(head.pointer, number, record)
        await self._change_own_head(
            {**(puts or {}), cell.column: cell.value},
            edits=number,
            size=min(head.size + cell.size, 0xFFFFFFFF),
            before=before or head.before,
            chain=hashchain.recorded(before or head.chain, cell),
        )
        return number

    @asynccontextmanager
    async def _exclusive_turn(self) -> AsyncIterator[None]:
        """Hold the turn while no change is in flight."""
        async with self._turn:
            await self._none_in_flight()
            yield

    async def _none_in_flight(self) -> None:
        """Wait until no change is in flight; the caller has the turn."""
        while (last := self._last) is not None:
            await asyncio.wait((last,))

    async def _marks_kept_up(self) -> None:
        try:
            await self.marks.flush()
        except BrokerError as error:
            raise Unavailable(error.message) from error

    # Rolling.

    async def _roll_and_release(self) -> None:
        try:
            await self._roll()
        except BrokerError:
            # The page is sealed and all appends are confirmed: the next claim goes on from here.
            self.end()
        finally:
            self._rolling = None
            self._turn.release()

    async def _roll(self) -> None:
        """Make and link the page after the own one, which is sealed (rule 4); the caller has the turn.

        A sealed page takes no more appends, so every error here ends the hold.
        """
        page = self.head.next
        head = heads.following(
            self.head, self.page, self.epoch, self.head.owner, self._tokens.fresh()
        )
        row = page_key(self.log, page)
        try:
            if not await self._resolver.swap(self._space, row, None, heads.encode(head)):
                self._fenced()
            await self._change_root(lambda root: roots.linked(root, page, head.epoch))
        except BaseException:
            self.end()
            raise
        former, was = self.page, self.head
        self.page = page
        self.head = self._newest = head
        if self.is_alone and self._packing is None and is_worth_it(was, self._bounds.packed_from):
            self._packing = asyncio.ensure_future(self._pack(former))

    async def _pack(self, page: LogKey) -> None:
        """Pack the page before the own one. If that fails the page stays unpacked, which is slower to read."""
        try:
            with contextlib.suppress(BrokerError):
                await pack(self._resolver, self._tokens, self.log, page)
        finally:
            self._packing = None

    async def _change_root(self, change: Callable[[Root], Root]) -> None:
        """Change the root, expecting the one confirmed last. It is a no-op if ``change`` returns an equal root."""
        async with self._root_turn:
            changed = change(self.root)
            if changed == self.root:
                return
            new = changed._replace(token=self._tokens.fresh())
            before, after = roots.encode(self.root), roots.encode(new)
            row = root_key(self.log)
            if not await self._end_if_uncertain(
                self._resolver.swap(self._space, row, before, after)
            ):
                self._fenced()
            self.root = new

    async def _rolled(self) -> None:
        """Wait while the page is being rolled."""
        while (rolling := self._rolling) is not None:
            await asyncio.wait((rolling,))

    # Proof of leading.

    async def proof(self) -> bool:
        """True if a read that began after this call shows that no other node took over before it (rule 6).

        Raises:
            Unavailable: storage does not answer.
        """
        while not self.done:
            if self.is_alone:
                return True
            await self._rolled()
            confirmed, page = self.head.token, self.page
            seen = await self._read_head()
            if self.page != page or (seen is not None and self._is_mine(seen, PageState.SEALED)):
                # The page is being rolled; the change that seals it may be in doubt for long.
                await asyncio.wait((self._last,)) if self._last else await asyncio.sleep(0)
                continue
            if seen is None:
                return False
            if self._is_mine(seen, PageState.OPEN) and seen.token >= confirmed:
                return not self.done
            if seen.epoch > self.epoch or seen.state is PageState.CLOSED:
                self.end()
            return False
        return False

    def _is_mine(self, seen: Head, state: PageState) -> bool:
        return seen.state is state and self._tokens.is_mine(seen.token)

    async def _head_of_page(self) -> Head | None:
        cell = await self._resolver.head(self._space, page_key(self.log, self.page))
        return None if cell is None else heads.decode(cell.value)

    # Ends.

    async def settled(self) -> None:
        """Wait until no change and no packing is in flight."""
        async with self._exclusive_turn():
            pass
        if (packing := self._packing) is not None:
            await asyncio.wait((packing,))

    async def _end_if_uncertain(self, change: Awaitable[Answer]) -> Answer:
        """Await a change, and end the hold if its outcome is not certain."""
        try:
            return await change
        except (RequestError, Unavailable):
            raise
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Give the hold up: every further change is refused."""
        self.done = True
        self.marks.close()
        if self._packing is not None:
            self._packing.cancel()

    def _must_go_on(self) -> None:
        if self._tokens.are_spent:
            self.end()
        if self.done:
            raise Fenced(f"This node no longer leads topic '{self.log.topic}'.")

    def _fenced(self) -> NoReturn:
        self.end()
        raise Fenced(f"Another node leads topic '{self.log.topic}'.")


def _built(
    added: Sequence[Entry], *, is_chained: bool
) -> tuple[dict[bytes, bytes], Sequence[bytes]]:
    """Return the cells of entries, and their links if the log has a hash chain."""
    cells = {entry.column: entries.encode(entry) for entry in added}
    return cells, hashchain.links_of(added, cells.values()) if is_chained else ()
