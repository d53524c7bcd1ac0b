"""Several nodes: topics that move, nodes that come and go, coordination that fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.coordination import placement
from broker.errors import Fenced, NotLeader, OutcomeUnknown
from broker.model import Message, Poll, PublishRequest, Snapshot, TopicId
from broker.testing.virtual_time import pass_time, within
from broker.topics.settings import PublishedIds, PublishOptions
from tests.kit.bench import Gate, settle
from tests.kit.many import Cluster, Load, Member, head, led_by

TOPICS = [TopicId("ns", f"t{number}") for number in range(40)]
TOPIC = TOPICS[0]


# Topics that move in good order.


@pytest.mark.slow
async def test_a_node_that_joins_takes_its_share_under_load(cluster: Cluster) -> None:
    await cluster.start(0, 1)
    load = Load(cluster)
    for topic in TOPICS:
        await cluster.create(topic)
    load.begin(TOPICS, each=1)
    await pass_time(0.5)
    load.slowest_s = 0.0
    (third,) = await cluster.start(2)
    await pass_time(0.5)
    assert load.slowest_s < 0.05, "a planned move is a short pause"
    moved = [topic for topic in TOPICS if third.leads(topic)]
    assert moved == [topic for topic in TOPICS if cluster.leader_of(topic) is third]
    assert len(TOPICS) / 6 < len(moved) < len(TOPICS) / 2
    await load.end()
    await load.check()
    assert not load.unknown
    for topic in moved:
        held = await head(third, topic)
        assert (held.epoch, held.owner) == (2, third.me.incarnation)


@pytest.mark.slow
async def test_a_rolling_restart_under_load_loses_and_repeats_nothing(cluster: Cluster) -> None:
    await cluster.start(0, 1, 2)
    load = Load(cluster)
    for topic in TOPICS[:12]:
        await cluster.create(topic)
    load.begin(TOPICS[:12])
    for _ in range(2):
        for instance in (0, 1, 2):
            await pass_time(0.2)
            assert await cluster.members[instance].stop()
            await cluster.start(instance)
    await load.end()
    assert load.slowest_s < 0.15
    assert not load.unknown
    await load.check()


async def test_leadership_bounces_between_two_nodes_by_pins(cluster: Cluster) -> None:
    nodes = await cluster.start(0, 1)
    await cluster.create(TOPIC)
    load = Load(cluster)
    load.begin([TOPIC], each=2)
    epochs = set()
    for turn in range(10):
        await placement.pin(cluster.records, TOPIC, turn % 2)
        await cluster.hint()
        await pass_time(0.3)
        assert nodes[turn % 2].leads(TOPIC)
        assert not nodes[1 - turn % 2].leads(TOPIC)
        epochs |= set(nodes[turn % 2].topics.leaders.epochs().values())
    await load.end()
    await load.check()
    assert not load.unknown
    assert load.slowest_s < 0.1
    assert len(epochs) == 10


async def test_a_pin_that_is_taken_back_lets_the_topic_go_home(cluster: Cluster) -> None:
    nodes = await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    other = nodes[1 - home.me.instance]
    await placement.pin(cluster.records, TOPIC, other.me.instance)
    await cluster.hint()
    await pass_time(0.1)
    await cluster.publish(home, TOPIC, b"second")
    assert other.leads(TOPIC)
    await placement.unpin(cluster.records, TOPIC)
    await cluster.hint()
    await pass_time(0.1)
    assert not other.leads(TOPIC)
    await cluster.publish(other, TOPIC, b"third")
    assert home.leads(TOPIC)
    assert await cluster.payloads(other, TOPIC) == [b"first", b"second", b"third"]


async def test_a_hint_that_is_lost_only_delays_a_pin(cluster: Cluster) -> None:
    nodes = await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    await placement.pin(cluster.records, TOPIC, 1 - home.me.instance)
    await pass_time(10.5)
    await cluster.publish(home, TOPIC, b"second")
    assert nodes[1 - home.me.instance].leads(TOPIC)


@pytest.mark.slow
async def test_a_drained_node_leads_nothing_until_it_is_undrained(cluster: Cluster) -> None:
    await cluster.start(0, 1)
    for topic in TOPICS:
        await cluster.create(topic)
        await cluster.publish(cluster.members[0], topic, b"m")
    before = set(cluster.members[0].topics.leaders.epochs())
    assert before
    await placement.drain(cluster.records, 0)
    await cluster.hint()
    await pass_time(0.5)
    assert not cluster.members[0].topics.leaders.epochs()
    assert cluster.members[0].tenure.slots_led == 0
    for topic in TOPICS:
        await cluster.publish(cluster.members[0], topic, b"n")
    assert len(cluster.members[1].topics.leaders.epochs()) == len(TOPICS)
    await placement.undrain(cluster.records, 0)
    await cluster.hint()
    await pass_time(0.5)
    for topic in TOPICS:
        await cluster.publish(cluster.members[1], topic, b"o")
        assert await cluster.payloads(cluster.members[0], topic) == [b"m", b"n", b"o"]
    assert set(cluster.members[0].topics.leaders.epochs()) == before


async def test_what_was_taken_is_answered_and_what_comes_after_is_sent_on(
    cluster: Cluster,
) -> None:
    nodes = await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    other = nodes[1 - home.me.instance]
    gate = Gate()
    home.table.on("append", gate.before, gate.before)
    taken = asyncio.ensure_future(home.topics.publish(TOPIC, PublishRequest(None, [b"taken"])))
    await gate.reached.wait()
    queued = asyncio.ensure_future(home.topics.publish(TOPIC, PublishRequest(None, [b"queued"])))
    await settle()
    await placement.pin(cluster.records, TOPIC, other.me.instance)
    await cluster.hint()
    await pass_time(0.2)
    with pytest.raises(NotLeader) as caught:
        await home.topics.publish(TOPIC, PublishRequest(None, [b"late"]))
    assert (caught.value.node, caught.value.url) == (other.me.instance, other.me.url)
    assert not taken.done()
    gate.open()
    await asyncio.gather(taken, queued)
    await cluster.publish(home, TOPIC, b"later")
    assert await cluster.payloads(other, TOPIC) == [b"first", b"taken", b"queued", b"later"]
    held = await head(other, TOPIC)
    assert (held.epoch, held.owner) == (2, other.me.incarnation)


async def test_a_stuck_append_does_not_keep_a_topic(cluster: Cluster) -> None:
    nodes = await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    other = nodes[1 - home.me.instance]
    gate = Gate()
    home.table.on("append", gate.before, gate.before)
    stuck = asyncio.ensure_future(home.topics.publish(TOPIC, PublishRequest(None, [b"stuck"])))
    await gate.reached.wait()
    queued = asyncio.ensure_future(cluster.publish(home, TOPIC, b"queued"))
    await settle()
    await placement.pin(cluster.records, TOPIC, other.me.instance)
    await cluster.hint()
    await pass_time(0.1)
    before = cluster.loop.time()
    await cluster.publish(other, TOPIC, b"elsewhere")
    assert cluster.loop.time() - before < 2, "patience with the former leader is bounded"
    gate.open()
    with pytest.raises(NotLeader):
        await stuck
    await queued
    assert await cluster.payloads(home, TOPIC) == [b"first", b"elsewhere", b"queued"]


async def test_a_leader_that_ends_while_it_is_handed_over_is_not_waited_for(
    cluster: Cluster,
) -> None:
    nodes = await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    opened = asyncio.Event()

    async def lose(*_: Any, **__: Any) -> None:
        await opened.wait()
        raise OutcomeUnknown("lost")

    home.table.on("append", lose, lose)
    publishing = []
    for number in range(4):
        options = PublishOptions(key=f"key {number}")
        request = PublishRequest(None, [b"n"])
        publishing.append(asyncio.ensure_future(home.topics.publish(TOPIC, request, options)))
        await pass_time(0.01)
    await placement.pin(cluster.records, TOPIC, nodes[1 - home.me.instance].me.instance)
    await cluster.hint()
    await pass_time(0.1)
    opened.set()
    answers = asyncio.gather(*publishing, return_exceptions=True)
    answered = await within(1, answers, lambda: f"{[one.done() for one in publishing]}")
    assert [type(answer) for answer in answered] == [OutcomeUnknown] + [NotLeader] * 3


async def test_a_topic_that_moves_unused_is_claimed_at_once(cluster: Cluster) -> None:
    nodes = await cluster.start(0, 1)
    await cluster.create(TOPIC)
    for turn in range(12):
        await placement.pin(cluster.records, TOPIC, turn % 2)
        await cluster.hint()
        await pass_time(0.1)
        leading = nodes[turn % 2].topics.leaders.lead(TOPIC, cluster.loop.time() + 10)
        await within(0.1, leading, lambda: "it backs off, though there was no rival")


async def test_a_stuck_append_does_not_keep_a_slot(cluster: Cluster) -> None:
    nodes = await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    other = nodes[1 - home.me.instance]
    gate = Gate()
    home.table.on("append", gate.before)
    stuck = asyncio.ensure_future(home.topics.publish(TOPIC, PublishRequest(None, [b"stuck"])))
    await gate.reached.wait()
    await placement.drain(cluster.records, home.me.instance)
    await cluster.hint()
    await pass_time(0.1)
    before = cluster.loop.time()
    await cluster.publish(other, TOPIC, b"elsewhere")
    assert cluster.loop.time() - before < 3.5
    assert home.tenure.slots_led == 0
    gate.open()
    with pytest.raises(NotLeader):
        await stuck


async def test_a_waiting_poll_moves_with_its_topic(cluster: Cluster) -> None:
    nodes = await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    (first,) = await cluster.poll(home, TOPIC)

    async def wait(node: Member) -> list[Message]:
        poll = Poll(first.id, inclusive=False)
        stream = await node.topics.poll(TOPIC, poll, wait_s=20)
        return [m async for messages in stream.messages() for m in messages]

    waiting = asyncio.ensure_future(cluster.routed(home, wait))
    await pass_time(0.5)
    other = nodes[1 - home.me.instance]
    await placement.pin(cluster.records, TOPIC, other.me.instance)
    await cluster.hint()
    await pass_time(0.5)
    assert (home.topics.waiting_polls, other.topics.waiting_polls) == (0, 1)
    await cluster.publish(home, TOPIC, b"second")
    assert [message.payload for message in await waiting] == [b"second"]


async def test_a_poll_that_waits_where_nobody_has_led_yet_hears_of_every_commit(
    cluster: Cluster,
) -> None:
    nodes = await cluster.start(0)
    home = await led_by(cluster, TOPIC)
    (first,) = await cluster.poll(home, TOPIC)
    gate = Gate()
    home.table.on("head", gate.before)
    (other,) = await cluster.start(1)
    await placement.pin(cluster.records, TOPIC, 1)
    await cluster.hint()
    waiting = asyncio.ensure_future(
        other.topics.poll(TOPIC, Poll(first.id, inclusive=False), wait_s=20)
    )
    await gate.reached.wait()
    gate.open()
    await pass_time(1)
    assert other.leads(TOPIC), "who waits for commits must be where they are made"
    assert not nodes[0].leads(TOPIC)
    before = cluster.loop.time()
    await cluster.publish(other, TOPIC, b"second")
    assert not (await waiting).empty
    assert cluster.loop.time() - before < 0.1


async def test_a_poll_may_wait_anywhere_for_want_of_a_leader(cluster: Cluster) -> None:
    nodes = await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    other = nodes[1 - home.me.instance]
    (first,) = await cluster.poll(other, TOPIC)
    poll = Poll(first.id, inclusive=False)
    with pytest.raises(NotLeader):
        await other.topics.poll(TOPIC, poll, wait_s=5)
    waiting = asyncio.ensure_future(other.topics.poll(TOPIC, poll, wait_s=5, anywhere=True))
    await pass_time(2)
    await cluster.publish(home, TOPIC, b"second")
    before = cluster.loop.time()
    assert not (await waiting).empty
    assert cluster.loop.time() - before < 1.1
    stream = await other.topics.poll(TOPIC, Poll(1 << 42), wait_s=3, anywhere=True)
    assert stream.empty


async def test_a_poll_that_waits_anywhere_ends_when_a_transaction_holds_it(
    cluster: Cluster,
) -> None:
    nodes = await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    other = nodes[1 - home.me.instance]
    (first,) = await cluster.poll(other, TOPIC)
    poll = Poll(first.id, inclusive=False, snapshot=Snapshot(transaction_id=9, read_pointer=9))
    waiting = asyncio.ensure_future(other.topics.poll(TOPIC, poll, wait_s=60, anywhere=True))
    await pass_time(2)
    pointer = home.topics.around.clock.now_ms() * 1_000_000
    await home.topics.publish(TOPIC, PublishRequest(pointer, [b"held"]))
    before = cluster.loop.time()
    stream = await waiting
    assert (stream.empty, stream.blocked_by) == (True, pointer)
    assert cluster.loop.time() - before < 1.1


async def test_a_claim_that_outlasts_the_hand_over_is_handed_over_after_it(
    cluster: Cluster,
) -> None:
    nodes = await cluster.start(0, 1)
    await cluster.create(TOPIC)
    home = cluster.leader_of(TOPIC)
    gate = Gate()
    home.table.on("make", gate.before)
    taken = asyncio.ensure_future(home.topics.publish(TOPIC, PublishRequest(None, [b"taken"])))
    await gate.reached.wait()
    await placement.pin(cluster.records, TOPIC, nodes[1 - home.me.instance].me.instance)
    await cluster.hint()
    await pass_time(3)
    gate.open()
    await taken
    await pass_time(0.1)
    assert not home.leads(TOPIC), "nobody else asks for it, and yet it is let go"


@pytest.mark.parametrize("turns", range(12))
async def test_a_caller_that_goes_while_a_leader_is_settled_takes_no_other_request_along(
    cluster: Cluster, turns: int
) -> None:
    await cluster.start(0)
    home = await led_by(cluster, TOPIC)
    gate = Gate()
    home.table.on("append", gate.after, gate.after)

    def publish(payload: bytes) -> asyncio.Future[PublishedIds]:
        return asyncio.ensure_future(home.topics.publish(TOPIC, PublishRequest(None, [payload])))

    waiting = []
    for payload in (b"sent", b"sent too", b"queued"):
        waiting.append(publish(payload))
        await settle()
    leader = home.topics.leaders.states[TOPIC].leader
    assert leader is not None
    leader.end(Fenced("Another came."))
    goes = publish(b"goes")
    await pass_time(0.05)
    gate.open()
    await settle(turns)
    goes.cancel()
    done, pending = await asyncio.wait(waiting, timeout=10)
    assert not pending, "each request is answered, whoever goes"
    assert {request.exception() for request in done} == {None}
