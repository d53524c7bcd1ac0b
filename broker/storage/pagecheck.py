"""Checking one page: its cells against its head, and its head against the page before.

This module does no I/O: the caller gives the cells in the order of their columns. If a node writes to the page
meanwhile, the head as read decides: entries above its pointer came later, and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from broker.errors import BadRequest, StorageCorrupt
from broker.model import LOG_KEY_MIN, LogKey, log_key_before
from broker.storage import entry as entries
from broker.storage import hashchain
from broker.storage.attributed import unpack
from broker.storage.columns import (
    RECORD_COLUMN_BYTES,
    column_from,
    is_record_column,
    is_rolled_column,
    last_of,
    record_place,
)
from broker.storage.entry import STORED, Entry, Mark
from broker.storage.head import HASH_BYTES, NO_END, Head, PageState
from broker.storage.keys import LogId
from broker.storage.reference import encode_count, messages_of
from broker.storage.report import StoreProblem
from broker.wire import attributes
from broker.wire.varint import Malformed

CELLS_COUNTED: Final = 0xFFFF
"""The highest count of cells that a head can hold."""
SLACK_MS: Final = 60_000
"""How far this node's clock may be behind the clock of the sweeper."""


def name_of(log: LogId) -> str:
    """Return a log's name for people."""
    payloads = "" if log.number is None else f", payloads {log.number}"
    return f"{log.topic}, generation {log.generation}{payloads}"


def page_name(log: LogId, page: LogKey) -> str:
    """Return a page's name for people."""
    return f"{name_of(log)}, page {page.hex()}"


class CheckedPage(NamedTuple):
    """A page's key and head."""

    key: LogKey
    head: Head


class Sums(NamedTuple):
    """Messages, and bytes of their payloads, from the beginning of a log."""

    total: int = 0
    bytes: int = 0


def links(log: LogId, before: CheckedPage | None, page: CheckedPage) -> Iterator[StoreProblem]:
    """Yield the problems between a page and the one before (None: there is no page before it)."""
    key, head = page
    name = page_name(log, key)
    if before is None:
        is_first = key == LOG_KEY_MIN or (log.number is None and log.generation > 1)
        if not is_first or head.prev != LOG_KEY_MIN:
            yield StoreProblem(
                name, "the pages before it are missing", f"prev is {head.prev.hex()}"
            )
        return
    former = before.head
    if former.state in {PageState.OPEN, PageState.CLOSED}:
        yield StoreProblem(name, f"it follows a page that is {former.state.name.lower()}")
    elif key > former.next:
        yield StoreProblem(
            page_name(log, former.next), "it is missing", f"the next one is {key.hex()}"
        )
    elif key < former.next:
        yield StoreProblem(
            name, "no page leads to it", f"next of the one before is {former.next.hex()}"
        )
    if head.prev != before.key:
        yield StoreProblem(name, "its prev is not the page before it", f"it is {head.prev.hex()}")
    for what in ("epoch", "pointer", "total", "bytes"):
        if getattr(head, what) < getattr(former, what):
            seen = f"from {_text(getattr(former, what))} to {_text(getattr(head, what))}"
            yield StoreProblem(name, f"its {what} is lower than in the page before", seen)


def _text(value: int | bytes) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


