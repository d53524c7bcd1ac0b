"""The directory of a LevelDB table: its files, its lock, and the checks before LevelDB opens it.

::

    DIR/LOCK        held (flock) by the process that has the table open; holds its process id
    DIR/IDENTITY    JSON: format, store id, whether the database was once made completely
    DIR/CLEAN       JSON: the sizes of all files in db/ after the last clean close; absent while open
    DIR/probe       a file that is written and synced to test whether the disk takes writes again
    DIR/db/         LevelDB's own files
    DIR/check-…     a snapshot during a check

If CURRENT is missing, LevelDB makes a new, empty database. If the end of a log is missing, LevelDB treats it as the
log of a process that died. So IDENTITY, beside the database, tells whether a database *should* be here, and a
clean close writes the sizes of its files to CLEAN. Before LevelDB opens the files, CLEAN is removed durably. So
if the process dies at any moment, CLEAN is either true or absent.

Only the user that runs the process may read the directory, because it holds every message. LevelDB creates its own
files by the umask; the directory's mode, 0700, protects them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from broker.errors import StorageCorrupt, Unavailable
from broker.storage.leveldb import torn_tail

FORMAT = 5
"""The version of the whole layout of a store. A broker reads no other."""

DATABASE = "db"
SNAPSHOT = "check-"
"""The prefix of the name of a folder with a snapshot."""
_IDENTITY, _CLEAN, _LOCK, _PROBE = "IDENTITY", "CLEAN", "LOCK", "probe"
_OWN_NAMES = frozenset({_IDENTITY, _CLEAN, _LOCK, _PROBE, DATABASE})
PRIVATE = 0o700
"""The mode of a directory with a store."""
_PRIVATE_FILE = 0o600
_BEGINNING_BYTES_MAX: Final = 4096
"""More than a database has that only its first row was written to."""
_PROBE_CHUNK = bytes(1 << 20)
_NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs"})


class StoreIdentity(NamedTuple):
    """The name of a store, and of its layout."""

    format: int
    store_id: str
    complete: bool


def format_row(identity: StoreIdentity) -> bytes:
    """Return the value at FORMAT_KEY: the same facts as in IDENTITY."""
    return f"{identity.format} {identity.store_id}".encode()


def corrupt(directory: Path, what: str) -> StorageCorrupt:
    """Return the error for a damaged store. The command line adds the next step for the operator."""
    return StorageCorrupt(f"the store in {directory} is damaged: {what}. Nothing was changed.")


def is_store(directory: Path) -> bool:
    """True if the directory has any part of a store, even a damaged one. It creates and locks nothing."""
    return any((directory / name).exists() for name in (_IDENTITY, DATABASE))


def make_private(directory: Path) -> None:
    """Make a directory that no other user may enter.

    If it exists with wider rights, and holds only a store of this user, it loses them.
    """
    directory.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    if not is_private(directory) and _is_own_store(directory):
        directory.chmod(stat.S_IMODE(directory.stat().st_mode) & PRIVATE)


def is_private(directory: Path) -> bool:
    """True if no other user may enter a directory."""
    return not directory.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)


def _is_own_store(directory: Path) -> bool:
    """True if a directory belongs to this user, and holds only a store."""
    if directory.stat().st_uid != os.geteuid():
        return False
    names = (path.name.removesuffix(".new") for path in directory.iterdir())
    return all(name in _OWN_NAMES or name.startswith(SNAPSHOT) for name in names)


def _private_file(path: str, flags: int) -> int:
    """Open a file. If this creates it, only this user may read it."""
    return os.open(path, flags, _PRIVATE_FILE)


class DirectoryLock:
    """The right to open a store, held until closed."""

    def __init__(self, directory: Path, *, reads_only: bool = False) -> None:
        """Take the lock; if ``reads_only``, also on a read-only disk. Raises Unavailable if another process has it."""
        mode = os.O_RDONLY if reads_only else os.O_RDWR | os.O_CREAT
        file = directory / _LOCK
        if reads_only and not file.exists():
            file = directory  # A backup may have no such file. A directory can be locked, too.
        self._fd = os.open(file, mode | os.O_CLOEXEC, _PRIVATE_FILE)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = "unknown"
            if file != directory:
                holder = os.pread(self._fd, 32, 0).decode(errors="replace").strip() or holder
            os.close(self._fd)
            raise Unavailable(
                f"the store in {directory} is in use by another process (pid {holder}). "
                "End that process, or name another directory"
            ) from error
        with contextlib.suppress(OSError):  # On a full or read-only disk the lock names no process.
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        self._directory = directory.absolute()
        self._log: Path | None = None

    def loss(self) -> str | None:
        """Return why the directory no longer has this store; None: all is well.

        The process goes on writing into files that have no name any more, and what it acknowledges is lost.
        """
        path, lost = self._directory / _LOCK, f"the data directory {self._directory} is lost"
        try:
            is_same = os.path.samestat(os.fstat(self._fd), path.stat())
            path = self._directory / DATABASE / "CURRENT"
            is_there = path.is_file()
        except OSError as error:
            return f"{lost}: {path}: {error.strerror}"
        if not is_same:
            return f"the data directory {self._directory} was replaced while it was served"
        if not is_there:
            return f"{lost}: {DATABASE}/CURRENT is missing"
        return None if self._has_log() else f"{lost}: the log in {DATABASE}/ is missing"

    def _has_log(self) -> bool:
        """Return whether LevelDB's log of the newest changes is there. It begins the next one before it removes one."""
        if self._log is None or not self._log.exists():
            self._log = max((self._directory / DATABASE).glob("*.log"), default=None)
        return self._log is not None

    def close(self) -> None:
        """Let another process open the store."""
        os.close(self._fd)


