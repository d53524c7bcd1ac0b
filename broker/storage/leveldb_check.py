"""``broker storage check`` and ``repair``: what is wrong with a store, and a mended copy of it.

Checking changes nothing: LevelDB writes when it opens, so it is given a snapshot of the directory, in
which the tables are hard links. Every key is read with its checksums. Keys are sorted, so a topic's control
rows come before the rows that they judge, and one pass does::

    per key     is it one of ours, does its value decode
    per row     does it count by its control row; if not it is ignorable: swept later, or of a writer that
                was fenced, or of a generation that is going
    per log     is the row at the commit pointer there

Repair never touches the original. It copies all, lets LevelDB keep what it can read, and moves the commit
pointer of a log whose last rows are lost back to the last row that is left. It says what was lost as far
as that can be known; rows lost in the middle of a log leave no trace but the bytes that LevelDB dropped.
"""

from __future__ import annotations

import secrets
import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from broker.errors import BrokerError, StorageCorrupt
from broker.model import ROW_ID_BYTES, ROW_ID_MIN, RowId, TopicId
from broker.storage import leveldb_files as files
from broker.storage.control import (
    TOKEN_BYTES,
    Control,
    EpochRange,
    State,
    owns,
)
from broker.storage.controlvalue import decode, decode_ranges, encode
from broker.storage.keys import CONTROL, IDEMPOTENCY, OLDER_RANGES, PRODUCER, LogId
from broker.storage.leveldb_changes import EXPIRY
from broker.storage.leveldb_database import Database, Options, repair_database, translated
from broker.storage.leveldb_holds import MESSAGES, META, PAYLOADS, RECORDS, database_control_key
from broker.storage.rowvalue import decode_checked, decode_head

Progress = Callable[[int, int], None]
"""Told how many bytes of roughly how many were looked at."""

_INT32, _INT64 = struct.Struct(">i"), struct.Struct(">q")
_PROGRESS_EVERY = 10_000
_PROBLEMS_MAX = 1000


@dataclass(slots=True)
class Report:
    """What a check found. ``problems`` empty means that the store can be trusted."""

    directory: Path
    problems: list[str] = field(default_factory=list)
    mended: list[str] = field(default_factory=list)
    message_logs: int = 0
    payload_logs: int = 0
    rows: int = 0
    side_rows: int = 0
    records: int = 0
    ignorable: int = 0
    """Rows that do not count, and need not: nothing is wrong with them."""
    bytes: int = 0

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def problem(self, what: str) -> None:
        """Note something that is wrong, up to a bound."""
        if len(self.problems) < _PROBLEMS_MAX:
            self.problems.append(what)


def check(directory: Path, progress: Progress | None = None) -> Report:
    """Look at all of a closed store and change nothing.

    Raises:
        Unavailable: a process has the store open.
        OSError: there is no such directory, or no room for a snapshot beside it.
    """
    report = Report(directory)
    if not files.is_store(directory):
        report.problem(f"there is no store in {directory}")
        return report
    lock = files.DirectoryLock(directory)
    try:
        try:
            files.examine(directory)
        except StorageCorrupt as error:
            report.problem(error.message)
        _check_snapshot(directory, report, progress)
    finally:
        lock.close()
    return report


def _check_snapshot(directory: Path, report: Report, progress: Progress | None) -> None:
    if not (directory / files.DATABASE).is_dir():
        return
    with tempfile.TemporaryDirectory(prefix="check-", dir=directory) as beside:
        files.snapshot(directory, Path(beside), linked=True)
        try:
            database = Database(Path(beside) / files.DATABASE, Options(), create=False)
        except BrokerError as error:
            report.problem(f"LevelDB does not open the database: {error.message}")
            return
        try:
            _Pass(database, report, progress).run()
        finally:
            database.close()


def repair(directory: Path, copy_to: Path, progress: Progress | None = None) -> Report:
    """Make a mended copy of a closed store; the original stays as it is.

    Raises:
        Unavailable: a process has the store open, or LevelDB can't make anything of the copy.
        OSError: there is no database, ``copy_to`` exists, or there is no room for it.
    """
    if not (directory / files.DATABASE).is_dir():
        raise FileNotFoundError(f"there is no database in {directory}")
    lock = files.DirectoryLock(directory)
    try:
        copy_to.mkdir(parents=True)
        files.snapshot(directory, copy_to, linked=False)
        repair_database(copy_to / files.DATABASE)
        mended = _mend(copy_to, progress)
    finally:
        lock.close()
    report = check(copy_to, progress)
    report.mended = mended
    return report


def _mend(directory: Path, progress: Progress | None) -> list[str]:
    database = Database(directory / files.DATABASE, Options(), create=False)
    try:
        found = _Pass(database, Report(directory), progress)
        found.run()
        batch = database.batch(synced=True)
        lines = []
        for log, (control, last) in found.cut_short.items():
            batch.put(database_control_key(log), encode(_moved_back(control, last)))
            lines.append(
                f"{_name(log)}: all after {last.hex()} is lost, up to {control.pointer.hex()}; "
                "the commit pointer was moved back"
            )
        identity = files.Identity(files.FORMAT, secrets.token_hex(16), complete=True)
        batch.put(files.FORMAT_KEY, files.format_row(identity))
        with translated(directory / files.DATABASE):
            batch.write()
    finally:
        database.close()
    files.write_identity(directory, identity)
    return lines


def _moved_back(control: Control, last: RowId) -> Control:
    """Return the control row with the pointer at ``last``, under an epoch that nobody had."""
    epoch = control.epoch + 1
    kept = tuple(entry for entry in control.ranges if entry.after < last)
    ranges = (*kept, EpochRange(epoch, epoch, last))
    floor = min(control.floor, last)
    token = secrets.token_bytes(TOKEN_BYTES)
    return control._replace(epoch=epoch, pointer=last, ranges=ranges, floor=floor, token=token)


