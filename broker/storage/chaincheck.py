"""Checking one log: each of its pages in order, against the page before it and the root.

While other nodes may write, a problem can come from a change between two reads, or from a stale read. So the check
reads again for some time, and reports only problems that every read shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, NamedTuple

from broker.errors import StorageCorrupt
from broker.model import LOG_KEY_BYTES, LOG_KEY_MAX, LOG_KEY_MIN, LogKey, timestamp_of
from broker.storage import head as heads
from broker.storage import root as roots
from broker.storage import walk
from broker.storage.entry import Entry, Mark
from broker.storage.head import Head, PageState
from broker.storage.keys import LogId, page_key, page_of, root_key, space_of
from broker.storage.log import Logs
from broker.storage.marks import PRODUCER, PRODUCER_LIFE_MS, mark_key
from broker.storage.pagecheck import CheckedPage, PageCheck, Sums, links, name_of, page_name
from broker.storage.report import CheckReport, StoreProblem
from broker.storage.resolve import Pauses
from broker.storage.root import Root, RootState
from broker.storage.table import HEAD

READ_AGAIN_S: Final = 2.0
"""For how long the check reads a problem again, if other nodes may write."""
READ_AGAIN_LATER_S: Final = 0.1
"""The same, after MANY problems were found."""
MANY: Final = 50
MARKS_AT_ONCE: Final = 32

Look = Callable[[], Awaitable[list[StoreProblem]]]


class CheckOptions(NamedTuple):
    """How a check reads. It calls ``progress`` after each page with the bytes of the log read until then."""

    logs: Logs
    now_ms: int
    window_ms: int
    progress: Callable[[int], None]

    @property
    def is_alone(self) -> bool:
        """True if no other node writes to the store while the check reads."""
        return self.logs.table.is_alone

    def behind(self, bytes_before: int) -> CheckOptions:
        """Return the options for the next log. Its progress includes the bytes that were read before it."""
        return self._replace(progress=lambda more: self.progress(bytes_before + more))

    async def report_lasting(
        self, report: CheckReport, name: str, look: Look, known: int = 0
    ) -> None:
        """Add the problems that every call of ``look`` shows to a report.

        ``name`` is the place of a StorageCorrupt that it raises. ``known`` problems are in other reports.
        """
        for problem in await self._lasting(name, look, report.wrong + known):
            report.problem(problem)

    async def _lasting(self, name: str, look: Look, known: int) -> list[StoreProblem]:
        """Return the problems that every call of ``look`` shows. ``known`` is the number of those found before."""

        async def looked() -> list[StoreProblem]:
            try:
                return await look()
            except StorageCorrupt as error:
                return [StoreProblem(name, error.message)]

        found = await looked()
        if not found or self.is_alone:
            return found
        seconds = READ_AGAIN_S if known < MANY else READ_AGAIN_LATER_S
        pauses = Pauses(self.logs.resolver.clock, seconds)
        while found and await pauses.next():
            again = {(each.where, each.what) for each in await looked()}
            found = [each for each in found if (each.where, each.what) in again]
        return found

    async def root(self, log: LogId) -> Root | None:
        """Return a log's root. Raises StorageCorrupt, Unavailable."""
        cell = await self.logs.resolver.head(space_of(log), root_key(log))
        return None if cell is None else roots.decode(cell.value)

    async def head(self, log: LogId, page: LogKey) -> Head | None:
        """Return a page's head. Raises StorageCorrupt, Unavailable."""
        cell = await self.logs.resolver.head(space_of(log), page_key(log, page))
        return None if cell is None else heads.decode(cell.value)

    async def tail(self, log: LogId, root: Root | None) -> Head | None:
        """Return the head of a log's last page. Raises StorageCorrupt, Unavailable."""
        found = await self.logs.find_tail(log, root)
        if found is None:
            return None
        return found.head or (found.before[1] if found.before is not None else None)


