"""Nodes that tests share: a cluster for the session, and a standalone node for each file that asks for it."""

from collections.abc import Iterator

import pytest

from broker.local import LocalCluster, Sizes
from broker.testing.hbase_server import HBaseServer
from tests.kit.commands import Run, in_this_process
from tests.kit.served import ServedNode

SESSION_MS = 2_000
"""So short that another node soon takes over from a killed or paused node."""


@pytest.fixture(scope="session")
def shared_cluster(shared_hbase: HBaseServer) -> Iterator[LocalCluster]:
    """Three nodes with their own ZooKeeper, on the HBase that all tests share. Each test leaves them running."""
    settings = {"cluster.session_timeout_ms": SESSION_MS}
    with LocalCluster(Sizes(nodes=3), gateway=shared_hbase.gateway, settings=settings) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def node() -> Iterator[ServedNode]:
    """A standalone node; every test uses its own topics."""
    with ServedNode() as node:
        yield node


@pytest.fixture
def run(
    node: ServedNode, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """A function that runs a command in this process, for the node."""
    monkeypatch.setenv("BROKER_URL", node.url)
    return in_this_process(capfd, monkeypatch)
