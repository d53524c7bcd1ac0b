"""Reading a log of a LevelDB store: which rows count, and how many of them make a page.

The control row is taken first, then the rows; both lie in one database with one writer, so a row at or
below the pointer is there, and the row *at* the pointer proves it. An epoch owns a stretch of ids, so a
scan goes stretch by stretch, and within one a row counts or not by its head alone, which is decoded once
per run of equal heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import NamedTuple, Protocol

from broker import guards
from broker.errors import StorageCorrupt
from broker.model import ROW_ID_BYTES, ROW_ID_MAX, ROW_ID_MIN, RowId, TopicId, row_after
from broker.storage.control import Control, EpochRange, State, owns
from broker.storage.controlvalue import decode, decode_ranges
from broker.storage.keys import (
    OLDER_RANGES,
    LogId,
    payload_controls_prefix,
    payload_log_of,
    prefix_end,
)
from broker.storage.leveldb_changes import side_row_prefix
from broker.storage.leveldb_holds import (
    PAYLOADS,
    HeldLog,
    Holds,
    database_control_key,
    database_prefix,
)
from broker.storage.ports import Estimate, PlainRows, Row, Rows, SideRow
from broker.storage.rowvalue import (
    HEAD_BYTES,
    Head,
    decode_checked,
    decode_head,
    encode_head,
    head_bytes,
    with_pointer,
)

NEGATE_ROWS_MAX = 10_000
"""How many rows of a range one slice of a rollback looks at."""
CHUNK_ROWS_MAX = 256
"""How many rows are taken at once where the last ones were small."""
_SAMPLE_ROWS = 1000
_PLAIN_HEAD_BYTES = len(encode_head(Head(0, False, None, None, None)))

Pairs = AbstractContextManager[Iterator[tuple[bytes, bytes]]]


class Database(Protocol):
    """What reading needs of the database."""

    def get(self, key: bytes) -> bytes | None:
        """Return a value."""

    def pairs(self, prefix: bytes, first: bytes, last: bytes, *, reverse: bool) -> Pairs:
        """Give keys (without the prefix) and values from first to last, both included."""

    def items(self, prefix: bytes, *, limit: int | None = None) -> list[tuple[bytes, bytes]]:
        """Return what has keys with this prefix, in order; the keys without it."""

    def approximate_bytes(self, start: bytes, stop: bytes) -> int:
        """Return roughly what a range of keys takes on disk, memory apart."""


class Stretch(NamedTuple):
    """Ids ``first..through`` that the epochs of ``entry`` own."""

    first: RowId
    through: RowId
    entry: EpochRange


def stretches(ranges: tuple[EpochRange, ...], first: RowId, through: RowId) -> list[Stretch]:
    """Cut the ids ``first..through`` at the borders of the ranges, in order."""
    found = []
    for index, entry in enumerate(ranges):
        low = max(first, row_after(entry.after))
        high = min(through, ranges[index + 1].after) if index + 1 < len(ranges) else through
        if low <= high:
            found.append(Stretch(low, high, entry))
    return found


class Page:
    """Rows being collected up to two bounds.

    Most logs are long runs of plain rows, with one head. They are taken in chunks and kept as lists of
    ids and payloads; where anything else comes, rows are looked at one by one from there on.
    """

    __slots__ = ("_ids", "_payloads", "_rows", "bytes_left", "full", "rows_left", "seen")

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        """Start empty."""
        self._ids: list[RowId] = []
        self._payloads: list[bytes] = []
        self._rows: list[Row] | None = None
        self.rows_left = rows_max
        self.bytes_left = bytes_max
        self.seen: RowId | None = None
        self.full = rows_max <= 0

    @property
    def rows(self) -> Sequence[Row]:
        """What was collected."""
        return PlainRows(self._ids, self._payloads) if self._rows is None else self._rows

    def collect(self, pairs: Iterator[tuple[bytes, bytes]], entry: EpochRange) -> None:
        """Take counting rows until the pairs end or the page is full.

        Raises:
            StorageCorrupt: a value has no head.
        """
        size_max, chunk_rows = 1, 1
        while not self.full:
            wanted = max(1, min(self.rows_left, chunk_rows, self.bytes_left // size_max))
            chunk = list(islice(pairs, wanted))
            if not chunk:
                return
            self._take(chunk, entry)
            size_max = max([size_max, *(len(value) for _, value in chunk)])
            chunk_rows = min(2 * chunk_rows, CHUNK_ROWS_MAX)

    def _take(self, chunk: list[tuple[bytes, bytes]], entry: EpochRange) -> None:
        head = chunk[0][1][:_PLAIN_HEAD_BYTES]
        if self._rows is not None or not _is_plain(head, entry) or _is_mixed(chunk, head):
            self._take_each(chunk, entry)
            return
        payloads = [value[_PLAIN_HEAD_BYTES:] for _, value in chunk]
        self._ids += [row for row, _ in chunk]
        self._payloads += payloads
        self.rows_left -= len(chunk)
        self.bytes_left -= sum(map(len, payloads)) + _PLAIN_HEAD_BYTES * len(chunk)
        self.full = self.rows_left <= 0 or self.bytes_left <= 0
        self.seen = chunk[-1][0]

    def _take_each(self, chunk: list[tuple[bytes, bytes]], entry: EpochRange) -> None:
        if self._rows is None:
            self._rows = list(PlainRows(self._ids, self._payloads))
        rows, make = self._rows, tuple.__new__
        head: bytes | None = None
        size = 0
        counts, pointer, number, lifetime_ms, is_reference = False, None, None, None, False
        for key, value in chunk:
            self.seen = key
            if head is None or not value.startswith(head):
                size = head_bytes(value)
                head = value[:size]
                _, is_reference, pointer, number, lifetime_ms = decoded = decode_head(value)
                epoch_owns = entry.first <= decoded.epoch <= entry.last
                counts = epoch_owns or not guards.holds("epoch-tag")
            if not counts:
                continue
            payload = None if is_reference else value[size:]
            rows.append(make(Row, (key, payload, pointer, number, lifetime_ms)))
            self.rows_left -= 1
            self.bytes_left -= len(value)
            if self.rows_left <= 0 or self.bytes_left <= 0:
                self.full = True
                return


def _is_plain(head: bytes, entry: EpochRange) -> bool:
    """Whether a value begins with a head without fields, of an epoch that counts."""
    if HEAD_BYTES[head[0] if head else 0] != _PLAIN_HEAD_BYTES or len(head) < _PLAIN_HEAD_BYTES:
        return False
    decoded = decode_head(head)
    return not decoded.is_reference and entry.first <= decoded.epoch <= entry.last


def _is_mixed(chunk: list[tuple[bytes, bytes]], head: bytes) -> bool:
    return len([True for _, value in chunk if value.startswith(head)]) < len(chunk)


def _require_pointer_row(
    control: Control, page: Page, first: RowId, through: RowId, *, reverse: bool
) -> None:
    """Raise StorageCorrupt if the page should have the row at the pointer and has not."""
    if through < control.pointer or first > control.pointer or not control.has_committed():
        return
    if control.state in {State.DROPPED, State.DELETED} or (page.full and not reverse):
        return
    edge = page.rows[0 if reverse else -1].id if page.rows else None
    if edge is None or (edge != control.pointer and guards.holds("commit-pointer")):
        raise StorageCorrupt(
            f"the row at the commit pointer {control.pointer.hex()} is missing; "
            "see what is wrong with: broker storage check"
        )


class Negatable(NamedTuple):
    """One slice of the rows that a rollback is about."""

    rows: list[tuple[bytes, bytes]]
    """Database keys and values to write; those negated before need none."""
    found: int
    next_first: RowId | None
    """Where the next slice begins; None when there is none."""


class Reader:
    """Reads of one store, each for an executor's thread."""

    def __init__(self, database: Database, holds: Holds) -> None:
        """Read from ``database``; what ``holds`` knows to be confirmed is not read again."""
        self._database = database
        self._holds = holds

    def head(self, key: bytes) -> Control | None:
        """Return the control row with a database key."""
        known, control = self._holds.last_confirmed(key)
        if known:
            return control
        value = self._database.get(key)
        return None if value is None else decode(value)

    def ranges(self, log: LogId, control: Control) -> tuple[EpochRange, ...]:
        """Return all ranges of a log, those in side rows in front. Raises StorageCorrupt."""
        older: tuple[EpochRange, ...] = ()
        for token in control.older:
            value = self._database.get(side_row_prefix(log, OLDER_RANGES, token))
            if value is None:
                raise StorageCorrupt(f"older epoch ranges of {log.topic} are missing")
            older += decode_ranges(decode_checked(value)[1])
        return older + control.ranges

    def scan(self, log: LogId, window: tuple[RowId, RowId], page: Page, *, reverse: bool) -> Rows:
        """Read the counting rows in ``(after, through]`` = ``window``, in order.

        Raises:
            StorageCorrupt: the row at the pointer is not there, or a value has no head.
        """
        after, through = window
        control = self.head(database_control_key(log))
        if (
            control is None
            or control.generation != log.generation
            or control.state is State.DROPPED
        ):
            # Of what is dropped some rows may be gone already, so none is shown.
            return Rows([], control, more=False, seen=after)
        if guards.holds("commit-pointer"):
            through = min(through, control.pointer)
        first = max(row_after(after), control.floor)
        if first > through:
            return Rows([], control, more=False, seen=max(after, through))
        prefix = database_prefix(log)
        parts = stretches(self.ranges(log, control), first, through)
        for part in reversed(parts) if reverse else parts:
            with self._database.pairs(prefix, part.first, part.through, reverse=reverse) as pairs:
                page.collect(pairs, part.entry)
            if page.full:
                break
        _require_pointer_row(control, page, first, through, reverse=reverse)
        end = first if reverse else through
        seen = end if not page.full or page.seen is None else page.seen
        return Rows(page.rows, control, more=seen != end, seen=seen)

    def negatable(self, hold: HeldLog, window: tuple[RowId, RowId], pointer: int) -> Negatable:
        """Find the counting rows in the window, both ends included, whose pointer is this one."""
        control = hold.control
        first, through = window[0], min(window[1], control.pointer)
        ranges = self.ranges(hold.log, control)
        rows, found, looked_at = [], 0, 0
        with self._database.pairs(hold.prefix, first, through, reverse=False) as pairs:
            for row, value in pairs:
                looked_at += 1
                head = decode_head(value)
                if head.pointer in {pointer, -pointer} and owns(ranges, row, head.epoch):
                    found += 1
                    if head.pointer == pointer:
                        rows.append((hold.prefix + row, with_pointer(value, -pointer)))
                if looked_at == NEGATE_ROWS_MAX:
                    return Negatable(rows, found, row_after(row))
        return Negatable(rows, found, None)

    def side(self, log: LogId, kind: bytes, key: bytes) -> list[SideRow]:
        """Return the counting side rows of one kind and key, the oldest first."""
        control = self.head(database_control_key(log))
        if control is None or control.generation != log.generation:
            return []
        ranges = self.ranges(log, control)
        found = []
        for row, value in self._database.items(side_row_prefix(log, kind, key)):
            epoch, data = decode_checked(value)
            if len(row) != ROW_ID_BYTES:
                continue  # Of a longer key that begins with this one.
            if row <= control.pointer and owns(ranges, row, epoch):
                found.append(SideRow(kind, key, row, data))
        return found

    def payload_logs(self, topic: TopicId, generation: int | None) -> list[tuple[LogId, Control]]:
        """Return the payload logs that a topic has control rows for."""
        prefix = payload_controls_prefix(topic, generation)
        items = self._database.items(PAYLOADS + prefix)
        return [(payload_log_of(topic, prefix + rest), decode(value)) for rest, value in items]

    def estimate(self, log: LogId) -> Estimate:
        """Return roughly how many rows and bytes a log has; exactly, if it has few."""
        page = self.scan(log, (ROW_ID_MIN, ROW_ID_MAX), Page(_SAMPLE_ROWS, 1 << 20), reverse=False)
        sampled = sum(len(row.payload or b"") + _ROW_OVERHEAD_BYTES for row in page.rows)
        if not page.more or not page.rows:
            return Estimate(len(page.rows), sampled)
        row_bytes = sampled / len(page.rows)
        prefix = database_prefix(log)
        on_disk = self._database.approximate_bytes(prefix, prefix_end(prefix)) / row_bytes
        hold = self._holds.current(database_control_key(log))
        appended = 0 if hold is None else hold.rows
        rows = max(int(on_disk), appended, len(page.rows))
        return Estimate(rows, int(rows * row_bytes))


_ROW_OVERHEAD_BYTES = 40
"""Roughly a key, a head and LevelDB's own bytes."""
