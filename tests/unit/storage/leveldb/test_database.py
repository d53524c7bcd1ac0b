import threading
from pathlib import Path

import pytest

from broker.errors import StorageCorrupt, Unavailable
from broker.storage.leveldb import files
from broker.storage.leveldb.database import Database, Options, open_directory
from broker.storage.leveldb.layout import FORMAT_KEY


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "db", Options(), create=True, was_clean=False)


def put(database: Database, *keys: bytes) -> None:
    batch = database.batch()
    for key in keys:
        batch.put(key, b"value of " + key)
    batch.write()


def test_keys_come_in_order_and_in_bounds(database: Database) -> None:
    put(database, b"a1", b"a3", b"a2", b"b1")
    values = {key: b"value of " + key for key in (b"a1", b"a2", b"a3", b"b1")}
    assert database.pairs(b"a", b"b", pairs_max=9) == (list(values.items())[:3], False)
    assert database.pairs(b"a2", b"b1", pairs_max=2) == (list(values.items())[1:3], True)
    assert database.pairs(b"a", b"z", pairs_max=9, bytes_max=12) == (list(values.items())[:2], True)
    assert database.keys(b"a2", b"a3") == [b"a2", b"a3"]
    assert database.keys_of(b"a") == [b"a1", b"a2", b"a3"]
    assert database.get(b"b1") == b"value of b1"
    assert database.get_all([b"b2", b"a1"]) == [None, b"value of a1"]


def test_a_reverse_range_has_the_same_bounds(database: Database) -> None:
    put(database, b"a1", b"a3", b"a2", b"b1")

    def keys(first: bytes, last: bytes, most: int = 9) -> list[bytes]:
        found, _ = database.pairs(first, last, pairs_max=most, reverse=True)
        return [key for key, _ in found]

    assert keys(b"a1", b"a2") == [b"a2", b"a1"]
    assert keys(b"a2", b"a2") == [b"a2"]  # plyvel itself finds nothing here.
    assert keys(b"a", b"z", 2) == [b"b1", b"a3"]
    assert keys(b"a4", b"b") == []


def test_after_a_large_value_a_read_reports_whether_there_is_more(database: Database) -> None:
    batch, large = database.batch(), bytes(1 << 20)
    for key in (b"a1", b"a2", b"b1"):
        batch.put(key, large)
    batch.write()

    def more(first: bytes, last: bytes, *, reverse: bool) -> bool:
        found, there_is_more = database.pairs(
            first, last, pairs_max=9, bytes_max=1, reverse=reverse
        )
        assert [value for _, value in found] == [large]
        return there_is_more

    for reverse in (False, True):
        assert more(b"a1", b"a2", reverse=reverse)
        assert not more(b"a1", b"a1", reverse=reverse)
        assert not more(b"a2", b"a9", reverse=reverse)


def test_a_reopening_waits_for_reads_in_progress(database: Database) -> None:
    put(database, b"a1")
    inside, may_end, reopened = threading.Event(), threading.Event(), threading.Event()

    def read() -> None:
        with database.reading() as db:
            inside.set()
            assert may_end.wait(20)
            assert db.get(b"a1") == b"value of a1"

    def reopen() -> None:
        database.reopen()
        reopened.set()

    threads = [threading.Thread(target=target) for target in (read, reopen)]
    threads[0].start()
    assert inside.wait(20)
    threads[1].start()
    assert not reopened.is_set()
    may_end.set()
    assert reopened.wait(20)
    for thread in threads:
        thread.join(20)
    assert database.get(b"a1") == b"value of a1"
    database.close()


def test_a_probe_that_fails_leaves_the_database_readable(
    database: Database, tmp_path: Path
) -> None:
    put(database, b"a1")
    (tmp_path / "probe").mkdir()
    with pytest.raises(OSError, match="probe"):
        database.reopen()
    assert database.get(b"a1") == b"value of a1"


def test_a_closed_database_is_unavailable(database: Database) -> None:
    database.close()
    with pytest.raises(Unavailable, match="not open"):
        database.get(b"a")
    database.close()


def test_opening_without_create_makes_no_database(tmp_path: Path) -> None:
    with pytest.raises((StorageCorrupt, Unavailable)):
        Database(tmp_path / "db", Options(), create=False, was_clean=False)
    assert not (tmp_path / "db" / "CURRENT").exists()


def test_a_second_opening_uses_the_same_store(tmp_path: Path) -> None:
    for _ in range(2):
        lock, database = open_directory(tmp_path / "data", Options())
        value = database.get(FORMAT_KEY)
        assert value is not None
        identity = files.examine(tmp_path / "data")
        assert identity is not None
        assert identity.complete
        assert value == files.format_row(identity)
        database.close()
        lock.close()


def test_files_of_two_stores_are_refused(tmp_path: Path) -> None:
    for name in ("one", "other"):
        lock, database = open_directory(tmp_path / name, Options())
        database.close()
        lock.close()
    (tmp_path / "one" / "IDENTITY").replace(tmp_path / "other" / "IDENTITY")
    with pytest.raises(StorageCorrupt, match="belong to different stores"):
        open_directory(tmp_path / "other", Options())
    # The failed opening released its lock: a second one meets the same error, not a store in use.
    with pytest.raises(StorageCorrupt, match="belong to different stores"):
        open_directory(tmp_path / "other", Options())


def test_a_store_that_lost_its_format_row_is_refused(tmp_path: Path) -> None:
    lock, database = open_directory(tmp_path / "data", Options())
    batch = database.batch()
    batch.delete(FORMAT_KEY)
    batch.write()
    database.close()
    lock.close()
    with pytest.raises(StorageCorrupt, match="format row of the database is missing"):
        open_directory(tmp_path / "data", Options())


@pytest.mark.parametrize("manifest", [None, b"", bytes(50), b"MANIFEST"])
def test_a_store_whose_creation_was_interrupted_is_created_again(
    tmp_path: Path, manifest: bytes | None
) -> None:
    files.prepare(tmp_path)
    if manifest is not None:  # LevelDB names its first manifest without having synced it.
        (tmp_path / "db").mkdir()
        (tmp_path / "db" / "CURRENT").write_text("MANIFEST-000001\n")
        (tmp_path / "db" / "MANIFEST-000001").write_bytes(manifest)
    lock, database = open_directory(tmp_path, Options())
    database.close()
    lock.close()
    identity = files.examine(tmp_path)
    assert identity is not None
    assert identity.complete


def test_the_identity_of_a_new_store_removes_no_data(tmp_path: Path) -> None:
    lock, database = open_directory(tmp_path, Options())
    for number in range(100):
        batch = database.batch()
        batch.put(b"%d" % number, bytes(100))
        batch.write()
    database.close()
    lock.close()
    identity = files.examine(tmp_path)
    assert identity is not None
    files.write_identity(tmp_path, identity._replace(complete=False))
    with pytest.raises(StorageCorrupt, match="that of a new store, but db/ holds data"):
        open_directory(tmp_path, Options())
    files.write_identity(tmp_path, identity)
    lock, database = open_directory(tmp_path, Options())
    assert database.get(b"99") == bytes(100)
    database.close()
    lock.close()