def prepare(directory: Path) -> StoreIdentity:
    """Check a store before it is opened, under the lock; give a new store its identity.

    Raises:
        StorageCorrupt: a file is missing or changed since the last close, or another release wrote the store.
    """
    identity = examine(directory)
    if identity is None:
        identity = StoreIdentity(FORMAT, secrets.token_hex(16), complete=False)
        write_identity(directory, identity)
    return identity


def remove_beginnings(directory: Path) -> None:
    """Remove a database that was never made completely, and so never held data.

    LevelDB writes the name of its first manifest to CURRENT before it syncs the manifest. So a power cut may leave
    a manifest that LevelDB can't read.

    Raises StorageCorrupt: it holds more than its first row, so IDENTITY is not the one that belongs to it.
    """
    if sum(path.stat().st_size for path in data_files(directory)) > _BEGINNING_BYTES_MAX:
        raise corrupt(directory, f"{_IDENTITY} is that of a new store, but {DATABASE}/ holds data")
    shutil.rmtree(directory / DATABASE, ignore_errors=True)


def data_files(directory: Path) -> list[Path]:
    """Return LevelDB's logs and tables, the files that hold rows."""
    database = directory / DATABASE
    return [path for suffix in ("log", "ldb", "sst") for path in database.glob(f"*.{suffix}")]


def examine(directory: Path) -> StoreIdentity | None:
    """Check the files of a closed store without changing them; None: there is no store yet.

    Raises:
        StorageCorrupt: a file is missing or changed since the last close, or another release wrote the store.
    """
    identity = _read_identity(directory)
    database = directory / DATABASE
    names = sorted(path.name for path in database.iterdir()) if database.is_dir() else []
    if identity is None and names:
        raise corrupt(directory, f"{_IDENTITY} is missing beside {DATABASE}/")
    if identity is not None and identity.complete:
        _check_database(directory, names)
        _check_sizes(directory)
    return identity


def _read_identity(directory: Path) -> StoreIdentity | None:
    fields = _facts(directory, _IDENTITY)
    if fields is None:
        return None
    try:
        identity = StoreIdentity(**fields)
    except TypeError as error:
        raise corrupt(directory, f"{_IDENTITY} has other fields than it should") from error
    if tuple(map(type, identity)) != (int, str, bool) or not identity.store_id.isascii():
        raise corrupt(directory, f"{_IDENTITY} has fields of the wrong type")
    if identity.format != FORMAT:
        raise StorageCorrupt(_wrong_format(directory, identity.format))
    return identity


_FACTS_BYTES_MAX: Final = 1 << 16


def _facts(directory: Path, name: str) -> dict[str, Any] | None:
    """Return the facts in a file of ours; None: there is no such file. Raises StorageCorrupt."""
    path = directory / name
    try:
        if not path.is_file() and path.exists():  # A device or a pipe may have no end.
            raise corrupt(directory, f"{name} is {'a directory' if path.is_dir() else 'no file'}")
        with path.open("rb") as file:
            facts = json.loads(
                file.read(_FACTS_BYTES_MAX)
            )  # What is longer is cut, and so no JSON.
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise corrupt(directory, f"{name} can't be read") from error
    if not isinstance(facts, dict):
        raise corrupt(directory, f"{name} is no JSON object")
    return facts


