"""A table in memory that keeps removed pages, and records forbidden changes.

The true log of a generation is the chain of its pages from the first one, removed pages included. This table knows
facts that no node can know: each page before the removal of its entries (its *grave*), the first page of each
generation, and the order of all writes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from typing_extensions import override

from broker.model import LOG_KEY_BYTES, LogKey, TopicId
from broker.storage import entry as entries
from broker.storage import head as heads
from broker.storage import root as roots
from broker.storage.columns import is_entry_column, is_record_column
from broker.storage.entry import Entry
from broker.storage.head import Head, PageState
from broker.storage.keys import LogId, page_key, root_key, space_of, topic_prefix
from broker.storage.memory.row_space import RowSpace, Undo
from broker.storage.memory.table import MemoryTable
from broker.storage.page_entries import entries_in
from broker.storage.root import Root, RootState
from broker.storage.table import HEAD, Space

TOPIC: Final = TopicId("ns", "t")
_PREFIX: Final = topic_prefix(TOPIC)
_ROOT: Final = root_key(LogId(TOPIC, 1))
_INT32 = struct.Struct(">i")
_PAYLOAD_LOG = struct.Struct(">iq")


class Violation(Exception):
    """A change that the protocol forbids."""


class Page(NamedTuple):
    """A page of the true log. ``is_gone``: its entries were removed."""

    key: LogKey
    head: Head
    entries: list[Entry]
    is_gone: bool


class WatchedRows(RowSpace):
    """The rows of one space; they report each change to the table."""

    __slots__ = ("_log", "_space")

    def __init__(self, space: Space, log: WatchedTable) -> None:
        """Report changes to ``log``."""
        super().__init__()
        self._space = space
        self._log = log

    @override
    def change(
        self,
        key: bytes,
        expected: bytes | None,
        puts: Mapping[bytes, bytes],
        deletes: Sequence[bytes],
        server_ms: int | None,
        *,
        clear: bool,
    ) -> Undo | None:
        """Change a row, and judge the change."""
        undo = super().change(key, expected, puts, deletes, server_ms, clear=clear)
        if undo is not None and self._space is not Space.RECORDS:
            self._log.changed(self._space, key, puts, undo, is_gone=clear)
        return undo

    @override
    def delete(self, key: bytes) -> Undo:
        """Remove a row, and keep it in the graves."""
        undo = super().delete(key)
        if undo:
            self._log.removed(self._space, key, undo)
        return undo


class WatchedTable(MemoryTable):
    """A table that several nodes use, with one topic, TOPIC."""

    def __init__(self) -> None:
        """Begin empty."""
        super().__init__(is_alone=False)
        for space in Space:
            self.spaces[space] = WatchedRows(space, self)
        self.firsts: dict[int, LogKey] = {}
        """By generation: the key of its first page."""
        self.floors: dict[int, LogKey] = {}
        """By generation: its floor, the last one of a dead generation."""
        self._graves: dict[tuple[Space, bytes], Undo] = {}
        self._references: set[tuple[int, int]] = set()
        self.violations: list[str] = []

    def root(self, log: LogId | None = None) -> Root | None:
        """Return the current root of a log, by default of the topic's log."""
        log = log or LogId(TOPIC, 1)
        head = self.spaces[space_of(log)].get(root_key(log)).head
        return None if head is None else roots.decode(head.value)

    def changed(
        self, space: Space, key: bytes, puts: Mapping[bytes, bytes], undo: Undo, *, is_gone: bool
    ) -> None:
        """Judge a change of a row."""
        if key == _ROOT:
            root = roots.decode(puts[HEAD])
            self.firsts.setdefault(root.generation, root.page)
            self.floors[root.generation] = root.floor
            self._judge_root(root, undo)
            return
        log = _log_of(space, key)
        if log is None:
            return
        if is_gone:
            self._bury(log, space, key, undo)
        elif len(puts) > 1:
            self._judge_added(log, puts)

    def _judge_root(self, root: Root, undo: Undo) -> None:
        cell = undo[HEAD]
        before = None if cell is None else roots.decode(cell.value)
        if before is None or before.generation != root.generation:
            return
        if root.floor < before.floor:
            self.violations.append(f"the floor falls from {before.floor.hex()}")
        if before.state is RootState.DELETED and root.state is RootState.LIVE:
            self.violations.append("a deleted generation lives again")

    def _judge_added(self, log: LogId, puts: Mapping[bytes, bytes]) -> None:
        root = self.root()
        added = [
            entries.decode(value)
            for column, value in puts.items()
            if column != HEAD and is_entry_column(column)
        ]
        added = [entry for entry in added if not entry.is_stub]
        if not added or root is None:
            return
        if log.number is None:
            if log.generation < root.generation:
                self.violations.append(f"an append in dead generation {log.generation}")
            for entry in added:
                if entry.number is not None:
                    self._references.add((log.generation, entry.number))
        elif (log.generation, log.number) in self._references:
            self.violations.append(f"stored to {log.number} after its publication")

    def _bury(self, log: LogId, space: Space, key: bytes, undo: Undo) -> None:
        head = undo[HEAD]
        if head is None or heads.decode(head.value).state is PageState.GONE:
            return
        self._graves.setdefault((space, key), undo)
        root = self.root()
        if (
            log.number is None
            and root is not None
            and (root.generation, root.state) == (log.generation, RootState.LIVE)
            and key[-LOG_KEY_BYTES:] >= root.floor
        ):
            self.violations.append(f"removed above the floor: {key[-LOG_KEY_BYTES:].hex()}")

    def removed(self, space: Space, key: bytes, undo: Undo) -> None:
        """Keep a removed row in the graves."""
        log = _log_of(space, key)
        if log is not None:
            self._bury(log, space, key, undo)

    # The true log.

    def chain(self, log: LogId) -> list[Page]:
        """Return the pages of a log from its first one, removed ones included."""
        page = self.firsts.get(log.generation) if log.number is None else bytes(LOG_KEY_BYTES)
        out: list[Page] = []
        while page is not None:
            found = self._page(log, page)
            if found is None:
                break
            out.append(found)
            if not found.head.is_sealed or len(out) > 10_000:
                break
            page = found.head.next
        return out

    def _page(self, log: LogId, page: LogKey) -> Page | None:
        space, key = space_of(log), page_key(log, page)
        grave = self._graves.get((space, key))
        if grave is not None:
            cells = {column: cell.value for column, cell in grave.items() if cell is not None}
            head = heads.decode(cells.pop(HEAD))
            return Page(page, head, list(entries_in(_judged(sorted(cells.items())))), is_gone=True)
        row = self.spaces[space].get(key)
        if row.head is None:
            return None
        found = row.cells(b"", b"\xff" * 40, cells_max=1 << 20, bytes_max=1 << 40, reverse=False)
        head = heads.decode(row.head.value)
        return Page(page, head, list(entries_in(_judged(found.cells))), is_gone=False)


def _log_of(space: Space, key: bytes) -> LogId | None:
    """Return the log of a page's key."""
    rest = key[len(_PREFIX) :]
    (generation,) = _INT32.unpack_from(rest)
    if generation == 0:
        return None
    if space is Space.MESSAGES:
        return LogId(TOPIC, generation)
    return LogId(TOPIC, *_PAYLOAD_LOG.unpack_from(rest))


def _judged(cells: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the cells of entries and rollbacks; the verification of the chain judges the records."""
    return [each for each in cells if not is_record_column(each[0])]
