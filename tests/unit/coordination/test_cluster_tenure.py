from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import Callable, Collection
from typing import Any

import pytest

from broker.coordination import cluster_tenure, placement
from broker.coordination.assignment import SLOTS, slot_of
from broker.coordination.cluster_tenure import RELEASE_WAIT_S, ClusterTenure
from broker.coordination.coordinator import TreeCoordinator
from broker.coordination.memory import MemoryCoordination
from broker.coordination.placement import HINT
from broker.coordination.ports import NodeInfo
from broker.errors import NoLeader, NotLeader, StorageCorrupt, Unavailable
from broker.model import TopicId
from broker.storage.head import Head
from broker.storage.hold import LogHold
from broker.storage.keys import LogId
from broker.storage.log import Logs
from broker.storage.memory.table import MemoryTable
from broker.testing.memory import MemoryRecords
from broker.testing.virtual_time import VirtualClock, VirtualLoop, pass_time

TOPICS = [TopicId("ns", f"t{number}") for number in range(30)]


class Name(str):
    """A name of which a test can see whether it is in memory."""

    __slots__ = ("__weakref__",)


class Leaders:
    """Leads the topics that a test sets. It hands them over while ``may`` is set."""

    def __init__(self) -> None:
        self.led: dict[TopicId, LogHold] = {}
        self.asked: list[set[TopicId]] = []
        self.inherited: list[TopicId] = []
        self.may = asyncio.Event()
        self.may.set()

    def topics_led(self) -> Collection[TopicId]:
        return list(self.led)

    async def succeed(self, inherited: Callable[[TopicId], bool]) -> None:
        self.inherited = [topic for topic in TOPICS if inherited(topic)]

    async def hand_over(self, topics: Collection[TopicId]) -> None:
        self.asked.append(set(topics))
        await self.may.wait()
        for topic in topics:
            self.led.pop(topic)


class Node:
    """One node's tenure."""

    def __init__(self, world: World, instance: int) -> None:
        self.me = NodeInfo(instance, f"life-{instance}", f"http://{instance}", "1.0", 1)
        self.world = world
        self.session = world.coordination.session()
        self.leaders = Leaders()
        self.change_members: Callable[[], None]
        """Tells the tenure that the members have changed."""

    async def start(self) -> None:
        self.membership = await self.session.join(self.me)
        on_change = self.membership.on_change

        def noted(changed: Callable[[], None]) -> None:
            self.change_members = changed
            on_change(changed)

        self.membership.on_change = noted  # type: ignore[method-assign]
        self.tenure = ClusterTenure(
            self.session,
            self.membership,
            self.world.records,
            self.world.logs,
            self.world.clock,
            random.Random(self.me.instance),
        )
        await self.tenure.start()
        self.tenure.serve(self.leaders)

    def deadline(self, seconds: float = 30.0) -> float:
        return self.world.clock.monotonic() + seconds

    async def claim(self, topic: TopicId, seconds: float = 30.0) -> LogHold:
        await self.tenure.permit(topic, self.deadline(seconds))
        hold = await self.world.logs.claim(LogId(topic, 1), self.me.incarnation)
        self.leaders.led[topic] = hold
        return hold

    def here(self) -> list[TopicId]:
        return [topic for topic in TOPICS if self.tenure.place(topic).here]


