import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.errors import StorageCorrupt, Unavailable
from broker.storage.leveldb import files


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A directory as a clean close leaves it, with made-up files in place of LevelDB's."""
    identity = files.prepare(tmp_path)
    database = tmp_path / files.DATABASE
    database.mkdir()
    (database / "CURRENT").write_text("MANIFEST-000004\n")
    (database / "MANIFEST-000004").write_bytes(bytes(50))
    (database / "000005.log").write_bytes(bytes(70))
    (database / "LOG").write_text("LevelDB's own notes")
    files.write_identity(tmp_path, identity._replace(complete=True))
    files.mark_closed(tmp_path)
    return tmp_path


def test_a_new_directory_gets_an_identity_that_stays(tmp_path: Path) -> None:
    identity = files.prepare(tmp_path)
    assert (identity.format, identity.complete) == (files.FORMAT, False)
    assert files.prepare(tmp_path) == identity


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def umask() -> Iterator[None]:
    """The usual umask: every user may read new files."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_a_new_directory_and_its_files_are_private(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "data"
    files.make_private(directory)
    lock = files.DirectoryLock(directory)
    files.prepare(directory)
    assert (mode(directory.parent), mode(directory)) == (0o755, 0o700)
    assert {mode(path) for path in directory.iterdir()} == {0o600}
    lock.close()


@pytest.mark.usefixtures("umask")
def test_an_existing_directory_becomes_private_if_it_has_only_the_stores_files(store: Path) -> None:
    store.chmod(0o775)
    (store / "IDENTITY.new").touch()
    (store / "check-left-behind").mkdir()
    files.make_private(store)
    assert mode(store) == 0o700
    store.chmod(0o500)
    files.make_private(store)
    assert mode(store) == 0o500, "its own user's rights stay"


@pytest.mark.usefixtures("umask")
def test_the_mode_of_a_shared_directory_does_not_change(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.chmod(0o755)
    (store / "other.txt").touch()
    files.make_private(store)
    assert mode(store) == 0o755
    assert not files.is_private(store)
    (store / "other.txt").unlink()
    monkeypatch.setattr(os, "geteuid", lambda: store.stat().st_uid + 1)
    files.make_private(store)
    assert mode(store) == 0o755


def test_a_cleanly_closed_store_is_accepted(store: Path) -> None:
    assert files.prepare(store).complete
    assert files.mark_open(store)
    (store / "db" / "000005.log").write_bytes(b"longer or shorter")
    assert files.prepare(store).complete  # After a crash the right sizes are not known.
    assert not files.mark_open(store)


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("IDENTITY", None, "IDENTITY is missing"),
        ("IDENTITY", "{", "IDENTITY can't be read"),
        ("IDENTITY", "[{}", "IDENTITY can't be read"),
        ("CLEAN", "{", "CLEAN can't be read"),
        ("db/CURRENT", None, "CURRENT is missing"),
        ("IDENTITY", "", "IDENTITY can't be read"),
        ("IDENTITY", "[" * 100_000, "IDENTITY can't be read"),
        ("IDENTITY", "[1]", "IDENTITY is no JSON object"),
        ("IDENTITY", "{}", "IDENTITY has other fields"),
        (
            "IDENTITY",
            '{"format": "4", "store_id": 1, "complete": 1}',
            "IDENTITY has fields of the wrong type",
        ),
        (
            "IDENTITY",
            json.dumps({"format": files.FORMAT, "store_id": "\ud800", "complete": True}),
            "IDENTITY has fields of the wrong type",
        ),
        ("CLEAN", "[]", "CLEAN is no JSON object"),
        ("db/CURRENT", "", "names no manifest"),
        ("db/CURRENT", "MANIFEST-000004", "names no manifest"),
        ("db/CURRENT", "MANIFEST-000009\n", "MANIFEST-000009, which CURRENT names, is missing"),
        ("db/MANIFEST-000004", None, "MANIFEST-000004, which CURRENT names, is missing"),
        ("db/MANIFEST-000004", "cut", "MANIFEST-000004 has 3 bytes; at the last close it had 50"),
        ("db/000005.log", "", "000005.log has 0 bytes; at the last close it had 70"),
        ("db/000005.log", None, "000005.log is missing; at the last close it had 70"),
    ],
)
def test_damage_is_named_and_no_file_changes(
    store: Path, name: str, content: str | None, named: str
) -> None:
    if content is None:
        (store / name).unlink()
    else:
        (store / name).write_text(content)
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    with pytest.raises(StorageCorrupt, match=named) as refusal:
        files.prepare(store)
    assert f"the store in {store} is damaged" in refusal.value.message
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["IDENTITY", "CLEAN", "db/CURRENT"])
def test_a_file_that_is_not_text_or_no_file_is_damage(store: Path, name: str) -> None:
    (store / name).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StorageCorrupt, match=f"{name} can't be read"):
        files.prepare(store)
    (store / name).unlink()
    (store / name).mkdir()
    with pytest.raises(StorageCorrupt, match=f"{name} (is a directory|can't be read)"):
        files.prepare(store)


@pytest.mark.parametrize("name", ["IDENTITY", "CLEAN", "db/CURRENT"])
def test_a_device_or_a_pipe_in_a_files_place_is_damage(store: Path, name: str) -> None:
    (store / name).unlink(missing_ok=True)
    (store / name).symlink_to("/dev/zero")
    with pytest.raises(StorageCorrupt, match=f"{name} (is no file|can't be read)"):
        files.prepare(store)
    (store / name).unlink()
    os.mkfifo(store / name)
    with pytest.raises(StorageCorrupt, match=f"{name} (is no file|can't be read)"):
        files.prepare(store)


def test_a_missing_database_is_not_created_again(store: Path) -> None:
    for path in (store / "db").iterdir():
        path.unlink()
    with pytest.raises(StorageCorrupt, match="missing or empty"):
        files.prepare(store)


@pytest.mark.parametrize("version", [1, files.FORMAT - 1, files.FORMAT + 1])
def test_another_format_is_refused_with_advice(store: Path, version: int) -> None:
    identity = {"format": version, "store_id": "x", "complete": True}
    (store / "IDENTITY").write_text(json.dumps(identity))
    with pytest.raises(
        StorageCorrupt, match=f"format {version}; .*Start the release that wrote it"
    ):
        files.prepare(store)
    assert (store / "CLEAN").exists()


def test_a_second_lock_of_a_directory_is_refused(tmp_path: Path) -> None:
    lock = files.DirectoryLock(tmp_path)
    with pytest.raises(Unavailable, match=f"in use by another process .pid {os.getpid()}."):
        files.DirectoryLock(tmp_path)
    lock.close()
    files.DirectoryLock(tmp_path).close()


def test_a_read_only_directory_without_a_lock_file_is_locked_itself(tmp_path: Path) -> None:
    lock = files.DirectoryLock(tmp_path, reads_only=True)
    with pytest.raises(Unavailable, match="in use by another process"):
        files.DirectoryLock(tmp_path, reads_only=True)
    lock.close()
    assert list(tmp_path.iterdir()) == []


def test_a_probe_leaves_no_file(tmp_path: Path) -> None:
    files.probe(tmp_path, 3 << 20)
    assert list(tmp_path.iterdir()) == []
