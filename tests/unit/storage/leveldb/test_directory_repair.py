"""Checking a store does not change it, and repairing it makes a copy."""

import errno
import json
import os
import random
import tempfile
from pathlib import Path
from typing import Any

import plyvel
import pytest

from broker.errors import StorageCorrupt, Unavailable
from broker.storage.entry import checked
from broker.storage.keys import LogId, page_key, root_key
from broker.storage.leveldb import files, stand_in
from broker.storage.leveldb.database import Options
from broker.storage.leveldb.directory_repair import opened_copy, repair, verify_directory
from broker.storage.leveldb.layout import FORMAT_KEY, cells_prefix, head_key
from broker.storage.leveldb.table import open_table
from broker.storage.log import Logs
from broker.storage.table import HEAD, Space
from tests.kit.full_store import BOUNDS, FULL, Filler, StillClock

LOG = LogId(FULL, 1)


@pytest.fixture
async def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    table = await open_table(directory, Options(write_buffer_bytes=1 << 16))
    await Filler(Logs(table, StillClock(), bounds=BOUNDS)).fill()
    await table.close()
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    found = [path for path in directory.rglob("*") if path.is_file() and path.name != "LOCK"]
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


def changed(directory: Path, key: bytes, value: bytes | None) -> None:
    """Change a key behind the broker's back."""
    (directory / "CLEAN").unlink(missing_ok=True)
    database = plyvel.DB(str(directory / "db"))
    if value is None:
        database.delete(key)
    else:
        database.put(key, value)
    database.close()


async def test_a_check_of_a_healthy_store_finds_no_problem_and_changes_no_file(
    directory: Path,
) -> None:
    before = contents(directory)
    report = await verify_directory(directory)
    assert report.problems == []
    assert report.topics == 8
    assert contents(directory) == before


async def test_a_copy_has_the_contents_of_the_store(directory: Path) -> None:
    before = contents(directory)
    async with opened_copy(directory) as table:
        root = await Logs(table, StillClock()).root(LOG)
    assert root is not None
    assert root.generation == 1
    assert contents(directory) == before


async def test_a_store_is_checked_while_a_broker_serves_it(directory: Path) -> None:
    closed = await verify_directory(directory)
    table = await open_table(directory)
    await table.put(Space.RECORDS, {b"another": checked(b"record")})
    report = await verify_directory(directory)
    assert report.problems == []
    assert (report.topics, report.records) == (closed.topics, closed.records + 1)
    async with opened_copy(directory) as copy:
        assert await copy.get(Space.RECORDS, b"another", [HEAD])
    await table.close()
    assert not [name for name in contents(directory) if name.startswith("check-")]


async def test_a_missing_manifest_of_a_served_store_is_reported(directory: Path) -> None:
    lock = files.DirectoryLock(directory)
    (directory / "db" / "CURRENT").unlink()
    [problem] = (await verify_directory(directory)).problems
    assert "db/CURRENT is missing" in problem
    with pytest.raises(StorageCorrupt, match="db/CURRENT is missing"):
        async with opened_copy(directory):
            pass
    lock.close()


async def test_a_store_in_use_is_not_repaired(directory: Path) -> None:
    lock = files.DirectoryLock(directory)
    with pytest.raises(Unavailable, match="in use"):
        await repair(directory, directory / "copy")
    lock.close()


async def test_a_directory_without_a_store_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no store in"):
        await verify_directory(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no store in"):
        await repair(tmp_path, tmp_path / "copy")


async def test_a_store_of_another_format_is_reported_with_advice(directory: Path) -> None:
    identity = json.loads((directory / "IDENTITY").read_text())
    (directory / "IDENTITY").write_text(json.dumps({**identity, "format": 1}))
    [problem] = (await verify_directory(directory)).problems
    assert "Start the release that wrote it" in problem
    with pytest.raises(StorageCorrupt, match="Start the release that wrote it"):
        await repair(directory, directory / "copy")


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        (FORMAT_KEY, None, "the format row of the database is missing"),
        (b"zzz", b"?", "an unknown key"),
        (b"a", b"?", "an unknown key"),
        (b"f1", b"?", "an unknown key"),
        (b"M\0\0", b"?", "an unknown key"),
        (b"mxyz", b"?", "a row whose key names no topic"),
        (
            head_key(Space.MESSAGES, b"no:record:" + bytes(14)),
            b"?",
            "it has messages but no record",
        ),
        (
            head_key(Space.RECORDS, b"topic/check:full:"),
            None,
            "check:full: it has payloads but no record",
        ),
        (
            cells_prefix(Space.MESSAGES, page_key(LOG, b"\0" * 9 + b"\7")) + b"e",
            b"?",
            "has entries but no head",
        ),
        (head_key(Space.MESSAGES, root_key(LOG)), None, "a topic without a root"),
    ],
)
async def test_rows_without_their_record_root_or_head_are_found(
    directory: Path, key: bytes, value: bytes | None, wanted: str
) -> None:
    changed(directory, key, value)
    report = await verify_directory(directory)
    assert any(wanted in line for line in report.problems), report.problems


async def test_the_report_of_a_repaired_copy_names_the_losses(
    directory: Path, tmp_path: Path, drawn_seed: int
) -> None:
    database = plyvel.DB(str(directory / "db"))
    database.compact_range()
    database.close()
    (directory / "CLEAN").unlink()
    table = max((directory / "db").glob("*.ldb"), key=lambda path: path.stat().st_size)
    damaged = bytearray(table.read_bytes())
    damaged[random.Random(drawn_seed).randrange(len(damaged) // 4, len(damaged) // 2)] ^= 0x10
    table.write_bytes(damaged)
    before = contents(directory)
    assert not (await verify_directory(directory)).is_sound
    report = await repair(directory, tmp_path / "mended")
    assert not report.is_sound
    assert not any("can't be read" in line for line in report.problems), report.problems
    assert contents(directory) == before
    opened = await open_table(tmp_path / "mended")
    await opened.close()


async def test_the_repaired_copy_of_a_healthy_store_is_sound(
    directory: Path, tmp_path: Path
) -> None:
    report = await repair(directory, tmp_path / "mended")
    assert report.problems == []
    assert report.topics == 8
    with pytest.raises(FileExistsError):
        await repair(directory, tmp_path / "mended")


async def test_files_that_changed_after_the_last_close_are_reported(directory: Path) -> None:
    [log] = (directory / "db").glob("*.log")
    log.write_bytes(log.read_bytes()[:-3])
    report = await verify_directory(directory)
    assert any("at the last close it had" in line for line in report.problems)
    assert report.topics > 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
async def test_a_store_on_a_full_or_read_only_disk_is_verified_elsewhere(
    directory: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    memory = tmp_path_factory.mktemp("memory")
    made = tempfile.mkdtemp

    def mkdtemp(suffix: Any = None, prefix: Any = None, dir: Any = None) -> str:  # noqa: A002 - The name of tempfile's.
        if Path(dir) == directory:
            raise OSError(number, os.strerror(number), str(directory))
        return made(suffix, prefix, dir)

    expected = await verify_directory(directory)
    there = contents(directory)
    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    monkeypatch.setattr(stand_in, "IN_MEMORY", memory)
    assert await verify_directory(directory) == expected
    assert contents(directory) == there
    assert list(memory.iterdir()) == []
