"""The files by which a job that runs tells how far it is, and is asked to stop; they lie beside its checkpoint.

::

    DIR/job/status.json   how far it is, written anew every few seconds
    DIR/job/stop          it is asked to stop
    DIR/job/lock          locked by the process that runs the job, for as long as it lives

The lock tells whether the process is there, also where another has got its number since, and lets no second one begin.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from broker.cli.transfer.sidecars import beside, place, read_json, write_json

NAMES: Final = ("status.json", "stop", "lock")
PATIENCE_S: Final = 1.0
"""How long the lock is tried: somebody who looks has it for a moment."""
_TRY_S: Final = 0.05
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def folder_of(checkpoint: str, control: Path | None) -> Path:
    """Return the folder of these files. Raises click.UsageError if the checkpoint is not on this machine."""
    if control is not None:
        return control / "job"
    path = checkpoint.removeprefix("file://").removeprefix("file:")
    if _SCHEME.match(path):
        raise click.UsageError(
            f"{checkpoint} is no folder of this machine: say with --control DIR where the job's status may lie."
        )
    return Path(path) / "job"


class Control:
    """The files of one job."""

    def __init__(self, folder: Path) -> None:
        """Look at a folder, which need not be there."""
        self.folder = folder
        self._status, self._stop, self._lock = (folder / name for name in NAMES)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock. Raises click.ClickException if another process runs the job."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._lock.open("a") as lock:
            if not _locked(lock.fileno(), fcntl.LOCK_EX, PATIENCE_S):
                told = read_json(self._status) or {}
                raise click.ClickException(
                    f"the job runs already, as process {told.get('pid', 'unknown')} on {told.get('host', 'a host')}. "
                    f"Stop it with: broker streams stop {self.folder.parent}"
                )
            self._stop.unlink(missing_ok=True)  # It was for a process before.
            yield

    @property
    def is_held(self) -> bool:
        """Whether a process runs the job."""
        try:
            with self._lock.open() as lock:
                return not _locked(lock.fileno(), fcntl.LOCK_SH, 0)
        except FileNotFoundError:
            return False

    def tell(self, status: dict[str, Any]) -> None:
        """Write how far the job is; a reader sees the whole of it."""
        write_json(self._status, status)

    def told(self) -> dict[str, Any]:
        """Return how far the job is, or was. Raises click.ClickException if none was run with these files."""
        status = read_json(self._status)
        if status is None:
            raise click.ClickException(
                f"no job was run with its status in {self.folder.parent}. Name the folder of its checkpoint, or of "
                "--control."
            )
        return status

    def ask_to_stop(self) -> None:
        """Ask the process that runs the job to stop it."""
        new = beside(self._stop, ".new")
        new.touch()
        place(new, self._stop)

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether that was asked."""
        return self._stop.is_file()


def _locked(lock: int, kind: int, patience_s: float) -> bool:
    """Lock a file that is open, until it is closed; return whether that was possible."""
    ends_s = time.monotonic() + patience_s
    pause = threading.Event()
    while True:
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= ends_s:
                return False
            pause.wait(_TRY_S)
        else:
            return True


def state_of(told: dict[str, Any], *, is_held: bool) -> str:
    """Return the state of a job: starting, running, ended, stopped or died as it was told; gone if no process has it."""
    state = str(told["state"])
    return "gone" if state in {"starting", "running"} and not is_held else state


def here() -> dict[str, Any]:
    """Return which process this is."""
    return {"pid": os.getpid(), "host": os.uname().nodename}
