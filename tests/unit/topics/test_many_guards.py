"""Guards that only several nodes show: what is wrong where one is taken away, and right where it holds."""

from __future__ import annotations

import pytest

from broker import guards
from broker.errors import NotLeader, TopicNotFound
from broker.model import Poll, RollbackRange, Snapshot, TopicId
from broker.storage.keys import LogId
from broker.testing.clock import pass_time
from broker.testing.many import Cluster, Member, head, led_by

TOPIC = TopicId("ns", "t")
POINTER = 5


@pytest.fixture(autouse=True)
def allow_switches(monkeypatch: pytest.MonkeyPatch) -> None:

async def fenced_unawares(cluster: Cluster) -> tuple[Member, Member]:
    """Return a node that does not know that it leads no more, and the one that does."""
    await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    other = cluster.members[1 - home.me.instance]
    cluster.coordination.suspend(home.coordinator, session_ends_after_s=0.1)
    await pass_time(0.3)
    await cluster.publish(other, TOPIC, b"second")
    assert home.leads(TOPIC)
    return home, other


async def visible(cluster: Cluster, node: Member) -> list[bytes]:
    """Return what a transaction sees that began after all others had ended."""
    poll = Poll(snapshot=Snapshot(transaction_id=100, read_pointer=100))
    return [message.payload for message in await cluster.poll(node, TOPIC, poll)]


async def rolled_back_by_a_fenced_leader(cluster: Cluster) -> tuple[Member, RollbackRange]:
    home, other = await fenced_unawares(cluster)
    rows = await cluster.publish(other, TOPIC, b"undone", pointer=POINTER)
    return home, RollbackRange(POINTER, rows.first, rows.last)


async def test_a_fenced_leader_answers_no_rollback(cluster: Cluster) -> None:
    home, rows = await rolled_back_by_a_fenced_leader(cluster)
    with pytest.raises(NotLeader):
        await home.topics.rollback(TOPIC, rows)
    await cluster.routed(home, lambda node: node.topics.rollback(TOPIC, rows))
    assert await visible(cluster, home) == [b"first", b"second"]


async def test_without_rollback_commit_a_fenced_leader_answers_one(cluster: Cluster) -> None:
    home, rows = await rolled_back_by_a_fenced_leader(cluster)
    with guards.without("rollback-commit"):
        assert await home.topics.rollback(TOPIC, rows) == 0
    assert await visible(cluster, home) == [b"first", b"second", b"undone"]


async def test_without_tombstone_a_deleted_topic_is_claimed(cluster: Cluster) -> None:
    """The node that deletes it dies before the record says so."""
    nodes = await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    other = nodes[1 - home.me.instance]
    await other.store.tombstone(LogId(TOPIC, 1), other.me.incarnation)
    with guards.without("tombstone"):
        await cluster.publish(home, TOPIC, b"after its end")
    assert await cluster.payloads(other, TOPIC) == [b"first", b"after its end"]


async def test_with_tombstone_it_is_not(cluster: Cluster) -> None:
    nodes = await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    other = nodes[1 - home.me.instance]
    await other.store.tombstone(LogId(TOPIC, 1), other.me.incarnation)
    for node in (home, other):
        with pytest.raises(TopicNotFound):
            await cluster.publish(node, TOPIC, b"after its end")


async def test_without_confirm_cas_a_fenced_leader_acknowledges(cluster: Cluster) -> None:
    home, other = await fenced_unawares(cluster)
    led = await head(other, TOPIC)
    with guards.without("confirm-cas"):
        await cluster.publish(home, TOPIC, b"over the other's")
    assert (await head(home, TOPIC)).epoch < led.epoch
