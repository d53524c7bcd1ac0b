"""A topic moves between two nodes, at moments that no scenario file can name (tests/simulation/scenarios)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from broker.errors import NotLeader, OutcomeUnknown
from broker.model import Poll, PublishRequest, Snapshot, TopicId
from broker.storage.keys import LogId
from broker.testing.virtual_time import pass_time, within
from broker.topics.settings import PublishOptions
from tests.kit.bench import Gate
from tests.kit.topic_nodes import TopicCluster, on_nodes

TOPIC = TopicId("ns", "t")


@on_nodes(2)
async def test_a_leader_appends_what_it_has_accepted_before_it_hands_a_topic_over(
    cluster: TopicCluster,
) -> None:
    home, other = await cluster.led(TOPIC)
    gate = Gate()
    home.table.on("append", gate.before, gate.before)
    accepted = [home.begin_publish(TOPIC, b"accepted")]
    await gate.reached.wait()
    accepted.append(home.begin_publish(TOPIC, b"queued"))
    await pass_time(0.01)
    await cluster.move(TOPIC, other)
    with pytest.raises(NotLeader) as caught:
        await home.publish(TOPIC, b"late")
    assert (caught.value.node, caught.value.url) == (other.instance, other.machine.url)
    assert not any(publish.done() for publish in accepted)
    gate.open()
    await asyncio.gather(*accepted)
    await cluster.publish(TOPIC, b"later")
    assert await other.payloads(TOPIC) == [b"first", b"accepted", b"queued", b"later"]


@on_nodes(2)
async def test_a_leader_that_ends_during_the_hand_over_answers_at_once(
    cluster: TopicCluster,
) -> None:
    home, other = await cluster.led(TOPIC)
    opened = asyncio.Event()

    async def lose(*_: Any, **__: Any) -> None:
        await opened.wait()
        raise OutcomeUnknown("lost")

    home.table.on("append", lose, lose)
    publishing = []
    for number in range(4):
        options = PublishOptions(key=f"key {number}")
        publishing.append(asyncio.ensure_future(home.publish(TOPIC, b"n", options=options)))
        await pass_time(0.01)
    await cluster.pin(TOPIC, other)
    await pass_time(0.1)
    opened.set()
    answers = asyncio.gather(*publishing, return_exceptions=True)
    answered = await within(1, answers, lambda: f"{[one.done() for one in publishing]}")
    assert [type(answer) for answer in answered] == [OutcomeUnknown] + [NotLeader] * 3


@on_nodes(2)
async def test_a_topic_that_moves_unused_is_claimed_at_once(cluster: TopicCluster) -> None:
    """A node pauses before a claim only after another node has taken the topic from it."""
    await cluster.create(TOPIC)
    for turn in range(12):
        node = cluster.nodes[turn % 2]
        await cluster.move(TOPIC, node)
        assert (await node.topics.poll(TOPIC, Poll(), wait_s=0.1)).empty
        assert node.leads(TOPIC)


@on_nodes(2)
async def test_a_poll_may_wait_at_a_node_that_does_not_lead(cluster: TopicCluster) -> None:
    """A node does this if it reaches no leader."""
    home, other = await cluster.led(TOPIC)
    (first,) = await other.poll(TOPIC)
    poll = Poll(first.id, inclusive=False)
    with pytest.raises(NotLeader):
        await other.topics.poll(TOPIC, poll, wait_s=5)
    waiting = asyncio.ensure_future(other.topics.poll(TOPIC, poll, wait_s=5, anywhere=True))
    await pass_time(2)
    await home.publish(TOPIC, b"second")
    before = cluster.loop.time()
    assert not (await waiting).empty
    assert cluster.loop.time() - before < 1.1
    stream = await other.topics.poll(TOPIC, Poll(1 << 42), wait_s=3, anywhere=True)
    assert stream.empty


@on_nodes(2)
async def test_a_poll_that_waits_where_no_leader_is_ends_when_a_transaction_holds_it(
    cluster: TopicCluster,
) -> None:
    home, other = await cluster.led(TOPIC)
    (first,) = await other.poll(TOPIC)
    poll = Poll(first.id, inclusive=False, snapshot=Snapshot(transaction_id=9, read_pointer=9))
    waiting = asyncio.ensure_future(other.topics.poll(TOPIC, poll, wait_s=60, anywhere=True))
    await pass_time(2)
    pointer = home.now_ms() * 1_000_000
    await home.topics.publish(TOPIC, PublishRequest(pointer, [b"held"]))
    before = cluster.loop.time()
    stream = await waiting
    assert (stream.empty, stream.blocked_by) == (True, pointer)
    assert cluster.loop.time() - before < 1.1


@on_nodes(2)
async def test_a_claim_that_takes_longer_than_the_hand_over_is_handed_over_after_it(
    cluster: TopicCluster,
) -> None:
    await cluster.create(TOPIC)
    home, other = cluster.nodes
    await cluster.move(TOPIC, home)
    gate = Gate()
    home.table.on("make", gate.before)
    taken = home.begin_publish(TOPIC, b"taken")
    await gate.reached.wait()
    await cluster.pin(TOPIC, other)
    await pass_time(3)
    gate.open()
    await taken
    await pass_time(0.1)
    assert not home.leads(TOPIC), "the node lets the topic go, though no other node asks for it"


@pytest.mark.parametrize("moment", range(12))
@on_nodes(2)
async def test_a_caller_that_leaves_during_a_claim_takes_no_other_request_along(
    cluster: TopicCluster, moment: int
) -> None:
    home, other = await cluster.led(TOPIC)
    cluster.sim.spoil_storage(lambda bias: replace(bias, delay_ms=1.0))
    gate = Gate()
    home.table.on("append", gate.after, gate.after)
    waiting = []
    for payload in (b"sent", b"sent too", b"queued"):
        waiting.append(home.begin_publish(TOPIC, payload))
        await pass_time(0.01)
    await other.logs.claim(LogId(TOPIC, 1), "stranger")
    gate.open()
    leaves = home.begin_publish(TOPIC, b"leaves")
    await pass_time(moment / 1000)
    leaves.cancel()
    done, pending = await asyncio.wait(waiting, timeout=10)
    assert not pending, "each other request is answered"
    assert {request.exception() for request in done} == {None}
