"""Several nodes that can't rely on coordination, on each other, or on what they knew before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from broker.clock import JUMP_MS_MIN
from broker.coordination import placement
from broker.coordination.tenure import TopicPlacement
from broker.errors import (
    ClockSkew,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    TopicNotFound,
    Unavailable,
)
from broker.model import Poll, PublishRequest, RollbackRange, Snapshot, TopicId
from broker.storage.hold import LogHold
from broker.storage.keys import LogId, is_root, topic_prefix
from broker.storage.table import Space
from broker.testing.mutants import in_force
from broker.testing.virtual_time import pass_time
from broker.topics.browse import BrowseQuery
from broker.topics.clock_comparison import SHARP_MS
from broker.topics.retention import SweepReport
from broker.topics.settings import PublishOptions
from broker.topics.topic_claims import SKEWED_S
from chaos.bare import append
from tests.kit.bench import Gate, Hook, failing, settle
from tests.kit.many import Cluster, Load, Member, head, led_by

DAY_MS = 86_400_000
TOPICS = [TopicId("ns", f"t{number}") for number in range(40)]
TOPIC = TOPICS[0]


async def publish_at(node: Member, payload: bytes, within_s: float = 30) -> None:
    """Publish through one node that forwards nothing."""
    options = PublishOptions(deadline=node.clock.monotonic() + within_s)
    await node.topics.publish(TOPIC, PublishRequest(None, [payload]), options)


def other_of(cluster: Cluster, node: Member) -> Member:
    return cluster.members[1 - node.me.instance]


# Coordination fails.


@pytest.mark.slow
async def test_without_coordination_everything_that_is_led_goes_on(cluster: Cluster) -> None:
    await cluster.start(0, 1, 2)
    for topic in TOPICS[:8]:
        await cluster.create(topic)
    load = Load(cluster)
    load.begin(TOPICS[:8], pause_s=0.1)
    await pass_time(0.3)
    epochs = [member.topics.leaders.epochs() for member in cluster.members.values()]
    cluster.coordination.outage()
    load.slowest_s = 0.0
    await pass_time(20)
    assert load.slowest_s < 0.05
    cluster.coordination.recover()
    await pass_time(1)
    assert [member.topics.leaders.epochs() for member in cluster.members.values()] == epochs
    await load.end()
    assert not load.unknown
    await load.check()


async def test_without_coordination_nothing_new_is_claimed_but_what_is_ones_own(
    cluster: Cluster,
) -> None:
    await cluster.start(0)
    node = await led_by(cluster, TOPIC)
    await cluster.create(TOPICS[1])
    cluster.coordination.outage()
    node.table.on("append", failing(OutcomeUnknown("lost")))
    with pytest.raises(OutcomeUnknown):
        await publish_at(node, b"unknown")
    before = cluster.loop.time()
    await publish_at(node, b"again")
    assert cluster.loop.time() - before < 0.1
    new = asyncio.ensure_future(cluster.publish(node, TOPICS[1], b"new"))
    await pass_time(10)
    assert not new.done()
    cluster.coordination.recover()
    await new
    assert await cluster.payloads(node, TOPIC) == [b"first", b"again"]


async def test_a_deadline_without_coordination_is_kept(cluster: Cluster) -> None:
    (node,) = await cluster.start(0)
    await cluster.create(TOPIC)
    cluster.coordination.outage()
    before = cluster.loop.time()
    patient = asyncio.ensure_future(publish_at(node, b"patient"))
    await pass_time(0.1)
    with pytest.raises(NoLeader):
        await publish_at(node, b"m", within_s=1)
    assert cluster.loop.time() - before < 1.2
    cluster.coordination.recover()
    await patient


async def test_a_request_without_a_deadline_has_that_of_the_settings(cluster: Cluster) -> None:
    cluster.settings["request_deadline_s"] = 3.0
    (node,) = await cluster.start(0)
    await cluster.create(TOPIC)
    cluster.coordination.outage()
    before = cluster.loop.time()
    with pytest.raises(NoLeader):
        await node.topics.publish(TOPIC, PublishRequest(None, [b"m"]))
    assert 2.9 < cluster.loop.time() - before < 3.2


@pytest.mark.slow
async def test_a_wiped_coordinator_rewinds_nothing(cluster: Cluster) -> None:
    await cluster.start(0, 1, 2)
    for topic in TOPICS[:6]:
        await cluster.create(topic)
    load = Load(cluster)
    load.begin(TOPICS[:6])
    await pass_time(0.3)
    cluster.coordination.wipe()
    await pass_time(3)
    load.slowest_s = 0.0
    await pass_time(1)
    assert load.slowest_s < 0.05, "all is as before"
    await load.end()
    await load.check()


async def test_a_node_that_is_cut_off_alone_sends_its_requests_on(cluster: Cluster) -> None:
    await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    other = other_of(cluster, home)
    cluster.coordination.suspend(home.coordinator)
    await pass_time(5)
    await publish_at(other, b"second")
    with pytest.raises(NotLeader) as caught:
        await publish_at(home, b"third")
    assert (caught.value.node, caught.value.url) == (other.me.instance, other.me.url)
    assert home.tenure.place(TOPIC) == TopicPlacement(here=False, node=other.membership.me)
    await cluster.publish(home, TOPIC, b"third")
    assert await cluster.payloads(home, TOPIC) == [b"first", b"second", b"third"]
    cluster.coordination.resume(home.coordinator)
    await pass_time(1)
    await cluster.publish(other, TOPIC, b"fourth")
    assert home.leads(TOPIC)


async def test_after_a_crash_topics_are_led_again_soon_after_the_session_ends(
    cluster: Cluster,
) -> None:
    await cluster.start(0, 1, 2)
    home = await led_by(cluster, TOPIC)
    home.is_over = True
    await cluster.coordination.crash(home.coordinator)
    survivor = next(m for m in cluster.members.values() if not m.is_over)
    before = cluster.loop.time()
    await cluster.publish(survivor, TOPIC, b"second")
    assert 3.9 < cluster.loop.time() - before < 4.5
    assert await cluster.payloads(survivor, TOPIC) == [b"first", b"second"]
    await home.tenure.close()


async def test_a_node_that_lost_its_session_unawares_acknowledges_nothing_that_is_lost(
    cluster: Cluster,
) -> None:
    await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    other = other_of(cluster, home)
    cluster.coordination.suspend(home.coordinator, session_ends_after_s=0.1)
    await pass_time(0.3)
    await publish_at(other, b"others")
    assert home.leads(TOPIC), "it does not know yet"
    waiting = [asyncio.ensure_future(publish_at(home, b"mine%d" % n)) for n in range(5)]
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    seen = await cluster.payloads(other, TOPIC)
    assert seen[:2] == [b"first", b"others"]
    for number, outcome in enumerate(outcomes):
        assert outcome is None or isinstance(outcome, NotLeader)
        assert (b"mine%d" % number in seen) == (outcome is None)


@pytest.mark.slow
async def test_two_nodes_that_disagree_about_a_pin_do_not_duel(cluster: Cluster) -> None:
    await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    other = other_of(cluster, home)
    reads = 0

    async def blind() -> float:
        nonlocal reads
        reads += 1
        return 10.0

    home.tenure._read_placement = blind  # type: ignore[method-assign]
    await placement.pin(cluster.records, TOPIC, other.me.instance)
    await cluster.hint()
    await pass_time(0.1)
    acknowledged: list[bytes] = [b"first"]
    stop = cluster.loop.time() + 20

    async def insist(node: Member, name: str) -> None:
        count = 0
        while cluster.loop.time() < stop:
            payload = f"{name}{count}".encode()
            await publish_at(node, payload)
            acknowledged.append(payload)
            count += 1
            await pass_time(0.01)

    await asyncio.gather(insist(home, "h"), insist(other, "o"))
    assert sorted(await cluster.payloads(other, TOPIC)) == sorted(acknowledged)
    assert (await head(other, TOPIC)).epoch < 30, "each has patience with the other"
    assert reads > 3, "whoever is fenced asks what the other may know"


async def test_after_a_fencing_a_lease_is_verified_before_the_next_claim(
    cluster: Cluster,
) -> None:
    await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    (resource,) = home.tenure._leases.resources
    lease = home.tenure._leases._held[resource].lease
    asked: list[str] = []
    verify = lease.verify

    async def noted() -> bool:
        asked.append(resource)
        return await verify()

    lease.verify = noted  # type: ignore[method-assign]
    await other_of(cluster, home).logs.claim(LogId(TOPIC, 1), "stranger")
    await asyncio.gather(*(publish_at(home, b"m") for _ in range(3)))
    assert asked == [resource]
    await publish_at(home, b"m")
    assert asked == [resource]


async def test_many_requests_share_one_lease(cluster: Cluster) -> None:
    (node,) = await cluster.start(0)
    await placement.drain(cluster.records, 9)
    for topic in TOPICS:
        await cluster.create(topic)
    holds: list[str] = []
    hold = node.coordinator.hold

    async def counted(resource: str, deadline: float) -> Any:
        holds.append(resource)
        return await hold(resource, deadline)

    node.coordinator.hold = counted  # type: ignore[method-assign]
    await asyncio.gather(
        *(cluster.publish(node, topic, b"%d" % n) for topic in TOPICS for n in range(20))
    )
    assert len(holds) == len(set(holds)) == node.tenure.slots_led


# What was known before counts for nothing.


async def test_nothing_is_remembered_from_an_earlier_time_of_leading(cluster: Cluster) -> None:
    await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    other = other_of(cluster, home)

    async def move(to: Member) -> None:
        await placement.pin(cluster.records, TOPIC, to.me.instance)
        await cluster.hint()
        await pass_time(0.2)

    home.clock.step(60_000)
    first = await cluster.publish(home, TOPIC, b"ahead")
    await move(other)
    other.clock.step(-60_000)
    second = await cluster.publish(other, TOPIC, b"behind")
    await cluster.routed(other, lambda node: node.topics.update(TOPIC, {"ttl": "100000"}))
    await move(home)
    third = await cluster.publish(home, TOPIC, b"back")
    assert first.last < second.first < third.first
    assert (await home.topics.get(TOPIC)).ttl_s == 100_000
    leader = home.topics.leaders.states[TOPIC].leader
    assert leader is not None
    assert leader.topic.ttl_s == 100_000
    assert await cluster.payloads(home, TOPIC) == [b"first", b"ahead", b"behind", b"back"]


async def test_whoever_created_a_topic_does_not_go_by_that_when_another_leads_it(
    cluster: Cluster,
) -> None:
    await cluster.start(0, 1)
    await cluster.create(TOPIC)
    home = cluster.leader_of(TOPIC)
    other = other_of(cluster, home)
    assert (await home.topics.get(TOPIC)).ttl_s == 600
    await placement.pin(cluster.records, TOPIC, other.me.instance)
    await cluster.hint()
    await pass_time(0.2)
    await other.topics.update(TOPIC, {"ttl": "5"})
    assert (await home.topics.get(TOPIC)).ttl_s == 5


async def test_a_topic_that_was_created_anew_elsewhere_is_the_new_one_here(
    cluster: Cluster,
) -> None:
    await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    other = other_of(cluster, home)
    await placement.pin(cluster.records, TOPIC, other.me.instance)
    await cluster.hint()
    await pass_time(0.2)
    await cluster.routed(home, lambda node: node.topics.delete(TOPIC))
    with pytest.raises(TopicNotFound):
        await cluster.poll(home, TOPIC)
    await cluster.create(TOPIC, ttl_s=7)
    await placement.unpin(cluster.records, TOPIC)
    await cluster.hint()
    await pass_time(0.2)
    await cluster.publish(other, TOPIC, b"new")
    assert home.leads(TOPIC)
    assert (await home.topics.get(TOPIC)).generation == 2
    for node in (home, other):
        assert await cluster.payloads(node, TOPIC) == [b"new"]


async def test_a_delete_elsewhere_ends_a_leader_that_has_not_heard_of_it(
    cluster: Cluster,
) -> None:
    await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    await other_of(cluster, home).logs.delete(LogId(TOPIC, 1), "other")
    with pytest.raises(TopicNotFound):
        await cluster.publish(home, TOPIC, b"late")
    with pytest.raises(TopicNotFound):
        await cluster.poll(home, TOPIC)
    await cluster.create(TOPIC)
    await cluster.publish(home, TOPIC, b"new")
    assert await cluster.payloads(home, TOPIC) == [b"new"]


async def test_a_claim_whose_record_is_older_than_a_re_creation_finds_the_new_one(
    cluster: Cluster,
) -> None:
    (node,) = await cluster.start(0)
    await cluster.create(TOPIC)
    gate = Gate()
    permit = node.tenure.permit

    async def slow(*arguments: Any) -> Any:
        return await gate.before(permit, *arguments)

    node.tenure.permit = slow  # type: ignore[assignment,method-assign]
    publishing = asyncio.ensure_future(cluster.publish(node, TOPIC, b"m"))
    await gate.reached.wait()
    await node.topics.delete(TOPIC)
    await node.topics.create(TOPIC, {"ttl": "9"})
    gate.open()
    await publishing
    assert (await node.topics.get(TOPIC)).generation == 2
    assert await cluster.payloads(node, TOPIC) == [b"m"]


class Updating:
    """An update at a topic's leader that is held up just before its record is written."""

    def __init__(self, cluster: Cluster, home: Member) -> None:
        self.gate = Gate()
        self.puts = 0
        """How often the topic's record was put."""
        self._put_if = cluster.records.put_if
        for member in cluster.members.values():
            member.records.put_if = self._slow  # type: ignore[assignment,method-assign]
        self.done = asyncio.ensure_future(cluster.routed(home, self._update))

    async def _slow(self, key: bytes, *arguments: Any) -> Any:
        self.puts += key.startswith(b"topic/")
        if key.startswith(b"topic/") and not self.gate.reached.is_set():
            return await self.gate.before(self._put_if, key, *arguments)
        return await self._put_if(key, *arguments)

    async def _update(self, node: Member) -> Any:
        return await node.topics.update(TOPIC, {"ttl": "77"})


