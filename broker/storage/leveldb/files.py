"""The directory of a LevelDB table: what lies in it, who may open it, what can be told before opening.

::

    DIR/LOCK        held (flock) by the process that has the table open; holds its process id
    DIR/IDENTITY    JSON: format, store id, whether the database was completely made once
    DIR/CLEAN       JSON: the sizes of all files in db/ after the last clean close; gone while open
    DIR/probe       being written and synced now, to see whether the disk takes writes again
    DIR/db/         LevelDB's own files
    DIR/check-…     a snapshot that is being verified

LevelDB makes a new, empty database where CURRENT is missing, and takes a log whose end is gone for the
log of a process that died. So IDENTITY tells beside the database whether one *should* be here, and a clean
close leaves the sizes of its files. CLEAN goes, durably, before LevelDB is let at the files: whenever the
process dies, the note is either true or gone.

All of it is for the user alone that the process runs as: it is every message. The directory's mode, 0700, guards
LevelDB's own files, which the umask makes.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import stat
from pathlib import Path
from typing import NamedTuple

from broker.errors import StorageCorrupt, Unavailable

FORMAT = 4
"""The version of the whole layout of a store. No other is read."""

DATABASE = "db"
SNAPSHOT = "check-"
"""What the name of a folder with a snapshot begins with."""
_IDENTITY, _CLEAN, _LOCK, _PROBE = "IDENTITY", "CLEAN", "LOCK", "probe"
_OWN_NAMES = frozenset({_IDENTITY, _CLEAN, _LOCK, _PROBE, DATABASE})
PRIVATE = 0o700
"""The mode of a directory with a store."""
_PRIVATE_FILE = 0o600
_PROBE_CHUNK = bytes(1 << 20)
_NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs"})


class StoreIdentity(NamedTuple):
    """The name of a store, and of its layout."""

    format: int
    store_id: str
    complete: bool


def format_row(identity: StoreIdentity) -> bytes:
    """Return the value at FORMAT_KEY, which says the same as IDENTITY."""
    return f"{identity.format} {identity.store_id}".encode()


def corrupt(directory: Path, what: str) -> StorageCorrupt:
    """Return the error for a damaged store, which says what to do about it."""
    return StorageCorrupt(
        f"the store in {directory} is damaged: {what}. Nothing was changed. "
        f"See what is wrong with: broker storage verify {directory}"
    )


def is_store(directory: Path) -> bool:
    """True if anything of a store lies there, however damaged. Nothing is made or locked."""
    return any((directory / name).exists() for name in (_IDENTITY, DATABASE))


def make_private(directory: Path) -> None:
    """Make a directory that no other user may enter; one with wider rights that is the store's alone loses them."""
    directory.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    if not is_private(directory) and _is_ours(directory):
        directory.chmod(stat.S_IMODE(directory.stat().st_mode) & PRIVATE)


def is_private(directory: Path) -> bool:
    """True if no other user may enter a directory."""
    return not directory.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)


def _is_ours(directory: Path) -> bool:
    """True if a directory belongs to this user, and holds nothing but a store."""
    if directory.stat().st_uid != os.geteuid():
        return False
    names = (path.name.removesuffix(".new") for path in directory.iterdir())
    return all(name in _OWN_NAMES or name.startswith(SNAPSHOT) for name in names)


def _private_file(path: str, flags: int) -> int:
    """Open a file, which is for this user alone if it is made now."""
    return os.open(path, flags, _PRIVATE_FILE)


