import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.errors import StorageCorrupt, Unavailable
from broker.model import ROW_ID_MAX, ROW_ID_MIN, TopicId, row_id
from broker.storage.keys import IDEMPOTENCY, LogId
from broker.storage.leveldb_database import Options
from broker.storage.leveldb_check import check, repair
from broker.storage.leveldb_store import LevelDBStore
from broker.storage.ports import Batch, Segment, SideRow

LOG = LogId(TopicId("default", "notes"), 1)
DELETED = LogId(TopicId("default", "gone"), 1)
SMALL = Options(write_buffer_bytes=64 << 10, file_bytes_max=1 << 20)


@pytest.fixture
async def directory(tmp_path: Path) -> Path:
    """A closed store of several tables with something of every kind in it."""
    directory = tmp_path / "data"
    store = await LevelDBStore.open(directory, SMALL)
    await store.put_if(b"topic", None, b"record")
    gone = await store.claim(DELETED, "a")
    await store.append(gone, batch(0, 10))
    await store.tombstone(DELETED, "a")
    again = await store.claim(DELETED._replace(generation=2), "a")
    await store.append(again, batch(50, 5))
    hold = await store.claim(LOG, "a")
    for number in range(20):
        side = SideRow(IDEMPOTENCY, bytes([number]) * 16, row_id(1000 * number, 0), b"answer")
        await store.append(hold, batch(1000 * number, 100, side))
    payloads = await store.open_payloads(hold, 7)
    await store.append(payloads, batch(7, 3))
    await store.raise_floor(hold, row_id(1000, 0))
    # Merged, so that each table is in use; and something in the log after that.
    await store.compact(LOG)
    await store.append(hold, batch(50_000, 50))
    await store.close()
    return directory


def batch(first_ms: int, count: int, *side: SideRow) -> Batch:
    ids = [row_id(first_ms + number, 0) for number in range(1, count + 1)]
    payload = bytes(range(256)) * 2
    return Batch([Segment(ids, [payload] * count, lifetime_ms=60_000)], ids[-1], side)


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and not path.name.startswith("LO")
    }


def damage(path: Path, change: Callable[[bytearray], object]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def flip_in_the_middle(data: bytearray) -> None:
    data[len(data) // 2] ^= 0x10


def tables(directory: Path) -> list[Path]:
    return sorted((directory / "db").glob("*.ldb"), key=lambda path: path.stat().st_size)


async def test_a_sound_store_is_found_sound_and_left_alone(directory: Path) -> None:
    before = contents(directory)
    seen: list[tuple[int, int]] = []
    report = check(directory, progress=lambda done, total: seen.append((done, total)))
    assert report.problems == []
    assert report.is_sound
    assert contents(directory) == before
    assert (report.message_logs, report.payload_logs, report.records) == (2, 1, 1)
    assert report.rows == 19 * 100 + 50 + 5 + 3
    assert report.ignorable == 100 + 10  # Below the floor; of the deleted generation.
    assert report.side_rows == 20
    assert report.bytes > 500_000
    assert seen
    assert all(done <= total for done, total in seen)


async def test_a_store_in_use_is_not_checked(directory: Path) -> None:
    store = await LevelDBStore.open(directory)
    with pytest.raises(Unavailable, match="in use"):
        check(directory)
    await store.close()


def test_a_directory_without_a_store_is_said_so(tmp_path: Path) -> None:
    report = check(tmp_path)
    assert not report.is_sound
    assert "no store" in report.problems[0]
    with pytest.raises(FileNotFoundError, match="no database"):
        repair(tmp_path, tmp_path / "copy")
    assert list(tmp_path.iterdir()) == [], "looking leaves nothing behind"


async def test_a_store_without_its_database_is_not_mended(directory: Path, tmp_path: Path) -> None:
    await (await LevelDBStore.open(directory)).close()
    shutil.rmtree(directory / "db")
    assert "db/ is missing" in check(directory).problems[0]
    with pytest.raises(FileNotFoundError, match="no database"):
        repair(directory, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


async def test_a_flipped_bit_in_a_table_is_found_by_reads_and_by_check(directory: Path) -> None:
    largest = tables(directory)[-1]
    damage(largest, flip_in_the_middle)
    report = check(directory)
    assert not report.is_sound
    with pytest.raises(StorageCorrupt, match="broker storage check"):
        await read_all(directory)


async def read_all(directory: Path) -> int:
    store = await LevelDBStore.open(directory)
    rows, after, more = 0, ROW_ID_MIN, True
    try:
        while more:
            page = await store.scan(LOG, after, ROW_ID_MAX, rows_max=50, bytes_max=1 << 20)
            rows, after, more = rows + len(page.rows), page.seen, page.more
    finally:
        await store.close()
    return rows


@pytest.mark.parametrize(
    ("name", "change", "named"),
    [
        ("CURRENT", lambda data: data.clear(), "CURRENT names no manifest"),
        ("MANIFEST-*", lambda data: data.clear(), "MANIFEST-.* has 0 bytes"),
        ("*.log", lambda data: data.__delitem__(slice(len(data) // 2, None)), r"\.log has "),
        ("*.log", flip_in_the_middle, "Corruption"),
        ("MANIFEST-*", flip_in_the_middle, "Corruption"),
    ],
)
async def test_damage_is_refused_and_named(
    directory: Path, name: str, change: Callable[[bytearray], object], named: str
) -> None:
    path = max((directory / "db").glob(name), key=lambda found: found.stat().st_size)
    damage(path, change)
    before = contents(directory)
    with pytest.raises(StorageCorrupt, match=named) as refusal:
        await LevelDBStore.open(directory)
    assert "broker storage check" in refusal.value.message
    report = check(directory)
    assert not report.is_sound
    assert contents(directory) == before


async def test_a_missing_table_is_refused(directory: Path) -> None:
    tables(directory)[-1].unlink()
    (directory / "CLEAN").unlink()
    with pytest.raises(StorageCorrupt):
        await LevelDBStore.open(directory)
    assert not check(directory).is_sound


async def test_repair_mends_a_copy_and_says_what_is_lost(directory: Path, tmp_path: Path) -> None:
    (directory / "CLEAN").unlink()
    (directory / "db" / "CURRENT").unlink()
    damage(tables(directory)[-1], flip_in_the_middle)
    before = contents(directory)
    report = repair(directory, tmp_path / "copy")
    assert contents(directory) == before
    assert report.directory == tmp_path / "copy"
    assert report.problems == []
    assert 0 < report.rows < 2000
    assert await read_all(tmp_path / "copy") > 0


async def test_repair_moves_back_the_pointer_of_a_log_that_lost_its_end(
    directory: Path, tmp_path: Path
) -> None:
    store = await LevelDBStore.open(directory)
    hold = await store.claim(LOG, "a")
    lost = hold.control.pointer
    store._database._db.delete(hold.prefix + lost)
    await store.close()
    report = check(directory)
    assert len(report.problems) == 1
    assert lost.hex() in report.problems[0]
    repaired = repair(directory, tmp_path / "copy")
    assert repaired.problems == []
    assert len(repaired.mended) == 1
    assert lost.hex() in repaired.mended[0]
    store = await LevelDBStore.open(tmp_path / "copy")
    again = await store.claim(LOG, "b")
    assert again.control.pointer < lost
    assert again.epoch > hold.epoch
    await store.append(again, batch(100_000, 5))
    await store.close()
    assert check(tmp_path / "copy").is_sound


async def test_repair_refuses_to_write_over_anything(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    with pytest.raises(FileExistsError):
        repair(directory, tmp_path / "copy")
