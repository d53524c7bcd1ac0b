"""Keeps a core from halting: spins with the lowest priority there is, so that it yields to anyone.

On a virtual machine a core that halts is given back to the host, and each wake-up then waits for the host
and counts as stolen time; what would be measured is the host. ``python -m benchmarks.keep_awake CORE``
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path


def main(core: int) -> None:
    """Spin until killed."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    # Where the kernel shares cores between sessions first, the lowest priority is one within a session.
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text("19")
    os.sched_setaffinity(0, {core})
    while True:
        pass


if __name__ == "__main__":
    main(int(sys.argv[1]))
