import threading
from pathlib import Path

import pytest

from broker.errors import StorageCorrupt, Unavailable
from broker.storage import leveldb_files as files
from broker.storage.leveldb_database import Database, Options, open_directory


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "db", Options(), create=True)


def put(database: Database, *keys: bytes) -> None:
    batch = database.batch(synced=True)
    for key in keys:
        batch.put(key, b"value of " + key)
    batch.write()


def test_keys_come_in_order_and_in_bounds(database: Database) -> None:
    put(database, b"a1", b"a3", b"a2", b"b1")
    assert database.items(b"a") == [(key, b"value of a" + key) for key in (b"1", b"2", b"3")]
    assert database.items(b"a", limit=2) == database.items(b"a")[:2]
    assert database.keys(b"a2", b"b", 9) == [b"a2", b"a3"]
    assert database.keys(b"a", b"c", 3) == [b"a1", b"a2", b"a3"]
    assert database.keys(b"a", b"c", 0) == []
    with database.pairs(b"a", b"1", b"2", reverse=True) as pairs:
        assert [key for key, _ in pairs] == [b"2", b"1"]
    assert database.get(b"b1") == b"value of b1"
    assert database.get(b"b2") is None


def test_opening_anew_waits_for_reads_and_reads_wait_for_it(database: Database) -> None:
    put(database, b"a1")
    inside, may_end, reopened = threading.Event(), threading.Event(), threading.Event()

    def read() -> None:
        with database.pairs(b"a", b"", b"\xff", reverse=False) as pairs:
            inside.set()
            assert may_end.wait(20)
            assert [key for key, _ in pairs] == [b"1"]

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


def test_no_database_is_made_where_none_is_expected(tmp_path: Path) -> None:
    with pytest.raises((StorageCorrupt, Unavailable)):
        Database(tmp_path / "db", Options(), create=False)
    assert not (tmp_path / "db" / "CURRENT").exists()


def test_a_store_is_made_once_and_recognised(tmp_path: Path) -> None:
    for _ in range(2):
        lock, database = open_directory(tmp_path / "data", Options())
        value = database.get(files.FORMAT_KEY)
        assert value is not None
        identity = files.examine(tmp_path / "data")
        assert identity is not None
        assert identity.complete
        assert files.is_format_row_of(identity, value)
        database.close()
        lock.close()


def test_files_of_two_stores_are_refused(tmp_path: Path) -> None:
    for name in ("one", "other"):
        lock, database = open_directory(tmp_path / name, Options())
        database.close()
        lock.close()
    (tmp_path / "one" / "IDENTITY").replace(tmp_path / "other" / "IDENTITY")
    with pytest.raises(StorageCorrupt, match="not of the same store"):
        open_directory(tmp_path / "other", Options())
    # The lock was given back: a second attempt meets the same, not a store in use.
    with pytest.raises(StorageCorrupt, match="not of the same store"):
        open_directory(tmp_path / "other", Options())


def test_a_store_that_lost_its_format_row_is_refused(tmp_path: Path) -> None:
    lock, database = open_directory(tmp_path / "data", Options())
    batch = database.batch(synced=True)
    batch.delete(files.FORMAT_KEY)
    batch.write()
    database.close()
    lock.close()
    with pytest.raises(StorageCorrupt, match="lost its format row"):
        open_directory(tmp_path / "data", Options())


def test_a_store_whose_making_was_cut_short_is_made_again(tmp_path: Path) -> None:
    files.prepare(tmp_path)  # All that a crash may leave: an identity that is not complete.
    lock, database = open_directory(tmp_path, Options())
    database.close()
    lock.close()
    identity = files.examine(tmp_path)
    assert identity is not None
    assert identity.complete
