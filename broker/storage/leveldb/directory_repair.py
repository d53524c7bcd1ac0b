"""Checking a store's directory, also while a broker serves it, and making a repaired copy of it.

A check changes nothing. LevelDB writes when it opens a database, so it opens a snapshot beside the store
(snapshot.py). The table port can't find rows that no record and no head lead to; this module finds them by their
keys.

A repair never changes the original. It copies the whole store, and lets LevelDB keep the readable data. Records, roots and
heads that are gone are made again (row_mend.py), and stubs take the place of entries that are gone (page_mend.py). The
report lists the ids. The check of the copy shows any other loss.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from broker.clock import SystemClock
from broker.errors import BrokerError, StorageCorrupt, Unavailable
from broker.storage import walk
from broker.storage.check import WINDOW_MS, verify
from broker.storage.keys import prefix_end
from broker.storage.leveldb import files, snapshot, stand_in, torn_tail
from broker.storage.leveldb.database import Database, Options, repair_database
from broker.storage.leveldb.layout import FORMAT_KEY, cells_prefix, head_key, row_of_cell
from broker.storage.leveldb.page_mend import mend_pages
from broker.storage.leveldb.table import LevelDBTable
from broker.storage.log import Logs
from broker.storage.report import CheckReport, StoreProblem, Tell
from broker.storage.table import Space

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})

_DAMAGED = "damaged"
"""Beside the copy's database, for the time of the repair: the database before it."""
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
"""Ranges of lead bytes with which no key of ours begins."""


async def verify_directory(
    directory: Path, tell: Tell | None = None, *, window_ms: int = WINDOW_MS
) -> CheckReport:
    """Check a whole store without changing it. A broker may serve it meanwhile.

    For ``tell`` and ``window_ms`` see ``check.verify``.

    Raises:
        Unavailable: a broker serves the store, and its files change faster than they can be copied.
        OSError: there is no store, or no room for a snapshot beside it.
    """
    _must_be_store(directory)
    report = CheckReport()
    other = files.other_format(directory)
    if other is not None:
        report.problem(StoreProblem("format", other))
        return report
    with _snapshot(directory) as seen:
        if seen.damage is not None:
            report.problem(StoreProblem("files", seen.damage.message))
        if (seen.directory / files.DATABASE).is_dir():
            await _verify_snapshot(seen, report, tell, window_ms)
    return report


def _must_be_store(directory: Path) -> None:
    if not files.is_store(directory):
        raise FileNotFoundError(f"there is no store in {directory}")


async def _verify_snapshot(
    seen: _Snapshot, report: CheckReport, tell: Tell | None, window_ms: int
) -> None:
    try:
        async with _opened(seen) as (table, database):
            report.add(await verify(Logs(table, SystemClock()), tell, window_ms=window_ms))
            for problem in await asyncio.to_thread(lambda: list(_strays(database))):
                report.problem(problem)
    except BrokerError as error:
        report.problem(StoreProblem("LevelDB", "it can't open or read the database", error.message))


@asynccontextmanager
async def opened_copy(directory: Path) -> AsyncIterator[LevelDBTable]:
    """Open the table of a snapshot of a store, and remove the snapshot at the end.

    Raises:
        Unavailable: a broker serves the store, and its files change faster than they can be copied.
        StorageCorrupt: the store is damaged, or has another format.
        OSError: there is no store, or no room for a snapshot beside it.
    """
    _must_be_store(directory)
    with _snapshot(directory) as seen:
        if seen.damage is not None:
            raise seen.damage
        async with _opened(seen) as (table, _):
            yield table


class _Snapshot(NamedTuple):
    """A copy of the database of the store ``of``. ``was_closed``: the store was closed cleanly and is unchanged since."""

    of: Path
    directory: Path
    was_closed: bool
    damage: StorageCorrupt | None