class World:
    """The coordination and the records that the nodes share."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.clock = VirtualClock(loop)
        self.coordination = MemoryCoordination(self.clock)
        self.records = MemoryRecords()
        self.logs = Logs(MemoryTable(is_alone=False), self.clock)

    async def nodes(self, count: int) -> list[Node]:
        nodes = [Node(self, instance) for instance in range(count)]
        for node in nodes:
            await node.start()
        await pass_time(0.1)
        return nodes

    async def head(self, topic: TopicId) -> Head | None:
        return (await self.logs.look(topic)).writer

    async def hint(self, node: Node) -> None:
        await node.session.hint(HINT)
        await pass_time(0.1)


async def test_all_nodes_place_a_topic_at_the_same_node() -> None:
    world = World()
    nodes = await world.nodes(3)
    for topic in TOPICS:
        places = [node.tenure.place(topic) for node in nodes]
        assert len({place.node for place in places}) == 1
        assert [place.here for place in places].count(True) == 1
        leader = places[0].node
        assert leader is not None
        assert nodes[leader.instance].tenure.place(topic).here
    assert all(node.here() for node in nodes)


async def test_only_the_assigned_node_is_permitted() -> None:
    world = World()
    one, two = await world.nodes(2)
    topic = one.here()[0]
    await one.claim(topic)
    with pytest.raises(NotLeader) as caught:
        await two.claim(topic)
    assert (caught.value.node, caught.value.url) == (0, "http://0")
    assert one.tenure.slots_led == 1


async def test_a_lease_is_released_after_its_topics_were_handed_over() -> None:
    world = World()
    (one,) = await world.nodes(1)
    for topic in TOPICS:
        await one.claim(topic)
    one.leaders.may.clear()
    two = Node(world, 1)
    await two.start()
    await pass_time(0.1)
    moving = set(two.here())
    assert set().union(*one.leaders.asked) == moving
    claims = [asyncio.ensure_future(two.claim(topic)) for topic in moving]
    await pass_time(0.5)
    assert not any(claim.done() for claim in claims), "the lease is still held"
    for topic in moving:
        assert await one.leaders.led[topic].hand_off()
    one.leaders.may.set()
    await asyncio.gather(*claims)
    assert set(one.leaders.led) == set(TOPICS) - moving
    for topic in moving:
        held = await world.head(topic)
        assert held is not None
        assert (held.epoch, held.owner) == (2, two.me.incarnation)


async def test_a_lease_is_kept_if_its_slot_comes_back_during_the_handover() -> None:
    world = World()
    one, two = await world.nodes(2)
    topic = one.here()[0]
    await one.claim(topic)
    one.leaders.may.clear()
    await placement.drain(world.records, 0)
    await world.hint(two)
    assert one.leaders.asked == [{topic}]
    await placement.undrain(world.records, 0)
    await world.hint(two)
    one.leaders.may.set()
    await pass_time(0.1)
    assert one.tenure.slots_led == 1


async def test_a_topic_that_is_claimed_during_a_handover_is_handed_over_later() -> None:
    world = World()
    one, two = await world.nodes(2)
    first = one.here()[0]
    names = (TopicId("ns", f"n{number}") for number in range(100_000))
    second = next(topic for topic in names if slot_of(topic) == slot_of(first))
    await one.claim(first)
    one.leaders.may.clear()
    for change in (placement.drain, placement.undrain, placement.drain):
        if change is placement.drain and one.leaders.asked:
            await one.claim(second)
        await change(world.records, 0)
        await world.hint(two)
    one.leaders.may.set()
    await pass_time(0.1)
    assert one.leaders.asked == [{first}, {second}]
    assert not one.leaders.led


async def test_a_topic_that_is_claimed_just_before_a_handover_is_handed_over_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node claims the topic after the handover's list was made, and before the handover begins."""
    world = World()
    one, two = await world.nodes(2)
    first = one.here()[0]
    names = (TopicId("ns", f"n{number}") for number in range(100_000))
    second = next(topic for topic in names if slot_of(topic) == slot_of(first))
    await one.claim(first)
    (hold,) = one.leaders.led.values()
    one.leaders.may.clear()

    def claim_second() -> None:
        one.leaders.led[second] = hold
        one.change_members()

    def list_and_claim() -> Collection[TopicId]:
        if not one.tenure.place(first).here and second not in one.leaders.led:
            asyncio.get_running_loop().call_soon(claim_second)
        return list(one.leaders.led)

    monkeypatch.setattr(one.leaders, "topics_led", list_and_claim)
    await placement.drain(world.records, 0)
    await world.hint(two)
    one.leaders.may.set()
    await pass_time(0.1)
    assert one.leaders.asked == [{first}, {second}]
    assert not one.leaders.led


async def test_a_wait_for_a_lease_ends_when_another_node_should_lead() -> None:
    world = World()
    one, two = await world.nodes(2)
    topic = one.here()[0]
    lease = await two.session.acquire(one.tenure.assignment.resource_of(topic), two.deadline())
    waiting = asyncio.ensure_future(one.claim(topic))
    await pass_time(1)
    assert not waiting.done()
    await placement.drain(world.records, 0)
    await world.hint(two)
    with pytest.raises(NotLeader):
        await waiting
    await lease.release()
    await pass_time(0.1)
    assert one.tenure.slots_led == 0


async def test_a_wait_for_a_lease_ends_at_its_deadline() -> None:
    world = World()
    one, two = await world.nodes(2)
    topic = one.here()[0]
    await two.session.acquire(one.tenure.assignment.resource_of(topic), two.deadline())
    began = world.clock.monotonic()
    with pytest.raises(NoLeader):
        await one.claim(topic, 3)
    assert world.clock.monotonic() - began == pytest.approx(3)