def _name(log: LogId) -> str:
    payloads = "" if log.number is None else f", payloads {log.number}"
    return f"{log.topic}, generation {log.generation}{payloads}"


class _Pass:
    """One pass over all keys of a database."""

    def __init__(self, database: Database, report: Report, progress: Progress | None) -> None:
        self._database = database
        self._report = report
        self._progress = progress
        self._controls: dict[LogId, Control] = {}
        self._older: dict[bytes, tuple[EpochRange, ...]] = {}
        self._last: dict[LogId, RowId] = {}
        self.cut_short: dict[LogId, tuple[Control, RowId]] = {}
        """Logs whose row at the pointer is missing, and the last row that counts."""

    def run(self) -> None:
        """Look at everything, and put what is found into the report."""
        report = self._report
        try:
            for number, (key, value) in enumerate(self._pairs()):
                report.bytes += len(key) + len(value)
                try:
                    self._look_at(key, value)
                except (StorageCorrupt, struct.error, ValueError) as error:
                    report.problem(f"key {key!r}: {error}")
                if self._progress is not None and number % _PROGRESS_EVERY == 0:
                    self._progress(report.bytes, max(report.bytes, self._total_bytes()))
        except BrokerError as error:
            report.problem(f"reading stopped: {error.message}")
        self._judge_logs()

    def _pairs(self) -> Iterator[tuple[bytes, bytes]]:
        with self._database.pairs(b"", b"", b"\xff" * 8, reverse=False) as pairs:
            yield from pairs

    def _total_bytes(self) -> int:
        return self._database.approximate_bytes(b"", b"\xff")

    def _look_at(self, key: bytes, value: bytes) -> None:
        table, rest = key[:1], key[1:]
        if table == RECORDS:
            decode_checked(value)
            self._report.records += 1
        elif table in (MESSAGES, PAYLOADS):
            topic, generation, rest = _split(rest)
            if generation == 0:
                self._side(table, topic, rest, value)
            else:
                self._row(_log_of(table, topic, generation, rest), rest[-ROW_ID_BYTES:], value)
        elif table == META:
            decode_checked(value)
        else:
            raise ValueError("no table begins so")

    def _side(self, table: bytes, topic: TopicId, rest: bytes, value: bytes) -> None:
        kind, rest = rest[:1], rest[1:]
        if kind == CONTROL:
            control = decode(value)
            log = _log_of_control(table, topic, control, rest)
            self._controls[log] = control
            if table == MESSAGES:
                self._report.message_logs += 1
            else:
                self._report.payload_logs += 1
        elif kind == OLDER_RANGES:
            self._older[rest[-TOKEN_BYTES:]] = decode_ranges(decode_checked(value)[1])
        elif kind in {IDEMPOTENCY, PRODUCER}:
            decode_checked(value)
            self._report.side_rows += 1
        elif kind != EXPIRY:
            raise ValueError(f"no kind of side row is called {kind!r}")

    def _row(self, log: LogId, row: RowId, value: bytes) -> None:
        head = decode_head(value)
        control = self._controls.get(log)
        if control is None:
            if log.number is None and self._is_older_generation(log):
                self._report.ignorable += 1
                return
            raise ValueError(f"a row of {_name(log)}, which has no control row")
        counts = control.floor <= row <= control.pointer
        if counts and owns(self._ranges(log, control), row, head.epoch):
            self._report.rows += 1
            self._last[log] = row
        else:
            self._report.ignorable += 1

    def _is_older_generation(self, log: LogId) -> bool:
        return any(
            known.topic == log.topic and known.number is None and known.generation > log.generation
            for known in self._controls
        )

    def _ranges(self, log: LogId, control: Control) -> tuple[EpochRange, ...]:
        older: tuple[EpochRange, ...] = ()
        for token in control.older:
            if token not in self._older:
                raise ValueError(f"{_name(log)}: older epoch ranges are missing")
            older += self._older[token]
        return older + control.ranges

    def _judge_logs(self) -> None:
        for log, control in self._controls.items():
            if control.state in {State.DROPPED, State.DELETED} or not control.has_committed():
                continue
            last = self._last.get(log, control.ranges[0].after if control.ranges else ROW_ID_MIN)
            if last != control.pointer:
                self.cut_short[log] = (control, last)
                self._report.problem(
                    f"{_name(log)}: the row at the commit pointer {control.pointer.hex()} is "
                    f"missing; the last one is {last.hex()}"
                )


def _split(rest: bytes) -> tuple[TopicId, int, bytes]:
    """Split a key behind its table byte: topic, generation, what follows."""
    namespace, topic, rest = rest.split(b":", 2)
    (generation,) = _INT32.unpack_from(rest)
    return TopicId(namespace.decode(), topic.decode()), generation, rest[_INT32.size :]


def _log_of(table: bytes, topic: TopicId, generation: int, rest: bytes) -> LogId:
    number_bytes = 0 if table == MESSAGES else _INT64.size
    if len(rest) != number_bytes + ROW_ID_BYTES or generation < 0:
        raise ValueError("a row key has another length")
    return LogId(topic, generation, _INT64.unpack_from(rest)[0] if number_bytes else None)


def _log_of_control(table: bytes, topic: TopicId, control: Control, rest: bytes) -> LogId:
    if table == MESSAGES:
        if rest:
            raise ValueError("the key of a topic's control row has another length")
        return LogId(topic, control.generation)
    generation, number = struct.unpack(">iq", rest)
    return LogId(topic, generation, number)
