"""One cluster for all tests here. A test that breaks it mends it, or renews it first."""

from collections.abc import Iterator

import pytest

from broker.local import Sizes
from chaos.proxied_cluster import ChaosCluster
from tests.kit.fixtures import require

SESSION_MS = 4_000
"""So long that sessions do not expire only because the machine is busy."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[ChaosCluster]:
    """Three nodes and a spare one, each behind its own proxies, with clocks that can be set."""
    for server in ("hbase", "toxiproxy"):
        require(server)
    settings = {"cluster.session_timeout_ms": SESSION_MS}
    with ChaosCluster(Sizes(nodes=3, spares=1), settings=settings) as cluster:
        yield cluster
