"""Nodes that can't rely on each other: a change of a topic, a claim and a read overlap on two of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.errors import OutcomeUnknown, TopicNotFound
from broker.model import Poll, TopicId
from broker.storage.keys import LogId
from broker.storage.table import Space
from broker.testing.virtual_time import pass_time
from broker.topics.registry import record_key
from chaos.bare import append
from tests.kit.bench import Gate, Hook, deaf_to_proofs, is_root
from tests.kit.topic_nodes import TopicCluster, TopicNode, on_nodes

TOPICS = [TopicId("ns", f"t{number}") for number in range(12)]
TOPIC = TOPICS[0]
LOG = LogId(TOPIC, 1)
TTL_S = 77


# Leading.


@on_nodes(2)
async def test_two_nodes_that_disagree_about_a_pin_do_not_duel(cluster: TopicCluster) -> None:
    home, other = await cluster.led(TOPIC)

    async def without_pins(real: Hook, space: Space, *arguments: Any, **named: Any) -> Any:
        found = await real(space, *arguments, **named)
        return [row for row in found if not row[0].startswith(b"pin/")]

    home.table.on("scan", *[without_pins] * 10_000)
    await cluster.move(TOPIC, other)
    acknowledged: list[bytes] = [b"first"]
    stop = cluster.loop.time() + 5

    async def insist(node: TopicNode, name: str) -> None:
        count = 0
        while cluster.loop.time() < stop:
            payload = f"{name}{count}".encode()
            await node.publish(TOPIC, payload)
            acknowledged.append(payload)
            count += 1
            await pass_time(0.01)

    await asyncio.gather(insist(home, "h"), insist(other, "o"))
    assert sorted(await other.payloads(TOPIC)) == sorted(acknowledged)
    found = (await other.logs.look(TOPIC)).writer
    assert found is not None
    assert found.epoch < 15, "each waits for the other"


@on_nodes(2)
async def test_ids_have_their_nodes_number_and_rise_over_all_nodes(cluster: TopicCluster) -> None:
    await cluster.create(TOPIC)
    for node in cluster.nodes * 2:
        await cluster.move(TOPIC, node)
        await node.publish(TOPIC, *[b"m"] * 300)
    ids = [message.id[:10] for message in await cluster.nodes[1].poll(TOPIC)]
    assert [row[8] for row in ids] == ([0] * 300 + [1] * 300) * 2
    assert ids == sorted(set(ids))


@on_nodes(2)
async def test_each_topic_is_swept_by_the_node_that_should_lead_it(cluster: TopicCluster) -> None:
    for topic in TOPICS:
        await cluster.create(topic, ttl_s=1)
        await cluster.publish(topic, b"old")
        await cluster.publish(topic, b"new")
    for topic in TOPICS[-2:]:
        await cluster.client.delete_topic(topic)
    await pass_time(10)
    reports = [await node.sweep() for node in cluster.nodes]
    assert [report.skipped for report in reports] == [0, 0]
    assert sum(report.topics for report in reports) == len(TOPICS)
    assert all(report.topics for report in reports)
    assert sum(report.rows for report in reports) == 2 * len(TOPICS)


# Changes of a topic.


class HeldUpdate:
    """An update of TOPIC's lifetime at its leader, which is held up just before it writes the topic's record."""

    def __init__(
        self, cluster: TopicCluster, home: TopicNode, *, is_forwarded: bool = True
    ) -> None:
        self.gate = Gate()
        self.puts = 0
        """How often the topic's record was written."""
        for each in cluster.nodes:
            each.table.on("record", *[self._put] * 100)
        new = {"ttl": str(TTL_S)}
        self.done: asyncio.Future[Any] = asyncio.ensure_future(
            cluster.via(home).set_topic(TOPIC, new)
            if is_forwarded
            else home.run(home.topics.update(TOPIC, new))
        )

    async def _put(
        self, real: Hook, space: Space, row: bytes, *arguments: Any, **named: Any
    ) -> Any:
        if row != record_key(TOPIC):
            return await real(space, row, *arguments, **named)
        self.puts += 1
        if not self.gate.reached.is_set():
            return await self.gate.before(real, space, row, *arguments, **named)
        return await real(space, row, *arguments, **named)


async def check_lifetime(node: TopicNode) -> None:
    """Publish at a node, and find that the message lives for as long as the update said."""
    await node.publish(TOPIC, b"mortal")
    await pass_time(TTL_S - 1)
    assert (await node.payloads(TOPIC))[-1:] == [b"mortal"]
    await pass_time(2)
    assert await node.payloads(TOPIC) == []


@pytest.mark.parametrize("is_claimed_before", [True, False])
@on_nodes(2)
async def test_an_update_that_overlaps_a_claim_elsewhere_reaches_the_new_leader(
    cluster: TopicCluster, *, is_claimed_before: bool
) -> None:
    home, other = await cluster.led(TOPIC)
    update = HeldUpdate(cluster, home)
    await update.gate.reached.wait()
    if is_claimed_before:
        cluster.sim.coordination.deafen(home.session)
    await cluster.pin(TOPIC, other)
    await pass_time(0.1)
    publishing = other.begin_publish(TOPIC, b"second")
    await pass_time(1.5 if is_claimed_before else 0.5)
    assert publishing.done() is is_claimed_before
    update.gate.open()
    await asyncio.gather(update.done, publishing)
    assert update.puts == 1, "the new leader only reads what the former one wrote"
    await check_lifetime(other)


