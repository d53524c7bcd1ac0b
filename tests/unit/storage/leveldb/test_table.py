import asyncio
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import plyvel
import pytest

from broker.errors import StorageCorrupt, StorageFull, Unavailable
from broker.storage.leveldb import compaction, files, stand_in
from broker.storage.leveldb.database import Options
from broker.storage.leveldb.read_threads import Readers
from broker.storage.leveldb.table import LevelDBTable, open_table
from broker.storage.table import HEAD, Cell, Space
from tests.kit.serving import eventually

SPACE, ROW = Space.MESSAGES, b"ns:topic:\x00\x00\x00\x01"
PROMPT = Options(probe_interval_s=0.01)


@pytest.fixture
async def table(tmp_path: Path) -> AsyncIterator[LevelDBTable]:
    opened = await open_table(tmp_path)
    yield opened
    await opened.close()


class Disk:
    """A fault of the disk: writes fail while it is broken."""

    def __init__(self, when: str) -> None:
        self.when = when
        self.is_broken = False

    def __call__(self, _: int, when: str) -> None:
        if self.is_broken and when == self.when:
            raise OSError(28, "No space left on device")


@pytest.mark.parametrize("when", ["before", "after"])
async def test_after_a_failed_write_the_table_is_reopened(tmp_path: Path, when: str) -> None:
    disk = Disk(when)
    table = await open_table(tmp_path, PROMPT, fault=disk)
    assert await table.change(SPACE, ROW, None, {HEAD: b"1"})
    disk.is_broken = True
    with pytest.raises(StorageFull) as unknown:
        await table.change(SPACE, ROW, b"1", {HEAD: b"2", b"e2": b"x"})
    assert unknown.value.outcome == "unknown"
    disk.is_broken = False
    assert await table.probe()
    assert table.failure is None
    written = b"2" if when == "after" else b"1"
    assert await table.get(SPACE, ROW, [HEAD]) == {HEAD: Cell(written)}
    assert len(await table.columns(SPACE, ROW, b"e", b"f")) == (when == "after")
    assert await table.change(SPACE, ROW, written, {HEAD: b"3"})
    await table.close()


async def test_acknowledged_changes_stay_readable_while_writes_fail(tmp_path: Path) -> None:
    disk = Disk("before")
    options = Options(probe_interval_s=3600.0)
    table = await open_table(tmp_path, options, fault=disk)
    assert await table.change(SPACE, ROW, None, {HEAD: b"1", b"e1": b"x"})
    disk.is_broken = True
    (tmp_path / "probe").mkdir()
    for outcome in ("unknown", "refused", "refused"):
        with pytest.raises(StorageFull) as failed:
            await table.change(SPACE, ROW, b"1", {HEAD: b"2"})
        assert failed.value.outcome == outcome
    with pytest.raises(StorageFull):
        await table.put(SPACE, {ROW: b"2"})
    with pytest.raises(StorageFull):
        await table.delete(SPACE, [ROW])
    assert not await table.probe()
    assert await table.get(SPACE, ROW, [HEAD, b"e1"]) == {HEAD: Cell(b"1"), b"e1": Cell(b"x")}
    assert await table.get(SPACE, ROW, [HEAD]) == {HEAD: Cell(b"1")}
    await table.close()
    assert not (tmp_path / "CLEAN").exists()


