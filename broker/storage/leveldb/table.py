"""The table port over LevelDB, for the one process that has the directory open.

Writes go through one thread, which compares heads and shares syncs (write_thread.py). Reads are here. They run in two
threads (read_threads.py), and see all writes from before they began. The event loop itself answers for a recently put or
read head, so a proof of leading costs one look into a dict.

Clearing a page searches its cells twice: first in a reading thread, which may wait for the disk, and then in the
writer's thread, which finds them in memory. Clearing 625 pages of 2 MiB (1.3 GB, 5 million messages of 256 bytes)
took 0.75 s of processor time in all, and no write took more than 10 ms. compaction.py frees the disk space.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from typing_extensions import override

from broker import user_code
from broker.storage.leveldb import files
from broker.storage.leveldb.compaction import Compaction
from broker.storage.leveldb.database import Database, Options, open_directory
from broker.storage.leveldb.layout import cells_prefix, has_cells, head_key
from broker.storage.leveldb.read_threads import Readers
from broker.storage.leveldb.write_thread import BYTES_MAX, Fault, Observe, Writer
from broker.storage.table import HEAD, Cell, Cells, Space
from broker.user_code import Ended

T = TypeVar("T")


class LevelDBTable(Writer):
    """The table of a standalone node: a writer, and the reads. Make one with ``open_table``."""

    is_alone = True  # This process holds the directory's lock.
    keeps_order = True  # One thread makes all changes; after a failed write it refuses those queued before it.
    checks_values = True  # LevelDB verifies the checksums of all blocks that it reads.
    cell_bytes_max = change_bytes_max = BYTES_MAX

    _database: Database

    def __init__(
        self,
        directory: Path,
        lock: files.DirectoryLock,
        database: Database,
        options: Options,
        *,
        observe: Observe | None = None,
        fault: Fault | None = None,
    ) -> None:
        """Begin with an open database. For the arguments see ``open_table``."""
        super().__init__(
            database,
            probe_interval_s=options.probe_interval_s,
            deadline_s=options.deadline_s,
            lost=lock.loss,
            failure=database.failure,
            observe=observe,
            fault=fault,
        )
        self.directory = directory
        self._lock = lock
        self._readers = Readers(options.deadline_s)
        self._compaction = Compaction(database)
        self._closing: asyncio.Task[None] | None = None

    def loss(self) -> str | None:
        """Return why the directory is no longer the one that was opened; None: it is. This asks the disk."""
        return self._lock.loss()

    @override
    async def will_clear(self, prefix: bytes) -> None:
        """Read the keys of the cells to clear, so that the writer finds them in memory and not on disk."""
        await self._readers.read(partial(self._database.keys_of, prefix))

    @override
    def cleared(self, prefixes: Sequence[bytes]) -> None:
        self._compaction.gone(prefixes)

    # --- Reads ----------------------------------------------------------------------------------

    async def get(self, space: Space, row: bytes, columns: Sequence[bytes]) -> dict[bytes, Cell]:
        """Return the named cells that the row has, all of one moment."""
        self._readers.check_open()
        if len(columns) == 1 and columns[0] == HEAD:
            key = head_key(space, row)
            head = self.recent.get(key)
            if head is None:
                losses = self.recent.losses
                head = await self._readers.read(partial(self._database.get, key))
                self.recent.learn(key, head, losses)
            return {} if head is None else {HEAD: Cell(head)}
        named = [column for column in columns if column == HEAD or has_cells(space)]
        keys = [
            head_key(space, row) if column == HEAD else cells_prefix(space, row) + column
            for column in named
        ]
        values = await self._readers.read(partial(self._database.get_all, keys))
        found = zip(named, values, strict=True)
        return {column: Cell(value) for column, value in found if value is not None}

    async def cells(  # noqa: PLR0913 - The port has it so.
        self,
        space: Space,
        row: bytes,
        first: bytes,
        last: bytes,
        *,
        cells_max: int,
        bytes_max: int,
        reverse: bool = False,
    ) -> Cells:
        """Return cells with columns in ``[first, last]``, all of one moment. See the port."""
        self._readers.check_open()
        if not has_cells(space) or first > last:
            return Cells([], more=False)
        prefix = cells_prefix(space, row)
        read = partial(
            self._database.pairs,
            prefix + first,
            prefix + last,
            pairs_max=cells_max,
            bytes_max=bytes_max,
            reverse=reverse,
        )
        found, more = await self._readers.read(read)
        cut = len(prefix)
        return Cells([(key[cut:], value) for key, value in found], more)

    async def columns(self, space: Space, row: bytes, first: bytes, last: bytes) -> list[bytes]:
        """Return the columns in ``[first, last]`` that a row has, in order."""
        self._readers.check_open()
        if not has_cells(space) or first > last:
            return []
        prefix = cells_prefix(space, row)
        read = partial(self._database.keys, prefix + first, prefix + last)
        return [key[len(prefix) :] for key in await self._readers.read(read)]

    async def scan(
        self, space: Space, first: bytes, last: bytes, *, limit: int, reverse: bool = False
    ) -> list[tuple[bytes, Cell]]:
        """Return keys in ``[first, last]`` with their heads, in order. See the port."""
        self._readers.check_open()
        if first > last:
            return []
        read = partial(
            self._database.pairs,
            head_key(space, first),
            head_key(space, last),
            pairs_max=limit,
            reverse=reverse,
        )
        found, _ = await self._readers.read(read)
        return [(key[1:], Cell(value)) for key, value in found]

    # --- Closing --------------------------------------------------------------------------------

    async def close(self) -> None:
        """Finish the calls in flight, close, and write the note of the files' sizes (files.py)."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        has_ended = await self.end()
        await self._compaction.close()
        self._readers.close()
        has_ended &= await asyncio.to_thread(self._readers.join)
        # A thread that hangs in the disk keeps the database open until the process ends.
        if has_ended:
            await asyncio.to_thread(self._close_files)

    def _close_files(self) -> None:
        self._database.close()
        if self.failure is None and self.loss() is None:
            # On a full disk there is no note: the next start then checks as after a crash.
            with contextlib.suppress(OSError):
                files.mark_closed(self.directory)
        self._lock.close()


async def open_table(
    directory: Path,
    options: Options | None = None,
    *,
    observe: Observe | None = None,
    fault: Fault | None = None,
) -> LevelDBTable:
    """Open a table, or make a new one if there is none.

    Args:
        directory: the table's own directory; it is made if absent.
        options: how LevelDB is opened.
        observe: called after each write, in the writer's thread.
        fault: a hook for tests, called around each write.

    Raises:
        Unavailable: another process has the table open, or the disk is not local.
        StorageCorrupt: the store is damaged, or another release wrote it.
    """
    options = options or Options()
    lock, database = await _in_own_thread(partial(open_directory, directory, options))
    return LevelDBTable(directory, lock, database, options, observe=observe, fault=fault)


async def _in_own_thread(work: Callable[[], T]) -> T:
    """Call a function in a thread that does not keep the process from ending: the disk may hang."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Ended[T]] = loop.create_future()

    def settle(result: Ended[T]) -> None:
        if not ended.done():
            ended.set_result(result)

    def run() -> None:
        result = user_code.call(work)
        with contextlib.suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(settle, result)

    threading.Thread(target=run, name="leveldb-open", daemon=True).start()
    return (await ended).result()
