"""The faults of the public ``Cluster``: each has its effect, and ``heal`` ends it."""

from __future__ import annotations

import pytest

from broker.client import BrokerError, Client
from broker.testing import Cluster, simulated

pytestmark = pytest.mark.simulation


@simulated(seed=1)
async def test_leaders_go_on_without_a_coordinator_and_failover_waits_for_it() -> None:
    async with Cluster(nodes=3) as cluster:
        client = cluster.client(deadline_s=5)
        await client.create_topic("log")
        await client.publish("log", "before")
        leader = await cluster.leader("log")
        cluster.lose_coordinator()
        await client.publish("log", "meanwhile")
        cluster.kill(leader)
        with pytest.raises(BrokerError):
            await client.publish("log", "no leader", idempotency_key="again")
        cluster.heal()
        await cluster.settled()
        await client.publish("log", "no leader", idempotency_key="again")
        payloads = [message.payload for message in await client.poll("log")]
        assert payloads == [b"before", b"meanwhile", b"no leader"]


@simulated(seed=2)
async def test_a_node_that_is_stopped_hands_over_and_serves_again_when_it_is_started() -> None:
    async with Cluster(nodes=2) as cluster:
        client = cluster.client()
        await client.create_topic("log")
        await client.publish("log", "one")
        leader = await cluster.leader("log")
        cluster.stop(leader)
        await client.publish("log", "two")
        assert await cluster.leader("log") == 1 - leader
        with pytest.raises(TimeoutError):
            await cluster.settled()
        cluster.start(leader)
        await cluster.settled()


@simulated(seed=3)
async def test_a_paused_node_loses_its_topics_and_learns_of_it() -> None:
    async with Cluster(nodes=3) as cluster:
        client = cluster.client()
        await client.create_topic("log")
        first = await client.publish("log", "one")
        leader = await cluster.leader("log")
        cluster.pause(leader)
        second = await client.publish("log", "two", idempotency_key="two")
        assert await cluster.leader("log") != leader
        cluster.resume(leader)
        await cluster.pass_time(1)
        await client.publish("log", "three")
        assert first.leader is not None
        assert second.leader is not None
        assert (second.leader.epoch or 0) > (first.leader.epoch or 0)
        assert len(await client.poll("log")) == 3


@simulated(seed=4)
async def test_clients_that_are_cut_off_reach_no_node_until_a_heal() -> None:
    async with Cluster(nodes=2) as cluster:
        client = cluster.client(deadline_s=3)
        await client.create_topic("log")
        cluster.partition(["clients"], [0, 1])
        with pytest.raises(BrokerError):
            await client.publish("log", "cut off", idempotency_key="k")
        cluster.heal()
        await client.publish("log", "cut off", idempotency_key="k")
        assert len(await client.poll("log")) == 1


@simulated(seed=5)
async def test_clients_that_are_made_after_the_partition_are_cut_off_too() -> None:
    async with Cluster(nodes=1) as cluster:
        cluster.partition(["clients"], [0])
        with pytest.raises(BrokerError):
            await cluster.client(deadline_s=3).create_topic("log")
        async with Client(list(cluster.urls), deadline_s=3) as own:
            with pytest.raises(BrokerError):
                await own.create_topic("log")
            cluster.heal()
            await own.create_topic("log")


async def test_a_cluster_needs_virtual_time() -> None:
    with pytest.raises(RuntimeError, match="simulated"):
        Cluster()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda cluster: cluster.kill(-1), "no node -1. The nodes are numbered from 0 to 1"),
        (lambda cluster: cluster.stop(2), "no node 2"),
        (lambda cluster: cluster.partition([0], ["client"]), "no node 'client'"),
        (lambda cluster: cluster.partition([0]), "two groups"),
        (lambda cluster: cluster.partition([0], [0, 1]), "one group only"),
        (lambda _: Cluster(nodes=0), "at least one node"),
    ],
)
@simulated()
async def test_a_fault_that_would_have_no_effect_is_refused(wrong, told) -> None:
    """A test with such a fault would pass, and prove nothing."""
    async with Cluster(nodes=2) as cluster:
        with pytest.raises(ValueError, match=told):
            wrong(cluster)
        for seconds in (-1, float("nan")):
            with pytest.raises(ValueError, match="seconds is a number"):
                await cluster.pass_time(seconds)


def test_a_decorator_without_parentheses_or_on_a_plain_test_is_refused() -> None:
    async def test() -> None:
        """A test that does nothing."""

    with pytest.raises(TypeError, match=r"with parentheses: @simulated\(\)"):
        simulated(test)  # type: ignore[arg-type]
    plain = simulated()(lambda: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="A simulated test is asynchronous: write async def"):
        plain()