@pytest.mark.parametrize("claimed_over", [True, False])
async def test_an_update_that_overlaps_a_claim_elsewhere_reaches_the_new_leader(
    cluster: Cluster, claimed_over: bool
) -> None:
    await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    other = other_of(cluster, home)
    updating = Updating(cluster, home)
    await updating.gate.reached.wait()
    await placement.pin(cluster.records, TOPIC, other.me.instance)
    other.tenure._hinted.set()
    if not claimed_over:
        home.tenure._hinted.set()
    await pass_time(0.1)
    publishing = asyncio.ensure_future(publish_at(other, b"second"))
    await pass_time(1.5 if claimed_over else 0.5)
    assert publishing.done() is claimed_over
    updating.gate.open()
    await asyncio.gather(updating.done, publishing)
    leader = other.topics.leaders.states[TOPIC].leader
    assert leader is not None
    assert leader.topic.ttl_s == 77
    assert updating.puts == 1, "the new leader only reads what the former one wrote"


async def test_an_update_is_written_once_though_its_leader_is_fenced_meanwhile(
    cluster: Cluster,
) -> None:
    await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    updating = Updating(cluster, home)
    await updating.gate.reached.wait()
    first = home.topics.leaders.states[TOPIC].leader
    assert first is not None
    await other_of(cluster, home).logs.claim(LogId(TOPIC, 1), "somebody")
    updating.gate.open()
    await updating.done
    assert updating.puts == 1, "the one that was held up"
    leader = home.topics.leaders.states[TOPIC].leader
    assert leader is not None
    assert leader is not first
    assert leader.topic.ttl_s == 77


