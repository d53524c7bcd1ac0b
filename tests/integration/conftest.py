"""One set of nodes for all tests here that can share one: each leaves it well."""

from collections.abc import Iterator

import pytest

from broker.local import LocalCluster, Sizes
from broker.local.servers import HBaseServer

SESSION_MS = 2_000
"""So short that a node that is killed or asleep is soon succeeded."""


@pytest.fixture(scope="session")
def shared_cluster(shared_hbase: HBaseServer) -> Iterator[LocalCluster]:
    """Three nodes, with a ZooKeeper of their own, on the HBase that all tests share."""
    settings = {"cluster.session_timeout_ms": SESSION_MS}
    with LocalCluster(Sizes(nodes=3), hbase=shared_hbase, settings=settings) as cluster:
        yield cluster
