"""The one door to plyvel: a LevelDB database in a store's directory.

A table byte leads each key, then come the keys of keys.py::

    m   messages: rows, side rows, control rows of topics
    p   payloads: rows, side rows, control rows of payload logs
    r   records
    f   "f": format and store id

LevelDB is opened with paranoid checks,
and every read verifies checksums: what does not fit is StorageCorrupt, and nothing is mended in passing.

LevelDB merges files on one thread, and stops writes while twelve new ones wait to be merged.
Each topic appends at its own place, so that every new file overlaps all others and must be merged;
how fast that goes decides how much can be published for hours, and how long a stop takes.
Blocks are therefore not compressed (Snappy took 40 % of a busy node's processor time), tables in memory
are small, so that a stop ends within seconds, and files are small, because a file that holds the end of
one topic and of the next overlaps all that the next one has.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plyvel

from broker.errors import Unavailable
from broker.storage import leveldb_files as files

_PROBE_BYTES_MIN = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a database is opened.

    Attributes:
        write_buffer_bytes: how much is kept in memory, and read back from the log at a start.
        compression: what LevelDB calls a compression, or None. Old blocks stay as they were written.
        cache_bytes: LevelDB's cache of uncompressed blocks.
        file_bytes_max: the size of a table file.
        open_files_max: how many table files are kept open.
        probe_interval_s: how often to look whether the disk takes writes again after an error.
    """

    write_buffer_bytes: int = 16 << 20
    compression: str | None = None
    cache_bytes: int = 64 << 20
    file_bytes_max: int = 4 << 20
    open_files_max: int = 1000
    probe_interval_s: float = 1.0