async def test_an_update_that_is_written_is_not_refused_for_want_of_a_leader(
    cluster: Cluster,
) -> None:
    await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    updating = Updating(cluster, home)
    await updating.gate.reached.wait()
    await other_of(cluster, home).logs.claim(LogId(TOPIC, 1), "somebody")

    async def nobody(*_: Any) -> Any:
        raise NoLeader("nobody leads")

    home.topics.leaders.claims.claimed = nobody  # type: ignore[assignment,method-assign]
    updating.gate.open()
    with pytest.raises(OutcomeUnknown, match="nobody leads"):
        await updating.done
    assert (await home.topics.registry.get(TOPIC)).ttl_s == 77


# Polls.


async def zombie(cluster: Cluster) -> tuple[Member, Member]:
    """Return a leader that another has fenced, with its cache full and no idea, and that other."""
    await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    other = other_of(cluster, home)
    cluster.coordination.suspend(home.coordinator, session_ends_after_s=0.1)
    await pass_time(0.3)
    await publish_at(other, b"second")
    assert home.leads(TOPIC)
    return home, other


async def test_a_fenced_leader_shows_no_stale_end(cluster: Cluster) -> None:
    home, _ = await zombie(cluster)
    assert await cluster.payloads(home, TOPIC) == [b"first", b"second"]
    assert not home.leads(TOPIC), "a poll has shown it that another leads"