async def test_a_head_that_was_just_written_is_read_without_a_thread(
    table: LevelDBTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await table.change(SPACE, ROW, None, {HEAD: b"1"})
    monkeypatch.setattr(Readers, "read", None)
    assert await table.get(SPACE, ROW, [HEAD]) == {HEAD: Cell(b"1")}


async def test_every_write_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await (await open_table(tmp_path)).close()
    synced, opened = [], plyvel.DB

    class Spy:
        def __init__(self, database: object) -> None:
            self._database = database

        def write_batch(self, *, sync: bool) -> object:
            synced.append(sync)
            return self._database.write_batch(sync=sync)  # type: ignore[attr-defined]

        def __getattr__(self, name: str) -> object:
            return getattr(self._database, name)

    monkeypatch.setattr(plyvel, "DB", lambda *given, **named: Spy(opened(*given, **named)))
    table = await open_table(tmp_path)
    assert await table.change(SPACE, ROW, None, {HEAD: b"1", b"e1": b"x"})
    await table.put(SPACE, {ROW: b"2"})
    await table.delete(SPACE, [ROW])
    await table.close()
    assert synced == [True, True, True]


async def test_a_refused_change_makes_no_write(tmp_path: Path) -> None:
    writes = []
    table = await open_table(tmp_path, fault=lambda number, _: writes.append(number))
    assert not await table.change(SPACE, ROW, b"1", {HEAD: b"2"})
    assert writes == []
    await table.close()


async def test_a_change_that_the_port_does_not_allow_is_refused(table: LevelDBTable) -> None:
    with pytest.raises(ValueError, match="must put the head"):
        await table.change(SPACE, ROW, None, {b"e1": b"x"})
    with pytest.raises(ValueError, match="must put the head"):
        await table.change(SPACE, ROW, b"1", {HEAD: b"x"}, [HEAD])
    for puts, deletes in (({HEAD: b"x", b"e1": b"x"}, []), ({HEAD: b"x"}, [b"e1"])):
        with pytest.raises(ValueError, match="no cell except its head"):
            await table.change(Space.RECORDS, ROW, None, puts, deletes)


async def test_a_read_finds_a_damaged_table_file(tmp_path: Path) -> None:
    table = await open_table(tmp_path)
    assert await table.change(SPACE, ROW, None, {HEAD: b"1", b"e1": bytes(100_000)})
    await table.close()
    table = await open_table(tmp_path)  # Its log becomes a table.
    [file] = (tmp_path / "db").glob("*.ldb")
    data = bytearray(file.read_bytes())
    data[50_000] ^= 1
    await table.close()
    file.write_bytes(data)
    table = await open_table(tmp_path)
    with pytest.raises(StorageCorrupt, match="is damaged: "):
        await table.get(SPACE, ROW, [b"e1"])
    with pytest.raises(StorageCorrupt):
        await table.cells(SPACE, ROW, b"e", b"f", cells_max=9, bytes_max=9)
    await table.close()


async def test_a_log_truncated_after_a_clean_close_is_found(tmp_path: Path) -> None:
    table = await open_table(tmp_path)
    await table.put(SPACE, {ROW: b"1"})
    await table.close()
    [log] = (tmp_path / "db").glob("*.log")
    log.write_bytes(log.read_bytes()[:-5])
    with pytest.raises(StorageCorrupt, match="at the last close it had"):
        await open_table(tmp_path)
    assert (tmp_path / "CLEAN").exists()


async def test_the_note_of_a_clean_close_is_removed_before_leveldb_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await open_table(tmp_path)).close()
    has_note: list[bool] = []
    opened = plyvel.DB

    def noting(*given: object, **named: object) -> object:
        has_note.append((tmp_path / "CLEAN").exists())
        return opened(*given, **named)

    monkeypatch.setattr(plyvel, "DB", noting)
    await (await open_table(tmp_path)).close()
    assert has_note == [False]


async def test_a_store_of_another_format_is_refused_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "IDENTITY").write_text('{"format": 1, "store_id": "x", "complete": true}')
    with pytest.raises(StorageCorrupt, match="Start the release that wrote it"):
        await open_table(tmp_path)
    assert not (tmp_path / "db").exists()
    assert files.FORMAT == 5


async def test_a_second_opening_is_refused_until_the_first_is_closed(tmp_path: Path) -> None:
    table = await open_table(tmp_path)
    with pytest.raises(Unavailable, match="in use by another process"):
        await open_table(tmp_path)
    await asyncio.gather(table.close(), table.close())
    await (await open_table(tmp_path)).close()


def disk_bytes(directory: Path) -> int:
    """Return the size of LevelDB's tables."""
    size = 0
    for path in (directory / "db").glob("*.ldb"):
        with suppress(FileNotFoundError):  # LevelDB removes tables meanwhile.
            size += path.stat().st_size
    return size


