from __future__ import annotations

import asyncio

import pytest

from broker.errors import BadRequest, OutcomeUnknown, StorageFull, TopicNotFound
from broker.model import Poll, TopicId, timestamp_of
from broker.storage.ownpage import PageBounds
from broker.testing.virtual_time import pass_time
from broker.topics.browse import BrowseQuery
from broker.topics.ranges import RangeQuery
from broker.topics.record_changes import purge_through
from broker.topics.settings import TopicSettings
from tests.kit.bench import TOPIC, Bench, Gate, done_but, failing
from tests.kit.topic_nodes import TopicCluster, TopicNode, on_nodes

NEVER_MS = 0
AHEAD_MS = TopicSettings().id_lead_ms_max + 1
"""A purge of all stored messages names a moment that lies so far past the clock."""


async def browsed(bench: Bench) -> list[object]:
    page = await bench.topics.browse(TOPIC, BrowseQuery())
    return [entry.payload for entry in page.entries]


async def test_no_reader_shows_purged_messages(bench: Bench) -> None:
    await bench.create()
    old = await bench.publish(b"old")
    await bench.pass_ms(10)
    kept = await bench.publish(b"kept")
    topic = await bench.topics.purge(TOPIC, timestamp_of(kept.first))
    assert topic.purged_ms == timestamp_of(kept.first)
    assert await bench.payloads() == [b"kept"]
    assert await bench.payloads(Poll(old.first + bytes(10))) == [b"kept"]
    assert await bench.payloads(Poll(NEVER_MS)) == [b"kept"]
    assert await browsed(bench) == [b"kept"]
    stats = await bench.topics.stats(TOPIC)
    assert (stats.messages, stats.bytes, stats.published) == (1, 4, 2)
    assert stats.first == kept.first + bytes(10)
    found = await bench.topics.range(TOPIC, RangeQuery(after=bytes(10)))
    assert (found.messages, found.lost) == (1, 1)
    rows = await bench.topics.bulk(TOPIC, None, kept.last + bytes(10))
    page = await rows.next()
    assert page is not None
    assert page.count == 1
    bench.forget_cache()
    assert await bench.payloads() == [b"kept"]


async def test_a_purge_removes_all_stored_messages_and_no_later_one(bench: Bench) -> None:
    await bench.create()
    for _ in range(3):
        await bench.publish(b"old")
        await bench.topics.purge(TOPIC, bench.clock.now_ms() + AHEAD_MS)
        await bench.publish(b"new")  # In the same millisecond.
        assert await bench.payloads() == [b"new"]


async def test_a_late_purge_removes_no_message_published_since_its_request(
    bench: Bench,
) -> None:
    await bench.create()
    await bench.publish(b"old")
    arrived_ms = bench.clock.now_ms()
    await bench.pass_ms(20_000)
    await bench.publish(b"new")
    await bench.topics.purge(TOPIC, arrived_ms + AHEAD_MS)
    assert await bench.payloads() == [b"new"]


async def test_a_clock_that_steps_back_hides_no_later_message(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"old")
    await bench.pass_ms(60_000)
    await bench.topics.purge(TOPIC, bench.clock.now_ms())
    await bench.topics.close()
    bench.clock.step(-50_000)
    bench.restart()
    await bench.publish(b"new")
    assert await bench.payloads() == [b"new"]


async def test_the_moment_only_rises_and_outlives_restarts_and_updates(bench: Bench) -> None:
    await bench.create()
    first = await bench.publish(b"first")
    await bench.pass_ms(10)
    second = await bench.publish(b"second")
    moment_ms = timestamp_of(second.first)
    assert (await bench.topics.purge(TOPIC, moment_ms)).purged_ms == moment_ms
    assert (await bench.topics.purge(TOPIC, timestamp_of(first.first))).purged_ms == moment_ms
    await bench.topics.update(TOPIC, {"ttl": "99"})
    bench.restart()
    assert (await bench.topics.get(TOPIC)).purged_ms == moment_ms
    assert await bench.payloads() == [b"second"]
    await bench.topics.delete(TOPIC)
    assert (await bench.create()).purged_ms == 0


async def test_a_purge_of_the_future_and_of_no_topic_are_refused(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"m")
    with pytest.raises(BadRequest, match="future"):
        await bench.topics.purge(TOPIC, bench.clock.now_ms() + 60_000)
    assert await bench.payloads() == [b"m"]
    with pytest.raises(TopicNotFound):
        await bench.topics.purge(TopicId("ns", "none"), 0)


async def test_a_purge_up_to_the_newest_id_of_a_node_whose_clock_is_ahead(bench: Bench) -> None:
    """By the storage's clock, this node is behind by the limit, and the other one ahead by the limit."""
    await bench.create()
    await bench.publish(b"m")
    settings = bench.topics.around.settings
    ahead_ms = 2 * settings.clock_skew_ms_max + settings.id_lead_ms_max
    with pytest.raises(BadRequest, match="future"):
        await bench.topics.purge(TOPIC, bench.clock.now_ms() + ahead_ms + 1)
    await bench.topics.purge(TOPIC, bench.clock.now_ms() + ahead_ms)
    assert await bench.payloads() == []


