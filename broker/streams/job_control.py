"""The control files of a running job: its status, and the request to stop it. They lie in its checkpoint's folder.

::

    DIR/job/status.json   the job's status, written again every few seconds
    DIR/job/stop          it exists if the job is asked to stop
    DIR/job/lock          locked by the process that runs the job, as long as the process lives

The lock shows whether the process lives, even if another process has got the same pid since. It also prevents a
second process from running the job.
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

from broker.errors import TaskFailed
from broker.small_files import beside, damaged, place, read_json, write_json

NAMES: Final = ("status.json", "stop", "lock")
LOCK_WAIT_S: Final = 1.0
"""The time for which ``locked`` tries to get the lock: ``is_locked`` of another process takes it for a moment."""
_TRY_S: Final = 0.05
_WRITTEN: Final = {"job", "state", "error", "pid", "host", "told_ms", "queries"}
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def folder_of(checkpoint: str, control: Path | None) -> Path:
    """Return the folder of the control files. Raises ValueError if the checkpoint is not on this machine."""
    if control is not None:
        return control / "job"
    path = checkpoint.removeprefix("file://").removeprefix("file:")
    if _SCHEME.match(path):
        raise ValueError(
            f"{checkpoint} is not a folder of this machine: name a folder for the job's status with --control DIR."
        )
    return Path(path) / "job"


class Control:
    """The control files of one job."""

    def __init__(self, folder: Path) -> None:
        """Use the files in ``folder``, which may not exist yet."""
        self.folder = folder
        self._status, self._stop, self._lock = (folder / name for name in NAMES)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock. Raises TaskFailed if another process runs the job."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._lock.open("a") as lock:
            if not _locked(lock.fileno(), fcntl.LOCK_EX, LOCK_WAIT_S):
                status = read_json(self._status) or {}
                raise TaskFailed(
                    f"the job runs already, as process {status.get('pid', 'unknown')} on {status.get('host', 'a host')}. "
                    f"Stop it with: broker streams stop {self.folder.parent}"
                )
            self._stop.unlink(missing_ok=True)  # It was meant for an earlier process.
            yield

    @property
    def is_locked(self) -> bool:
        """Return whether a process runs the job."""
        try:
            with self._lock.open() as lock:
                return not _locked(lock.fileno(), fcntl.LOCK_SH, 0)
        except FileNotFoundError:
            return False

    def write_status(self, status: dict[str, Any]) -> None:
        """Write the job's status; a reader sees it whole."""
        write_json(self._status, status)

    def read_status(self) -> dict[str, Any]:
        """Return the job's last status. Raises TaskFailed: no job has written it, or it is damaged."""
        status = read_json(self._status)
        if status is None:
            raise TaskFailed(
                f"{self.folder.parent} has no status of a job. Name the folder of the job's checkpoint, or the folder "
                "of its --control."
            )
        if not status.keys() >= _WRITTEN:
            raise damaged(self._status)
        return status

    @staticmethod
    def state_of(status: dict[str, Any], *, is_running: bool) -> str:
        """Return a job's state by its status, which says starting, running, ended, stopped or died; gone if its process is dead."""
        state = str(status["state"])
        return "gone" if state in {"starting", "running"} and not is_running else state

    def ask_to_stop(self) -> None:
        """Ask the process that runs the job to stop."""
        new = beside(self._stop, ".new")
        new.touch()
        place(new, self._stop)

    @property
    def is_asked_to_stop(self) -> bool:
        """Return whether the job was asked to stop."""
        return self._stop.is_file()


def _locked(lock: int, kind: int, wait_s: float) -> bool:
    """Lock an open file until it is closed; return whether the lock was free in time."""
    ends_s = time.monotonic() + wait_s
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


def here() -> dict[str, Any]:
    """Return the pid and host of this process."""
    return {"pid": os.getpid(), "host": os.uname().nodename}