async def test_without_the_proof_a_fenced_leader_shows_a_stale_end(cluster: Cluster) -> None:
    home, _ = await zombie(cluster)

    with in_force("proof"):
        assert await cluster.payloads(home, TOPIC) == [b"first"]


async def test_a_fenced_leader_goes_by_the_lifetime_that_another_gave_the_topic(
    cluster: Cluster,
) -> None:
    home, other = await zombie(cluster)
    await other.topics.update(TOPIC, {"ttl": "1"})
    await pass_time(1.1)
    assert home.leads(TOPIC)
    assert await cluster.payloads(home, TOPIC) == []


async def test_polls_that_come_together_share_the_proof(cluster: Cluster) -> None:
    (node,) = await cluster.start(0)
    await led_by(cluster, TOPIC)
    await cluster.poll(node, TOPIC)  # It has compared its clock.
    node.table.calls.clear()
    await asyncio.gather(*(cluster.poll(node, TOPIC) for _ in range(50)))
    assert node.table.calls == ["get"]
    node.table.calls.clear()
    gates = [Gate(), Gate()]
    node.table.on("get", *(gate.before for gate in gates))
    polls = []
    for gate in gates:
        polls.append(asyncio.ensure_future(cluster.poll(node, TOPIC)))
        await gate.reached.wait()
    polls += [asyncio.ensure_future(cluster.poll(node, TOPIC)) for _ in range(50)]
    await settle()
    assert not any(poll.done() for poll in polls)
    assert node.table.calls == ["get"] * 2, "those under way began before the last polls came"
    for gate in gates:
        gate.open()
    await asyncio.gather(*polls)
    assert node.table.calls == ["get"] * 3


