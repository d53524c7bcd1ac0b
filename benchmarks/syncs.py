"""Count syncs: how many the machine can do, and how many messages a server acknowledges for each sync."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import tempfile
import time
from array import array
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.load import Load

PAYLOAD_BYTES = 256
_CALLS = "fsync,fdatasync,msync,sync_file_range"
_COUNTED = re.compile(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)$", re.MULTILINE)


class SyncFile:
    """A file for appends and syncs, like a log."""

    def __init__(self, folder: Path) -> None:
        self._handle, name = tempfile.mkstemp(dir=folder)
        self._path = Path(name)
        self._payload = os.urandom(PAYLOAD_BYTES)

    def sync(self) -> int:
        """Append and sync; return the time in nanoseconds."""
        began_ns = time.perf_counter_ns()
        os.write(self._handle, self._payload)
        os.fdatasync(self._handle)
        return time.perf_counter_ns() - began_ns

    def close(self) -> None:
        """Remove the file."""
        os.close(self._handle)
        self._path.unlink()


def raw_syncs(folder: Path, seconds: float) -> Load:
    """Append 256 bytes and sync, one after the other."""
    file = SyncFile(folder)
    taken = array("q")
    began = time.perf_counter()
    try:
        while time.perf_counter() - began < seconds:
            taken.append(file.sync())
    finally:
        file.close()
    return Load(len(taken), time.perf_counter() - began, taken)


async def acks_per_sync(
    pid: int, load: Callable[[float], Awaitable[Load]], seconds: float
) -> float | None:
    """Run a load while strace counts the server's syncs; return units a sync, None if strace can't count.

    Such a run is slower, so it is not one of the timed runs.
    """
    if shutil.which("strace") is None:
        return None
    command = ("strace", "-f", "-c", "-e", f"trace={_CALLS}", "-p", str(pid))
    tracer = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert tracer.stderr is not None
    line = await tracer.stderr.readline()  # strace has attached, or prints why it can't.
    if b"attached" not in line:
        tracer.kill()
        await tracer.wait()
        return None
    try:
        given = await load(seconds)
    finally:
        tracer.send_signal(signal.SIGINT)
        report = (await tracer.stderr.read()).decode()
        await tracer.wait()
    syncs = sum(int(count) for count, call in _COUNTED.findall(report) if call != "total")
    return given.units / syncs if syncs else None
