"""Three nodes on an HBase and a ZooKeeper that lose their processes, under load.

HBase runs as separate processes here: only a kill of the process that wrote a message shows that an acknowledged write is
on disk. Requests may end with *unknown*, because replacing a region server takes longer than a request may wait. Every
acknowledged message must be there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from broker.client import Client
from broker.local import LocalCluster, Member, Sizes
from broker.local.servers import zookeeper
from broker.testing.local_state import state_of
from tests.kit.load import ClusterLoad

pytestmark = [
    pytest.mark.integration,
    pytest.mark.server("hbase"),
    pytest.mark.slow,
    pytest.mark.timeout(400),
]

BACK_S = 120.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(Sizes(nodes=3, gateways=2, zookeepers=3)) as one:
        yield one


def gateway(cluster: LocalCluster) -> Member:
    return cluster.gateways[0]


def region_server(cluster: LocalCluster) -> Member:
    return cluster.region_servers[0]


def leading_zookeeper(cluster: LocalCluster) -> Member:
    return next(
        one
        for one in cluster.zookeepers
        if "Mode: leader" in zookeeper.ask(one.place.host, one.place.port, "srvr")
    )


@pytest.mark.parametrize("victim", [gateway, region_server, leading_zookeeper])
async def test_no_acknowledged_message_is_lost_with_a_process_below_the_nodes(
    cluster: LocalCluster, victim: Callable[[LocalCluster], Member]
) -> None:
    urls = cluster.urls
    topics = [f"beneath/{victim.__name__}-{number}" for number in range(2)]
    async with ClusterLoad(
        urls, topics, state=lambda: state_of(cluster), deadline_s=BACK_S
    ) as work:
        await work.acknowledged(100)
        async with Client(urls) as client:
            before = [(await client.leader(topic)).node for topic in topics]
        member = victim(cluster)
        await asyncio.to_thread(member.kill)
        if member.kind.value != "hbase-regionserver":
            await work.acknowledged(50, BACK_S)
        await asyncio.to_thread(member.start)
        await work.acknowledged(100, BACK_S)
        async with Client(urls) as client:
            after = [(await client.leader(topic)).node for topic in topics]
    verdict = work.verdict
    assert verdict.violations == (), (work.counts, work.errors[-5:])
    assert verdict.is_known
    # Faults below the nodes do not move topics.
    assert after == before
