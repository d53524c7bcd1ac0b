"""One cluster for all tests here: whoever breaks it leaves it well, or renews it first."""

from collections.abc import Iterator

import pytest

from broker.local import Sizes
from chaos.proxied_cluster import ChaosCluster
from tests.kit.fixtures import require

SESSION_MS = 4_000
"""So long that a busy machine does not end sessions by itself, which no test asks for."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[ChaosCluster]:
    """Three nodes and a spare one, each behind proxies of its own, with clocks that can be set."""
    for server in ("hbase", "toxiproxy"):
        require(server)
    settings = {"cluster.session_timeout_ms": SESSION_MS}
    with ChaosCluster(Sizes(nodes=3, spares=1), settings=settings) as cluster:
        yield cluster