@pytest.mark.slow
async def test_clearing_pages_frees_their_disk_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "LINGER_S", 0.0)
    table = await open_table(tmp_path)
    pages = [ROW + bytes(9) + bytes([number]) for number in range(3)]
    for page in pages:
        cells = {b"e%d" % number: random.Random(number).randbytes(1 << 20) for number in range(2)}
        assert await table.change(SPACE, page, None, {HEAD: b"1", **cells})
    await table.close()
    table = await open_table(tmp_path)
    stored = disk_bytes(tmp_path)
    assert stored > 6 << 20
    assert await table.change(SPACE, pages[0], b"1", {HEAD: b"gone"}, clear=True)
    await table.delete(SPACE, pages[1:])
    await eventually(lambda: disk_bytes(tmp_path) < 1 << 20, lambda: str(disk_bytes(tmp_path)))
    assert await table.scan(SPACE, ROW, ROW + b"\xff", limit=9) == [(pages[0], Cell(b"gone"))]
    await table.close()


@pytest.mark.parametrize("how", ["removed", "replaced", "emptied", "logless"])
async def test_no_change_is_acknowledged_after_its_directory_is_lost(
    tmp_path: Path, how: str
) -> None:
    directory, other = tmp_path / "store", tmp_path / "other"
    await (await open_table(other)).close()
    there = {path: path.read_bytes() for path in other.rglob("*") if path.is_file()}
    table = await open_table(directory, PROMPT)
    assert await table.change(SPACE, ROW, None, {HEAD: b"1"})
    assert table.loss() is None
    if how == "emptied":
        shutil.rmtree(directory / "db")
    elif how == "logless":  # As a job that removes old "*.log" files leaves it.
        for log in (directory / "db").glob("*.log"):
            log.unlink()
    else:
        directory.rename(tmp_path / "away")
        if how == "replaced":
            other.rename(directory)
    assert str(directory) in (table.loss() or "")
    with pytest.raises(StorageFull) as unknown:
        await table.change(SPACE, ROW, b"1", {HEAD: b"2"})
    assert unknown.value.outcome == "unknown"
    assert not await table.probe(), "it opens no other store in its place"
    await table.close()
    if how == "replaced":
        directory.rename(other)
        assert {path: path.read_bytes() for path in other.rglob("*") if path.is_file()} == there


async def test_a_disk_that_is_full_at_the_start_serves_reads_until_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = await open_table(tmp_path)
    assert await table.change(SPACE, ROW, None, {HEAD: b"1", b"e1": b"in a table"})
    await table.close()
    table = await open_table(tmp_path)  # Its log becomes a table.
    assert await table.change(SPACE, ROW, b"1", {HEAD: b"2", b"e2": b"in the log"})
    await table.close()
    there = {path: path.read_bytes() for path in (tmp_path / "db").iterdir()}
    is_full = True
    opened = plyvel.DB

    def database(path: str, **options: object) -> object:
        if is_full and path == str(tmp_path / "db"):
            raise plyvel.IOError(b"IO error: 000009.ldb: No space left on device")
        return opened(path, **options)

    def probe(*_: object) -> None:
        if is_full:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(plyvel, "DB", database)
    monkeypatch.setattr(files, "probe", probe)
    monkeypatch.setattr(stand_in, "IN_MEMORY", tmp_path / "memory")
    (tmp_path / "memory").mkdir()
    table = await open_table(tmp_path, PROMPT)
    assert "No space left" in str(table.failure)
    assert await table.columns(SPACE, ROW, b"e", b"f") == [b"e1", b"e2"]
    with pytest.raises(StorageFull) as refused:
        await table.change(SPACE, ROW, b"2", {HEAD: b"3"})
    assert refused.value.outcome == "refused"
    assert {path: path.read_bytes() for path in (tmp_path / "db").iterdir()} == there
    is_full = False
    assert await table.probe()
    assert await table.change(SPACE, ROW, b"2", {HEAD: b"3", b"e3": b"after"})
    assert list((tmp_path / "memory").iterdir()) == []
    await table.close()
    table = await open_table(tmp_path)
    assert await table.columns(SPACE, ROW, b"e", b"f") == [b"e1", b"e2", b"e3"]
    await table.close()


async def test_a_stand_in_that_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    await (await open_table(tmp_path)).close()
    left = stand_in.make(tmp_path / "db")
    made = stand_in.make(tmp_path / "db")
    assert not left.exists()
    shutil.rmtree(made)
