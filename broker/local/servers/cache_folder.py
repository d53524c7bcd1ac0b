"""Where fetched servers live, and how one knows that what lies there is what is asked for.

    .servers/                         or $BROKER_SERVERS_DIR; never in git
      lock                            one fetch at a time, also between checkouts that share it
      tms-3f2a9c41d07b/               NAME-KEY, complete, or absent: renamed into place at the end
      tms.log                         what the last fetch of it printed

The key is a hash of everything that decides the contents (a Maven project's files, a pinned
version), so a changed recipe is fetched anew and an unchanged one costs a look at a folder.
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
    """A server is not on this machine; the message is one line and says what to do."""


def cache_folder() -> Path:
    """The folder of fetched servers: ``$BROKER_SERVERS_DIR``, else ``.servers`` in the checkout."""
    chosen = os.environ.get("BROKER_SERVERS_DIR")
    return Path(chosen).resolve() if chosen else _CHECKOUT / ".servers"


def java_project(name: str) -> Path:
    """The Maven project of a server.

    Raises:
        ServerMissing: This is an installation without the checkout's ``tests/java``.
    """
    project = _CHECKOUT / "tests" / "java" / name
    if not (project / "pom.xml").is_file():
        message = f"the Maven project {project} is not here; run from a source checkout"
        raise ServerMissing(message)
    return project


def key_of_files(project: Path) -> str:
    """A key over the names and contents of all files below a folder."""
    digest = hashlib.sha256()
    for path in sorted(p for p in project.rglob("*") if p.is_file()):
        digest.update(f"{path.relative_to(project)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:_KEY_DIGITS]


def place(name: str, key: str) -> Path:
    """The folder in which the server ``name`` made from ``key`` lies, if it is there."""
    return cache_folder() / f"{name}-{key}"


@contextmanager
def locked() -> Iterator[None]:
    """Hold the cache: another process that fetches waits here."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(target: Path, make: Callable[[Path], None]) -> None:
    """Let ``make`` fill a new folder, then put it at ``target`` in one step.

    A fetch that is interrupted leaves nothing at ``target``, and what a killed one left beside it
    goes now (the caller holds the lock); folders of older keys of the same name go at the end.
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
