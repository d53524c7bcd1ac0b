"""Checking a store: it reads all of it through the table port, and changes nothing.

So one check works for every store, also while nodes write to it. It checks topic by topic, in the order of their
records::

    root          fits the topic's record
    chain         from the first page by next to the tail, and back by prev; the floor lies in it
    pages         heads and entries fit (pagecheck.py); checksums are right
    hashes        of a topic with a hash chain: they are those of what is stored (chainaudit.py)
    marks         marks in entries have rows up to `marked`; rows of marks point to ids that exist
    references    each has a payload log that is closed and has as many messages
    payload logs  the same checks; the state of the root fits the tail; a published one has its reference

Memory holds one page at a time. The check does not find a topic without a record, because the port can't list all
rows. In LevelDB, leveldb/directory_repair.py finds the rows that no record and no head lead to.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from broker.errors import StorageCorrupt
from broker.model import LOG_KEY_BYTES, LOG_KEY_MIN, LogKey, TopicId
from broker.storage import entry as entries
from broker.storage import head as heads
from broker.storage import walk
from broker.storage.chainaudit import audited
from broker.storage.chaincheck import ChainCheck, CheckOptions
from broker.storage.chainproof import ChainReader
from broker.storage.entry import MARK_KEY_BYTES
from broker.storage.keys import (
    GENERATION_MAX,
    MARK,
    ROOT,
    LogId,
    log_of_row,
    log_prefix,
    topic_prefix,
)
from broker.storage.log import Logs
from broker.storage.marks import decode_mark
from broker.storage.pagecheck import name_of, page_name
from broker.storage.payloadcheck import PayloadsCheck
from broker.storage.report import CheckProgress, CheckReport, StoreProblem, Tell
from broker.storage.resolve import NONCE_BYTES
from broker.storage.root import Root, RootState
from broker.storage.table import Space

WINDOW_MS: Final = 600_000
TRIES: Final = 3


class RecordedTopic(NamedTuple):
    """The facts of a topic's record. ``ttl_ms`` is None if the record has no ttl."""

    topic: TopicId
    generation: int
    deleted: bool
    ttl_ms: int | None


async def verify(
    logs: Logs, tell: Tell | None = None, *, window_ms: int = WINDOW_MS
) -> CheckReport:
    """Read all of a store and report its problems.

    Args:
        logs: the store's logs. Other nodes may write to the store meanwhile if its table is not alone.
        tell: called after each page with the progress.
        window_ms: how long a mark is kept at least; the mark of an older id may be removed.

    Raises:
        Unavailable: the store does not answer.
    """
    report = CheckReport()
    topics_all = await _check_records(logs, report)

    def progress(log_bytes: int) -> None:
        if tell is not None:
            tell(CheckProgress(report.topics, topics_all, report.bytes + log_bytes))

    options = CheckOptions(logs, logs.resolver.clock.now_ms(), window_ms, progress)
    try:
        async for key, cell in walk.records(logs.resolver):
            found = _recorded_topic(key, cell.value)
            if found is not None:
                await TopicCheck(options, found, report).run()
                report.topics += 1
                progress(0)
    except StorageCorrupt as error:
        report.problem(StoreProblem("records", "they can't be read", error.message))
    return report


async def _check_records(logs: Logs, report: CheckReport) -> int:
    """Check every record; return how many are records of topics."""
    topics = 0
    try:
        async for key, cell in walk.records(logs.resolver):
            report.records += 1
            report.bytes += len(key) + len(cell.value)
            topics += walk.topic_of(key) is not None
            name = f"record {key.decode(errors='backslashreplace')}"
            try:
                entries.unchecked(cell.value, "it")
            except StorageCorrupt as error:
                report.problem(StoreProblem(name, error.message))
                continue
            if key.startswith(walk.TOPIC_RECORDS) and _recorded_topic(key, cell.value) is None:
                report.problem(StoreProblem(name, "it does not decode"))
    except StorageCorrupt:
        pass  # The walk over topics meets the same error and reports it.
    return topics


