"""Two lanes of tests, side by side: those that start servers, and those that only compute.

The first mostly wait for their servers, and must not wait for each other's: there is one of each for a whole
session. The second need nothing but a processor, so with ``pytest -n 2`` they get what the first leave over::

    worker 1   servers     chaos ── conformance ── contract ── docs ── integration
    worker 2   computing   benchmarks ── model ── simulation ── tidy ── unit

Without ``-n``, all is done one after the other.
"""

from __future__ import annotations

import os

import pytest
from xdist.scheduler import LoadScopeScheduling

COMPUTING = ("tests/benchmarks/", "tests/model/", "tests/simulation/", "tests/tidy/", "tests/unit/")
NICENESS = 10
"""Of the computing lane: a server's deadline shall not pass because something else is computed."""


def lane_of(nodeid: str) -> str:
    """Return the lane of a test."""
    return "computing" if nodeid.startswith(COMPUTING) else "servers"


class Lanes(LoadScopeScheduling):  # type: ignore[misc]  # It has no types.
    """Gives each lane to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        return lane_of(nodeid)


def pytest_configure(config: pytest.Config) -> None:
    """Let a worker's tests see the same environment as they do without workers."""
    if hasattr(config, "workerinput"):
        # Set for its children by the line editor that pytest loads: to a program it would be a terminal.
        for name in ("COLUMNS", "LINES"):
            os.environ.pop(name, None)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Lanes:
    """Distribute tests by lane, whatever ``--dist`` says."""
    return Lanes(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Let a worker of its own that computes stand back."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1 and lane_of(item.nodeid) == "computing" and not os.nice(0):
        os.nice(NICENESS)