async def test_a_poll_with_a_snapshot_sees_a_rollback_that_was_answered(cluster: Cluster) -> None:
    (node,) = await cluster.start(0)
    await led_by(cluster, TOPIC)
    await cluster.poll(node, TOPIC)  # It has compared its clock.
    rolled = await cluster.publish(node, TOPIC, b"in transaction", pointer=5)
    gate = Gate()
    node.table.on("rolled", gate.after)
    rolling = asyncio.ensure_future(
        node.topics.rollback(TOPIC, RollbackRange(5, rolled.first, rolled.last))
    )
    await gate.reached.wait()
    gate.open()
    await rolling
    poll = Poll(snapshot=Snapshot(transaction_id=100, read_pointer=100))
    node.table.calls.clear()
    assert [m.payload for m in await cluster.poll(node, TOPIC, poll)] == [b"first"]
    assert node.table.calls == ["get"], "the cache shows it, too"


async def test_storage_that_does_not_answer_a_proof_is_read_instead(cluster: Cluster) -> None:
    (node,) = await cluster.start(0)
    await led_by(cluster, TOPIC)

    proofs = 2

    async def deaf(real: Hook, space: Space, row: bytes, columns: Any) -> Any:
        nonlocal proofs
        if space is Space.MESSAGES and not is_root(row) and proofs:
            proofs -= 1
            raise Unavailable("down")
        return await real(space, row, columns)

    node.table.calls.clear()
    node.table.on("get", *[deaf] * 10)
    assert await cluster.payloads(node, TOPIC) == [b"first"]
    assert "cells" in node.table.calls, "entries are read"
    assert node.leads(TOPIC)


@pytest.mark.parametrize("claims_itself", [True, False])
async def test_no_commit_is_missed_between_a_look_into_storage_and_a_claim(
    cluster: Cluster, claims_itself: bool
) -> None:
    await cluster.start(0, 1)
    await cluster.create(TOPIC)
    home = cluster.leader_of(TOPIC)
    stranger = other_of(cluster, home)
    hold = await stranger.logs.claim(LogId(TOPIC, 1), "stranger")
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
    polling = asyncio.ensure_future(home.topics.poll(TOPIC, Poll(), wait_s=20))
    await gate.reached.wait()
    ids = stranger.around.row_ids(0).take(1, home.clock.now_ms(), home.clock.monotonic() * 1000)
    await append(hold, ids, [b"between"])
    if not claims_itself:
        await home.topics.leaders.lead(TOPIC, home.clock.monotonic() + 5)
    gate.open()
    before = cluster.loop.time()
    assert not (await polling).empty
    assert cluster.loop.time() - before < 0.1


# What is deleted and rolled back.


async def test_a_fenced_leader_answers_no_rollback(cluster: Cluster) -> None:
    home, other = await zombie(cluster)
    rows = await cluster.publish(other, TOPIC, b"undone", pointer=5)
    rollback = RollbackRange(5, rows.first, rows.last)
    with pytest.raises((NotLeader, OutcomeUnknown)):
        await home.topics.rollback(TOPIC, rollback)
    await cluster.routed(home, lambda node: node.topics.rollback(TOPIC, rollback))
    poll = Poll(snapshot=Snapshot(transaction_id=100, read_pointer=100))
    for node in (home, other):
        assert [m.payload for m in await cluster.poll(node, TOPIC, poll)] == [b"first", b"second"]


