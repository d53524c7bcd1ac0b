"""The logs of a store: claiming, creating, deleting. One protocol for every table.

A log is a root and a chain of pages (head.py, root.py). A **claim** is one change of the tail's head, to the
next epoch. From then on every change of the former leader fails, even if it still believes that it leads::

    root ──▶ its page ──next──▶ … ──▶ tail      open: take it; absent: make it; then link it in the root

The claimer may append, prove and store only after the link. The link shows that the root as read, with its
floor, was current, because a change of an outdated root fails. A **deletion** closes the tail, then marks the
root as deleted, then the topic's record. If a node stops in between, the next claim finishes the deletion.

The rules by number, and why each is needed: docs/internals/why-it-is-safe.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from broker.clock import Clock
from broker.errors import Fenced
from broker.model import LOG_KEY_MIN, LogKey, TopicId, log_key_after, log_key_before
from broker.storage import head as heads
from broker.storage import root as roots
from broker.storage.entry import Mark
from broker.storage.head import Head, PageState
from broker.storage.hold import LogHold
from broker.storage.keys import LogId, page_key, page_of, root_key, space_of
from broker.storage.last_page import Tail, TailReading, next_head
from broker.storage.log_reader import LogReader
from broker.storage.ownpage import PageBounds
from broker.storage.resolve import Resolver, random_nonce
from broker.storage.root import Root, RootState
from broker.storage.table import Table

CLAIM_TRIES_MAX = 4
PACKED_SOON = PageBounds(cells_max=1024)
"""Short pages, for tables where sealed pages are packed: so few small entries wait for packing."""


class StaleGeneration(Exception):
    """The root has a later generation than the caller's: the caller reads the record again."""


class Deleted(Exception):
    """This generation is deleted, by its root or its closed tail."""


class LogEnds(NamedTuple):
    """A log as it is stored now: its root, and the head of its tail.

    ``tail`` is None if there is no page yet, or the topic was deleted.
    """

    root: Root
    tail: Head | None