@pytest.mark.parametrize(
    ("before_ms", "moment_ms"), [(10, 10), (51, 51), (52, 51), (100, 51), (105, 51)]
)
def test_a_moment_never_lies_past_the_last_message(before_ms: int, moment_ms: int) -> None:
    assert purge_through(before_ms, now_ms=100, pointer_ms=50, ahead_ms_max=5) == moment_ms


async def test_a_purged_reference_hides_its_stored_messages(bench: Bench) -> None:
    await bench.create()
    number = bench.clock.now_ms() * 1_000_000
    await bench.stored(number, b"a", b"b")
    await bench.publish(pointer=number)
    assert await bench.payloads() == [b"a", b"b"]
    await bench.topics.purge(TOPIC, bench.clock.now_ms() + AHEAD_MS)
    assert await bench.payloads() == []
    assert await browsed(bench) == []


async def test_the_sweeper_removes_whole_pages_of_purged_messages(bench: Bench) -> None:
    bench.bounds = PageBounds(cells_max=5)
    bench.restart()
    await bench.create()
    for _ in range(17):
        await bench.publish(b"x")
    await bench.sweeper.sweep()
    assert (await bench.sweeper.sweep()).rows == 0
    await bench.topics.purge(TOPIC, bench.clock.now_ms() + AHEAD_MS)
    assert (await bench.sweeper.sweep()).rows == 17
    await bench.publish(b"new")
    assert await bench.payloads() == [b"new"]
    bench.restart()
    assert await bench.payloads() == [b"new"]


async def test_purged_messages_of_a_topic_without_leader_are_swept(bench: Bench) -> None:
    bench.bounds = PageBounds(cells_max=5)
    bench.restart()
    await bench.create()
    for _ in range(12):
        await bench.publish(b"x")
    await bench.topics.purge(TOPIC, bench.clock.now_ms() + AHEAD_MS)
    await bench.topics.close()
    bench.restart()
    assert (await bench.sweeper.sweep()).rows == 12


# In a cluster.


async def purge(node: TopicNode) -> int:
    return (await node.topics.purge(TOPIC, node.now_ms() + AHEAD_MS)).purged_ms


@on_nodes(3)
async def test_a_purge_through_any_node_counts_at_every_node(
    cluster: TopicCluster,
) -> None:
    _, other = await cluster.led(TOPIC)
    for node in cluster.nodes:
        assert await node.payloads(TOPIC) == [b"first"]
    await cluster.via(other).purge(TOPIC, "now")
    for node in cluster.nodes:
        assert await node.payloads(TOPIC) == []
        assert (await node.topics.browse(TOPIC, BrowseQuery())).entries == []
        assert (await node.topics.stats(TOPIC)).messages == 0
    await cluster.publish(TOPIC, b"second")
    for node in cluster.nodes:
        assert await node.payloads(TOPIC) == [b"second"]


@on_nodes(2)
async def test_a_purge_counts_for_a_leader_that_took_over_meanwhile(cluster: TopicCluster) -> None:
    home, other = await cluster.led(TOPIC)
    gate = Gate()
    home.table.on("record", gate.before)
    purging = asyncio.ensure_future(cluster.via(home).purge(TOPIC, "now"))
    await gate.reached.wait()
    await cluster.pin(TOPIC, other)
    await pass_time(2.5)
    await other.publish(TOPIC, b"by the next leader")
    gate.open()
    await purging
    for node in (home, other):
        assert b"first" not in await node.payloads(TOPIC)
    await cluster.publish(TOPIC, b"new")
    for node in (home, other):
        assert (await node.payloads(TOPIC))[-1:] == [b"new"]


@on_nodes(2)
async def test_a_leader_whose_clock_is_behind_hides_none_of_its_own_messages(
    cluster: TopicCluster,
) -> None:
    home, other = await cluster.led(TOPIC)
    await other.step_clock(-900)
    await home.topics.purge(TOPIC, home.now_ms())
    await cluster.move(TOPIC, other)
    await other.publish(TOPIC, b"new")
    assert await home.payloads(TOPIC) == [b"new"]


async def test_a_purge_whose_record_gets_no_answer_is_unknown(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"m")
    bench.table.on("record", *[failing(OutcomeUnknown("no answer"))] * 1000)
    with pytest.raises(OutcomeUnknown):
        await bench.topics.purge(TOPIC, bench.clock.now_ms() + AHEAD_MS)
    bench.table.forget_hooks()
    assert await bench.payloads() == [b"m"]


@on_nodes(2)
async def test_a_purge_that_was_made_without_an_answer_counts_at_the_leader(
    cluster: TopicCluster,
) -> None:
    home, other = await cluster.led(TOPIC)
    home.table.on("record", done_but(StorageFull("no space", outcome="unknown")))
    with pytest.raises(StorageFull):
        await home.topics.purge(TOPIC, home.now_ms() + AHEAD_MS)
    for node in (home, other):
        assert await node.payloads(TOPIC) == []
