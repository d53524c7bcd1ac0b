"""A LevelDB database in a store's directory. This is the only module that uses plyvel.

It opens LevelDB with paranoid checks, and every read of values verifies checksums. A value with a wrong checksum is
StorageCorrupt. The only repair at an open is to cut the end of a log that was never synced (torn_tail.py).

LevelDB merges files on one thread, and stops writes while twelve new files wait to be merged. Each topic appends at
its own place in the key order. So every new file overlaps all others and must be merged. The speed of merging
limits how much can be published over hours, and how long a stop takes. This decides three options:

- Blocks are not compressed: Snappy took 40 % of a busy node's processor time.
- Tables in memory are small, so that a stop ends within seconds.
- Files are small, because a file with the end of one topic and the beginning of the next one overlaps all files
  of the next one.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plyvel

from broker.errors import BrokerError, Unavailable
from broker.storage.leveldb import files, stand_in, torn_tail
from broker.storage.leveldb.layout import FORMAT_KEY

MORE_FILES = "Raise the limit of open files before the start: ulimit -n 65536"
_PROBE_BYTES_MIN = 4 << 20
_LARGE_BYTES_MIN = 256 << 10
"""plyvel holds the interpreter's lock while it copies a large value, so only wanted values are fetched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a database is opened.

    Attributes:
        write_buffer_bytes: how much LevelDB keeps in memory, and reads back from the log at a start.
        compression: LevelDB's name of a compression, or None. Old blocks stay as they were written.
        cache_bytes: LevelDB's cache of uncompressed blocks.
        file_bytes_max: the size of a table file.
        open_files_max: how many table files are kept open.
        probe_interval_s: after a write error, how often to try whether the disk takes writes again.
        deadline_s: how long the disk may hang; after that calls fail with an unknown outcome.
    """

    write_buffer_bytes: int = 16 << 20
    compression: str | None = None
    cache_bytes: int = 64 << 20
    file_bytes_max: int = 4 << 20
    open_files_max: int = 1000
    probe_interval_s: float = 1.0
    deadline_s: float = 30.0


class Database:
    """A LevelDB database that can be closed and reopened. It raises the errors of the table port."""

    def __init__(self, path: Path, options: Options, *, create: bool, was_clean: bool) -> None:
        """Open the database. ``was_clean``: the last process closed it, so its log must be complete.

        If the disk has no room for what LevelDB writes while it opens a database, it opens a stand-in (stand_in.py),
        and ``failure`` is the reason: the database can be read, and must be reopened before it is written.

        Raises StorageCorrupt or Unavailable.
        """
        self.path = path
        """The database's directory."""
        self._options = options
        self._stand_in: Path | None = None
        self.failure: BaseException | None = None
        self._readers = 0
        self._closing = False
        self._gate = threading.Condition()
        self._db: Any = None
        try:
            self._open(path, create=create, may_cut=not was_clean)
        except (OSError, Unavailable) as error:
            if create or not is_full(error):
                raise
            self.failure = error
            self._stand_in = stand_in.make(path)
            try:
                self._open(self._stand_in / files.DATABASE, create=False, may_cut=not was_clean)
            except BaseException:
                self._close()
                raise

    def _open(self, path: Path, *, create: bool, may_cut: bool) -> None:
        try:
            torn_tail.mend(path, may_cut=may_cut)
        except torn_tail.Damaged as error:
            raise files.corrupt(self.path.parent, str(error)) from error
        with translated(self.path):
            self._db = plyvel.DB(
                str(path),
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
            if self._closing:
                self._gate.wait_for(lambda: not self._closing)
            if self._db is None:
                raise Unavailable(f"the database in {self.path} is not open")
            self._readers += 1
        try:
            yield self._db
        except plyvel.Error as error:
            raise _translated_error(self.path, error) from error
        finally:
            with self._gate:
                self._readers -= 1
                if self._closing:
                    self._gate.notify_all()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait until reads in flight have ended, and keep new reads waiting."""
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
        if self._stand_in is not None:
            shutil.rmtree(self._stand_in, ignore_errors=True)
        self._stand_in = None

    def reopen(self) -> None:
        """Close and reopen the database if the disk takes a probe.

        The probe is as large as the data that LevelDB may write while it opens. Until it succeeds, readers use
        the old database object.

        Raises:
            OSError: the disk takes no writes yet.
            StorageCorrupt, Unavailable: LevelDB can't open the database.
        """
        directory = self.path.parent
        files.probe(directory, _PROBE_BYTES_MIN + files.recovery_bytes(directory) * 9 // 8)
        with self._alone():
            self._close()
            self._open(self.path, create=False, may_cut=True)
            self.failure = None

    def batch(self) -> Any:
        """Return an empty write batch, whose write is synced."""
        return self._db.write_batch(sync=True)

    def change(self, puts: Mapping[bytes, bytes], *, deletes: Sequence[bytes] = ()) -> None:
        """Put and remove keys in one synced write. Raises StorageCorrupt, Unavailable."""
        if not puts and not deletes:
            return
        with translated(self.path):
            batch = self.batch()
            for key in deletes:
                batch.delete(key)
            for key, value in puts.items():
                batch.put(key, value)
            batch.write()

    def get(self, key: bytes) -> bytes | None:
        """Return a value."""
        with self.reading() as db:
            found: bytes | None = db.get(key, verify_checksums=True)
            return found

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of several keys at one moment."""
        with self.reading() as db, db.snapshot() as snapshot:
            return [snapshot.get(key, verify_checksums=True) for key in keys]

    def pairs(
        self,
        first: bytes,
        last: bytes,
        *,
        pairs_max: int,
        bytes_max: int | None = None,
        reverse: bool = False,
    ) -> tuple[list[tuple[bytes, bytes]], bool]:
        """Return keys in ``[first, last]`` with values, and whether the range has more.

        The value that reaches ``bytes_max`` is the last.
        """
        found: list[tuple[bytes, bytes]] = []
        size, bound = 0, sys.maxsize if bytes_max is None else bytes_max
        # In reverse, plyvel misses the key of a range with one key that is its start: so it gets no start.
        start, stop = None if reverse else first, last + b"\0"
        arguments = {"reverse": reverse, "verify_checksums": True}
        with (
            self.reading() as db,
            db.iterator(start=start, stop=stop, **arguments) as iterator,
        ):
            pairs = iterator
            if reverse:
                pairs = itertools.takewhile(lambda pair: pair[0] >= first, iterator)
            for pair in itertools.islice(pairs, pairs_max):
                found.append(pair)
                size += len(pair[1])
                if size >= bound:
                    break
            if found and len(found[-1][1]) >= _LARGE_BYTES_MIN:
                key = found[-1][0]
                return found, _is_any(db, first, key) if reverse else _is_any(db, key + b"\0", stop)
            return found, next(pairs, None) is not None

    def keys(self, first: bytes, last: bytes) -> list[bytes]:
        """Return the keys in ``[first, last]``. The blocks that hold them are not kept in the cache."""
        stop = last + b"\x00"
        arguments = {"include_value": False, "fill_cache": False}
        with self.reading() as db, db.iterator(start=first, stop=stop, **arguments) as found:
            return list(found)

    def keys_of(self, prefix: bytes) -> list[bytes]:
        """Return all keys with a prefix. The blocks that hold them are not kept in the cache."""
        arguments = {"include_value": False, "fill_cache": False}
        with self.reading() as db, db.iterator(prefix=prefix, **arguments) as found:
            return list(found)

    def approximate_bytes(self, start: bytes, stop: bytes) -> int:
        """Return roughly how much disk space a range of keys takes; memory does not count."""
        with self.reading() as db:
            return int(db.approximate_size(start, stop))

    def compact(self, start: bytes, stop: bytes) -> None:
        """Rewrite a range of keys without the deleted ones."""
        with self.reading() as db:
            db.compact_range(start=start, stop=stop)


def _is_any(db: Any, first: bytes, stop: bytes) -> bool:
    """True if there are keys in ``[first, stop)``. It copies no value."""
    with db.iterator(start=first, stop=stop, include_value=False) as keys:
        return next(keys, None) is not None


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn plyvel's errors into errors of the table port."""
    try:
        yield
    except plyvel.Error as error:
        raise _translated_error(path, error) from error


def _translated_error(path: Path, error: Exception) -> BrokerError:
    text = text_of(error)
    if isinstance(error, plyvel.IOError) and "No such file" not in text:
        advice = f". {MORE_FILES}" if os.strerror(errno.EMFILE) in text else ""
        return Unavailable(f"LevelDB in {path}: {text}{advice}")
    return files.corrupt(path.parent, text)


def text_of(error: BaseException) -> str:
    """Return the text of an error. plyvel gives LevelDB's as bytes."""
    told = b" ".join(part for part in error.args if isinstance(part, bytes))
    return told.decode(errors="backslashreplace") or str(error)


def is_full(error: OSError | Unavailable) -> bool:
    """True if an error says that the disk, or the user's part of it, is full."""
    return any(os.strerror(number) in str(error) for number in (errno.ENOSPC, errno.EDQUOT))


def repair_database(path: Path) -> None:
    """Let LevelDB repair a damaged database: it keeps only data whose checksums are right.

    Raises:
        StorageCorrupt, Unavailable: LevelDB can't repair the database.
    """
    with translated(path):
        plyvel.repair_db(str(path), paranoid_checks=True)


def open_directory(directory: Path, options: Options) -> tuple[files.DirectoryLock, Database]:
    """Open or make a store's directory and database, and check that they belong together.

    If the process dies at any step, the next process can open the store.

    Raises:
        Unavailable: another process has the store open, or the disk is not local.
        StorageCorrupt: the store is damaged, or another release wrote it.
    """
    files.make_private(directory)
    files.refuse_network_file_system(directory)
    lock = files.DirectoryLock(directory)
    try:
        identity = files.prepare(directory)
        if not identity.complete:
            files.remove_beginnings(directory)
        was_clean = files.mark_open(directory)
        database = Database(
            directory / files.DATABASE,
            options,
            create=not identity.complete,
            was_clean=was_clean,
        )
        try:
            _check_identity(directory, database, identity)
        except BaseException:
            database.close()
            raise
    except BaseException:
        lock.close()
        raise
    return lock, database


def _check_identity(directory: Path, database: Database, identity: files.StoreIdentity) -> None:
    value = database.get(FORMAT_KEY)
    if value is None and not identity.complete:
        batch = database.batch()
        batch.put(FORMAT_KEY, files.format_row(identity))
        with translated(directory / files.DATABASE):
            batch.write()
    elif value is None:
        raise files.corrupt(directory, "the format row of the database is missing")
    elif value != files.format_row(identity):
        raise files.corrupt(directory, "the database and IDENTITY belong to different stores")
    if not identity.complete:
        files.write_identity(directory, identity._replace(complete=True))