async def test_a_topic_whose_deleter_died_before_the_record_said_so_is_deleted(
    cluster: Cluster,
) -> None:
    await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    other = other_of(cluster, home)
    await other.logs.delete(LogId(TOPIC, 1), other.me.incarnation)
    for node in (home, other):
        with pytest.raises(TopicNotFound):
            await cluster.publish(node, TOPIC, b"after its end")


# Clocks.


@pytest.mark.parametrize("offset_ms", [-5000, 5000])
async def test_a_node_whose_clock_is_off_leads_nothing_and_says_so(
    cluster: Cluster, offset_ms: int
) -> None:
    (node,) = await cluster.start(0)
    await cluster.create(TOPIC)
    cluster.memory.server_ms = lambda: node.clock.now_ms() + offset_ms
    with pytest.raises(ClockSkew):
        await publish_at(node, b"m")
    (skew,) = node.skews
    assert abs(skew + offset_ms) < 100
    assert node.topics.leaders.claims.clocks.skew_ms == skew
    assert not node.leads(TOPIC)
    assert (await head(node, TOPIC)).owner == ""


def lies(space: Space, row: bytes, topic: TopicId) -> bool:
    """Whether a row is one of a topic."""
    return space is not Space.RECORDS and row.startswith(topic_prefix(topic))


@pytest.mark.parametrize("nodes", [1, 3])
async def test_a_server_whose_clock_is_off_costs_its_topics_alone(
    cluster: Cluster, nodes: int
) -> None:
    cluster.tells_time = True
    cluster.memory.server_ms = cluster.clock.now_ms
    members = await cluster.start(*range(nodes))
    for topic in TOPICS[:4]:
        await cluster.create(topic)
    cluster.memory.off_ms = lambda space, row: 3000 * lies(space, row, TOPIC)
    for _ in range(3):
        with pytest.raises(ClockSkew, match="does not lead this topic"):
            await cluster.publish(members[0], TOPIC, b"refused")
        await pass_time(SKEWED_S)
    for topic in TOPICS[1:4]:
        await cluster.publish(members[0], topic, b"stored")
    assert [member.skews for member in members] == [[]] * nodes, "no node takes its clock for wrong"
    assert all([(await member.sweeper.sweep()).problem is None for member in members])
    assert not any(member.leads(TOPIC) for member in members)
    cluster.memory.off_ms = None
    await cluster.publish(members[0], TOPIC, b"stored")


async def test_a_topic_is_not_claimed_again_and_again_while_its_server_is_off(
    cluster: Cluster,
) -> None:
    cluster.memory.server_ms = cluster.clock.now_ms
    (node,) = await cluster.start(0)
    await cluster.create(TOPIC)
    cluster.memory.off_ms = lambda space, row: 3000 * lies(space, row, TOPIC)
    with pytest.raises(ClockSkew):
        await publish_at(node, b"m")
    changes = node.table.calls.count("head")
    for _ in range(100):
        with pytest.raises(ClockSkew) as refused:
            await publish_at(node, b"m")
        assert 0 < (refused.value.retry_after_s or 0) <= SKEWED_S
    assert node.table.calls.count("head") == changes


@pytest.mark.parametrize("offset_ms", [-5000, 5000])
async def test_a_node_whose_clock_is_off_by_two_witnesses_leaves(
    cluster: Cluster, offset_ms: int
) -> None:
    """One is the topic's server, the other the nodes, though the records' server is off as well as it is."""
    cluster.tells_time = True
    cluster.memory.server_ms = cluster.clock.now_ms
    await cluster.start(0, 1, 2)
    home = await led_by(cluster, TOPIC)
    await home.topics.leaders.close()
    home.topics.leaders.claims.closing = False
    home.clock.step(offset_ms)
    cluster.memory.off_ms = lambda space, _: offset_ms * (space is Space.RECORDS)
    with pytest.raises(ClockSkew, match="leads nothing"):
        await publish_at(home, b"m")
    (skew,) = home.skews
    assert abs(skew - offset_ms) < 100
    others = [member for member in cluster.members.values() if member is not home]
    assert [member.skews for member in others] == [[], []]


async def test_nodes_whose_clocks_agree_read_though_the_servers_clock_is_off(
    cluster: Cluster,
) -> None:
    cluster.tells_time = True
    cluster.memory.server_ms = cluster.clock.now_ms
    await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    reader = other_of(cluster, home)
    cluster.memory.off_ms = lambda space, _: 3000 * (space is Space.RECORDS)
    assert await read_by(reader) == 1
    reader.clock.step(3_600_000)
    with pytest.raises(ClockSkew):
        await read_by(reader)
    assert reader.skews, "the other node says so, too"


