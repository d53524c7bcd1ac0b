"""Groups of tests for parallel workers: tests that share servers are one group; other groups fill the gaps.

A session has one HBase, one ZooKeeper and one set of nodes. All tests that share them are one group, and one worker runs
it. Tests that share the original's server are another group, and so are tests that share a Spark. Tests that measure an
attacked broker are one group, beside tests that only compute and give way to them. Each other file is its own group; a
free worker takes the next. So with ``pytest -n 3`` all workers end at about the same time, and two cores
are busy while tests of the cluster or of Spark wait for a process::

    worker 1   cluster ──────────────────────────────────────────────────── unit ...
    worker 2   original ── docs ── integration ── ... ── attacks ───────────────── unit ...
    worker 3   spark ──────────────────────── integration ── simulation ── tidy ── unit ...

Without ``-n``, all tests run one after the other, in the same order.
"""

from __future__ import annotations

import os

import pytest
from xdist.scheduler import LoadScopeScheduling

CLUSTER = (
    "tests/contract/test_hbase_",
    "tests/contract/test_zookeeper_",
    "tests/integration/test_hbase_",  # They count HBase's calls, so no node may use it yet.
    "tests/integration/test_cluster_",
    "tests/integration/test_compose",
    "tests/integration/test_local_cluster",
    "tests/chaos/test_cases.py::TestOnACluster::",
    "tests/chaos/test_hooks",
    "tests/chaos/test_run",
)
"""The tests that share HBase, ZooKeeper or nodes, in this order."""
ORIGINAL = ("tests/conformance/", "tests/integration/test_servers")
SPARK = "tests/integration/spark/"
ATTACKS = "tests/integration/attacks/"
COMPUTING = ("tests/model/", "tests/simulation/", "tests/tidy/", "tests/unit/")
SHARED = {
    "cluster": {"hbase_server", "shared_cluster", "shared_hbase"},
    "original": {"java_client", "tms_server"},
    "spark": {"spark"},
}
"""The fixtures of shared servers, by group."""
NICENESS = 5
NICENESS_OF_COMPUTING = 10
"""Other tests give way, so that no deadline of a cluster passes because of them."""


def group_of(nodeid: str) -> str:
    """Return the group of a test."""
    if nodeid.startswith(CLUSTER):
        return "cluster"
    if nodeid.startswith(SPARK):
        return "spark"
    if nodeid.startswith(ATTACKS):
        return "attacks"
    return "original" if nodeid.startswith(ORIGINAL) else nodeid.partition("::")[0]


def place_of(nodeid: str) -> tuple[int, int]:
    """Return a test's place in the order: the longest groups come first, tests that only compute come last."""
    if group_of(nodeid) == "cluster":
        return 0, next(place for place, start in enumerate(CLUSTER) if nodeid.startswith(start))
    if group_of(nodeid) == "original":
        return 1, 0
    if group_of(nodeid) == "spark":
        return 1, 1
    if group_of(nodeid) == "attacks":
        return 2, 1
    return (3, 0) if nodeid.startswith(COMPUTING) else (2, 0)


def niceness_of(nodeid: str) -> int:
    """Return the process priority of a test; a higher number gives way to others."""
    if group_of(nodeid) == "cluster":
        return 0
    return NICENESS_OF_COMPUTING if nodeid.startswith(COMPUTING) else NICENESS


class Groups(LoadScopeScheduling):  # type: ignore[misc]  # It has no types.
    """Gives each group to one worker, in the order in which tests were collected."""

    def __init__(self, config: pytest.Config, log: object) -> None:
        """Keep the order of the collected tests."""
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_configure(config: pytest.Config) -> None:
    """Let a worker's tests see the same environment as they do without workers."""
    if hasattr(config, "workerinput"):
        # The line editor of pytest sets these variables. With them a child process would believe that it has a terminal.
        for name in ("COLUMNS", "LINES"):
            os.environ.pop(name, None)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the groups. Raises UsageError for a test that would start a shared server twice."""
    for item in items:
        group, fixtures = group_of(item.nodeid), set(getattr(item, "fixturenames", ()))
        for other, shared in SHARED.items():
            if group != other and fixtures & shared:
                raise pytest.UsageError(
                    f"{item.nodeid} belongs into the group {other!r} (groups.py)"
                )
    items.sort(key=lambda item: place_of(item.nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Groups:
    """Distribute tests by group, whatever ``--dist`` says."""
    return Groups(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Lower the priority of one of several workers for tests without a cluster. It is never raised again."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1 and (more := niceness_of(item.nodeid) - os.nice(0)) > 0:
        os.nice(more)