class Database:
    """A LevelDB database, opened, closed and opened anew; errors in the words of the ports."""

    def __init__(self, path: Path, options: Options, *, create: bool) -> None:
        """Open. Raises StorageCorrupt or Unavailable."""
        self._path = path
        self._options = options
        self._readers = 0
        self._closing = False
        self._gate = threading.Condition()
        self._db: Any = None
        self._open(create=create)

    def _open(self, *, create: bool) -> None:
        with translated(self._path):
            self._db = plyvel.DB(
                str(self._path),
                create_if_missing=create,
                paranoid_checks=True,
                compression=self._options.compression,
                write_buffer_size=self._options.write_buffer_bytes,
                lru_cache_size=self._options.cache_bytes,
                max_file_size=self._options.file_bytes_max,
                max_open_files=self._options.open_files_max,
            )

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """Keep the database open for the time of a read."""
        with self._gate:
            self._gate.wait_for(lambda: not self._closing)
            if self._db is None:
                raise Unavailable(f"the database in {self._path} is not open")
            self._readers += 1
        try:
            with translated(self._path):
                yield self._db
        finally:
            with self._gate:
                self._readers -= 1
                self._gate.notify_all()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let reads under way end, and keep new ones waiting."""
        with self._gate:
            self._closing = True
            try:
                self._gate.wait_for(lambda: self._readers == 0)
                yield
            finally:
                self._closing = False
                self._gate.notify_all()

    def close(self) -> None:
        """Close as soon as the last read has ended."""
        with self._alone():
            self._close()

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
        self._db = None

    def reopen(self) -> None:
        """Close and open anew if the disk takes a probe.

        The probe is as large as what opening may have to write. Until it succeeds the old database
        object stays, for reads.

        Raises:
            OSError: the disk takes no writes yet.
            StorageCorrupt, Unavailable: LevelDB does not open it.
        """
        directory = self._path.parent
        files.probe(directory, _PROBE_BYTES_MIN + files.recovery_bytes(directory) * 9 // 8)
        with self._alone():
            self._close()
            self._open(create=False)

    def get(self, key: bytes) -> bytes | None:
        """Return a value."""
        with self.reading() as db:
            found: bytes | None = db.get(key, verify_checksums=True)
            return found

    def batch(self, *, synced: bool) -> Any:
        """Return an empty write batch."""
        return self._db.write_batch(sync=synced)

    @contextmanager
    def pairs(
        self, prefix: bytes, first: bytes, last: bytes, *, reverse: bool
    ) -> Iterator[Iterator[tuple[bytes, bytes]]]:
        """Give keys (without the prefix) and values from first to last, both included."""
        with (
            self.reading() as db,
            db.prefixed_db(prefix).iterator(
                start=first, stop=last, include_stop=True, reverse=reverse, verify_checksums=True
            ) as pairs,
        ):
            yield pairs

    def items(self, prefix: bytes, *, limit: int | None = None) -> list[tuple[bytes, bytes]]:
        """Return what has keys with this prefix, in order; the keys without it."""
        with self.reading() as db, db.iterator(prefix=prefix, verify_checksums=True) as pairs:
            found = []
            for key, value in pairs:
                found.append((key[len(prefix) :], value))
                if len(found) == limit:
                    break
            return found

    def keys(self, start: bytes, stop: bytes, limit: int) -> list[bytes]:
        """Return at most ``limit`` keys from ``start`` up to, without, ``stop``."""
        arguments = {"include_value": False, "fill_cache": False, "verify_checksums": True}
        with self.reading() as db, db.iterator(start=start, stop=stop, **arguments) as found:
            return [key for key, _ in zip(found, range(limit), strict=False)]

    def approximate_bytes(self, start: bytes, stop: bytes) -> int:
        """Return roughly what a range of keys takes on disk, memory apart."""
        with self.reading() as db:
            return int(db.approximate_size(start, stop))

    def compact(self, start: bytes, stop: bytes) -> None:
        """Rewrite a range of keys without what was deleted."""
        with self.reading() as db:
            db.compact_range(start=start, stop=stop)


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Give plyvel's errors the names of the ports."""
    try:
        yield
    except plyvel.CorruptionError as error:
        raise files.corrupt(path.parent, str(error)) from error
    except plyvel.IOError as error:
        if "No such file" in str(error):
            raise files.corrupt(path.parent, str(error)) from error
        raise Unavailable(f"LevelDB in {path}: {error}") from error
    except plyvel.Error as error:
        raise files.corrupt(path.parent, str(error)) from error


def repair_database(path: Path) -> None:
    """Let LevelDB keep what it can read of a damaged database, by checksums, and no more.

    Raises:
        StorageCorrupt, Unavailable: it can make nothing of it.
    """
    with translated(path):
        plyvel.repair_db(str(path), paranoid_checks=True)


def open_directory(directory: Path, options: Options) -> tuple[files.DirectoryLock, Database]:
    """Open or make a store's directory and database, and check that they belong together.

    Raises:
        Unavailable: another process has the store open, or the disk is not a local one.
        StorageCorrupt: it is damaged, or a newer release wrote it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files.refuse_network_file_system(directory)
    lock = files.DirectoryLock(directory)
    try:
        identity = files.prepare(directory)
        database = Database(directory / files.DATABASE, options, create=not identity.complete)
        try:
            _check_identity(directory, database, identity)
            files.mark_open(directory)
        except BaseException:
            database.close()
            raise
    except BaseException:
        lock.close()
        raise
    return lock, database


def _check_identity(directory: Path, database: Database, identity: files.Identity) -> None:
    value = database.get(files.FORMAT_KEY)
    if value is None and not identity.complete:
        batch = database.batch(synced=True)
        batch.put(files.FORMAT_KEY, files.format_row(identity))
        with translated(directory / files.DATABASE):
            batch.write()
    elif value is None:
        raise files.corrupt(directory, "the database has lost its format row")
    elif not files.is_format_row_of(identity, value):
        raise files.corrupt(directory, "the database and IDENTITY are not of the same store")
    if not identity.complete:
        files.write_identity(directory, identity._replace(complete=True))
