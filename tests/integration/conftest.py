"""One set of nodes for all tests that can share it. Each test leaves all nodes running."""

from collections.abc import Iterator

import pytest

from broker.local import LocalCluster, Sizes
from broker.local.servers import HBaseServer

SESSION_MS = 2_000
"""So short that another node soon takes over from a killed or paused node."""


@pytest.fixture(scope="session")
def shared_cluster(shared_hbase: HBaseServer) -> Iterator[LocalCluster]:
    """Three nodes with their own ZooKeeper, on the HBase that all tests share."""
    settings = {"cluster.session_timeout_ms": SESSION_MS}
    with LocalCluster(Sizes(nodes=3), hbase=shared_hbase, settings=settings) as cluster:
        yield cluster