class DirectoryLock:
    """The right to open a store, held until closed."""

    def __init__(self, directory: Path) -> None:
        """Take the lock. Raises Unavailable if another process has it."""
        self._fd = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE_FILE)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._fd)
            raise Unavailable(
                f"the store in {directory} is in use by another process (pid {holder})"
            ) from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Let another process open the store."""
        os.close(self._fd)


def prepare(directory: Path) -> StoreIdentity:
    """Check what can be checked before opening, under the lock; give a new store its identity.

    Raises:
        StorageCorrupt: something is missing or not as it was left, or another release wrote it.
    """
    identity = examine(directory)
    if identity is None:
        identity = StoreIdentity(FORMAT, secrets.token_hex(16), complete=False)
        write_identity(directory, identity)
    return identity


def remove_beginnings(directory: Path) -> None:
    """Remove a database that was never completely made, and so never held anything.

    LevelDB does not sync its first manifest before it names it, so a power cut may leave one that it
    can't read.
    """
    shutil.rmtree(directory / DATABASE, ignore_errors=True)


def examine(directory: Path) -> StoreIdentity | None:
    """Check what can be checked of a closed store, and change nothing; None: there is no store yet.

    Raises:
        StorageCorrupt: something is missing or not as it was left, or another release wrote it.
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
    try:
        text = (directory / _IDENTITY).read_text()
    except FileNotFoundError:
        return None
    try:
        identity = StoreIdentity(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise corrupt(directory, f"{_IDENTITY} can't be read") from error
    if identity.format != FORMAT:
        raise StorageCorrupt(_wrong_format(directory, identity.format))
    return identity


def other_format(directory: Path) -> str | None:
    """Return what to do about a store that another release wrote; None: it is of this format, or damaged."""
    try:
        found = json.loads((directory / _IDENTITY).read_text())["format"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    is_other = isinstance(found, int) and found != FORMAT
    return _wrong_format(directory, found) if is_other else None


def _wrong_format(directory: Path, found: int) -> str:
    if found > FORMAT:
        return (
            f"the store in {directory} has format {found}, written by a newer release; this one "
            f"reads format {FORMAT}. Nothing was changed. Start the newer release"
        )
    return (
        f"the store in {directory} has format {found}, of before the first release; this one reads "
        f"format {FORMAT} and can't convert it. Nothing was changed. Move the directory away or "
        "remove it, and the next start makes a new, empty store"
    )


def _check_database(directory: Path, files: list[str]) -> None:
    database = directory / DATABASE
    if not files:
        raise corrupt(directory, f"{DATABASE}/ is missing or empty")
    try:
        manifest = (database / "CURRENT").read_text()
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
    try:
        text = (directory / _CLEAN).read_text()
    except FileNotFoundError:
        return
    try:
        expected: dict[str, int] = json.loads(text)
    except ValueError as error:
        raise corrupt(directory, f"{_CLEAN} can't be read") from error
    found = _sizes(directory)
    for name, size in expected.items():
        if found.get(name) != size:
            what = "is missing" if name not in found else f"has {found[name]} bytes"
            raise corrupt(directory, f"{DATABASE}/{name} {what}; it was closed with {size}")


def _sizes(directory: Path) -> dict[str, int]:
    """Return the sizes of the files that hold data; LevelDB's own notes and lock don't."""
    return {
        path.name: path.stat().st_size
        for path in (directory / DATABASE).iterdir()
        if not path.name.startswith("LO")
    }


def write_identity(directory: Path, identity: StoreIdentity) -> None:
    """Write IDENTITY durably."""
    _replace(directory, _IDENTITY, json.dumps(identity._asdict()))


def mark_closed(directory: Path) -> None:
    """Leave the sizes of all files, after the database was closed."""
    _replace(directory, _CLEAN, json.dumps(_sizes(directory)))


def was_closed(directory: Path) -> bool:
    """True if the last process closed the database."""
    return (directory / _CLEAN).exists()


def mark_open(directory: Path) -> bool:
    """Remove the note of the last clean close, durably; return whether there was one.

    This comes before LevelDB opens the files: it changes them, and a process that died between would
    leave a note that accuses a healthy store.
    """
    note = directory / _CLEAN
    was_clean = note.exists()
    if was_clean:
        note.unlink()
        _sync_directory(directory)
    return was_clean


def _replace(directory: Path, name: str, text: str) -> None:
    temporary = directory / f"{name}.new"
    with open(temporary, "w", opener=_private_file) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(directory / name)
    _sync_directory(directory)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def recovery_bytes(directory: Path) -> int:
    """Return how much room opening again needs: LevelDB writes its logs out as tables."""
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
    """Refuse a directory whose lock or syncs may mean nothing. Raises Unavailable."""
    where = str(directory.resolve())
    best, kind = "", ""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, file_system, *_ = line.split(" ")
        inside = where == mount or where.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, file_system
    if kind in _NETWORK_FILE_SYSTEMS:
        raise Unavailable(
            f"{directory} lies on {kind}: a store needs a local disk, where a lock keeps a second "
            "process out and a sync reaches the disk"
        )
