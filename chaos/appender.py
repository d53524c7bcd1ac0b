"""A program that appends to a log over LevelDB until it is killed, and prints the acknowledged appends.

``python -m chaos.appender DIR [--mutant NAME] [--depth N] [--payload-bytes N] …``
prints::

    pid N             first
    ok ID             a batch of three rows was acknowledged; ID is the last id, ``rows_until`` gives all
    unknown ID        an append ended as storage_full, and may have been done
    refused ROWS      a later append was refused; ROWS rows could be read at that time
    reopened          the log was claimed: at the start, and when the store takes writes again

The program writes each line before the next append, so every printed ``ok`` was acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import count
from pathlib import Path

from broker.clock import SystemClock
from broker.errors import Fenced, StorageCorrupt, StorageFull
from broker.model import LogKey, TopicId, log_key, timestamp_of
from broker.storage.hold import LogHold
from broker.storage.keys import LogId
from broker.storage.leveldb.database import Options
from broker.storage.leveldb.table import LevelDBTable, open_table
from broker.storage.log import Logs
from broker.storage.ownpage import PageBounds
from broker.testing import mutants
from chaos.bare import append, rows_of

LOG = LogId(TopicId("default", "appended"), 1)
ROWS = 3
_BOUNDS = PageBounds(bytes_max=256 << 10, packed_from=4)
"""Small pages, so that the log also rolls."""


def rows_until(last: LogKey) -> list[LogKey]:
    """Return the ids of the batch whose last id this is."""
    return [log_key(timestamp_of(last), seq) for seq in range(ROWS)]


def payload_of(key: LogKey, size: int) -> bytes:
    """Return the payload of a message, by its key, which can't be compressed."""
    return hashlib.shake_128(key).digest(size)


async def read_ids(logs: Logs) -> list[LogKey]:
    """Return all ids of the log. Raises StorageCorrupt, also for a changed payload."""
    found = await rows_of(logs, LOG)
    for row in found:
        if row.payload is None or row.payload != payload_of(row.id, len(row.payload)):
            raise StorageCorrupt(f"The payload of row {row.id.hex()} has changed.")
    return [row.id for row in found]


async def ids_in(directory: Path) -> list[LogKey]:
    """Open an appender's database, and return all ids of the log. Raises Unavailable, and like ``read_ids``."""
    table = await open_table(directory)
    try:
        return await read_ids(Logs(table, SystemClock()))
    finally:
        await table.close()


class Appender:
    """Appends batches until the process is killed. Several of its ``run`` may work at once."""

    def __init__(self, table: LevelDBTable, payload_bytes: int) -> None:
        """Begin, with payloads of this size."""
        self._table = table
        self._logs = Logs(table, SystemClock(), bounds=_BOUNDS)
        self._payload_bytes = payload_bytes
        self._hold: LogHold | None = None
        self._claiming = asyncio.Lock()
        self._ms: Iterator[int] = count()

    async def run(self) -> None:
        """Append until killed."""
        while True:
            hold = await self._claimed()
            last = log_key(next(self._ms), ROWS - 1)
            ids = rows_until(last)
            try:
                await append(hold, ids, [payload_of(row, self._payload_bytes) for row in ids])
            except StorageFull as error:
                await self._not_written(error, last)
            except Fenced:
                continue  # Another ``run`` met the full disk and claimed the log again.
            else:
                _say(f"ok {last.hex()}")

    async def _claimed(self) -> LogHold:
        async with self._claiming:
            while self._hold is None or self._hold.done:
                try:
                    self._hold = await self._logs.claim(LOG, "appender")
                except StorageFull:
                    _say(f"refused {len(await read_ids(self._logs))}")
                    await self._table.probe()
                else:
                    self._ms = count(timestamp_of(self._hold.pointer) + 1)
                    _say("reopened")
            return self._hold

    async def _not_written(self, error: StorageFull, last: LogKey) -> None:
        if error.outcome == "unknown":
            _say(f"unknown {last.hex()}")
        else:
            _say(f"refused {len(await read_ids(self._logs))}")


def _say(line: str) -> None:
    os.write(1, line.encode() + b"\n")


async def main() -> None:
    """Append as the arguments say, until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--mutant", choices=sorted(mutants.NAMES))
    parser.add_argument("--depth", type=int, default=1)
    parser.add_argument("--payload-bytes", type=int, default=1000)
    parser.add_argument("--write-buffer-bytes", type=int, default=256 << 10)
    arguments = parser.parse_args()
    _say(f"pid {os.getpid()}")
    # Small files, so that LevelDB writes and merges tables all the time.
    options = Options(
        write_buffer_bytes=arguments.write_buffer_bytes,
        file_bytes_max=1 << 20,
        probe_interval_s=0.01,
    )
    name = arguments.mutant
    with nullcontext() if name is None else mutants.in_force(name):
        appender = Appender(await open_table(arguments.directory, options), arguments.payload_bytes)
        async with asyncio.TaskGroup() as group:
            for _ in range(arguments.depth):
                group.create_task(appender.run())


if __name__ == "__main__":
    asyncio.run(main())
