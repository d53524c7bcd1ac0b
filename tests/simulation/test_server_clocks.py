"""Clocks in a whole cluster: a storage server's that is off costs its topics alone, a node's own the node."""

from __future__ import annotations

import pytest

from broker.client import Client
from broker.client.outcomes import ClockSkew
from broker.testing import Cluster, simulated

OFF_MS = 3_000
TOPICS = [f"t{number}" for number in range(12)]


async def published(client: Client) -> list[str]:
    """Publish to every topic; return those that take messages. All others are refused because of clocks."""
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
def test_a_storage_server_whose_clock_is_off_makes_no_node_leave(off_ms: int) -> None:
    @simulated(seed=1)
    async def scenario() -> None:
        async with Cluster(nodes=3) as cluster:
            inner, client = cluster._cluster, cluster.client(deadline_s=2)
            for topic in TOPICS:
                await client.create_topic(topic)
            inner.table.clocks_ms = (0, off_ms)
            taken = await published(client)
            assert 0 < len(taken) < len(TOPICS)
            for topic in taken:
                assert [message.payload for message in await client.poll(topic)] == [b"message"]
            assert not any(machine.is_skewed for machine in inner.machines)
            inner.table.clocks_ms = (0, 0)
            await cluster.pass_time(10)
            assert await published(client) == TOPICS

    scenario()


@pytest.mark.simulation
def test_a_node_whose_own_clock_is_off_leaves_and_the_others_go_on() -> None:
    @simulated(seed=1)
    async def scenario() -> None:
        async with Cluster(nodes=3) as cluster:
            inner, client = cluster._cluster, cluster.client()
            for topic in TOPICS:
                await client.create_topic(topic)
            inner.machines[1].wall.step(OFF_MS)
            await cluster.pass_time(120)  # A step is believed once it has lasted.
            assert await published(client) == TOPICS
            assert [machine.is_skewed for machine in inner.machines] == [False, True, False]

    scenario()