@pytest.mark.parametrize("lives", [True, False])
async def test_a_claim_waits_for_a_live_leader_that_has_another_lock(lives: bool) -> None:
    world = World()
    one, two = await world.nodes(2)
    topic = one.here()[0]
    hold = await one.claim(topic)
    one.leaders.led.clear()
    await placement.pin(world.records, topic, 1)
    await world.hint(two)
    if not lives:
        await one.membership.leave()
        await pass_time(0.1)
    began = world.clock.monotonic()
    claiming = asyncio.ensure_future(two.claim(topic))
    await pass_time(0.2)
    assert claiming.done() is not lives
    if lives:
        await hold.hand_off()
    await claiming
    assert world.clock.monotonic() - began < 0.3
    control = await world.head(topic)
    assert control is not None
    assert control.owner == two.me.incarnation


async def test_the_wait_for_a_leader_that_does_not_hand_over_is_bounded() -> None:
    world = World()
    one, two = await world.nodes(2)
    topic = one.here()[0]
    await one.claim(topic)
    one.leaders.led.clear()
    await placement.pin(world.records, topic, 1)
    await world.hint(two)
    began = world.clock.monotonic()
    await two.claim(topic)
    assert RELEASE_WAIT_S <= world.clock.monotonic() - began < RELEASE_WAIT_S + 0.2


async def test_a_pause_ends_when_another_node_should_lead() -> None:
    world = World()
    one, two = await world.nodes(2)
    pausing = asyncio.ensure_future(one.tenure.pause(1000))
    await pass_time(1)
    assert not pausing.done()
    await placement.drain(world.records, 1)
    await world.hint(two)
    await pass_time(0.1)
    assert pausing.done()
    began = world.clock.monotonic()
    await one.tenure.pause(3)
    assert world.clock.monotonic() - began == pytest.approx(3)


async def test_a_pin_to_a_dead_node_has_no_effect() -> None:
    world = World()
    one, two = await world.nodes(2)
    topic = two.here()[0]
    await placement.pin(world.records, topic, 9)
    await world.hint(one)
    await two.claim(topic)
    assert one.tenure.placement.pins == {topic: 9}


async def test_without_contact_a_node_claims_only_its_own_logs() -> None:
    world = World()
    (one,) = await world.nodes(1)
    await one.claim(TOPICS[0])
    await one.tenure.permit(TOPICS[1], one.deadline())
    world.coordination.outage()
    again = await one.claim(TOPICS[0], 0.1)
    assert again.epoch == 2
    with pytest.raises(NoLeader):
        await one.claim(TOPICS[1], 5)
    with pytest.raises(NoLeader):
        await one.claim(TOPICS[2], 5)
    later = asyncio.ensure_future(one.claim(TOPICS[2]))
    await pass_time(10)
    world.coordination.recover()
    await later


async def test_without_contact_the_head_names_the_current_leader() -> None:
    world = World()
    one, two = await world.nodes(2)
    topic = one.here()[0]
    await one.claim(topic)
    world.coordination.suspend(one.session)
    await world.logs.claim(LogId(topic, 1), two.me.incarnation)
    with pytest.raises(NotLeader) as caught:
        await one.claim(topic)
    assert (caught.value.node, caught.value.epoch) == (1, 2)
    assert one.tenure.place(topic).node == two.me
    world.coordination.resume(one.session)
    assert one.tenure.place(topic).here


async def test_a_fenced_node_reads_the_placement_at_once() -> None:
    world = World()
    one, two = await world.nodes(2)
    topic = one.here()[0]
    await one.claim(topic)
    await placement.pin(world.records, topic, 1)
    one.tenure.fenced(topic)
    await pass_time(0.01)
    assert not one.tenure.place(topic).here
    assert two.tenure.place(topic).node == one.me, "it has not read the placement yet"
    await pass_time(10)
    assert two.tenure.place(topic).here


async def test_after_a_fencing_the_lease_is_verified_before_the_next_claim(
    record_verifications: Callable[[TreeCoordinator], list[str]],
) -> None:
    """The session may be over without the knowledge of the node."""
    world = World()
    one, two = await world.nodes(2)
    topic = one.here()[0]
    verified = record_verifications(one.session)
    await one.claim(topic)
    await world.logs.claim(LogId(topic, 1), two.me.incarnation)
    assert len(verified) == 0
    one.tenure.fenced(topic)
    await one.claim(topic)
    assert len(verified) == 1
    await world.logs.claim(LogId(topic, 1), two.me.incarnation)
    await one.claim(topic)
    assert len(verified) == 1, "one answer counts until the next fencing"


