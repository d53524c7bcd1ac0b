"""Which processes belong to a cluster's folder, whoever started them, and how they are ended.

Each process writes its own id to a file before it becomes the program, so a process that somebody has
killed and started again is found as well as the first one::

    DIR/processes/NAME.json    what is run: {"argv", "env"}
    DIR/pids/NAME.pid          who ran it last: a number
    DIR/ended                  there while the cluster ends, and from then on

A number alone says little once a process has ended, for the kernel gives numbers again. So a process
counts as the cluster's only if its command line or its environment names the folder.

Somebody may start a process just while the cluster ends. So a process that starts first writes its id and
then looks whether the cluster has ended; whoever ends the cluster first says so and then looks who runs. Of
the two at least one sees the other, and nothing is left over.
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
    """Return where a process writes its id."""
    return folder / "pids" / f"{name}.pid"


def write_pid(folder: Path, name: str, pid: int) -> None:
    """Say which process is ``name`` now; in one step, since others may read."""
    file = pid_file(folder, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    written = file.with_suffix(f".{pid}.tmp")
    written.write_text(f"{pid}\n")
    written.rename(file)


def live_pid(folder: Path, name: str) -> int | None:
    """Return the id of the process ``name`` if it lives, also if it is stopped."""
    try:
        pid = int(pid_file(folder, name).read_text())
    except (FileNotFoundError, ValueError):
        return None
    return pid if _belongs(folder, pid) else None


def live(folder: Path) -> dict[str, int]:
    """Return the ids of all processes of a folder that live, by name."""
    names = sorted(file.stem for file in (folder / "pids").glob("*.pid"))
    found = {name: live_pid(folder, name) for name in names}
    return {name: pid for name, pid in found.items() if pid is not None}


def begin(folder: Path) -> None:
    """Let processes of a folder start."""
    (folder / "ended").unlink(missing_ok=True)


def begin_end(folder: Path) -> None:
    """Let no process of a folder start any more; those that ``live`` does not name then never will."""
    if folder.exists():
        (folder / "ended").touch()


def has_ended(folder: Path) -> bool:
    """Whether a folder's cluster ends, or has ended. To be asked after ``write_pid``."""
    return (folder / "ended").exists()


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal; one that has ended needs none."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def freeze(pid: int, timeout_s: float) -> None:
    """Stop a process; it stands when the kernel has reached all its threads. Raises TimeoutError."""
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
    """Ask processes to end, also stopped ones, and kill those that have not after ``grace_s``.

    Returns:
        Those that had to be killed.
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
    """Wait until processes have ended, whoever their parent is.

    Returns:
        Those that are still there after ``timeout_s``.
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
    """Return the kernel's letter for the state of a process: T is frozen, Z and X have ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _belongs(folder: Path, pid: int) -> bool:
    mark = os.fsencode(folder)
    told = Path(f"/proc/{pid}")
    try:
        command = (told / "cmdline").read_bytes()
        named = mark in command or mark in (told / "environ").read_bytes()
    except OSError:
        return False
    # One that has ended has no command line, and one that just becomes another program has none yet.
    return named or (not command and kernel_state(pid) not in "ZX")