def other_format(directory: Path) -> str | None:
    """Return the message for a store with another format; None: it has this format, or is damaged."""
    try:
        found = (_facts(directory, _IDENTITY) or {}).get("format")
    except StorageCorrupt:
        return None
    if type(found) is not int or found == FORMAT:
        return None
    return _wrong_format(directory, found)


def _wrong_format(directory: Path, found: int) -> str:
    return (
        f"the store in {directory} has format {found}; this release reads format {FORMAT} alone. Nothing was "
        "changed. Start the release that wrote it, or name another directory: broker serve --data-dir DIR"
    )


def _check_database(directory: Path, files: list[str]) -> None:
    database = directory / DATABASE
    if not files:
        raise corrupt(directory, f"{DATABASE}/ is missing or empty")
    try:
        manifest = torn_tail.current_of(database)
    except FileNotFoundError as error:
        raise corrupt(directory, f"{DATABASE}/CURRENT is missing") from error
    except ValueError as error:
        raise corrupt(directory, f"{DATABASE}/CURRENT can't be read") from error
    name = manifest.removesuffix("\n")
    if name == manifest or not name.startswith("MANIFEST-"):
        raise corrupt(directory, f"{DATABASE}/CURRENT names no manifest")
    if name not in files:
        raise corrupt(directory, f"{DATABASE}/{name}, which CURRENT names, is missing")


def _check_sizes(directory: Path) -> None:
    for what in changed_sizes(directory).values():
        raise corrupt(directory, f"{DATABASE}/{what}")


def changed_sizes(directory: Path) -> dict[str, str]:
    """Return what is wrong with each file whose size is not that of the last clean close. Raises StorageCorrupt."""
    expected, found = _facts(directory, _CLEAN) or {}, _sizes(directory)
    changed = {}
    for name, size in expected.items():
        if found.get(name) != size:
            what = "is missing" if name not in found else f"has {found[name]} bytes"
            changed[name] = f"{name} {what}; at the last close it had {size}"
    return changed


def _sizes(directory: Path) -> dict[str, int]:
    """Return the sizes of the files with data: all but LevelDB's LOCK and LOG."""
    return {
        path.name: path.stat().st_size
        for path in (directory / DATABASE).iterdir()
        if not path.name.startswith("LO")
    }


def write_identity(directory: Path, identity: StoreIdentity) -> None:
    """Write IDENTITY durably."""
    _replace(directory, _IDENTITY, json.dumps(identity._asdict()))


def mark_closed(directory: Path) -> None:
    """Write the sizes of all files to CLEAN, after the database was closed."""
    _replace(directory, _CLEAN, json.dumps(_sizes(directory)))


def was_closed(directory: Path) -> bool:
    """True if the last process closed the database."""
    return (directory / _CLEAN).exists()


def mark_open(directory: Path) -> bool:
    """Remove the note of the last clean close durably; return whether there was one.

    This is done before LevelDB opens the files, because LevelDB changes them. If the process died in between, a
    note that is left would report a healthy store as damaged.
    """
    note = directory / _CLEAN
    was_clean = note.exists()
    if was_clean:
        note.unlink()
        _sync_directory(directory)
    return was_clean


def _replace(directory: Path, name: str, text: str) -> None:
    temporary = directory / f"{name}.new"
    with _naming(temporary), open(temporary, "w", opener=_private_file) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(directory / name)
    _sync_directory(directory)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Add the path to the errors of writes and syncs, which name none: the operator must know which disk is full."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with _naming(directory):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def recovery_bytes(directory: Path) -> int:
    """Return how much disk space a reopen needs: LevelDB writes its logs out as tables."""
    return sum(path.stat().st_size for path in (directory / DATABASE).glob("*.log"))


def probe(directory: Path, size: int) -> None:
    """Write and sync ``size`` bytes beside the database, then remove them. Raises OSError."""
    path = directory / _PROBE
    try:
        with open(path, "wb", opener=_private_file) as file:
            file.writelines(
                _PROBE_CHUNK[: size - start] for start in range(0, size, len(_PROBE_CHUNK))
            )
            file.flush()
            os.fsync(file.fileno())
    finally:
        path.unlink(missing_ok=True)


def refuse_network_file_system(directory: Path) -> None:
    """Refuse a directory on a network file system: locks and syncs may not work. Raises Unavailable."""
    where = str(directory.resolve())
    best, kind = "", ""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, file_system, *_ = line.split(" ")
        inside = where == mount or where.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, file_system
    if kind in _NETWORK_FILE_SYSTEMS:
        raise Unavailable(
            f"{directory} lies on {kind}: a store needs a local disk, where locks exclude a second "
            "process and a sync reaches the disk"
        )
