"""Wrong clocks in a cluster: with a storage server's clock only its topics are refused; with its own clock a node leaves."""

from __future__ import annotations

import pytest

from broker.client import Client
from broker.client.outcomes import ClockSkew
from broker.testing.virtual_time import pass_time
from tests.kit.http_cluster import HttpCluster, on_cluster

OFF_MS = 3_000
TOPICS = [f"t{number}" for number in range(12)]


async def published(client: Client) -> list[str]:
    """Publish to every topic; return the topics that took the message. The others were refused because of clocks."""
    taken = []
    for topic in TOPICS:
        try:
            await client.publish(topic, "message")
        except ClockSkew:
            continue
        taken.append(topic)
    return taken


@pytest.mark.simulation
@pytest.mark.parametrize("off_ms", [-OFF_MS, OFF_MS])
@on_cluster(nodes=3, topic=False)
async def test_no_node_leaves_because_of_a_storage_servers_wrong_clock(
    cluster: HttpCluster, off_ms: int
) -> None:
    async with cluster.client(0, deadline_s=2) as client:
        for topic in TOPICS:
            await client.create_topic(topic)
        cluster.sim.table.clocks_ms = (0, off_ms)
        taken = await published(client)
        assert 0 < len(taken) < len(TOPICS)
        for topic in taken:
            assert [message.payload for message in await client.poll(topic)] == [b"message"]
        assert not any(machine.is_skewed for machine in cluster.machines)
        cluster.sim.table.clocks_ms = (0, 0)
        await pass_time(10)
        assert await published(client) == TOPICS


@pytest.mark.simulation
@on_cluster(nodes=3, topic=False)
async def test_a_node_with_a_wrong_clock_leaves_and_the_others_go_on(cluster: HttpCluster) -> None:
    async with cluster.client(0) as client:
        for topic in TOPICS:
            await client.create_topic(topic)
        cluster.machines[1].wall.step(OFF_MS)
        await pass_time(120)  # A node follows a step of its clock only after a while.
        assert await published(client) == TOPICS
        assert [machine.is_skewed for machine in cluster.machines] == [False, True, False]
