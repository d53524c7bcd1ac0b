"""Checking the payload logs of a topic, and the references to them."""

from __future__ import annotations

from collections.abc import Iterator

from broker.errors import StorageCorrupt
from broker.model import LOG_KEY_BYTES, LogKey, timestamp_of
from broker.storage import entry as entries
from broker.storage import head as heads
from broker.storage import root as roots
from broker.storage import walk
from broker.storage.chaincheck import ChainCheck, CheckOptions
from broker.storage.columns import ENTRIES_END, column_from, is_rolled_column
from broker.storage.entry import Entry
from broker.storage.head import Head
from broker.storage.keys import (
    ROOT,
    LogId,
    log_of_row,
    log_prefix,
    page_key,
    root_key,
    side_prefix,
    topic_prefix,
)
from broker.storage.pagecheck import name_of
from broker.storage.reference import messages_of
from broker.storage.report import CheckReport, StoreProblem
from broker.storage.root import Root, RootState
from broker.storage.table import Space

TRIES = 3


class PayloadsCheck:
    """The check of all payload logs of one generation of a topic. It adds to the topic's report."""

    def __init__(
        self,
        options: CheckOptions,
        topic: LogId,
        root: Root,
        report: CheckReport,
        ttl_ms: int | None,
    ) -> None:
        """Begin; ``ttl_ms`` is how long the topic's messages live, None if that is not known."""
        self._options = options
        self._resolver = options.logs.resolver
        self._topic = topic
        self._is_live = root.state is RootState.LIVE
        self._report = report
        self._ttl_ms = ttl_ms
        self._epoch = 0
        """The epoch of the topic's tail, as it was read last."""

    async def refer(self, entry: Entry) -> None:
        """Check the payload log of a reference in the topic."""
        log = self._topic._replace(number=entry.number)
        name = f"{name_of(self._topic)}, reference {entry.first.hex()}"

        async def look() -> list[StoreProblem]:
            stored = await self._options.root(log)
            if stored is None:
                if self._is_over(entry):
                    return []
                return [StoreProblem(name, "its payload log is missing", f"{log.number}")]
            if stored.state is RootState.DROPPED:
                return []
            return list(_misfits(name, entry, stored, await self._options.tail(log, stored)))

        await self._options.report_lasting(self._report, name, look)

    def _is_over(self, entry: Entry) -> bool:
        lives_ms = [each for each in (self._ttl_ms, entry.lifetime_ms) if each is not None]
        return bool(lives_ms) and timestamp_of(entry.first) + min(lives_ms) < self._options.now_ms

    def _wrong(self, log: LogId, what: str, seen: str = "") -> None:
        self._report.problem(StoreProblem(name_of(log), what, seen))

    async def run(self, epoch: int) -> None:
        """Check all payload logs; ``epoch`` is the epoch of the topic's tail."""
        topic, self._epoch = self._topic, epoch
        low = side_prefix(topic, ROOT)
        async for row, cell in walk.rows(self._resolver, Space.PAYLOADS, low, low + walk.KEY_END):
            if len(row) != len(low) + 8:
                continue  # Reported before.
            log = log_of_row(topic.topic, row[-12:], has_number=True)
            self._report.payload_logs += 1
            try:
                root: Root | None = roots.decode(cell.value)
            except (StorageCorrupt, ValueError) as error:
                self._wrong(log, str(error))
                continue
            await self._check_payload_log(log, root)
        await self._check_rootless(topic)

    async def _check_payload_log(self, log: LogId, root: Root | None) -> None:
        """Check one payload log; repeat it if the state of its root changed meanwhile."""
        report = CheckReport()
        for _ in range(TRIES):
            report = CheckReport()
            if root is None:
                break
            if root.state is RootState.DROPPED:
                report.ignorable += 1
                break
            if root.state not in {RootState.OPEN, RootState.SEALED, RootState.PUBLISHED}:
                report.problem(
                    StoreProblem(name_of(log), "its root is not the root of a payload log")
                )
                break
            chain = ChainCheck(self._options.behind(self._report.bytes), log, root)
            await chain.run()
            report.add(chain.report)
            await self._check_epoch(log, chain, report)
            if root.state is RootState.PUBLISHED and self._is_live:
                await self._check_published(log, root, report)
            was, root = root.state, await self._options.root(log)
            if not report.wrong or (root is not None and root.state is was):
                break
        self._report.add(report)

    async def _check_epoch(self, log: LogId, chain: ChainCheck, report: CheckReport) -> None:
        if chain.tail is None or chain.tail.head.epoch <= self._epoch:
            return
        topic = self._topic
        tail = await self._options.tail(topic, await self._options.root(topic))
        self._epoch = max(self._epoch, 0 if tail is None else tail.epoch)
        if chain.tail.head.epoch > self._epoch:
            seen = f"{chain.tail.head.epoch}, {self._epoch}"
            report.problem(StoreProblem(name_of(log), "it has a higher epoch than its topic", seen))

    async def _check_published(self, log: LogId, root: Root, report: CheckReport) -> None:
        topic = self._topic
        name = name_of(log)

        async def look() -> list[StoreProblem]:
            now = await self._options.root(topic)
            if now is None or now.state is RootState.DELETED or now.generation != log.generation:
                return []
            if root.reference < now.floor:
                return []
            page = await self._options.logs.page_at(topic, root.reference, now)
            entry = None if page is None else await self._entry_at(topic, page[0], root.reference)
            if entry is None or entry.first != root.reference or entry.number != log.number:
                return [StoreProblem(name, "its reference is missing", root.reference.hex())]
            return []

        await self._options.report_lasting(report, name, look, self._report.wrong)

    async def _entry_at(self, log: LogId, page: LogKey, key: LogKey) -> Entry | None:
        found = await self._resolver.read(
            lambda: self._resolver.table.cells(
                Space.MESSAGES,
                page_key(log, page),
                column_from(key),
                ENTRIES_END,
                cells_max=1,
                bytes_max=1,
            )
        )
        for column, value in found.cells:
            if not is_rolled_column(column):
                return entries.decode(value)
        return None

    async def _check_rootless(self, topic: LogId) -> None:
        """Report pages of payload logs without a root. One empty page is right: ``take`` makes it before the root."""
        low, end = log_prefix(topic), log_prefix(topic) + walk.KEY_END
        while True:
            found = await self._resolver.read(
                lambda low=low: self._resolver.table.scan(  # type: ignore[misc]
                    Space.PAYLOADS, low, end, limit=1
                )
            )
            if not found:
                return
            [(row, _)] = found
            rest = row[len(topic_prefix(topic.topic)) :]
            if len(rest) != 4 + 8 + LOG_KEY_BYTES:
                self._wrong(topic, "a row with an unknown key", row.hex())
                low = row + b"\0"
                continue
            log = log_of_row(topic.topic, rest[:-LOG_KEY_BYTES], has_number=True)
            await self._options.report_lasting(
                self._report,
                name_of(log),
                lambda log=log, row=row: self._rootless(log, row),  # type: ignore[misc]
            )
            low = log_prefix(log) + walk.KEY_END

    async def _rootless(self, log: LogId, row: bytes) -> list[StoreProblem]:
        if await self._resolver.head(Space.PAYLOADS, root_key(log)) is not None:
            return []
        cell = await self._resolver.head(Space.PAYLOADS, row)
        if cell is None:
            return []
        head = heads.decode(cell.value)
        if head.total or head.cells:
            return [StoreProblem(name_of(log), "it has messages but no root", str(head.total))]
        return []


def _misfits(name: str, entry: Entry, stored: Root, tail: Head | None) -> Iterator[StoreProblem]:
    """Yield the problems between a reference and its payload log."""
    if stored.state is RootState.OPEN:
        yield StoreProblem(name, "its payload log is not closed", str(entry.number))
    if stored.state is RootState.PUBLISHED and stored.reference != entry.first:
        yield StoreProblem(name, "its payload log has another reference", stored.reference.hex())
    total = 0 if tail is None else tail.total
    if messages_of(entry) != total:
        seen = f"{messages_of(entry)}, {total}"
        yield StoreProblem(name, "its payload log has another number of messages", seen)