def _recorded_topic(key: bytes, value: bytes) -> RecordedTopic | None:
    topic = walk.topic_of(key)
    if topic is None:
        return None
    try:
        record = json.loads(entries.unchecked(value, "a record")[NONCE_BYTES:])
        generation, deleted = int(record["generation"]), bool(record["deleted"])
        ttl_s = record.get("properties", {}).get("ttl")
        return RecordedTopic(
            topic, generation, deleted, None if ttl_s is None else int(ttl_s) * 1000
        )
    except (StorageCorrupt, ValueError, KeyError, TypeError, AttributeError):
        return None


class TopicCheck:
    """The check of all rows of one topic."""

    def __init__(self, options: CheckOptions, recorded: RecordedTopic, report: CheckReport) -> None:
        """Begin with the topic's record as it was read."""
        self._options = options
        self._resolver = options.logs.resolver
        self._recorded = recorded
        self._topic = recorded.topic
        self._all = report
        self._report = CheckReport()
        self._root: Root | None = None

    async def run(self) -> None:
        """Check the whole topic; repeat it if the topic was deleted or created meanwhile."""
        for _ in range(TRIES):
            self._report, self._root = CheckReport(), None
            try:
                await self._check()
            except StorageCorrupt as error:
                self._wrong("it can't be read", error.message)
            if not self._report.wrong or self._options.is_alone or not await self._has_changed():
                break
        self._all.add(self._report)

    async def _has_changed(self) -> bool:
        """True if the topic's record or root changed its generation or state since its check began."""
        before, root = self._recorded, None
        key = walk.TOPIC_RECORDS + topic_prefix(self._topic)
        cell = await self._resolver.head(Space.RECORDS, key)
        if cell is not None:
            self._recorded = _recorded_topic(key, cell.value) or before
        try:
            root = await self._options.root(LogId(self._topic, 0))
        except StorageCorrupt:
            return False
        was = self._root and (self._root.generation, self._root.state)
        return self._recorded != before or (root and (root.generation, root.state)) != was

    def _wrong(self, what: str, seen: str = "", where: str | None = None) -> None:
        self._report.problem(StoreProblem(where or str(self._topic), what, seen))

    async def _check(self) -> None:
        root = self._root = await self._options.root(LogId(self._topic, 0))
        self._check_root(root)
        generation = self._recorded.generation if root is None else root.generation
        log = LogId(self._topic, generation)
        await self._check_side_rows(Space.MESSAGES, generation)
        await self._check_other_generations(Space.MESSAGES, generation)
        if root is None:
            await self._count_rows(Space.MESSAGES, log, log, "a page of a topic without a root")
            return
        payloads = PayloadsCheck(self._options, log, root, self._report, self._recorded.ttl_ms)
        refer = payloads.refer if root.state is RootState.LIVE else None
        chain = ChainCheck(self._options.behind(self._report.bytes), log, root, refer)
        await chain.run()
        self._report.add(chain.report)
        if chain.tail is not None and chain.tail.head.chain and root.state is RootState.LIVE:
            await self._check_hashes(log)
        await self._check_side_rows(Space.PAYLOADS, generation)
        await self._check_other_generations(Space.PAYLOADS, generation)
        await payloads.run(0 if chain.tail is None else chain.tail.head.epoch)

    async def _check_hashes(self, log: LogId) -> None:
        """Compute the hash chain of the log again (rule 16)."""
        reader = ChainReader(self._options.logs, lambda: self._options.now_ms)
        found = await audited(lambda page: reader.stretch(log, page))
        for problem in found.problems:
            where = f"hash chain, {problem.first.hex()} to {problem.last.hex()}"
            self._wrong(where, problem.what, page_name(log, problem.page))

    def _check_root(self, root: Root | None) -> None:
        recorded = self._recorded
        if root is None:
            if recorded.generation > 1 or recorded.deleted:
                self._wrong("its root is missing")
            return
        seen = f"root {root.generation}, record {recorded.generation}"
        if root.state not in {RootState.LIVE, RootState.DELETED}:
            self._wrong("its root is not the root of a topic", root.state.name)
        elif root.generation > recorded.generation:
            self._wrong("its root has a later generation than its record", seen)
        elif recorded.deleted and (root.generation, root.state) != (
            recorded.generation,
            RootState.DELETED,
        ):
            self._wrong("its record says that it is deleted, but its root does not", seen)
        elif root.generation < recorded.generation - (root.state is RootState.DELETED):
            self._wrong("its root has an earlier generation than its record", seen)

    # Rows that are not pages (roots and marks), and pages of other generations.

    async def _check_side_rows(self, space: Space, generation: int) -> None:
        prefix = topic_prefix(self._topic) + bytes(4)
        pointers: dict[LogId, LogKey] = {}
        async for row, cell in walk.rows(self._resolver, space, prefix, prefix + walk.KEY_END):
            self._report.bytes += len(row) + len(cell.value)
            rest = row[len(prefix) :]
            log = self._side_log(space, rest)
            if log is None:
                self._wrong("a row with an unknown key", row.hex())
            elif rest.startswith(MARK):
                await self._check_mark(log, generation, row, cell.value, pointers)

    def _side_log(self, space: Space, rest: bytes) -> LogId | None:
        """Return the log that a root or a mark belongs to; None: it is the key of neither."""
        number_bytes = 8 if space is Space.PAYLOADS else 0
        if rest[:1] == MARK:
            if len(rest) != 1 + 4 + number_bytes + 1 + MARK_KEY_BYTES + LOG_KEY_BYTES:
                return None
        elif rest[:1] != ROOT or len(rest) != (1 + 4 + number_bytes if number_bytes else 1):
            return None
        if len(rest) == 1:
            return LogId(self._topic, 0)
        return log_of_row(self._topic, rest[1:], has_number=bool(number_bytes))

    async def _check_mark(
        self, log: LogId, generation: int, row: bytes, value: bytes, pointers: dict[LogId, LogKey]
    ) -> None:
        name = f"{name_of(log)}, mark {row[-LOG_KEY_BYTES - MARK_KEY_BYTES :].hex()}"
        try:
            mark = decode_mark(row, value)
        except StorageCorrupt as error:
            self._wrong(error.message, where=name)
            return
        if log.generation != generation or self._root is None:
            self._report.ignorable += 1
            return
        self._report.marks += 1
        if mark.first > mark.last:
            self._wrong("its first id is above its last id", where=name)

        async def look() -> list[StoreProblem]:
            if log not in pointers or mark.last > pointers[log]:
                root = await self._options.root(log)
                if root is None or root.generation != log.generation:
                    return []  # A leftover of a removed payload log or generation.
                tail = await self._options.tail(log, root)
                pointers.clear()
                pointers[log] = LOG_KEY_MIN if tail is None else tail.pointer
                if root.state is RootState.DROPPED:
                    return []
            if mark.last > pointers[log]:
                return [StoreProblem(name, "its ids are above the log's pointer", mark.last.hex())]
            return []

        await self._options.report_lasting(self._report, name, look)

    async def _check_other_generations(self, space: Space, generation: int) -> None:
        """Count rows of deleted generations; report rows of later generations as problems."""
        if generation > 1:
            first, last = LogId(self._topic, 1), LogId(self._topic, generation - 1)
            await self._count_rows(space, first, last, None)
        first = LogId(self._topic, min(generation + 1, GENERATION_MAX))
        await self._count_rows(space, first, None, "a page of a generation that was never created")

    async def _count_rows(
        self, space: Space, first: LogId, last: LogId | None, wrong: str | None
    ) -> None:
        low = log_prefix(first)
        high = topic_prefix(self._topic) if last is None else log_prefix(last)
        async for row, cell in walk.rows(self._resolver, space, low, high + walk.KEY_END):
            self._report.bytes += len(row) + len(cell.value)
            if wrong is not None:
                self._wrong(wrong, row[len(topic_prefix(self._topic)) :].hex())
                continue
            self._report.ignorable += 1
            try:
                heads.decode(cell.value)
            except (StorageCorrupt, ValueError) as error:
                self._wrong(str(error), row.hex())