@on_nodes(2)
async def test_an_update_is_written_once_though_its_leader_is_fenced_meanwhile(
    cluster: TopicCluster,
) -> None:
    home, other = await cluster.led(TOPIC)
    update = HeldUpdate(cluster, home)
    await update.gate.reached.wait()
    await other.logs.claim(LOG, "stranger")
    update.gate.open()
    await update.done
    assert update.puts == 1
    await check_lifetime(home)


@on_nodes(2)
async def test_a_written_update_is_not_refused_because_no_node_leads(cluster: TopicCluster) -> None:
    home, other = await cluster.led(TOPIC)
    update = HeldUpdate(cluster, home, is_forwarded=False)
    await update.gate.reached.wait()
    await other.logs.claim(LOG, "stranger")
    cluster.sim.coordination.outage()
    update.gate.open()
    with pytest.raises(OutcomeUnknown):
        await update.done
    assert (await other.topics.get(TOPIC)).ttl_s == TTL_S


@on_nodes(1)
async def test_a_claim_that_began_before_the_topic_was_created_again_finds_the_new_one(
    cluster: TopicCluster,
) -> None:
    (node,) = cluster.nodes
    await cluster.create(TOPIC)
    gate = Gate()

    async def look(real: Hook, space: Space, *arguments: Any, **named: Any) -> Any:
        if space is not Space.MESSAGES or gate.reached.is_set():
            return await real(space, *arguments, **named)
        return await gate.before(real, space, *arguments, **named)

    node.table.on("get", *[look] * 20)
    publishing = node.begin_publish(TOPIC, b"m")
    await gate.reached.wait()
    await node.topics.delete(TOPIC)
    await node.topics.create(TOPIC, {"ttl": "9"})
    gate.open()
    await publishing
    assert (await node.topics.get(TOPIC)).generation == 2
    assert await node.payloads(TOPIC) == [b"m"]


@on_nodes(3)
async def test_a_delete_whose_node_died_before_it_wrote_the_record_is_finished(
    cluster: TopicCluster,
) -> None:
    home, _ = await cluster.led(TOPIC)
    gate = Gate()
    home.table.on("record", gate.before)
    deleting = asyncio.ensure_future(home.run(home.topics.delete(TOPIC)))
    await gate.reached.wait()
    home.machine.kill()
    for node in (node for node in cluster.nodes if node is not home):
        with pytest.raises(TopicNotFound):
            await node.poll(TOPIC)
        with pytest.raises(TopicNotFound):
            await cluster.via(node).publish(TOPIC, b"after its end")
    deleting.cancel()


# Reads.


@on_nodes(2)
async def test_the_node_that_created_a_topic_reads_by_its_present_record(
    cluster: TopicCluster,
) -> None:
    creator, other = cluster.nodes
    await cluster.move(TOPIC, creator)
    await creator.topics.create(TOPIC, {"ttl": "5"})
    await cluster.move(TOPIC, other)
    await other.topics.update(TOPIC, {"ttl": "600"})
    await other.publish(TOPIC, b"m")
    await pass_time(20)
    assert await creator.payloads(TOPIC) == [b"m"]


@on_nodes(1)
async def test_a_leader_reads_storage_if_its_proof_gets_no_answer(cluster: TopicCluster) -> None:
    node, _ = await cluster.led(TOPIC)
    deaf, failed = deaf_to_proofs(2)
    node.table.on("get", *[deaf] * 10)
    assert await node.payloads(TOPIC) == [b"first"]
    assert len(failed) == 2
    assert node.leads(TOPIC)


@pytest.mark.parametrize("claims_itself", [True, False])
@on_nodes(2)
async def test_no_commit_is_missed_between_a_look_into_storage_and_a_claim(
    cluster: TopicCluster, *, claims_itself: bool
) -> None:
    """A poll waits at a node that claims the topic meanwhile. A commit lies between its look and the claim."""
    home, stranger = cluster.nodes
    await cluster.create(TOPIC)
    await cluster.move(TOPIC, home)
    hold = await stranger.logs.claim(LOG, "stranger")
    gate = Gate()

    async def look(real: Hook, space: Space, row: bytes, columns: Any) -> Any:
        if space is Space.MESSAGES and not is_root(row):
            home.table.forget_hooks()
            return await gate.after(real, space, row, columns)
        return await real(space, row, columns)

    if claims_itself:
        home.table.on("head", gate.before)
    else:
        home.table.on("get", *[look] * 8)
    polling = asyncio.ensure_future(home.run(home.topics.poll(TOPIC, Poll(), wait_s=20)))
    await gate.reached.wait()
    around = stranger.topics.around
    ids = around.log_keys(0).take(1, home.now_ms(), around.clock.monotonic() * 1000)
    await append(hold, ids, [b"between"])
    if not claims_itself:
        await home.topics.leaders.lead(TOPIC, around.clock.monotonic() + 5)
    gate.open()
    before = cluster.loop.time()
    assert not (await polling).empty
    assert cluster.loop.time() - before < 0.1