class ChainCheck:
    """The check of one log's pages. ``report`` has the result. It calls ``refer`` with each reference."""

    def __init__(
        self,
        options: CheckOptions,
        log: LogId,
        root: Root,
        refer: Callable[[Entry], Awaitable[None]] | None = None,
    ) -> None:
        """Begin with the root, read before the pages."""
        self.report = CheckReport()
        self.tail: CheckedPage | None = None
        self._options = options
        self._log = log
        self._root = root
        self._refer = refer
        self._marked = LOG_KEY_MIN
        self._before: CheckedPage | None = None
        self._is_known = True
        """True if the head of the page before could be decoded."""
        self._unseen = {root.floor, root.page}

    async def run(self) -> None:
        """Check every page."""
        try:
            found = await self._options.tail(self._log, self._root)
            self._marked = LOG_KEY_MIN if found is None else found.marked
        except StorageCorrupt:
            pass  # The walk meets the same error and reports where it is.
        try:
            async for key, head in self._pages():
                self._unseen.discard(key)
                if head is None:
                    self._before, self._is_known = None, False
                else:
                    await self._check(CheckedPage(key, head))
        except StorageCorrupt as error:
            self._wrong("heads of pages can't be read", error.message)
            return
        self._end()

    def _wrong(self, what: str, seen: str = "") -> None:
        self.report.problem(StoreProblem(name_of(self._log), what, seen))

    async def _pages(self) -> AsyncIterator[tuple[LogKey, Head | None]]:
        """Yield the pages. An open page that is followed by another is read again."""
        latest: tuple[LogKey, Head | None] | None = None
        async for row, cell in walk.pages(self._options.logs.resolver, self._log):
            self.report.bytes += len(row) + len(cell.value)
            if len(row) != len(page_key(self._log, LOG_KEY_MIN)):
                self._wrong("a row whose key is not the key of a page", row.hex())
                continue
            if latest is not None:
                yield await self._current(latest)
            latest = (page_of(row), self._decoded(page_of(row), cell.value))
        while latest is not None:
            yield latest
            head = latest[1]
            if self._options.is_alone or head is None or not head.is_sealed:
                return
            after = await self._options.head(self._log, head.next)
            latest = None if after is None else (head.next, after)

    def _decoded(self, page: LogKey, value: bytes) -> Head | None:
        try:
            return heads.decode(value)
        except (StorageCorrupt, ValueError) as error:
            self.report.problem(StoreProblem(page_name(self._log, page), str(error)))
            return None

    async def _current(self, latest: tuple[LogKey, Head | None]) -> tuple[LogKey, Head | None]:
        key, head = latest
        if head is None or not head.is_open or self._options.is_alone:
            return latest
        return key, await self._options.head(self._log, key) or head

    async def _check(self, page: CheckedPage) -> None:
        self.report.pages += 1
        looks = 0

        async def look() -> list[StoreProblem]:
            nonlocal looks
            looks += 1
            return await self._links(page, is_again=looks > 1)

        name = page_name(self._log, page.key)
        await self._options.report_lasting(self.report, name, look)
        if page.head.state is PageState.GONE:
            self.report.ignorable += 1
        else:
            await self._check_cells(page)
        self._before, self._is_known = page, True
        self.tail = page
        self._options.progress(self.report.bytes)

    # A page and the page before it.

    async def _links(self, page: CheckedPage, *, is_again: bool) -> list[StoreProblem]:
        """Check that a page follows the one before. ``is_again``: read both heads and the root again first."""
        before, root = self._before, self._root
        if is_again:
            page = await self._again(page)
            before = None if before is None else await self._again(before)
            root = await self._root_now()
        found = list(links(self._log, before, page)) if self._is_known else []
        name = page_name(self._log, page.key)
        dead = {RootState.DELETED, RootState.DROPPED}
        is_gone = page.head.state is PageState.GONE
        if is_gone and page.key >= root.floor and root.state not in dead:
            found.append(StoreProblem(name, "it is gone, but it is not below the floor"))
        if not is_gone and page.key < root.gone:
            found.append(StoreProblem(name, "it has entries, but the root says that they are gone"))
        return found

    async def _again(self, page: CheckedPage) -> CheckedPage:
        head = await self._options.head(self._log, page.key)
        return page if head is None else CheckedPage(page.key, head)

    async def _root_now(self) -> Root:
        root = await self._options.root(self._log)
        if root is None or root.generation != self._log.generation:
            return self._root._replace(state=RootState.DELETED)
        return root

    # A page's cells.

    async def _check_cells(self, page: CheckedPage) -> None:
        if self._before is not None:
            before: Sums | None = Sums(self._before.head.total, self._before.head.bytes)
        else:
            before = Sums() if self._is_known else None
        looks: list[PageCheck] = []

        async def look() -> list[StoreProblem]:
            now = await self._again(page) if looks else page
            check = PageCheck(
                self._log,
                now,
                before,
                self._options.now_ms,
                may_grow=not self._options.is_alone,
            )
            looks.append(check)
            if now.head.state is PageState.GONE:
                return []
            await self._take_cells(check, now)
            return check.problems

        name = page_name(self._log, page.key)
        await self._options.report_lasting(self.report, name, look)
        self._count(looks[-1])
        if self._refer is not None:
            for entry in looks[-1].references:
                if not entry.is_rolled_back(entry.first):
                    await self._refer(entry)

    async def _take_cells(self, check: PageCheck, page: CheckedPage) -> None:
        row = page_key(self._log, page.key)
        try:
            async for column, value in walk.cells(
                self._options.logs.resolver, space_of(self._log), row
            ):
                check.take(column, value)
        except StorageCorrupt as error:
            check.wrong("its entries can't be read", error.message)
            return
        check.end()
        for mark in await self._missing(check.marks):
            check.wrong(
                "a mark of an entry is not on disk", f"{mark.key.hex()}, {mark.first.hex()}"
            )

    async def _missing(self, marks: list[Mark]) -> list[Mark]:
        """Return the marks of a page that must have rows, but have none."""
        options = self._options
        due = []
        for mark in marks:
            life_ms = PRODUCER_LIFE_MS if mark.kind == PRODUCER else options.window_ms
            # A mark with a time ahead of the clock may be removed a window after a claim.
            is_young = options.now_ms - life_ms <= timestamp_of(mark.first) <= options.now_ms
            if is_young and mark.last <= self._marked:
                due.append(mark)
        lost: list[Mark] = []
        for first in range(0, len(due), MARKS_AT_ONCE):
            some = due[first : first + MARKS_AT_ONCE]
            found = await asyncio.gather(*map(self._has_row, some))
            lost += [mark for mark, is_there in zip(some, found, strict=True) if not is_there]
        return lost

    async def _has_row(self, mark: Mark) -> bool:
        resolver, row = self._options.logs.resolver, mark_key(self._log, mark)
        if mark.kind == PRODUCER:
            # The row of a newer mark of this producer replaces it.
            last = row[:-LOG_KEY_BYTES] + LOG_KEY_MAX
            return bool(
                await resolver.read(
                    lambda: resolver.table.scan(space_of(self._log), row, last, limit=1)
                )
            )
        found = await resolver.read(lambda: resolver.table.get(space_of(self._log), row, (HEAD,)))
        return HEAD in found

    def _count(self, check: PageCheck) -> None:
        self.report.entries += check.entries
        self.report.messages += check.messages
        self.report.bytes += check.bytes

    # The root and all pages.

    def _end(self) -> None:
        root = self._root
        if root.state is RootState.DELETED:
            # The root of a deleted topic names the first page of the next generation.
            self._unseen -= {root.page, root.floor}
        elif (
            root.state is RootState.LIVE
            and self.tail is None
            and self._is_known
            and root.page == root.floor
        ):
            # No node has claimed the log yet.
            if root.generation == 1 and root.epoch:
                self._wrong("it has no page", f"the root has epoch {root.epoch}")
            return
        for key in sorted(self._unseen):
            what = "floor" if key == root.floor else "page"
            self._wrong(f"the {what} that the root names is missing", key.hex())
        if not root.gone <= root.floor <= root.page and root.state is RootState.LIVE:
            self._wrong("the root's page lies below its floor")
        if self.tail is not None and self.tail.head.epoch < root.epoch:
            self._wrong("the tail has a lower epoch than the root", str(self.tail.head.epoch))
        self._check_tail()

    def _check_tail(self) -> None:
        root, tail = self._root, self.tail
        closed = {PageState.CLOSED, PageState.GONE}
        if root.state is RootState.DELETED:
            if tail is None or tail.head.state not in closed or tail.head.next != root.page:
                self._wrong("it is deleted, but its tail is not closed at the id in the root")
        elif root.state in {RootState.SEALED, RootState.PUBLISHED}:
            if tail is None or tail.head.state is not PageState.CLOSED:
                self._wrong(f"it is {root.state.name.lower()}, but its tail is not closed")
        elif root.state is RootState.OPEN and tail is None:
            self._wrong("it has a root but no page")