async def test_fencings_of_many_topics_take_bounded_memory_and_still_count(
    record_verifications: Callable[[TreeCoordinator], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_tenure, "FENCINGS_MAX", 3)
    world = World()
    one, two = await world.nodes(2)
    topic = one.here()[0]
    verified = record_verifications(one.session)
    await one.claim(topic)
    await world.logs.claim(LogId(topic, 1), two.me.incarnation)
    name = Name(topic.topic)
    kept = weakref.ref(name)
    one.tenure.fenced(TopicId(topic.namespace, name))
    del name
    gc.collect()
    assert kept() is not None
    for number in range(10):
        one.tenure.fenced(TopicId("many", str(number)))
    gc.collect()
    assert kept() is None, "the tenure does not keep it"
    await one.claim(topic)
    assert len(verified) == 1


async def test_a_node_starts_despite_an_undecodable_pin() -> None:
    world = World()
    await world.records.put_if(b"pin/ns:odd:", None, b"{")
    await placement.pin(world.records, TOPICS[0], 1)
    _, two = await world.nodes(2)
    assert two.tenure.place(TOPICS[0]).here


async def test_a_node_keeps_its_placement_until_it_can_read_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    one, _ = await world.nodes(2)
    topic = one.here()[0]
    scan = world.records.scan_prefix
    errors: list[Exception] = [Unavailable("down"), StorageCorrupt("odd")]

    async def failing(prefix: bytes) -> Any:
        if errors:
            raise errors.pop()
        return await scan(prefix)

    await placement.pin(world.records, topic, 1)
    monkeypatch.setattr(world.records, "scan_prefix", failing)
    await one.session.hint(HINT)
    await pass_time(0.3)
    assert one.tenure.place(topic).here
    await pass_time(2.5)
    assert not errors
    assert not one.tenure.place(topic).here


async def test_a_leaving_node_hands_over_all_topics_and_claims_no_more() -> None:
    world = World()
    one, two = await world.nodes(2)
    mine = one.here()
    for topic in mine:
        await one.claim(topic)
    await one.membership.announce(draining=True)
    assert await one.tenure.leave(5)
    assert not one.leaders.led
    assert one.tenure.slots_led == 0
    with pytest.raises(NotLeader):
        await one.claim(mine[0])
    await pass_time(0.1)
    assert set(two.here()) == set(TOPICS)
    for topic in mine:
        await two.claim(topic)


async def test_leaving_is_bounded_and_possible_without_contact() -> None:
    world = World()
    one, _ = await world.nodes(2)
    await one.claim(one.here()[0])
    world.coordination.suspend(one.session)
    one.leaders.may.clear()
    began = world.clock.monotonic()
    assert not await one.tenure.leave(5)
    assert world.clock.monotonic() - began == pytest.approx(5)
    assert one.here() == []
    one.leaders.may.set()
    assert await one.tenure.leave(5)
    assert not one.leaders.led


async def test_the_last_leaving_node_names_no_other_node() -> None:
    world = World()
    (one,) = await world.nodes(1)
    await one.tenure.leave(5)
    assert one.tenure.place(TOPICS[0]) == (False, None)
    began = world.clock.monotonic()
    with pytest.raises(NoLeader):
        await one.claim(TOPICS[0], 30)
    assert world.clock.monotonic() == began


async def test_a_cluster_of_one_node_leads_the_slots_of_claimed_topics() -> None:
    world = World()
    (one,) = await world.nodes(1)
    for number in range(50):
        await one.claim(TopicId("ns", f"m{number}"))
    assert 40 < one.tenure.slots_led <= 50 < SLOTS
    await one.tenure.close()
    assert one.tenure.slots_led == 0


async def test_a_closed_tenure_begins_no_handover() -> None:
    world = World()
    one, two = await world.nodes(2)
    await one.claim(one.here()[0])
    one.leaders.may.clear()
    for change in (placement.drain, placement.undrain, placement.drain):
        await change(world.records, 0)
        await world.hint(two)
    assert len(one.leaders.asked) == 1
    await one.tenure.close()
    await placement.undrain(world.records, 0)
    await placement.drain(world.records, 0)
    await world.hint(two)
    await one.membership.leave()
    await pass_time(10)
    assert len(one.leaders.asked) == 1


async def test_only_the_topics_of_a_node_that_is_gone_are_claimed_without_a_request() -> None:
    one, other, third = await World().nodes(3)
    led = other.here()
    assert led
    await other.membership.leave()
    await pass_time(cluster_tenure.SUCCEED_AFTER_S + 0.5)
    inherited = one.leaders.inherited + third.leaders.inherited
    assert sorted(inherited) == sorted(led)
    assert set(one.leaders.inherited) <= set(one.here())


async def test_a_node_that_returns_at_once_keeps_its_topics() -> None:
    one, other = await World().nodes(2)
    await other.membership.leave()
    await other.start()
    await pass_time(cluster_tenure.SUCCEED_AFTER_S + 0.5)
    assert one.leaders.inherited == []
    assert other.here()