async def test_a_small_difference_of_clocks_is_fine(cluster: Cluster) -> None:
    (node,) = await cluster.start(0)
    await cluster.create(TOPIC)
    cluster.memory.server_ms = lambda: node.clock.now_ms() + 1500
    await publish_at(node, b"m")
    assert node.skews == []


async def read_by(node: Member, topic: TopicId = TOPIC) -> int:
    """Return how many messages a node gives out that may not lead the topic."""
    stream = await node.topics.poll(topic, Poll(), anywhere=True)
    return sum([len(messages) async for messages in stream.messages()])


async def browsed_by(node: Member) -> int:
    return len((await node.topics.browse(TOPIC, BrowseQuery())).entries)


@pytest.mark.parametrize("read", [read_by, browsed_by])
async def test_a_node_that_leads_nothing_reads_only_if_its_clock_is_right(
    cluster: Cluster, read: Callable[[Member], Awaitable[int]]
) -> None:
    """By a clock that is ahead it would leave out what lives, and the consumer would go on behind it."""
    await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    reader = other_of(cluster, home)
    cluster.memory.server_ms = home.clock.now_ms
    reader.clock.step(3_600_000)
    with pytest.raises(ClockSkew):
        await read(reader)
    assert reader.skews == [], "that it is the storage's clock that is off is as likely"
    reader.clock.step(-3_600_000)
    await pass_time(1)
    count = await read(reader)
    assert count > 0
    compared = reader.table.calls.count("record")
    assert await read(reader) == count
    assert reader.table.calls.count("record") == compared, "one comparison does for a while"
    await pass_time(1)
    reader.clock.step(3_600_000)
    with pytest.raises(ClockSkew):
        await read(reader)
    (skew,) = reader.skews
    assert abs(skew - 3_600_000) < 100


async def test_a_leader_whose_clock_jumps_reads_only_if_it_is_right(cluster: Cluster) -> None:
    cluster.memory.server_ms = cluster.clock.now_ms
    await cluster.start(0)
    node = await led_by(cluster, TOPIC)
    changes = node.table.calls.count("record")
    assert await cluster.poll(node, TOPIC, Poll())
    assert node.table.calls.count("record") == changes, "a claim compares"
    node.clock.step(2 * JUMP_MS_MIN)
    assert await cluster.poll(node, TOPIC, Poll())
    assert node.table.calls.count("record") == changes + 1
    await pass_time(1)
    node.clock.step(3_600_000)
    with pytest.raises(ClockSkew):
        await cluster.poll(node, TOPIC, Poll())
    assert node.skews


async def test_a_comparison_that_took_long_or_met_a_jump_says_nothing(cluster: Cluster) -> None:
    cluster.memory.server_ms = cluster.clock.now_ms
    await cluster.start(0, 1)
    reader = other_of(cluster, await led_by(cluster, TOPIC))

    async def late(real: Hook, *arguments: Any, **named: Any) -> Any:
        await pass_time(SHARP_MS / 1000 + 1)
        return await real(*arguments, **named)

    async def with_a_jump(real: Hook, *arguments: Any, **named: Any) -> Any:
        done = await real(*arguments, **named)
        reader.clock.step(2 * JUMP_MS_MIN)
        return done

    for hook in (late, with_a_jump, failing(OutcomeUnknown("lost"))):
        reader.table.on("record", hook)
        with pytest.raises(Unavailable):
            await read_by(reader)
        await pass_time(1)
    assert await read_by(reader)


async def test_readers_share_a_comparison_and_its_failure(cluster: Cluster) -> None:
    await cluster.start(0, 1)
    reader = other_of(cluster, await led_by(cluster, TOPIC))
    gate = Gate()

    async def fails(real: Hook, *arguments: Any, **named: Any) -> Any:
        await gate.before(real, *arguments, **named)
        raise OutcomeUnknown("lost")

    reader.table.on("record", fails)
    reads = [asyncio.ensure_future(read_by(reader)) for _ in range(10)]
    await gate.reached.wait()
    gate.open()
    ends = await asyncio.gather(*reads, return_exceptions=True)
    assert [type(end) for end in ends] == [Unavailable] * 10
    assert reader.table.calls.count("record") == 1