@contextmanager
def _snapshot(directory: Path) -> Iterator[_Snapshot]:
    """Make a snapshot beside a store. After that a process may open or close the store.

    On a full or read-only disk the snapshot lies elsewhere, and the store stays locked until the end.
    """
    with ExitStack() as stack:
        try:
            beside = tempfile.TemporaryDirectory(prefix=files.SNAPSHOT, dir=directory)
            seen = _make_snapshot(directory, Path(stack.enter_context(beside)))
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            stack.enter_context(closing(_locked(directory)))
            seen = _copy_elsewhere(directory, stack)
        yield seen


def _make_snapshot(directory: Path, beside: Path) -> _Snapshot:
    try:
        lock = files.DirectoryLock(directory)
    except Unavailable:
        return _copy_of_served(directory, beside)
    try:
        return _copy_of_closed(directory, beside)
    finally:
        lock.close()


def _locked(directory: Path) -> files.DirectoryLock:
    """Lock a store that is only read. Raises Unavailable, OSError."""
    try:
        return files.DirectoryLock(directory)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return files.DirectoryLock(directory, reads_only=True)


def _copy_elsewhere(directory: Path, stack: ExitStack) -> _Snapshot:
    damage = _damage(directory)
    folder = stand_in.make(directory / files.DATABASE)
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return _Snapshot(directory, folder, damage is None and files.was_closed(directory), damage)


def _copy_of_served(directory: Path, beside: Path) -> _Snapshot:
    try:
        snapshot.copy_served(directory, beside)
    except StorageCorrupt as error:
        return _Snapshot(directory, beside, was_closed=False, damage=error)
    return _Snapshot(directory, beside, was_closed=False, damage=None)


def _copy_of_closed(directory: Path, beside: Path) -> _Snapshot:
    damage = _damage(directory)
    if (directory / files.DATABASE).is_dir():
        snapshot.copy_closed(directory, beside)
    return _Snapshot(directory, beside, damage is None and files.was_closed(directory), damage)


def _damage(directory: Path) -> StorageCorrupt | None:
    try:
        files.examine(directory)
    except StorageCorrupt as error:
        return error
    return None


@asynccontextmanager
async def _opened(seen: _Snapshot) -> AsyncIterator[tuple[LevelDBTable, Database]]:
    copy, options = seen.directory, Options()
    try:
        database = await asyncio.to_thread(
            Database, copy / files.DATABASE, options, create=False, was_clean=seen.was_closed
        )
    except BrokerError as error:
        # The snapshot is gone when the user reads this.
        error.message = error.message.replace(str(copy), str(seen.of))
        raise
    table = LevelDBTable(copy, files.DirectoryLock(copy), database, options)
    try:
        yield table, database
    finally:
        await table.close()


async def repair(
    directory: Path, copy: Path, tell: Tell | None = None, *, window_ms: int = WINDOW_MS
) -> CheckReport:
    """Make a repaired copy of a closed store without changing the original. Return the check of the copy.

    Raises:
        Unavailable: a process has the store open, or LevelDB can't read or write the copy.
        StorageCorrupt: LevelDB can't repair the copy, or the store has another format.
        OSError: there is no store, ``copy`` exists, or there is no room for it.
    """
    _must_be_store(directory)
    other = files.other_format(directory)
    if other is not None:
        raise StorageCorrupt(other)
    lock = _locked(directory)
    try:
        lost = await asyncio.to_thread(_mend, directory, copy, window_ms)
    finally:
        lock.close()
    report = await verify_directory(copy, tell, window_ms=window_ms)
    report.lost = lost
    return report


def _mend(directory: Path, copy: Path, window_ms: int) -> list[str]:
    if not files.data_files(directory):
        raise files.corrupt(directory, f"{files.DATABASE}/ has no file with data to repair")
    copy.mkdir(mode=files.PRIVATE, parents=True)
    try:
        return _mend_copy(directory, copy, window_ms)
    except BaseException:
        shutil.rmtree(copy, ignore_errors=True)  # It is no store yet.
        raise


