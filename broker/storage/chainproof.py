"""Recomputing a log's hash chain from what is stored: page by page, and the proof of one place in it.

Each page is verified by itself (``ChainPage``). ``ChainAudit`` (chainaudit.py) puts the pages together: it checks that each
one follows the page before, and that every rollback and every removed page is in the chain.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from broker.errors import StorageCorrupt
from broker.long_work import Pace
from broker.model import LOG_KEY_MIN, LogKey, log_key_after
from broker.storage import head as heads
from broker.storage import walk
from broker.storage.chainpage import ChainPage, PageRead, page_of_read, unread_page
from broker.storage.columns import last_of
from broker.storage.entry import Entry
from broker.storage.head import Head, PageState
from broker.storage.keys import LogId, page_key, space_of
from broker.storage.log import Logs
from broker.storage.reference import messages_of, payload_chain
from broker.storage.root import Root, RootState

STRETCH_BYTES: Final = 8 << 20
"""After so many bytes a stretch ends with the page."""
STRETCH_PAGES: Final = 256
TRIES: Final = 5


class Stretch(NamedTuple):
    """Some pages of the chain, in order. ``next``: the page behind them; None: the log ends here."""

    generation: int
    floor: LogKey
    pages: list[ChainPage]
    next: LogKey | None


class Anchor(NamedTuple):
    """A place in the chain: the hash behind the entry, or record, at an id."""

    pointer: LogKey
    hash: bytes


class ChainProof(NamedTuple):
    """The hashes and positions of one place in the chain, and of its end.

    ``at`` is the asked place, ``head`` the end. ``floor``: the log begins at this page. ``begin``: the hash with which the
    chain reaches it.
    """

    log: LogId
    page: LogKey
    epoch: int
    at: Anchor
    hashes: list[bytes]
    head: Anchor
    floor: LogKey
    begin: bytes


class NoChain(Exception):
    """The log has no hash chain, or none at this id."""


class ChainReader:
    """Recomputes chains of one store."""

    def __init__(self, logs: Logs, now_ms: Callable[[], int]) -> None:
        """Read from ``logs``."""
        self._logs = logs
        self._resolver = logs.resolver
        self._now_ms = now_ms

    async def log_of(self, log: LogId) -> tuple[LogId, Root]:
        """Return a topic's log of the generation that its root names, with the root.

        Raises:
            NoChain: the log was never written.
            Unavailable: storage does not answer.
        """
        root = await self._logs.root(log)
        if root is None or root.state is RootState.DELETED:
            raise NoChain
        return log._replace(generation=root.generation), root

    async def page(self, log: LogId, key: LogKey, at: LogKey | None = None) -> ChainPage | None:
        """Verify one page; None: it is absent.

        Raises:
            Unavailable: storage does not answer, or the page changes all the time.
            StorageCorrupt: its head does not decode.
        """
        space, row, pauses = space_of(log), page_key(log, key), self._resolver.pauses()
        while True:
            head = await self._head(log, key)
            if head is None:
                return None
            read = PageRead(log, key, head, at, self._now_ms())
            if head.state is PageState.GONE or not head.chain:
                return page_of_read(key, head, read)
            pace = Pace()
            async for column, value in walk.cells(self._resolver, space, row):
                await read.take(column, value)
                await pace.step()
            read.end()
            after = await self._head(log, key)
            # A rollback, or the end of a lifetime, came between: the cells are of two states.
            if after is not None and (after.edits, after.state) in {
                (head.edits, head.state),
                (head.edits, PageState.SEALED),
            }:
                for reference in read.references:
                    await self._check_payloads(log, reference, read)
                return page_of_read(key, head, read)
            await pauses.again()

    async def _head(self, log: LogId, key: LogKey) -> Head | None:
        cell = await self._resolver.head(space_of(log), page_key(log, key))
        return None if cell is None else heads.decode(cell.value)

    async def _check_payloads(self, log: LogId, reference: Entry, read: PageRead) -> None:
        """Verify the payload log of a reference against the hash in it."""
        if not reference.number:
            return
        payloads, digest = log._replace(number=reference.number), payload_chain(reference)
        root = await self._logs.root(payloads)
        if not digest or root is None or root.state is RootState.DROPPED:
            read.uncovered += messages_of(reference)
            return
        key: LogKey | None = LOG_KEY_MIN
        chain = b""
        while key is not None:
            page = await self.page(payloads, key)
            if page is None or page.state is PageState.GONE:
                break
            read.bytes += page.size
            if page.problems or (chain and page.before != chain):
                break
            chain = page.chain
            key = log_key_after(page.pointer) if page.state in heads.SEALED_STATES else None
        if chain != digest:
            read.wrong(
                "stored messages that a reference shows are not those that were published",
                reference.first,
                reference.last,
            )

    async def stretch(self, log: LogId, page: LogKey | None) -> Stretch:
        """Verify pages from ``page`` on (None: from the floor), up to about STRETCH_BYTES.

        Raises:
            NoChain: the log was never written.
            Unavailable: storage does not answer.
        """
        log, root = await self.log_of(log)
        key: LogKey | None = root.floor if page is None else max(page, root.floor)
        if page is not None and page > root.floor:
            # The page may be any id: then the page that holds it is the first one.
            with suppress(StorageCorrupt):
                found = await self._logs.page_at(log, page, root)
                key = page if found is None or found[1].next == page else found[0]
        pages: list[ChainPage] = []
        size = 0
        while key is not None and size < STRETCH_BYTES and len(pages) < STRETCH_PAGES:
            try:
                verified = await self.page(log, key)
            except StorageCorrupt as error:
                verified = unread_page(key, error.message)
            if verified is None or verified.state is PageState.GONE:
                again = await self._logs.root(log)
                if again is not None and again.floor > key and again.generation == log.generation:
                    root, key, pages = again, again.floor, []
                    continue
                if verified is None and (again is None or again.page < key):
                    key = None  # The last page is sealed, and the next one is not made yet.
                    break
                verified = unread_page(key, "the page is missing, or its messages were removed")
            pages.append(verified)
            size += verified.size
            key = log_key_after(verified.pointer) if verified.state in heads.SEALED_STATES else None
        return Stretch(log.generation, root.floor, pages, key)

    async def proof(self, log: LogId, at: LogKey | None) -> ChainProof:
        """Return the proof of the entry that holds an id, or of the log's end.

        Raises:
            NoChain: the log has no chain, or none at this id.
            StorageCorrupt: the page is not the one of its hash.
            Unavailable: storage does not answer.
        """
        log, root = await self.log_of(log)
        ends = await self._logs.ends(log)
        if ends is None or ends.tail is None or not ends.tail.chain:
            raise NoChain
        tail = ends.tail
        wanted = tail.pointer if at is None else min(at, tail.pointer)
        found = await self._logs.page_at(log, wanted, root)
        if found is None or not found[1].chain or wanted < root.floor:
            raise NoChain
        key, head = found
        last = wanted if at is None else await self._entry_end(log, key, wanted)
        hashes: list[bytes] = []
        for each in (key, head.next) if head.is_sealed else (key,):
            page = await self.page(log, each, last)
            if page is not None and page.problems:
                raise StorageCorrupt(page.problems[0].what)
            hashes += [] if page is None else page.hashes
        if not hashes and at is None:
            hashes = [tail.chain]
        if not hashes:
            raise NoChain
        first = await self._head(log, root.floor)
        return ChainProof(
            log,
            key,
            tail.epoch,
            Anchor(last, tail.chain if at is None else hashes[0]),
            hashes,
            Anchor(tail.pointer, tail.chain),
            root.floor,
            b"" if first is None else first.before,
        )

    async def _entry_end(self, log: LogId, page: LogKey, key: LogKey) -> LogKey:
        """Return the last id of the entry that holds an id, or of the first one behind it."""
        columns = await self._resolver.read(
            lambda: self._logs.table.columns(space_of(log), page_key(log, page), b"e" + key, b"f")
        )
        return last_of(columns[0]) if columns else key
