from __future__ import annotations

import pytest

from broker.coordination import placement
from broker.errors import BadRequest, OutcomeUnknown, TopicNotFound
from broker.model import Poll, PublishRequest, TopicId, timestamp_of
from broker.storage.hold import PageBounds
from broker.testing.virtual_time import pass_time
from broker.topics.browse import BrowseQuery
from broker.topics.ranges import RangeQuery
from broker.topics.record_changes import purge_through
from broker.topics.registry import TopicRegistry, record_key
from broker.topics.settings import TopicSettings
from tests.kit.bench import TOPIC, Bench, Gate, failing
from tests.kit.many import Cluster, Member, led_by

NEVER_MS = 0
AHEAD_MS = TopicSettings().id_lead_ms_max + 1
"""How far past the clock the moment of a purge of all that is stored lies."""


async def browsed(bench: Bench) -> list[bytes | None]:
    page = await bench.topics.browse(TOPIC, BrowseQuery())
    return [entry.payload for entry in page.entries]


async def test_every_way_of_reading_is_without_what_was_purged(bench: Bench) -> None:
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
    rows = await bench.topics.rows(TOPIC, None, kept.last + bytes(10))
    page = await rows.next()
    assert page is not None
    assert page.count == 1
    bench.forget_cache()
    assert await bench.payloads() == [b"kept"]


async def test_all_that_is_stored_goes_and_nothing_that_comes_after(bench: Bench) -> None:
    await bench.create()
    for _ in range(3):
        await bench.publish(b"old")
        await bench.topics.purge(TOPIC, bench.clock.now_ms() + AHEAD_MS)
        await bench.publish(b"new")  # In the same millisecond.
        assert await bench.payloads() == [b"new"]


async def test_a_purge_that_is_carried_out_late_removes_nothing_that_came_since(
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


@pytest.mark.parametrize(
    ("before_ms", "moment_ms"), [(10, 10), (51, 51), (52, 51), (100, 51), (105, 51)]
)
def test_a_moment_never_lies_past_the_last_message(before_ms: int, moment_ms: int) -> None:
    assert purge_through(before_ms, now_ms=100, pointer_ms=50, ahead_ms_max=5) == moment_ms


async def test_a_reference_goes_with_all_that_it_shows(bench: Bench) -> None:
    await bench.create()
    number = bench.clock.now_ms() * 1_000_000
    await bench.stored(number, b"a", b"b")
    await bench.publish(pointer=number)
    assert await bench.payloads() == [b"a", b"b"]
    await bench.topics.purge(TOPIC, bench.clock.now_ms() + AHEAD_MS)
    assert await bench.payloads() == []
    assert await browsed(bench) == []


async def test_the_sweeper_removes_whole_pages_of_what_was_purged(bench: Bench) -> None:
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


async def test_a_topic_that_nobody_leads_is_swept_of_what_was_purged(bench: Bench) -> None:
    bench.bounds = PageBounds(cells_max=5)
    bench.restart()
    await bench.create()
    for _ in range(12):
        await bench.publish(b"x")
    await bench.topics.purge(TOPIC, bench.clock.now_ms() + AHEAD_MS)
    await bench.topics.close()
    bench.restart()
    assert (await bench.sweeper.sweep()).rows == 12


async def test_the_record_of_a_topic_that_was_never_purged_is_as_before(bench: Bench) -> None:
    await bench.create()
    found = await bench.records.get(record_key(TOPIC))
    assert found is not None
    assert b"purged" not in found.value
    old = b'{"deleted":false,"generation":1,"properties":{"ttl":"5"},"token":"t"}'
    await bench.records.put_if(record_key(TOPIC), found.version, old)
    assert (await TopicRegistry(bench.records).get(TOPIC)).purged_ms == 0


# In a cluster.


async def purge(node: Member) -> int:
    return (await node.topics.purge(TOPIC, node.clock.now_ms() + AHEAD_MS)).purged_ms


async def test_every_node_answers_without_what_was_purged_through_any(cluster: Cluster) -> None:
    nodes = await cluster.start(0, 1, 2)
    home = await led_by(cluster, TOPIC)
    for node in nodes:
        assert await cluster.payloads(node, TOPIC) == [b"first"]
    other = next(node for node in nodes if node is not home)
    await cluster.routed(other, purge)
    for node in nodes:
        stream = await node.topics.poll(TOPIC, Poll())
        assert [message async for some in stream.messages() for message in some] == []
        assert (await node.topics.browse(TOPIC, BrowseQuery())).entries == []
        assert (await node.topics.stats(TOPIC)).messages == 0
    await cluster.publish(other, TOPIC, b"second")
    for node in nodes:
        assert await cluster.payloads(node, TOPIC) == [b"second"]


async def test_a_leader_that_took_over_meanwhile_goes_by_the_purge(cluster: Cluster) -> None:
    await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    other = cluster.members[1 - home.me.instance]
    gate = Gate()
    home.table.on("record", gate.before)
    purging = cluster.loop.create_task(cluster.routed(home, purge))
    await gate.reached.wait()
    await placement.pin(cluster.records, TOPIC, other.me.instance)
    await cluster.hint()
    await pass_time(5)
    gate.open()
    await purging
    for node in (home, other):
        assert await cluster.payloads(node, TOPIC) == []
    await cluster.publish(home, TOPIC, b"new")
    for node in (home, other):
        assert await cluster.payloads(node, TOPIC) == [b"new"]


async def test_a_leader_behind_by_its_clock_hides_nothing_that_it_publishes(
    cluster: Cluster,
) -> None:
    await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    other = cluster.members[1 - home.me.instance]
    await pass_time(1)
    await cluster.routed(home, lambda node: node.topics.purge(TOPIC, node.clock.now_ms()))
    other.clock.step(-900)
    await placement.pin(cluster.records, TOPIC, other.me.instance)
    await cluster.hint()
    await pass_time(0.2)
    await other.topics.publish(TOPIC, PublishRequest(None, [b"new"]))
    assert await cluster.payloads(home, TOPIC) == [b"new"]


async def test_a_purge_whose_record_was_not_answered_for_is_unknown(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"m")

    bench.table.on("record", *[failing(OutcomeUnknown("no answer"))] * 1000)
    with pytest.raises(OutcomeUnknown):
        await bench.topics.purge(TOPIC, bench.clock.now_ms() + AHEAD_MS)
    bench.table.forget_hooks()
    assert await bench.payloads() == [b"m"]
