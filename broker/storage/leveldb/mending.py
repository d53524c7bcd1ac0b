"""A closed store: what is wrong with it, and a mended copy of it.

Looking changes nothing: LevelDB writes when it opens, so it is given a snapshot beside the store, in which the
tables are hard links. What no record and no head leads to, the port can't find; here the keys are looked at.

Mending never touches the original. It copies all, and lets LevelDB keep what it can read. What is lost is then
told by the check of the copy: a chain with a page missing, a page with fewer entries than its head says.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from broker.clock import SystemClock
from broker.errors import BrokerError, StorageCorrupt
from broker.storage import walk
from broker.storage.check import WINDOW_MS, verify
from broker.storage.keys import prefix_end
from broker.storage.leveldb import files
from broker.storage.leveldb.database import Database, Options, repair_database, translated
from broker.storage.leveldb.layout import FORMAT_KEY, cells_prefix, head_key, row_of_cell
from broker.storage.leveldb.table import LevelDBTable, table_of
from broker.storage.log import Logs
from broker.storage.report import Problem, Report, Tell
from broker.storage.table import Space

_OTHER_KEYS = (
    (b"", b"L"),
    (b"N", b"O"),
    (b"Q", b"e"),
    (FORMAT_KEY + b"\0", FORMAT_KEY),
    (b"g", b"l"),
    (b"n", b"o"),
    (b"q", b"q"),
    (b"s", b"\xff"),
)
"""Lead bytes that no key begins with, from and to."""


async def verify_directory(
    directory: Path, tell: Tell | None = None, *, window_ms: int = WINDOW_MS
) -> Report:
    """Look at all of a closed store and change nothing. ``tell`` and ``window_ms`` as ``check.verify`` has them.

    Raises:
        Unavailable: a process has the store open.
        OSError: there is no store, or no room for a snapshot beside it.
    """
    _must_be_store(directory)
    report = Report()
    other = files.other_format(directory)
    if other is not None:
        report.problem(Problem("format", other))
        return report
    lock = files.DirectoryLock(directory)
    try:
        is_whole = False
        try:
            files.examine(directory)
            is_whole = True
        except StorageCorrupt as error:
            report.problem(Problem("files", error.message))
        if (directory / files.DATABASE).is_dir():
            await _verify_snapshot(directory, report, tell, window_ms, is_whole=is_whole)
    finally:
        lock.close()
    return report


def _must_be_store(directory: Path) -> None:
    if not files.is_store(directory):
        raise FileNotFoundError(f"there is no store in {directory}")


async def _verify_snapshot(
    directory: Path, report: Report, tell: Tell | None, window_ms: int, *, is_whole: bool
) -> None:
    try:
        async with _snapshot(directory, is_whole=is_whole) as (table, database):
            report.add(await verify(Logs(table, SystemClock()), tell, window_ms=window_ms))
            for problem in await asyncio.to_thread(lambda: list(_strays(database))):
                report.problem(problem)
    except BrokerError as error:
        report.problem(Problem("LevelDB", "it does not open or read the database", error.message))


@asynccontextmanager
async def opened_copy(directory: Path) -> AsyncIterator[LevelDBTable]:
    """Give the table of a closed store for looking, over a snapshot that goes afterwards.

    Raises:
        Unavailable: a process has the store open.
        StorageCorrupt: it is damaged, or of another format.
        OSError: there is no store, or no room for a snapshot beside it.
    """
    _must_be_store(directory)
    lock = files.DirectoryLock(directory)
    try:
        files.examine(directory)
        async with _snapshot(directory, is_whole=True) as (table, _):
            yield table
    finally:
        lock.close()


@asynccontextmanager
async def _snapshot(
    directory: Path, *, is_whole: bool
) -> AsyncIterator[tuple[LevelDBTable, Database]]:
    """Open a snapshot; ``is_whole``: the files are as they were left."""
    with tempfile.TemporaryDirectory(prefix="check-", dir=directory) as beside:
        copy = Path(beside)
        files.snapshot(directory, copy, linked=True)
        was_clean = is_whole and files.was_closed(directory)
        options = Options()
        database = await asyncio.to_thread(
            Database, copy / files.DATABASE, options, create=False, was_clean=was_clean
        )
        table = table_of(copy, files.DirectoryLock(copy), database, options)
        try:
            yield table, database
        finally:
            await table.close()


async def repair(
    directory: Path, copy: Path, tell: Tell | None = None, *, window_ms: int = WINDOW_MS
) -> Report:
    """Make a mended copy of a closed store; the original stays as it is. Returns what is wrong with the copy.

    Raises:
        Unavailable: a process has the store open, or LevelDB can't make anything of the copy.
        StorageCorrupt: LevelDB can't, or the store is of another format.
        OSError: there is no store, ``copy`` exists, or there is no room for it.
    """
    _must_be_store(directory)
    other = files.other_format(directory)
    if other is not None:
        raise StorageCorrupt(other)
    lock = files.DirectoryLock(directory)
    try:
        await asyncio.to_thread(_mend, directory, copy)
    finally:
        lock.close()
    return await verify_directory(copy, tell, window_ms=window_ms)


def _mend(directory: Path, copy: Path) -> None:
    copy.mkdir(parents=True)
    files.snapshot(directory, copy, linked=False)
    repair_database(copy / files.DATABASE)
    database = Database(copy / files.DATABASE, Options(), create=False, was_clean=False)
    try:
        # A store of its own: it has not all that the original had.
        identity = files.Identity(files.FORMAT, secrets.token_hex(16), complete=True)
        batch = database.batch()
        batch.put(FORMAT_KEY, files.format_row(identity))
        with translated(copy / files.DATABASE):
            batch.write()
    finally:
        database.close()
    files.write_identity(copy, identity)


def _strays(database: Database) -> Iterator[Problem]:
    """Yield what nothing leads to: rows of topics without a record, cells without a head, other keys.

    Each topic and each row costs one look, whatever lies in it.
    """
    if database.get(FORMAT_KEY) is None:
        yield Problem("LevelDB", "the database has lost its format row")
    for first, last in _OTHER_KEYS:
        found, _ = database.pairs(first, last + b"\xff" * 32, pairs_max=1)
        for key, _ in found:
            yield Problem("LevelDB", "a key that is none of ours", key.hex())
    for space in (Space.MESSAGES, Space.PAYLOADS):
        yield from _without_record(database, space)
        yield from _without_head(database, space)


def _without_record(database: Database, space: Space) -> Iterator[Problem]:
    at = lead = head_key(space, b"")
    while found := database.pairs(at, lead + b"\xff" * 32, pairs_max=1)[0]:
        row = found[0][0][len(lead) :]
        parts = row.split(b":", 2)
        topic = b":".join(parts[:2]) + b":"
        if len(parts) != 3:
            yield Problem("LevelDB", "a row of no topic", row.hex())
            at = found[0][0] + b"\0"
            continue
        if database.get(head_key(Space.RECORDS, walk.TOPIC_RECORDS + topic)) is None:
            name = topic.decode(errors="backslashreplace")[:-1]
            yield Problem(name, f"it has {space.value} and no record")
        at = prefix_end(lead + topic)


def _without_head(database: Database, space: Space) -> Iterator[Problem]:
    lead = cells_prefix(space, b"")[:1]
    at = lead
    while found := database.pairs(at, lead + b"\xff" * 80, pairs_max=1)[0]:
        row = row_of_cell(found[0][0])
        if row is None:
            yield Problem("LevelDB", "a key that is none of ours", found[0][0].hex())
            at = found[0][0] + b"\0"
            continue
        if database.get(head_key(space, row)) is None:
            yield Problem("LevelDB", f"a row of {space.value} has entries and no head", row.hex())
        at = prefix_end(cells_prefix(space, row))