def _mend_copy(directory: Path, copy: Path, window_ms: int) -> list[str]:
    snapshot.copy_all(directory, copy)
    damaged = copy / _DAMAGED
    shutil.copytree(copy / files.DATABASE, damaged)
    for log in (copy / files.DATABASE).glob("*.log"):
        torn_tail.drop_damaged_records(log)
    repair_database(copy / files.DATABASE)
    database = Database(copy / files.DATABASE, Options(), create=False, was_clean=False)
    try:
        # The copy gets a store id of its own, because it may lack data of the original.
        identity = files.StoreIdentity(files.FORMAT, secrets.token_hex(16), complete=True)
        database.change({FORMAT_KEY: files.format_row(identity)})
        now_ms = SystemClock().now_ms()
        lost = mend_pages(database, damaged, now_ms=now_ms, window_ms=window_ms)
    finally:
        database.close()
    files.write_identity(copy, identity)
    return [*lost, *_damaged_files(directory, copy)]


def _damaged_files(directory: Path, copy: Path) -> Iterator[str]:
    """Yield a line for each file that LevelDB could not keep whole: of rows that it alone had, no other line tells."""
    database = directory / files.DATABASE
    found = dict[str, str]()
    with contextlib.suppress(StorageCorrupt):
        found |= files.changed_sizes(directory)
    for path in database.glob("*.log"):
        if what := torn_tail.damage_of(path):
            found.setdefault(path.name, what)
    there = {path.stem for path in files.data_files(directory)}
    with contextlib.suppress(OSError, ValueError, torn_tail.Damaged):
        for number in torn_tail.live_tables(snapshot.manifest_of(database)[1]):
            if f"{number:06}" not in there:
                found.setdefault(f"{number:06}.ldb", f"{number:06}.ldb is missing")
    # LevelDB's repair puts a table there that it could not read to its end.
    for path in (copy / files.DATABASE / "lost").glob("*.ldb"):
        found.setdefault(path.name, f"{path.name} is damaged")
    for what in sorted(found.values()):
        yield f"{files.DATABASE}/{what}: rows that lay only there are gone"


def _strays(database: Database) -> Iterator[StoreProblem]:
    """Yield stray keys: rows of topics without a record, cells without a head, unknown keys.

    It costs one lookup for each topic and each row, for any size of them.
    """
    if database.get(FORMAT_KEY) is None:
        yield StoreProblem("LevelDB", "the format row of the database is missing")
    for first, last in _OTHER_KEYS:
        found, _ = database.pairs(first, last + b"\xff" * 32, pairs_max=1)
        for key, _ in found:
            yield StoreProblem("LevelDB", "an unknown key", key.hex())
    for space in (Space.MESSAGES, Space.PAYLOADS):
        yield from _without_record(database, space)
        yield from _without_head(database, space)


def _without_record(database: Database, space: Space) -> Iterator[StoreProblem]:
    at = lead = head_key(space, b"")
    while found := database.pairs(at, lead + b"\xff" * 32, pairs_max=1)[0]:
        row = found[0][0][len(lead) :]
        parts = row.split(b":", 2)
        topic = b":".join(parts[:2]) + b":"
        if len(parts) != 3:
            yield StoreProblem("LevelDB", "a row whose key names no topic", row.hex())
            at = found[0][0] + b"\0"
            continue
        if database.get(head_key(Space.RECORDS, walk.TOPIC_RECORDS + topic)) is None:
            name = topic.decode(errors="backslashreplace")[:-1]
            yield StoreProblem(name, f"it has {space.value} but no record")
        at = prefix_end(lead + topic)


def _without_head(database: Database, space: Space) -> Iterator[StoreProblem]:
    lead = cells_prefix(space, b"")[:1]
    at = lead
    while found := database.pairs(at, lead + b"\xff" * 80, pairs_max=1)[0]:
        row = row_of_cell(found[0][0])
        if row is None:
            yield StoreProblem("LevelDB", "an unknown key", found[0][0].hex())
            at = found[0][0] + b"\0"
            continue
        if database.get(head_key(space, row)) is None:
            yield StoreProblem(
                "LevelDB", f"a row of {space.value} has entries but no head", row.hex()
            )
        at = prefix_end(cells_prefix(space, row))
