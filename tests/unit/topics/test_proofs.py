"""A former leader that does not know of the next one answers nothing from memory. Concurrent requests share a proof."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from broker.errors import TopicNotFound
from broker.model import LOG_KEY_MIN, Poll, TopicId
from broker.testing.mutants import in_force
from broker.testing.virtual_time import pass_time
from broker.topics.browse import BrowseQuery
from tests.kit.bench import Gate, deaf_to_proofs
from tests.kit.topic_nodes import TopicCluster, TopicNode, on_nodes

TOPIC = TopicId("ns", "t")
NOTHING = LOG_KEY_MIN + bytes(10)


async def former_leader(cluster: TopicCluster, ttl_s: int = 600) -> tuple[TopicNode, TopicNode]:
    """Return a leader that does not know that its session has ended, and the node that may lead now."""
    home, other = await cluster.led(TOPIC)
    await home.topics.update(TOPIC, {"ttl": str(ttl_s)})
    home.machine.cut_session(0.1)
    await pass_time(0.3)
    return home, other


async def ttl_s(node: TopicNode) -> int:
    return (await node.topics.get(TOPIC)).ttl_s


async def generation(node: TopicNode) -> int:
    return (await node.topics.get(TOPIC)).generation


async def published(node: TopicNode) -> int:
    return (await node.topics.stats(TOPIC)).published


async def browsed(node: TopicNode) -> int:
    return len((await node.topics.browse(TOPIC, BrowseQuery())).entries)


async def lag(node: TopicNode) -> int:
    return await node.topics.lag(TOPIC, NOTHING)


@on_nodes(2)
async def test_a_former_leader_shows_a_changed_ttl_at_once(cluster: TopicCluster) -> None:
    home, other = await former_leader(cluster)
    await other.topics.update(TOPIC, {"ttl": "77"})
    assert home.leads(TOPIC), "it has not noticed yet"
    assert await ttl_s(home) == 77


@on_nodes(2)
async def test_without_the_proof_a_former_leader_shows_the_old_ttl(cluster: TopicCluster) -> None:
    home, other = await former_leader(cluster)
    await other.topics.update(TOPIC, {"ttl": "77"})
    with in_force("proof"):
        assert await ttl_s(home) == 600


@on_nodes(2)
async def test_a_poll_of_a_former_leader_uses_the_changed_ttl(cluster: TopicCluster) -> None:
    home, other = await former_leader(cluster)
    await other.topics.update(TOPIC, {"ttl": "1"})
    await pass_time(1.1)
    assert home.leads(TOPIC), "it has not noticed yet"
    assert await home.payloads(TOPIC) == []


@on_nodes(2)
async def test_a_poll_of_a_former_leader_without_a_proof_uses_the_changed_ttl(
    cluster: TopicCluster,
) -> None:
    home, other = await former_leader(cluster, ttl_s=1)
    await other.topics.update(TOPIC, {"ttl": "77"})
    await pass_time(1.1)
    deaf, failed = deaf_to_proofs(2)
    home.table.on("get", *[deaf] * 20)
    assert await home.payloads(TOPIC) == [b"first"]
    assert len(failed) == 2
    assert home.leads(TOPIC), "it has not noticed yet"


@on_nodes(2)
async def test_a_poll_of_a_former_leader_shows_the_newest_message(cluster: TopicCluster) -> None:
    home, other = await former_leader(cluster)
    await other.publish(TOPIC, b"second")
    assert home.leads(TOPIC), "it has not noticed yet"
    with in_force("proof"):
        assert await home.payloads(TOPIC) == [b"first"]
    assert await home.payloads(TOPIC) == [b"first", b"second"]
    assert not home.leads(TOPIC)


@on_nodes(2)
async def test_a_former_leader_does_not_find_a_deleted_topic(cluster: TopicCluster) -> None:
    home, other = await former_leader(cluster)
    await other.topics.delete(TOPIC)
    assert home.leads(TOPIC), "it has not noticed yet"
    for ask in (generation, published, browsed, lag):
        with pytest.raises(TopicNotFound):
            await ask(home)
    with pytest.raises(TopicNotFound):
        await home.poll(TOPIC)


@pytest.mark.parametrize(("ask", "told"), [(generation, 2), (published, 1), (browsed, 1), (lag, 1)])
@on_nodes(2)
async def test_a_former_leader_describes_the_new_generation(
    cluster: TopicCluster, ask: Callable[[TopicNode], Awaitable[int]], told: int
) -> None:
    home, other = await former_leader(cluster)
    await other.topics.delete(TOPIC)
    await other.topics.create(TOPIC, {"ttl": "600"})
    await other.publish(TOPIC, b"new")
    assert home.leads(TOPIC), "it has not noticed yet"
    assert await ask(home) == told


@on_nodes(2)
async def test_a_poll_of_a_former_leader_shows_the_new_generation(cluster: TopicCluster) -> None:
    home, other = await former_leader(cluster)
    (old,) = await other.poll(TOPIC)
    await other.topics.delete(TOPIC)
    await other.topics.create(TOPIC, {"ttl": "600"})
    await other.publish(TOPIC, b"new")
    assert home.leads(TOPIC), "it has not noticed yet"
    found = await home.poll(TOPIC, Poll(old.id, inclusive=False))
    assert [message.payload for message in found] == [b"new"]


@pytest.mark.parametrize("ask", [published, browsed, lag])
@on_nodes(2)
async def test_a_former_leader_counts_messages_of_the_new_leader(
    cluster: TopicCluster, ask: Callable[[TopicNode], Awaitable[int]]
) -> None:
    home, other = await former_leader(cluster)
    await other.publish(TOPIC, b"second")
    assert home.leads(TOPIC), "it has not noticed yet"
    assert await ask(home) == 2


@on_nodes(1)
async def test_many_reads_share_a_proof(cluster: TopicCluster) -> None:
    """Requests that come while a proof is in flight share the next one."""
    node, _ = await cluster.led(TOPIC)
    await node.poll(TOPIC)  # It has compared its clock.
    gate = Gate()
    node.table.calls.clear()
    node.table.on("get", gate.before)
    first = asyncio.ensure_future(ttl_s(node))
    await gate.reached.wait()
    reads = [asyncio.ensure_future(ttl_s(node)) for _ in range(200)]
    polls = [asyncio.ensure_future(node.poll(TOPIC)) for _ in range(200)]
    await pass_time(0.1)
    gate.open()
    await asyncio.gather(first, *reads, *polls)
    assert set(node.table.calls) == {"get"}
    assert len(node.table.calls) <= 3
