"""Find out if other programs used the processor during a timed run.

The kernel counts the time of all cores (``/proc/stat``) and of each process. The time of all cores without that of our
own processes is the time of other programs::

    others = (user + nice + system) of the machine - ours - kernel threads
    stolen = time in which another guest of the same host had a core of ours

Interrupts do not count, as the disk and loopback traffic of a run causes them. Kernel threads do not count for the same
reason: they write our pages to disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

OTHERS_MAX = 0.10
"""The most cores that other programs together may use on average in a kept run."""
STOLEN_MAX = 0.10
"""The most cores that the host may steal on average in a kept run."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_KERNEL_PARENT = 2


class Snapshot(NamedTuple):
    """Seconds of processor time so far."""

    elapsed_s: float
    machine_s: float
    stolen_s: float
    kernel_threads_s: float
    processes_s: dict[int, float]


def snapshot(elapsed_s: float, processes: Iterable[int]) -> Snapshot:
    """Read the counters of the machine and of our processes."""
    with Path("/proc/stat").open() as stat:
        user, nice, system, _, _, _, _, steal, *_ = map(int, stat.readline().split()[1:])
    return Snapshot(
        elapsed_s,
        (user + nice + system) / _TICKS_PER_S,
        steal / _TICKS_PER_S,
        _kernel_threads_s(),
        {pid: process_s(pid) for pid in processes},
    )


def process_s(pid: int) -> float:
    """Return the processor time of a process and its ended children, in seconds; 0 if it is gone."""
    fields = _stat_fields(pid)
    return sum(map(int, fields[11:15])) / _TICKS_PER_S


def objection(before: Snapshot, after: Snapshot) -> str:
    """Return why a run between two snapshots does not count; empty if it counts."""
    elapsed_s = after.elapsed_s - before.elapsed_s
    ours_s = sum(after.processes_s[pid] - before.processes_s[pid] for pid in after.processes_s)
    kernel_s = after.kernel_threads_s - before.kernel_threads_s
    others = (after.machine_s - before.machine_s - ours_s - kernel_s) / elapsed_s
    stolen = (after.stolen_s - before.stolen_s) / elapsed_s
    reasons = []
    if others > OTHERS_MAX:
        reasons.append(f"others used {others:.2f} cores (more than {OTHERS_MAX})")
    if stolen > STOLEN_MAX:
        reasons.append(f"{stolen:.2f} cores were stolen (more than {STOLEN_MAX})")
    return ", ".join(reasons)


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` after the name, which may hold spaces."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _kernel_threads_s() -> float:
    ticks = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            fields = _stat_fields(int(entry.name))
            if fields and int(fields[1]) == _KERNEL_PARENT:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_PER_S
