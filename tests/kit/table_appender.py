"""A program that appends to a table over LevelDB until it is killed, and prints the acknowledged changes.

``python -m tests.kit.table_appender DIR [--rows N] [--bytes N] [--write-buffer-bytes N] [--unsynced]
[--only-open] [--die-at N]`` prints::

    pid N             first
    open              the table is open
    ok ROW NUMBER     the row's change NUMBER was acknowledged, and so were the changes before it

Every line is flushed before the row's next change. Change n of a row sets the head to n and adds entry n. So the
stored rows show that each change was made completely and in order. ``--unsynced`` is the mutant that does not sync.
``--die-at`` kills the process at its Nth access to the directory from Python.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

from broker.storage.leveldb.database import Database, Options
from broker.storage.leveldb.table import LevelDBTable, open_table
from broker.storage.table import HEAD, Space

_SPACE = Space.MESSAGES
_ENTRY = b"e%08d"


def _row(number: int) -> bytes:
    return b"default:appended:%d" % number


def _entry(row: int, number: int, size: int) -> bytes:
    """Return the value of an entry; it is not compressible."""
    return hashlib.shake_128(b"%d %d" % (row, number)).digest(size)


async def changes_made(table: LevelDBTable) -> dict[int, int]:
    """Return the number of stored changes of each row. Raises AssertionError if a change is incomplete."""
    made = {}
    for key, head in await table.scan(_SPACE, _row(0), b"default:appended:~", limit=1000):
        row, number = int(key.rpartition(b":")[2]), int(head.value)
        cells, more = await table.cells(
            _SPACE, key, b"e", b"f", cells_max=1 << 20, bytes_max=1 << 30
        )
        assert not more
        assert [column for column, _ in cells] == [_ENTRY % n for n in range(1, number + 1)]
        for n, (_, value) in enumerate(cells, 1):
            assert value == _entry(row, n, len(value)), "an entry has changed"
        made[row] = number
    return made


async def _append(table: LevelDBTable, row: int, made: int, size: int) -> None:
    while True:
        expected = b"%d" % made if made else None
        made += 1
        puts = {HEAD: b"%d" % made, _ENTRY % made: _entry(row, made, size)}
        assert await table.change(_SPACE, _row(row), expected, puts)
        sys.stdout.write(f"ok {row} {made}\n")
        sys.stdout.flush()


async def _run(arguments: argparse.Namespace) -> None:
    options = Options(write_buffer_bytes=arguments.write_buffer_bytes)
    table = await open_table(arguments.directory, options)
    sys.stdout.write("open\n")
    sys.stdout.flush()
    if arguments.only_open:
        await table.close()
        return
    made = await changes_made(table)
    async with asyncio.TaskGroup() as group:
        for row in range(arguments.rows):
            group.create_task(_append(table, row, made.get(row, 0), arguments.bytes))


def _die_at(directory: Path, number: int) -> None:
    """Die by SIGKILL before the Nth operation of Python on the directory."""
    seen = 0

    def look(_: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if any(isinstance(one, str | Path) and str(directory) in str(one) for one in arguments):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)


def main() -> None:
    """Run the program of the module's docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--write-buffer-bytes", type=int, default=256 << 10)
    parser.add_argument("--unsynced", action="store_true")
    parser.add_argument("--only-open", action="store_true")
    parser.add_argument("--die-at", type=int)
    arguments = parser.parse_args()
    sys.stdout.write(f"pid {os.getpid()}\n")
    sys.stdout.flush()
    if arguments.unsynced:
        Database.batch = lambda self: self._db.write_batch(sync=False)  # type: ignore[method-assign]
    if arguments.die_at is not None:
        _die_at(arguments.directory, arguments.die_at)
    asyncio.run(_run(arguments))


if __name__ == "__main__":
    main()