class Logs:
    """The logs of one table. ``entry_bytes_max`` is the largest payload that one message may have."""

    def __init__(
        self,
        table: Table,
        clock: Clock,
        *,
        bounds: PageBounds | None = None,
        call_s: float = 20.0,
        nonce: Callable[[], bytes] = random_nonce,
    ) -> None:
        """Keep logs in ``table``; each call has ``call_s`` seconds. ``nonce`` is for tests."""
        self.table = table
        self.resolver = Resolver(table, clock, call_s=call_s, nonce=nonce)
        self.bounds = bounds or (PACKED_SOON if table.is_alone else PageBounds())
        self.entry_bytes_max = table.cell_bytes_max - 1024
        self.append_bytes_max = table.change_bytes_max - 64 * 1024

    def reader(self, log: LogId, after: LogKey, through: LogKey | None = None) -> LogReader:
        """Return a reader of the entries behind ``after``, up to ``through`` or the end."""
        return LogReader(self.resolver, log, after, through)

    async def root(self, log: LogId) -> Root | None:
        """Return a log's root as stored now. Raises Unavailable."""
        return (await self.stored_root(log))[0]

    async def stored_root(self, log: LogId) -> tuple[Root | None, bytes | None]:
        """Return a log's root, decoded and as it is stored. Raises Unavailable."""
        cell = await self.resolver.head(space_of(log), root_key(log))
        return (None, None) if cell is None else (roots.decode(cell.value), cell.value)

    async def ends(self, log: LogId) -> LogEnds | None:
        """Return a log's root and tail as stored now; None: the log was never claimed.

        Raises:
            Unavailable: storage does not answer, or gives only stale reads.
        """
        pauses = self.resolver.pauses()
        while True:
            root = await self.root(log)
            if root is None or root.generation != log.generation:
                return None
            if root.state is RootState.DELETED:
                return LogEnds(root, None)
            tail = await self.find_tail(log, root)
            if tail is not None:
                before = tail.before[1] if tail.before is not None else None
                return LogEnds(root, tail.head or before)
            await pauses.again()

    async def find_tail(self, log: LogId, root: Root | None) -> Tail | None:
        """Follow ``next`` from the root's page to the last page; None: the root was a stale read."""
        page = root.page if root is not None else LOG_KEY_MIN
        before: tuple[LogKey, Head] | None = None
        while True:
            cell = await self.resolver.head(space_of(log), page_key(log, page))
            if cell is None:
                first = LOG_KEY_MIN if log.number is not None or root is None else root.floor
                return Tail(page, None, None, before) if before or page == first else None
            head = heads.decode(cell.value)
            if head.state is PageState.GONE:
                return None
            if not head.is_sealed:
                return Tail(page, cell, head, before)
            before, page = (page, head), head.next

    async def look(self, topic: TopicId) -> TailReading:
        """Return a topic's root and tail as stored now, of its newest generation.

        Raises:
            Unavailable: storage does not answer, or gives only stale reads.
        """
        pauses = self.resolver.pauses()
        while True:
            root, value = await self.stored_root(LogId(topic, 0))
            if root is None or root.state is RootState.DELETED:
                return TailReading(root, value, None)
            tail = await self.find_tail(LogId(topic, root.generation), root)
            if tail is not None:
                return TailReading(root, value, tail)
            await pauses.again()

    async def page_at(self, log: LogId, key: LogKey, root: Root) -> tuple[LogKey, Head] | None:
        """Return the page at or before an id, not below the floor. Raises Unavailable."""
        found = await self.resolver.read(
            lambda: self.table.scan(
                space_of(log),
                page_key(log, root.floor),
                page_key(log, max(key, root.floor)),
                limit=1,
                reverse=True,
            )
        )
        if not found:
            return None
        return page_of(found[0][0]), heads.decode(found[0][1].value)

    async def total_before(self, log: LogId, key: LogKey) -> int:
        """Return about how many messages were published up to an id: it counts those before the id's page."""
        root = await self.root(log)
        if root is None:
            return 0
        page = await self.page_at(log, key, root)
        if page is None or page[0] <= root.floor:
            before = await self.page_at(
                log, log_key_before(root.floor), root._replace(floor=LOG_KEY_MIN)
            )
            return before[1].total if before is not None and root.floor > LOG_KEY_MIN else 0
        before = await self.page_at(log, log_key_before(page[0]), root)
        return before[1].total if before is not None else 0

    # Claiming.

    async def claim(self, log: LogId, owner: str, seen: TailReading | None = None) -> LogHold:
        """Claim a message log: epoch + 1, on disk on return. ``seen`` is a recent result of ``look``.

        Raises:
            StaleGeneration, Deleted: claiming again does not help.
            Fenced: another change of the tail or root came first at each try.
            Unavailable: claim again. The former leader may be fenced already.
            OutcomeUnknown: claim again.
        """
        pauses, tries = self.resolver.pauses(), 0
        while True:
            root, value, tail = seen or await self.look(log.topic)
            seen = None
            if root is None or root.generation < log.generation:
                seen = await self._make_root(log, root, value)
            elif root.generation > log.generation:
                raise StaleGeneration
            elif root.state is RootState.DELETED:
                raise Deleted
            else:
                assert value is not None
                assert tail is not None
                if tail.head is not None and tail.is_closed:
                    # A deletion stopped after it closed the tail.
                    if await self._end_root(log, root, value, tail.head):
                        raise Deleted
                else:
                    try:
                        return await self.take(log, root, value, tail, owner)
                    except Fenced:
                        # Another claim, or a roll of the former leader, came first.
                        tries += 1
                        if tries == CLAIM_TRIES_MAX:
                            raise
            if seen is None:
                await pauses.again()

    async def take(
        self,
        log: LogId,
        root: Root | None,
        value: bytes | None,
        tail: Tail,
        owner: str,
        epoch: int | None = None,
    ) -> LogHold:
        """Take or make the tail, and link it. For a payload log ``epoch`` is the topic leader's.

        Raises:
            Fenced: another writer's change came first, or has a higher epoch.
            Unavailable, OutcomeUnknown: see claim.
        """
        tokens = self.resolver.tokens()
        head = next_head(log, root, tail, owner, tokens, epoch)
        space, row = space_of(log), page_key(log, tail.page)
        expected = None if tail.value is None else tail.value.value
        if not await self.resolver.swap(space, row, expected, heads.encode(head)):
            raise Fenced(f"Another node claims topic '{log.topic}'.")
        before = root or Root(log.generation, RootState.OPEN)
        linked = roots.linked(before, tail.page, head.epoch)._replace(token=tokens.fresh())
        confirmed, written_ms = await asyncio.gather(
            self._link(log, value, linked), self._written_ms(log, row)
        )
        if confirmed is None:
            raise Fenced(f"Another node claims topic '{log.topic}'.")
        hold = LogHold(
            log, self.resolver, tokens, self.bounds, page=tail.page, head=head, root=confirmed
        )
        hold.claimed_server_ms = written_ms
        hold.before_server_ms = None if tail.value is None else tail.value.server_ms
        await self._index_marks(hold)
        return hold

    async def _written_ms(self, log: LogId, row: bytes) -> int | None:
        """Return when a topic's tail was written last, by the server's clock; None: there is no such clock."""
        if self.table.is_alone or log.number is not None:
            return None
        written = await self.resolver.head(space_of(log), row)
        return None if written is None else written.server_ms

    async def _link(self, log: LogId, value: bytes | None, linked: Root) -> Root | None:
        """Name the page in the root. Every claim does this: success shows that the root as read was current.

        Returns the root as it is now; None: the root had changed since it was read.
        """
        done = await self.resolver.swap(space_of(log), root_key(log), value, roots.encode(linked))
        return linked if done else None

    async def _index_marks(self, hold: LogHold) -> None:
        """Put the marks of entries above ``marked`` (rule 9), because the former leader may not have."""
        # Marks below the floor were put before the floor rose.
        marked = max(hold.head.marked, log_key_before(hold.root.floor))
        hold.marks.marked = marked
        pointer = hold.pointer
        if marked >= pointer:
            return
        found: list[Mark] = []
        for page, head in await hold.chain(log_key_after(marked), pointer):
            reader = self.reader(hold.log, marked, pointer)
            for entry in await reader.page_entries(page, head):
                found += entry.marks
        hold.marks.take(found)
        if not found:
            hold.marks.marked = pointer

    # Generations.

    async def _make_root(
        self, log: LogId, root: Root | None, value: bytes | None
    ) -> TailReading | None:
        """Write the root of a topic's new generation, after its record names it (rule 11); None: look again.

        Its first page is not made yet. The change that makes it expects no page, and fails if there is one.
        """
        token = self.resolver.tokens().fresh()
        if root is None:
            new = Root(log.generation, RootState.LIVE, token=token)
        elif root.state is RootState.DELETED:
            new = Root(
                log.generation,
                RootState.LIVE,
                epoch=root.epoch,
                page=root.page,
                floor=root.page,
                gone=root.page,
                token=token,
            )
        else:
            return None  # A stale read of the root: the former generation seems to live.
        after = roots.encode(new)
        if not await self.resolver.swap(space_of(log), root_key(log), value, after):
            return None
        return TailReading(new, after, Tail(new.page, None, None, None))

    async def delete(self, log: LogId, owner: str) -> None:
        """Close a topic's log, then mark its root as deleted. Deleting it again is a no-op.

        Raises:
            StaleGeneration: there is a later generation.
            Unavailable, OutcomeUnknown: see claim.
        """
        pauses = self.resolver.pauses()
        while True:
            root, value = await self.stored_root(log)
            if root is None or root.generation < log.generation:
                await self._make_root(log, root, value)
            elif root.generation > log.generation:
                raise StaleGeneration
            elif root.state is RootState.DELETED:
                return
            else:
                closed = await self.close_tail(log, root, owner)
                if closed is not None and value is not None:
                    await self._end_root(log, root, value, closed)
            await pauses.again()

    async def close_tail(
        self, log: LogId, root: Root | None, owner: str, epoch: int | None = None
    ) -> Head | None:
        """Take the tail and close it, or make a closed one if there is none. None: read the root again.

        Raises:
            Fenced: the log has a higher epoch than ``epoch``, the topic leader's.
        """
        tail = await self.find_tail(log, root)
        if tail is None:
            return None
        if tail.is_closed:
            return tail.head
        head = next_head(log, root, tail, owner, self.resolver.tokens(), epoch)
        head = head._replace(state=PageState.CLOSED, owner="")
        expected = None if tail.value is None else tail.value.value
        row = page_key(log, tail.page)
        done = await self.resolver.swap(space_of(log), row, expected, heads.encode(head))
        return head if done else None

    async def _end_root(self, log: LogId, root: Root, value: bytes, closed: Head) -> bool:
        """Mark a topic's root as deleted. The next generation's first page lies above all ids of this one."""
        new = root._replace(
            state=RootState.DELETED,
            page=log_key_after(closed.pointer),
            epoch=closed.epoch,
            token=self.resolver.tokens().fresh(),
        )
        return await self.resolver.swap(space_of(log), root_key(log), value, roots.encode(new))

    async def close(self) -> None:
        """Close the table."""
        await self.table.close()
