"""Find and end the processes that belong to a cluster's folder, however they were started.

Each process writes its pid to a file before it becomes the program. So a process that was killed and started again
by hand is found like the first one::

    DIR/processes/NAME.json    the command: {"argv", "env"}
    DIR/pids/NAME.pid          the pid of its last process
    DIR/ended                  exists from the beginning of the cluster's end on

The kernel gives the pid of an ended process to another one later. So a process counts as the cluster's only if its
command line or its environment contains the folder.

A process may start at the moment when the cluster ends. A starting process first writes its pid, and then checks
whether the cluster has ended. ``LocalCluster`` first marks the cluster as ended, and then lists its processes. So at
least one of the two sees the other, and no process is left over.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def pid_file(folder: Path, name: str) -> Path:
    """Return the path of a process's pid file."""
    return folder / "pids" / f"{name}.pid"


def write_pid(folder: Path, name: str, pid: int) -> None:
    """Store the pid of ``name``, atomically, since others may read the file."""
    file = pid_file(folder, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    written = file.with_suffix(f".{pid}.tmp")
    written.write_text(f"{pid}\n")
    written.rename(file)


def live_pid(folder: Path, name: str) -> int | None:
    """Return the pid of ``name`` if it lives, also if it is frozen; else None."""
    try:
        pid = int(pid_file(folder, name).read_text())
    except (FileNotFoundError, ValueError):
        return None
    return pid if _belongs(folder, pid) else None


def live(folder: Path) -> dict[str, int]:
    """Return the pids of all live processes of a folder, by name."""
    names = sorted(file.stem for file in (folder / "pids").glob("*.pid"))
    found = {name: live_pid(folder, name) for name in names}
    return {name: pid for name, pid in found.items() if pid is not None}


def begin(folder: Path) -> None:
    """Allow processes of a folder to start."""
    (folder / "ended").unlink(missing_ok=True)


def begin_end(folder: Path) -> None:
    """Forbid further starts in a folder. A process that ``live`` does not return afterwards will never start."""
    if folder.exists():
        (folder / "ended").touch()


def has_ended(folder: Path) -> bool:
    """Return whether a folder's cluster is ending or has ended. Call this after ``write_pid``."""
    return (folder / "ended").exists()


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal; do nothing if the process has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def freeze(pid: int, timeout_s: float) -> None:
    """Freeze a process, and wait until the kernel has stopped all its threads. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    send(pid, signal.SIGSTOP)
    while (state := kernel_state(pid)) not in "TX":
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"process {pid} is in state {state}, not frozen, after {timeout_s} s"
            )
        pause.wait(0.001)


def end(pids: Iterable[int], number: signal.Signals, grace_s: float) -> list[int]:
    """Ask processes to end, also frozen ones, and kill those that still live after ``grace_s``.

    Returns:
        The pids of the killed processes.
    """
    ending = set(pids)
    for pid in ending:
        send(pid, number)
        send(pid, signal.SIGCONT)
    killed = sorted(await_ends(ending, grace_s))
    for pid in killed:
        send(pid, signal.SIGKILL)
    await_ends(killed, grace_s)
    return killed


def await_ends(pids: Iterable[int], timeout_s: float) -> set[int]:
    """Wait until processes have ended; they need not be children of this process.

    Returns:
        The pids of those that still live after ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    opened: dict[int, int] = {}
    waiting = select.poll()
    try:
        for pid in pids:
            with suppress(ProcessLookupError):
                handle = os.pidfd_open(pid)
                opened[handle] = pid
                waiting.register(handle, select.POLLIN)
        left = dict(opened)
        while left and (rest_s := deadline - time.monotonic()) > 0:
            for handle, _ in waiting.poll(rest_s * 1000):
                waiting.unregister(handle)
                del left[handle]
        return set(left.values())
    finally:
        for handle in opened:
            os.close(handle)


def kernel_state(pid: int) -> str:
    """Return the kernel's letter for the state of a process: T is frozen; Z and X have ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _belongs(folder: Path, pid: int) -> bool:
    mark = os.fsencode(folder)
    process = Path(f"/proc/{pid}")
    try:
        command = (process / "cmdline").read_bytes()
        named = mark in command or mark in (process / "environ").read_bytes()
    except OSError:
        return False
    # A process that has ended has no command line. A process that is replacing its program has none for a moment;
    # it counts as the cluster's.
    return named or (not command and kernel_state(pid) not in "ZX")