class PageCheck:
    """The check of one page that is not gone: call ``take`` with each cell in order, then ``end``."""

    def __init__(
        self, log: LogId, page: CheckedPage, before: Sums | None, now_ms: int, *, may_grow: bool
    ) -> None:
        """Begin. ``before`` has the sums up to the page; None: they are not known."""
        self.problems: list[StoreProblem] = []
        self.marks: list[Mark] = []
        self.references: list[Entry] = []
        self.entries = self.messages = self.bytes = 0
        self._name = page_name(log, page.key)
        self._log = log
        self._page, self._head = page
        self._before = before
        self._now_ms = now_ms
        self._may_grow = may_grow
        self._last: LogKey | None = None
        self._entry: Entry | None = None
        self._column = b""
        self._payload_bytes = self._size = self._epoch = 0
        self._has_stub = self._has_unreadable = False
        self._first_end_ms = NO_END

    def wrong(self, what: str, seen: str = "", at: LogKey | None = None) -> None:
        """Add a problem of the page, or of its entry that ends at ``at``."""
        where = self._name if at is None else f"{self._name}, entry {at.hex()}"
        self.problems.append(StoreProblem(where, what, seen))

    def take(self, column: bytes, value: bytes) -> None:
        """Check a cell."""
        self.bytes += len(column) + len(value)
        if len(column) == RECORD_COLUMN_BYTES and is_record_column(column):
            self._take_record(column, value)
            return
        if not column.startswith(b"e") or len(column) < len(column_from(LOG_KEY_MIN)) + 1:
            self.wrong(f"there is no column {column.hex()}")
            return
        last = last_of(column)
        if self._may_grow and last > self._head.pointer:
            return
        try:
            if is_rolled_column(column):
                self._take_rolled(column, value, last)
            else:
                self._take_entry(column, entries.decode(value), last)
        except (StorageCorrupt, ValueError) as error:
            self._has_unreadable = True
            self._last = last
            self.entries += not is_rolled_column(column)
            self.wrong(str(error), at=last)

    def _take_record(self, column: bytes, value: bytes) -> None:
        pointer, number = record_place(column)
        if self._may_grow and number > self._head.edits:
            return
        try:
            hashchain.decode(value)
        except StorageCorrupt as error:
            self.wrong(error.message, at=pointer)
        self._size += len(column) + len(value)

    def _take_rolled(self, column: bytes, value: bytes, last: LogKey) -> None:
        ranges = entries.decode_rolled(value)
        if column[:-1] != self._column:
            self.wrong("a rollback cell without its entry", at=last)
        elif self._entry is not None:
            self._entry.rolled = ranges
        if any(first > end for first, end in ranges):
            self.wrong("a rollback from a higher to a lower id", at=last)

    def _take_entry(self, column: bytes, entry: Entry, last: LogKey) -> None:
        head, former = self._head, self._last
        self._column, self._entry = column, entry
        self.entries += 1
        if column != entry.column:
            self.wrong("its column is that of another entry", at=last)
        if entry.first > entry.last or entry.first < self._page or entry.last > head.pointer:
            self.wrong("its ids do not belong to this page", entry.first.hex(), at=last)
        if former is not None and entry.first <= former:
            self.wrong("it overlaps the entry before it", entry.first.hex(), at=last)
        if not self._epoch <= entry.epoch <= head.epoch:
            self.wrong(
                "its epoch is lower than before it, or higher than the head's",
                str(entry.epoch),
                at=last,
            )
        if bool(entry.flags & STORED) != (self._log.number is not None):
            self.wrong("it belongs to another kind of log", at=last)
        self._last, self._epoch = last, max(self._epoch, entry.epoch)
        self.marks += entry.marks
        self._check_life(entry)
        if entry.is_stub:
            self._has_stub = True
        else:
            self._check_items(entry)

    def _check_life(self, entry: Entry) -> None:
        ends_ms = entry.end_ms
        if ends_ms is None:
            if entry.is_stub:
                self.wrong("it is a stub, but it has no lifetime", at=entry.last)
            return
        if not entry.is_stub:
            self._first_end_ms = min(self._first_end_ms, ends_ms)
        elif ends_ms > self._now_ms + SLACK_MS:
            self.wrong("it is a stub, but its lifetime has not ended", at=entry.last)

    def _check_items(self, entry: Entry) -> None:
        ids = entry.ids()
        rises = all(one < two for one, two in pairwise(ids))
        if not ids or not rises or (ids[0], ids[-1]) != (entry.first, entry.last):
            self.wrong(
                "the ids of its messages do not rise from its first to its last id", at=entry.last
            )
        self._check_attributes(entry)
        self._size += entry.stored_bytes
        if entry.is_reference:
            self.references.append(entry)
            if len(entry.payload(0)) - len(encode_count(0)) not in {0, HASH_BYTES}:
                self._has_unreadable = True
                self.wrong("it does not hold how many messages it stands for", at=entry.last)
                return
        else:
            self._payload_bytes += entry.payload_bytes()
        self.messages += messages_of(entry)

    def _check_attributes(self, entry: Entry) -> None:
        places = [-1]
        for place, each in unpack(entry.attributed):
            places.append(place)
            try:
                attributes.decode(each)
            except (Malformed, IndexError, BadRequest) as error:
                self.wrong("the attributes of a message can't be read", str(error), at=entry.last)
        if places != sorted(set(places)) or places[-1] >= entry.count:
            self.wrong("it has attributes of messages that are not in it", at=entry.last)

    def end(self) -> None:
        """Check the head against all cells together."""
        head = self._head
        last = log_key_before(self._page) if self._last is None else self._last
        if last != head.pointer:
            self.wrong(
                "its last entry is not at the pointer", f"{last.hex()}, {head.pointer.hex()}"
            )
        if head.cells < CELLS_COUNTED and head.cells != self.entries:
            self.wrong("its head has another number of entries", f"{self.entries}, {head.cells}")
        if self._first_end_ms < head.first_end_ms:
            self.wrong("a lifetime ends earlier than its head says")
        if self._has_unreadable:
            return
        if not self._has_stub and head.cells < CELLS_COUNTED and self._size != head.size:
            self.wrong("its head has another number of bytes", f"{self._size}, {head.size}")
        if self._before is None:
            return
        self._check_sum("messages", self.messages, head.total - self._before.total)
        self._check_sum("bytes of payloads", self._payload_bytes, head.bytes - self._before.bytes)

    def _check_sum(self, what: str, found: int, expected: int) -> None:
        """Compare a sum with the difference of the heads. With a stub it may be lower: messages are gone."""
        if found > expected or (found < expected and not self._has_stub):
            self.wrong(f"its head has another number of {what}", f"{found}, {expected}")
