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
import json
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from broker.cli.output import size_text
from broker.errors import TaskFailed
from broker.small_files import beside, damaged, place, read_json, write_json

if TYPE_CHECKING:
    from broker.streams.state_view import StateEntry


NAMES: Final = ("status.json", "stop", "lock")
LOCK_WAIT_S: Final = 1.0
"""The time for which ``held`` tries to get the lock: ``is_held`` of another process takes it for a moment."""
_TRY_S: Final = 0.05
_WRITTEN: Final = {"job", "state", "error", "pid", "host", "told_ms", "queries"}
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def folder_of(checkpoint: str, control: Path | None) -> Path:
    """Return the folder of the control files. Raises click.UsageError if the checkpoint is not on this machine."""
    if control is not None:
        return control / "job"
    path = checkpoint.removeprefix("file://").removeprefix("file:")
    if _SCHEME.match(path):
        raise click.UsageError(
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
    def held(self) -> Iterator[None]:
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
    def is_held(self) -> bool:
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


def state_of(status: dict[str, Any], *, is_held: bool) -> str:
    """Return a job's state: starting, running, ended, stopped or died by its status; gone if its process is dead."""
    state = str(status["state"])
    return "gone" if state in {"starting", "running"} and not is_held else state


def here() -> dict[str, Any]:
    """Return the pid and host of this process."""
    return {"pid": os.getpid(), "host": os.uname().nodename}


HEADS: Final = (
    *("END", "STATE", "BATCH", "READ/s", "PUBLISHED/s", "LAG", "WATERMARK"),
    *("LATE", "SKIPPED", "STATE ROWS", "STATE SIZE"),
)
JobStatus = Mapping[str, Any]


def line(status: JobStatus) -> str:
    """Return a job's status in one line, summed over its ends."""
    queries = status["queries"]
    lags = [query["lag_s"] for query in queries if query["lag_s"] is not None]
    batches = [query["batch"] for query in queries if query["batch"] is not None]
    parts = (
        f"{status['job']} {status['state']}",
        f"batch {max(batches)}" if batches else "no batch yet",
        f"read {sum(query['read_per_s'] for query in queries):,.0f}/s",
        f"published {sum(query['published_per_s'] for query in queries):,.0f}/s",
        f"lag {_lag(max(lags, default=None)) or 'unknown'}",
        f"late {sum(query['late'] for query in queries):,}",
        f"skipped {sum(query['skipped'] for query in queries):,}",
        f"state {size_text(sum(query['state_bytes'] for query in queries))}",
    )
    return "  ".join(parts)


def head(status: JobStatus, now_ms: int) -> str:
    """Return a job's state as a sentence."""
    age_s = max(0, now_ms - status["told_ms"]) // 1000
    process = f"process {status['pid']} on {status['host']}"
    match status["state"]:
        case "gone":
            return (
                f"{status['job']} is gone: {process} does not exist any more; its last status is {age_s:,} s old. "
                "Run the job again: it continues"
            )
        case "died":
            return f"{process} ended {age_s:,} s ago: {status['error']}"
        case "stopped" | "ended":
            return f"{status['job']} {status['state']} {age_s:,} s ago ({process})"
        case state:
            return f"{status['job']} is {state}: {process}, status {age_s:,} s old"


def rows(status: JobStatus) -> Sequence[Sequence[str]]:
    """Return a row for each end, with the columns of ``HEADS``."""
    return [_row(query, has_process=status["state"] == "running") for query in status["queries"]]


def _row(query: JobStatus, *, has_process: bool) -> Sequence[str]:
    state = "runs" if query["is_running"] and has_process else "does not run"
    return (
        query["name"],
        "died" if query["error"] else state,
        "" if query["batch"] is None else str(query["batch"]),
        f"{query['read_per_s']:,.1f}",
        f"{query['published_per_s']:,.1f}",
        _lag(query["lag_s"]),
        query["watermark"] or "",
        f"{query['late']:,}",
        f"{query['skipped']:,}",
        f"{query['state_rows']:,}",
        size_text(query["state_bytes"]),
    )


def _lag(lag_s: float | None) -> str:
    return "" if lag_s is None else f"{lag_s:,.1f} s"


STATE_HEADS: Final = ("OPERATOR", "KEY", "WINDOW", "KEPT")


def state_rows(entries: Sequence[StateEntry]) -> Sequence[Sequence[str]]:
    """Return a row for each entry, with the columns of ``STATE_HEADS``."""
    return [
        (each.operator, _text(each.key), _window(each.window), _fields(each.kept))
        for each in entries
    ]


def _window(window: Mapping[str, str] | None) -> str:
    return "" if window is None else f"{window['start']} to {window['end']}"


def _fields(kept: Any) -> str:
    if isinstance(kept, dict):
        return ", ".join(f"{name}={_text(value)}" for name, value in kept.items())
    return _text(kept)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
