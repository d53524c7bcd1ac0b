import asyncio
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.errors import StorageCorrupt, Unavailable
from broker.storage.leveldb import files, snapshot
from broker.storage.leveldb.database import Database, Options
from broker.storage.leveldb.table import open_table
from broker.storage.table import Space

SMALL = Options(write_buffer_bytes=1 << 16, file_bytes_max=1 << 20)
WRITERS, WRITES, COPIES, VALUE_BYTES = 4, 400, 12, 20_000


@pytest.fixture
async def database(tmp_path: Path) -> Path:
    """A closed store's database, with a table that its manifest names and one that it does not."""
    directory = tmp_path / "store"
    for _ in range(2):  # The second opening writes the first one's log out as a table.
        table = await open_table(directory)
        await table.put(Space.RECORDS, {b"key": b"value"})
        await table.close()
    database = directory / files.DATABASE
    assert len(list(database.glob("*.ldb"))) == 1
    (database / "900000.ldb").write_bytes(b"being written")
    return database


def is_linked(path: Path) -> bool:
    return path.stat().st_nlink > 1


@pytest.mark.parametrize(
    ("copied", "left_out"),
    [
        (snapshot.copy_closed, {"900000.ldb"}),
        # A process that closes any descriptor of LOCK loses LevelDB's lock on it.
        (snapshot.copy_served, {"900000.ldb", "LOCK", "LOG", "LOG.old"}),
    ],
)
def test_tables_that_the_manifest_names_are_linked_and_the_rest_is_copied(
    database: Path, copied: Callable[[Path, Path], None], left_out: set[str]
) -> None:
    names = {path.name for path in database.iterdir()}
    copied(database.parent, database.parent / "copy")
    copy = database.parent / "copy" / files.DATABASE
    assert {path.name for path in copy.iterdir()} == names - left_out
    for path in copy.iterdir():
        assert path.read_bytes() == (database / path.name).read_bytes()
        assert is_linked(path) is (path.suffix == ".ldb")


def test_copy_all_shares_no_file(database: Path) -> None:
    snapshot.copy_all(database.parent, database.parent / "copy")
    copy = database.parent / "copy" / files.DATABASE
    assert {path.name for path in copy.iterdir()} == {path.name for path in database.iterdir()}
    assert not any(map(is_linked, copy.iterdir()))


def test_without_a_manifest_no_table_is_shared(database: Path) -> None:
    (database / "CURRENT").write_bytes(b"\xff\0")
    snapshot.copy_closed(database.parent, database.parent / "copy")
    copy = database.parent / "copy" / files.DATABASE
    assert not list(copy.glob("*.ldb"))
    assert (copy / "CURRENT").read_bytes() == b"\xff\0"


@pytest.mark.slow
async def test_a_store_is_copied_as_of_one_moment_while_it_is_written(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    table = await open_table(directory, SMALL)
    written = dict.fromkeys(range(WRITERS), 0)

    async def write(writer: int) -> None:
        while True:
            key = bytes([writer]) + written[writer].to_bytes(4, "big")
            await table.put(Space.RECORDS, {key: bytes(VALUE_BYTES)})
            written[writer] += 1

    writing = [asyncio.create_task(write(writer)) for writer in written]
    copies = 0
    while copies < COPIES or sum(written.values()) < WRITES:
        before, target = dict(written), tmp_path / "copy"
        await asyncio.to_thread(snapshot.copy_served, directory, target)
        found = await asyncio.to_thread(numbers_in, target)
        for writer, numbers in found.items():
            assert numbers == list(range(len(numbers)))
            assert len(numbers) >= before[writer]
        shutil.rmtree(target)
        copies += 1
    for task in writing:
        task.cancel()
    await asyncio.wait(writing)
    assert table.failure is None
    await table.close()


def numbers_in(target: Path) -> dict[int, list[int]]:
    database = Database(target / files.DATABASE, SMALL, create=False, was_clean=False)
    try:
        keys = database.keys_of(b"r")
    finally:
        database.close()
    return {
        writer: [int.from_bytes(key[2:], "big") for key in keys if key[1] == writer]
        for writer in range(WRITERS)
    }


def test_a_write_that_is_merged_during_a_copy_is_in_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Database(tmp_path / files.DATABASE, SMALL, create=True, was_clean=True)
    copyfile, copied = shutil.copyfile, list[Path]()

    def merge_first(path: Path, copy: Path) -> None:
        copied.append(path)
        if len(copied) == 1:  # LevelDB replaces the log by a table that the read manifest lacks.
            batch = served.batch()
            batch.put(b"r\0" + bytes(4), b"value")
            batch.write()
            served.compact(b"", b"\xff")
        copyfile(path, copy)

    monkeypatch.setattr("shutil.copyfile", merge_first)
    snapshot.copy_served(tmp_path, tmp_path / "copy")
    served.close()
    assert len(copied) > 1
    assert numbers_in(tmp_path / "copy")[0] == [0]


def test_a_copy_of_files_that_change_all_the_time_is_unavailable(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    def begin_another_manifest(_: Path, __: Path) -> None:
        nonlocal tries
        tries += 1
        name = f"MANIFEST-{900_000 + tries}"
        (database / name).touch()
        (database / "CURRENT").write_text(f"{name}\n")

    monkeypatch.setattr("shutil.copyfile", begin_another_manifest)
    with pytest.raises(Unavailable, match="try again"):
        snapshot.copy_served(database.parent, database.parent / "copy")
    assert tries == snapshot.TRIES
    assert not list((database.parent / "copy").iterdir())


def test_a_copy_begins_again_if_a_file_goes_meanwhile(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (log,) = database.glob("*.log")
    tries = []

    def copyfile(path: Path, copy: Path) -> None:
        tries.append(path)
        if len(tries) == 1:
            raise FileNotFoundError(2, "No such file", str(path))
        copy.write_bytes(path.read_bytes())

    monkeypatch.setattr("shutil.copyfile", copyfile)
    snapshot.copy_served(database.parent, database.parent / "copy")
    assert tries == [log, log]
    copied = database.parent / "copy" / files.DATABASE / log.name
    assert copied.read_bytes() == log.read_bytes()


def test_a_log_that_begins_during_a_copy_is_left_out(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copyfile = shutil.copyfile

    def begin_another(path: Path, copy: Path) -> None:
        (database / "900001.log").write_bytes(b"writes after those of the copied log")
        copyfile(path, copy)

    monkeypatch.setattr("shutil.copyfile", begin_another)
    (log,) = database.glob("*.log")
    snapshot.copy_served(database.parent, database.parent / "copy")
    copied = (database.parent / "copy" / files.DATABASE).glob("*.log")
    assert [path.name for path in copied] == [log.name]


@pytest.mark.parametrize("pattern", ["CURRENT", "MANIFEST-*"])
def test_a_missing_manifest_or_current_file_is_damage(database: Path, pattern: str) -> None:
    (path,) = database.glob(pattern)
    path.unlink()
    with pytest.raises(StorageCorrupt, match=f"db/{path.name} is missing"):
        snapshot.copy_served(database.parent, database.parent / "copy")


def test_a_manifest_with_an_edit_that_leveldb_does_not_write_is_damage(database: Path) -> None:
    (path,) = database.glob("MANIFEST-*")
    path.write_bytes(struct.pack("<IHB", 0, 2, 1) + b"\x63\x01")
    with pytest.raises(StorageCorrupt, match="its manifest: an edit can't be read"):
        snapshot.copy_served(database.parent, database.parent / "copy")