async def test_a_clock_that_is_put_right_during_a_sweep_removes_nothing_that_lives(
    cluster: Cluster,
) -> None:
    cluster.settings.update(sweep_margin_ms=0)
    cluster.memory.server_ms = cluster.clock.now_ms
    await cluster.start(0)
    node = await led_by(cluster, TOPIC)
    count = await read_by(node)
    await pass_time(10)
    node.clock.step(DAY_MS * 365)

    async def put_right(real: Hook, *arguments: Any, **named: Any) -> Any:
        node.clock.step(-DAY_MS * 365)
        return await real(*arguments, **named)

    node.table.on("scan", put_right)
    await node.sweeper.sweep_topic(TOPIC, SweepReport())
    assert await read_by(node) == count


async def test_ids_of_a_node_are_its_own_and_rise_over_all_nodes(cluster: Cluster) -> None:
    await cluster.start(0, 255)
    home = await led_by(cluster, TOPIC)
    ids: list[bytes] = []
    for turn in range(6):
        instance = 255 if turn % 2 else 0
        await placement.pin(cluster.records, TOPIC, instance)
        await cluster.hint()
        await pass_time(0.1)
        published = await cluster.publish(home, TOPIC, *[b"m"] * 700)
        messages = await cluster.poll(home, TOPIC, Poll(published.first + bytes(10)))
        assert len(messages) == 700
        rows = [message.id[:10] for message in messages]
        assert {row[8] for row in rows} == {instance}
        assert len({row[:8] for row in rows}) == 3, "256 ids a millisecond"
        ids += rows
    assert ids == sorted(set(ids))


async def test_ids_that_run_ahead_make_batches_wait_and_then_refuse() -> None:
    cluster = Cluster(id_lead_ms_max=10, queued_requests_max=6)
    (node,) = await cluster.start(3)
    await led_by(cluster, TOPIC)
    began = cluster.loop.time()
    asked = [cluster.publish(node, TOPIC, *[b"m"] * 2000) for _ in range(12)]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, Overloaded)]
    assert 0 < len(refused) <= 6
    assert all(outcome.retry_after_s for outcome in refused)
    taken = 2000 * (len(outcomes) - len(refused))
    assert taken / 256 - 10 <= (cluster.loop.time() - began) * 1000 < 200
    messages = await cluster.poll(node, TOPIC)
    assert len(messages) == taken + 1
    assert messages[-1].timestamp_ms <= node.clock.now_ms() + 10
    await cluster.close()


# Sweeping.


async def delete(topic: TopicId, node: Member) -> None:
    await node.topics.delete(topic)


async def test_each_topic_is_swept_by_the_node_that_should_lead_it(cluster: Cluster) -> None:
    cluster.settings.update(sweep_margin_ms=0)
    nodes = await cluster.start(0, 1)
    for topic in TOPICS:
        await cluster.create(topic, ttl_s=1)
        await cluster.publish(nodes[0], topic, b"old")
        await cluster.publish(nodes[0], topic, b"new")
    deleted = TOPICS[-6:]
    for topic in deleted:
        await cluster.routed(nodes[0], partial(delete, topic))
    await pass_time(10)
    reports = [await node.sweeper.sweep() for node in nodes]
    assert [report.skipped for report in reports] == [0, 0]
    assert sum(report.topics for report in reports) == len(TOPICS)
    assert all(0 < report.topics < len(TOPICS) for report in reports)
    assert sum(report.rows for report in reports) == 2 * len(TOPICS)
    for topic in TOPICS[:-6]:
        assert cluster.leader_of(topic).leads(topic)


@pytest.mark.parametrize("ahead_ms", [0, 60_000])
async def test_a_clock_that_went_wrong_since_the_claims_sweeps_nothing(
    cluster: Cluster, ahead_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim compares the clocks, but the last one may be long ago: so does every sweep."""
    cluster.settings.update(sweep_margin_ms=0)
    (node,) = await cluster.start(0)
    for topic in TOPICS[:3]:
        await cluster.create(topic, ttl_s=1)
        await cluster.publish(node, topic, b"old")
        await cluster.publish(node, topic, b"new")
    await pass_time(10)

    asked, real = 0, LogHold.server_ms

    async def server_ms(hold: LogHold) -> int | None:
        nonlocal asked
        asked += 1
        return await real(hold)

    monkeypatch.setattr(LogHold, "server_ms", server_ms)
    cluster.memory.server_ms = lambda: node.clock.now_ms() - ahead_ms
    report = await node.sweeper.sweep()
    assert asked == 1
    if ahead_ms:
        assert (report.rows, report.skipped) == (0, 1)
        (skew,) = node.skews
        assert abs(skew - ahead_ms) < 10
    else:
        assert (report.rows, report.skipped, node.skews) == (6, 0, [])
