"""The folder of fetched servers, and the keys by which it has the right version of each.

    .servers/                         or $BROKER_SERVERS_DIR; never in git
      lock                            one fetch at a time, also between checkouts that share the folder
      tms-3f2a9c41d07b/               NAME-KEY; complete or absent: a fetch renames it into place at its end
      tms.log                         the output of the last fetch

The key is a hash of all inputs that decide the contents: a Maven project's files, or a pinned version. So a changed
recipe is fetched again. For an unchanged recipe it is enough to check that the folder exists.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[3]
_KEY_DIGITS = 12


class ServerMissing(Exception):
    """A server is not on this machine; the message is one line with advice."""


def cache_folder() -> Path:
    """Return the folder of fetched servers: ``$BROKER_SERVERS_DIR``, else ``.servers`` in the checkout."""
    chosen = os.environ.get("BROKER_SERVERS_DIR")
    return Path(chosen).resolve() if chosen else _CHECKOUT / ".servers"


def java_project(name: str) -> Path:
    """Return the Maven project of a server.

    Raises:
        ServerMissing: This is an installation, without ``tests/java`` of a checkout.
    """
    project = _CHECKOUT / "tests" / "java" / name
    if not (project / "pom.xml").is_file():
        message = f"the Maven project {project} does not exist; run from a source checkout"
        raise ServerMissing(message)
    return project


def key_of_files(project: Path) -> str:
    """Return a key over the names and contents of all files below a folder."""
    digest = hashlib.sha256()
    for path in sorted(p for p in project.rglob("*") if p.is_file()):
        digest.update(f"{path.relative_to(project)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:_KEY_DIGITS]


def place(name: str, key: str) -> Path:
    """Return the folder of the server ``name`` with this key; it may not exist."""
    return cache_folder() / f"{name}-{key}"


@contextmanager
def locked() -> Iterator[None]:
    """Hold the lock of the cache; other processes that fetch wait here."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(target: Path, make: Callable[[Path], None]) -> None:
    """Let ``make`` fill a new folder, then rename it to ``target``.

    The caller holds the lock. An interrupted fetch leaves nothing at ``target``. This function first removes
    unfinished folders of killed fetches. At the end it removes the folders of older keys.
    """
    name = target.name.rpartition("-")[0]
    for left in target.parent.glob(f".{name}--*"):
        shutil.rmtree(left, ignore_errors=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{name}--", dir=target.parent))
    try:
        make(unfinished)
        unfinished.chmod(0o755)
        unfinished.rename(target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    for older in target.parent.glob(f"{name}-*"):
        if older != target and len(older.name) == len(target.name):
            shutil.rmtree(older, ignore_errors=True)
