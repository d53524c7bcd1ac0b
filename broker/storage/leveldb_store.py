"""Logs and records of a standalone node, in one LevelDB database.

Writes go through one thread (leveldb_writer.py), which checks holds and shares syncs; reads, and the
search for what can be swept, run in small executors, so that the event loop never waits for a disk. What
a call adds to a write stands in leveldb_changes.py, what counts when reading in leveldb_read.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from broker.errors import Fenced, UnavailableError
from broker.model import ROW_ID_MIN, RowId, TopicId
from broker.storage import leveldb_changes as changes
from broker.storage import leveldb_files as files
from broker.storage import leveldb_sweep as sweep
from broker.storage.control import Control, State, adopted
from broker.storage.keys import LogId
from broker.storage.leveldb_database import Database, Options, open_directory
from broker.storage.leveldb_holds import RECORDS, HeldLog, Holds, database_control_key
from broker.storage.leveldb_read import Page, Reader
from broker.storage.leveldb_round import version_bytes
from broker.storage.leveldb_writer import Apply, Fault, Writer
from broker.storage.ports import Batch, Estimate, Hold, Record, Rows, SideRow, Swept
from broker.storage.rowvalue import decode_checked

T = TypeVar("T")
_READ_THREADS = 4

ROW_BYTES_MAX = 1 << 30


class LevelDBStore:
    """LogStore and RecordStore of a standalone node. Make one with ``LevelDBStore.open``."""

    def __init__(
        self, directory: Path, lock: files.DirectoryLock, database: Database, writer: Writer
    ) -> None:
        """Put the parts together; ``open`` makes them."""
        self.directory = directory
        self._lock = lock
        self._database = database
        self._writer = writer
        self._holds = writer.holds
        self._reader = Reader(database, writer.holds)
        self._readers = ThreadPoolExecutor(_READ_THREADS, "leveldb-read")
        self._sweeper = ThreadPoolExecutor(1, "leveldb-sweep")
        self._swept_to: dict[Hashable, bytes] = {}

    @classmethod
    async def open(
        cls,
        directory: Path,
        options: Options | None = None,
        *,
        observe: Callable[[float, int], None] | None = None,
        fault: Fault | None = None,
    ) -> Self:
        """Open a store, or make one where there is none.

        Args:
            directory: of the store alone; made if absent.
            options: how LevelDB is opened.
            observe: told the seconds of each write and how many changes it carried, in a thread.
            fault: a test's hook, called around each write.

        Raises:
            Unavailable: another process has the store open, or the disk is not a local one.
            StorageCorrupt: it is damaged, or a newer release wrote it.
        """
        options = options or Options()
        lock, database = await asyncio.to_thread(open_directory, directory, options)
        writer = Writer(
            database,
            Holds(),
            probe_interval_s=options.probe_interval_s,
            observe=observe,
            fault=fault,
        )
        return cls(directory, lock, database, writer)

    @property
    def pipeline_depth(self) -> int:
        """While one append is being synced, those that come meanwhile wait to share the next sync."""
        return 8

    @property
    def row_bytes_max(self) -> int:
        """LevelDB would take more: requests are bounded long before."""
        return ROW_BYTES_MAX

    @property
    def failure(self) -> BaseException | None:
        """The write error after which nothing is written, until the database was opened anew."""
        return self._writer.failure

    async def probe(self) -> bool:
        """Try now to open anew after a write error; return whether the store takes writes."""
        return await self._writer.probe()

    async def close(self) -> None:
        """Finish what is under way, close, and leave a note of how the files were left."""
        await self._writer.close()
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._readers.shutdown()
        self._sweeper.shutdown()
        self._database.close()
        if self._writer.failure is None:
            # On a full disk the note is left out: the next start then knows as much as after a crash.
            with contextlib.suppress(OSError):
                files.mark_closed(self.directory)
        self._lock.close()

    async def _read(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, function)

    async def _search(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._sweeper, function)

    async def _write(self, apply: Apply, *, synced: bool = True) -> Any:
        return await self._writer.submit(apply, synced=synced)

    # --- Logs -----------------------------------------------------------------------------------

    async def head(self, log: LogId) -> Control | None:
        """Return the log's control row as stored now, or None if there is none."""
        key = database_control_key(log)
        known, control = self._holds.last_confirmed(key)
        return control if known else await self._read(partial(self._reader.head, key))

    async def claim(self, log: LogId, owner: str, *, keep_after: RowId = ROW_ID_MIN) -> HeldLog:
        """Take a message log. See ports.LogStore."""
        hold: HeldLog = await self._write(changes.claim(log, owner, keep_after))
        return hold

    async def open_payloads(self, topic_hold: Hold, number: int) -> HeldLog:
        """Return a hold on a payload log under the topic's epoch. See ports.LogStore."""
        topic = _held(topic_hold)
        log = topic.log._replace(number=number)
        key = database_control_key(log)
        stored = await self.head(log)
        self._holds.check(topic)
        current = self._holds.current(key)
        if current is not None and current.topic_hold is topic and not current.done:
            return current
        if stored is not None and stored.epoch > topic.epoch:
            topic.done = True
            raise Fenced(f"{log.topic}: payload log {number} has a higher epoch")
        owner, generation = topic.control.owner, log.generation
        control = adopted(stored, epoch=topic.epoch, owner=owner, generation=generation)
        hold = HeldLog(log, control, stored, topic)
        self._holds.take(hold)
        return hold

    async def append(self, hold: Hold, batch: Batch) -> None:
        """Write rows, side rows and the new pointer. See ports.LogStore."""
        await self._writer.submit(changes.append(_held(hold), batch))

    async def negate(self, hold: Hold, first: RowId, last: RowId, pointer: int) -> int:
        """Negate the counting rows in ``[first, last]`` whose ``t`` is ``pointer``."""
        held = _held(hold)
        # Appends that were asked for before this must be there to be found.
        await self._write(lambda round_: round_.of(held), synced=False)
        found = 0
        next_first: RowId | None = first
        while next_first is not None:
            find = partial(self._reader.negatable, held, (next_first, last), pointer)
            slice_ = await self._read(find)
            if slice_.found:
                await self._write(changes.negate(held, slice_.rows))
            found += slice_.found
            next_first = slice_.next_first
        return found

    async def seal(self, hold: Hold, at: RowId) -> None:
        """Seal an open payload log, also an empty one without a control row."""
        await self._write(changes.seal(_held(hold), at))

    async def mark_published(self, hold: Hold, reference: RowId) -> None:
        """Record the row id of the committed reference on a sealed payload log."""
        await self._write(changes.mark_published(_held(hold), reference))

    async def raise_floor(self, hold: Hold, floor: RowId) -> None:
        """Raise the floor of a message log; lower values change nothing."""
        await self._write(changes.raise_floor(_held(hold), floor))

    async def drop(self, hold: Hold) -> None:
        """Declare that a payload log's rows may go."""
        await self._write(changes.drop(_held(hold)))

    async def server_ms(self, hold: Hold) -> int | None:
        """Return None: there is no other clock."""
        _held(hold)
        return None

    async def release(self, hold: Hold) -> bool:
        """Hand a message log off; one that is not held any more, or can't be, is just let go."""
        try:
            await self._write(changes.release(_held(hold)))
        except UnavailableError:
            return False
        return True

    async def tombstone(self, log: LogId, owner: str) -> None:
        """Mark the topic's generation deleted; fences every holder. Idempotent."""
        await self._write(changes.tombstone(log, owner))

    async def scan(
        self,
        log: LogId,
        after: RowId,
        through: RowId,
        *,
        rows_max: int,
        bytes_max: int,
        reverse: bool = False,
    ) -> Rows:
        """Return counting rows with ids in ``(after, through]``. See ports.LogStore."""
        window, page = (after, through), Page(rows_max, bytes_max)
        return await self._read(partial(self._reader.scan, log, window, page, reverse=reverse))

    async def side(self, log: LogId, kind: bytes, key: bytes) -> list[SideRow]:
        """Return the counting side rows of one kind and key, the oldest first."""
        return await self._read(partial(self._reader.side, log, kind, key))

    async def payload_logs(
        self, topic: TopicId, generation: int | None = None
    ) -> list[tuple[LogId, Control]]:
        """Return the payload logs that a topic has control rows for."""
        return await self._read(partial(self._reader.payload_logs, topic, generation))

    # --- Sweeping -------------------------------------------------------------------------------

    async def sweep_log(
        self,
        hold: Hold,
        expired_before_ms: int,
        rows_max: int,
        *,
        side_before: RowId = ROW_ID_MIN,
    ) -> Swept:
        """Remove one slice of a held message log. See ports.LogStore."""
        held = _held(hold)
        find = partial(
            sweep.log_slice, self._database, held, expired_before_ms, side_before, rows_max
        )
        slice_ = await self._search(find)
        await self._remove(slice_.keys, held)
        held.cursor = slice_.cursor
        held.rows -= slice_.rows
        return Swept(slice_.rows, slice_.more)

    async def sweep_payloads(self, topic_hold: Hold, number: int, rows_max: int) -> Swept:
        """Remove one slice of a *dropped* payload log's rows."""
        topic = _held(topic_hold)
        log = topic.log._replace(number=number)
        control = await self.head(log)
        if control is None or control.state is not State.DROPPED:
            return Swept(0, more=False)
        find = partial(sweep.payload_rows, self._database, log, rows_max)
        return await self._sweep(log, find, rows_max, topic)

    async def forget_payloads(self, topic_hold: Hold, number: int) -> None:
        """Remove the control row of a dropped payload log whose rows are gone."""
        topic = _held(topic_hold)
        log = topic.log._replace(number=number)
        rows = await self._search(partial(sweep.payload_rows, self._database, log, 1))
        if not rows:
            await self._write(changes.forget(topic, log))

    async def sweep_generations(self, topic: TopicId, below: int, rows_max: int) -> Swept:
        """Remove one slice of all that belongs to generations < ``below``."""
        find = partial(sweep.older_generations, self._database, topic, below, rows_max)
        return await self._sweep((topic, below), find, rows_max, None)

    async def _sweep(
        self,
        what: Hashable,
        find: Callable[[bytes], list[bytes]],
        rows_max: int,
        hold: HeldLog | None,
    ) -> Swept:
        """Remove a slice and remember where the next begins, until a slice is not full."""
        keys = await self._search(partial(find, self._swept_to.pop(what, b"")))
        await self._remove(keys, hold)
        more = len(keys) == rows_max
        if more:
            self._swept_to[what] = keys[-1]
        return Swept(len(keys), more)

    async def _remove(self, keys: list[bytes], hold: HeldLog | None) -> None:
        if keys:
            await self._write(changes.delete(keys, hold), synced=False)

    async def estimate(self, log: LogId) -> Estimate:
        """Return roughly how many rows and bytes the log has."""
        return await self._search(partial(self._reader.estimate, log))

    async def compact(self, log: LogId) -> None:
        """Let LevelDB rewrite what sweeping has left holes in."""
        control = await self.head(log)
        for start, stop in sweep.compactable(log, control):
            await self._search(partial(self._database.compact, start, stop))

    # --- Records --------------------------------------------------------------------------------

    async def get(self, key: bytes) -> Record | None:
        """Return the record, or None."""
        value = await self._read(partial(self._database.get, RECORDS + key))
        return None if value is None else _record(value)

    async def put_if(self, key: bytes, expected: bytes | None, value: bytes) -> bytes | None:
        """Put ``value`` if the record's version is ``expected``. See ports.RecordStore."""
        version: bytes | None = await self._write(
            changes.put_record(RECORDS + key, expected, value)
        )
        return version

    async def scan_prefix(self, prefix: bytes) -> list[tuple[bytes, Record]]:
        """Return all records whose key begins with ``prefix``, in key order."""
        items = await self._read(partial(self._database.items, RECORDS + prefix))
        return [(prefix + rest, _record(value)) for rest, value in items]


def _record(value: bytes) -> Record:
    number, data = decode_checked(value)
    return Record(data, version_bytes(number))


def _held(hold: Hold) -> HeldLog:
    assert isinstance(hold, HeldLog), "a hold of another store"
    return hold
