"""One page of a hash chain: its cells against the two hashes of its head (rule 16)."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from broker.errors import StorageCorrupt
from broker.long_work import ASIDE_BYTES_MIN, aside
from broker.model import LOG_KEY_MAX, LogKey, log_key_after, log_key_before
from broker.storage import entry as entries
from broker.storage import hashchain
from broker.storage.columns import is_record_column, is_rolled_column, last_of, record_place
from broker.storage.entry import Entry, Range
from broker.storage.hashchain import ChainRecord, Kind, RecordCell
from broker.storage.head import Head, PageState
from broker.storage.keys import LogId
from broker.storage.pagecheck import SLACK_MS
from broker.storage.reference import messages_of


class NumberedRecord(NamedTuple):
    """A record, with its number."""

    number: int
    record: ChainRecord


class RolledEntry(NamedTuple):
    """An entry of a transaction; ``ranges`` are those of its x cell, empty if it has none."""

    first: LogKey
    last: LogKey
    pointer: int
    ranges: tuple[Range, ...]


class ChainProblem(NamedTuple):
    """A place where the stored log is not the one that its chain was computed for.

    ``page``: the first page that differs; ``first`` and ``last``: the ids between which it differs.
    """

    page: LogKey
    first: LogKey
    last: LogKey
    what: str


class ChainPage(NamedTuple):
    """A page as it was verified.

    ``before`` and ``chain`` are those of the head; b"" if the page has no chain. ``begins``: the chain begins in this page,
    behind this id. ``edited``: entries of transactions. ``hashes``: those that the chain had at the asked id.
    """

    key: LogKey
    state: PageState
    pointer: LogKey
    before: bytes
    chain: bytes
    begins: LogKey | None
    entries: int
    messages: int
    size: int
    uncovered: int
    records: list[NumberedRecord]
    edited: list[RolledEntry]
    problems: list[ChainProblem]
    hashes: list[bytes]


class PageRead:
    """One read of a page: its cells against the two hashes of its head."""

    def __init__(self, log: LogId, key: LogKey, head: Head, at: LogKey | None, now_ms: int) -> None:
        self.records: list[NumberedRecord] = []
        self.edited: list[RolledEntry] = []
        self.problems: list[ChainProblem] = []
        self.references: list[Entry] = []
        self.hashes: list[bytes] = []
        self.begins: LogKey | None = None
        self.entries = self.messages = self.bytes = self.uncovered = 0
        self._log, self._key, self._head, self._at, self._now_ms = log, key, head, at, now_ms
        self._waiting: list[tuple[LogKey, RecordCell, ChainRecord]] = []
        self._chain = head.before
        self._last = log_key_before(key)
        self._is_broken = False

    def wrong(self, what: str, first: LogKey, last: LogKey) -> None:
        """Add a problem between two ids."""
        self.problems.append(ChainProblem(self._key, first, last, what))

    async def take(self, column: bytes, value: bytes) -> None:
        """Take the next cell, in the order of the columns."""
        self.bytes += len(column) + len(value)
        if is_record_column(column):
            self._take_record(RecordCell(column, value))
        elif is_rolled_column(column):
            self._take_rolled(column, value)
        else:
            await self._take_entry(column, value)

    def _take_record(self, cell: RecordCell) -> None:
        pointer, number = record_place(cell.column)
        if self._head.is_open and number > self._head.edits:
            return
        try:
            record = hashchain.decode(cell.value)
        except StorageCorrupt as error:
            self._is_broken = True
            self.wrong(error.message, pointer, pointer)
            return
        if record.kind is Kind.BEGIN:
            self.begins = pointer
            self._chain = hashchain.genesis(self._log)
        self.records.append(NumberedRecord(number, record))
        self._waiting.append((pointer, cell, record))

    def _take_rolled(self, column: bytes, value: bytes) -> None:
        last = last_of(column)
        if self.begins is not None and last <= self.begins:
            return
        try:
            ranges = entries.decode_rolled(value)
        except StorageCorrupt as error:
            self.wrong(error.message, last, last)
            return
        if self.edited and self.edited[-1].last == last:
            self.edited[-1] = self.edited[-1]._replace(ranges=ranges)
        elif last <= self._head.pointer:
            self.wrong("a rollback without its entry", last, last)

    async def _take_entry(self, column: bytes, value: bytes) -> None:
        last = last_of(column)
        if last > self._head.pointer:
            if not self._head.is_open:
                self.wrong("an entry behind the end of a sealed page", last, last)
            return
        if self.begins is not None and last <= self.begins:
            self.uncovered += 1
            self._last = last
            return
        first = log_key_after(self._last)
        try:
            read = partial(_read, value)
            entry, link = await aside(read) if len(value) >= ASIDE_BYTES_MIN else read()
        except (StorageCorrupt, ValueError) as error:
            self._is_broken = True
            self.wrong(f"{error}: its cell has {len(value)} bytes", first, last)
            self._last = last
            return
        self.entries += 1
        self._follow(self._last)
        if entry.column != column or entry.first <= self._last:
            self._is_broken = True
            self.wrong("an entry that belongs to another place", entry.first, entry.last)
        self._chain = hashchain.extended(self._chain, (link,))
        self._last = last
        self._note(last)
        self._judge(entry)

    def _judge(self, entry: Entry) -> None:
        if entry.is_stub:
            if entry.end_ms is None or entry.end_ms > self._now_ms + SLACK_MS:
                self.wrong("messages were removed before their time", entry.first, entry.last)
        elif entry.is_reference:
            self.references.append(entry)
        self.messages += messages_of(entry)
        if entry.pointer is not None:
            self.edited.append(RolledEntry(entry.first, entry.last, entry.pointer, ()))

    def _follow(self, through: LogKey) -> None:
        """Extend the chain by the records at or below an id."""
        while self._waiting and self._waiting[0][0] <= through:
            pointer, cell, _ = self._waiting.pop(0)
            self._chain = hashchain.recorded(self._chain, cell)
            self._note(pointer)

    def _note(self, pointer: LogKey) -> None:
        if pointer == self._at:
            self.hashes.append(self._chain)

    def end(self) -> None:
        """Compare the end with the head."""
        self._follow(LOG_KEY_MAX)
        head, is_broken = self._head, self._is_broken
        if self._last < head.pointer and head.cells and not is_broken:
            is_broken = True
            self.wrong("messages are missing at its end", log_key_after(self._last), head.pointer)
        if self._chain != head.chain and not is_broken:
            self.wrong(
                "its messages are not those of its hash: one of them was changed, added or removed",
                self._key,
                head.pointer,
            )


def _read(value: bytes) -> tuple[Entry, bytes]:
    entry = entries.decode(value)
    return entry, hashchain.link_of(entry, value)


def page_of_read(key: LogKey, head: Head, read: PageRead) -> ChainPage:
    """Return a page as it was read."""
    return ChainPage(
        key,
        head.state,
        head.pointer,
        head.before,
        head.chain,
        read.begins,
        read.entries,
        read.messages,
        read.bytes,
        read.uncovered,
        read.records,
        read.edited,
        read.problems,
        read.hashes,
    )


def unread_page(key: LogKey, what: str) -> ChainPage:
    """Return a page that can't be read, with the problem."""
    problem = ChainProblem(key, key, key, what)
    return ChainPage(key, PageState.GONE, key, b"", b"", None, 0, 0, 0, 0, [], [], [problem], [])
