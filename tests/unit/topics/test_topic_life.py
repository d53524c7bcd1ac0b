"""Topics are created, changed and deleted, and their messages expire."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from broker.errors import (
    BadRequest,
    Fenced,
    NoLeader,
    OutcomeUnknown,
    StorageFull,
    TopicExists,
    TopicNotFound,
)
from broker.model import Poll, PublishRequest, RollbackRange, Snapshot, TopicId
from broker.storage.keys import LogId
from broker.topics.browse import BrowseQuery
from broker.topics.settings import PublishOptions
from tests.kit.bench import TOPIC, Bench, Gate, done_but, settle


async def test_a_topic_is_created_shown_changed_listed_and_deleted(bench: Bench) -> None:
    await bench.create(ttl_s=5, colour="red")
    assert (await bench.topics.get(TOPIC)).properties == {"ttl": "5", "colour": "red"}
    await bench.topics.update(TOPIC, {"ttl": "9"})
    found = await bench.topics.get(TOPIC)
    assert (found.properties, found.ttl_s, found.generation) == ({"ttl": "9"}, 9, 1)
    assert await bench.names("ns") == ["t"]
    with pytest.raises(TopicExists):
        await bench.create()
    await bench.topics.delete(TOPIC)
    for asked in (
        bench.topics.get(TOPIC),
        bench.topics.delete(TOPIC),
        bench.topics.update(TOPIC, {"ttl": "9"}),
        bench.publish(b"m"),
        bench.poll(),
        bench.stored(5, b"x"),
        bench.topics.rollback(TOPIC, RollbackRange(5, bytes(10), bytes(10))),
        bench.topics.stats(TOPIC),
    ):
        with pytest.raises(TopicNotFound):
            await asked
    assert await bench.names("ns") == []
    again = await bench.create(ttl_s=7)
    assert (again.generation, again.properties) == (2, {"ttl": "7"})


async def test_topics_are_listed_in_the_order_of_their_row_keys(bench: Bench) -> None:
    for name in ("aa", "a", "a1", "a-b", "A"):
        await bench.create(TopicId("ns", name))
    assert await bench.names("ns") == ["A", "a-b", "a1", "a", "aa"]
    assert await bench.names("n") == []


async def test_requests_for_unknown_topics_leave_no_state(bench: Bench) -> None:
    for number in range(100):
        with pytest.raises(TopicNotFound):
            await bench.poll(topic=TopicId("ns", f"no{number}"))
        with pytest.raises(TopicNotFound):
            await bench.publish(b"m", topic=TopicId("ns", f"no{number}"))
    assert not bench.topics.leaders.states


@pytest.mark.parametrize("restart", [True, False])
async def test_a_loop_of_create_and_delete_under_publishing_never_shows_old_rows(
    bench: Bench, restart: bool
) -> None:
    stop = False

    async def publish(pointer: int | None) -> None:
        while not stop:
            with contextlib.suppress(TopicNotFound, Fenced, NoLeader):
                await bench.publish(b"m", pointer=pointer)
            await bench.pass_ms(0.3)

    publishers = [asyncio.ensure_future(publish(pointer)) for pointer in (None, None, 5)]
    last = b""
    for _ in range(20):
        await bench.create()
        newest = last
        for _ in range(5):
            await bench.pass_ms(1)
            messages = await bench.poll()
            # A publish in flight during the deletion may land in the next generation.
            assert all(message.id > last for message in messages)
            newest = max((message.id for message in messages), default=newest)
        last = newest
        await bench.topics.delete(TOPIC)
        if restart:
            bench.restart()
    assert last
    stop = True
    await asyncio.gather(*publishers)


async def test_re_creation_begins_empty_also_after_a_restart(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"old")
    await bench.stored(5, b"old")
    await bench.publish(pointer=5)
    await bench.topics.delete(TOPIC)
    await bench.create()
    assert await bench.payloads() == []
    bench.restart()
    assert await bench.payloads() == []
    await bench.publish(pointer=5)
    await bench.publish(b"new")
    assert await bench.payloads() == [b"new"]


@pytest.mark.parametrize("asked", ["get", "publish", "poll", "create", "store", "update", "delete"])
async def test_a_request_that_meets_a_half_deleted_topic_completes_the_deletion(
    bench: Bench, asked: str
) -> None:
    await bench.create()
    await bench.publish(b"old")
    await bench.logs.delete(LogId(TOPIC, 1), "crashed here")
    bench.restart()
    calls = {
        "get": lambda: bench.topics.get(TOPIC),
        "publish": lambda: bench.publish(b"m"),
        "poll": bench.poll,
        "store": lambda: bench.stored(5, b"m"),
        "update": lambda: bench.topics.update(TOPIC, {"ttl": "1"}),
        "delete": lambda: bench.topics.delete(TOPIC),
    }
    if asked != "create":
        with pytest.raises(TopicNotFound):
            await calls[asked]()
        assert await bench.names("ns") == []
    assert (await bench.create()).generation == 2
    assert await bench.payloads() == []


async def test_a_delete_whose_record_was_not_written_is_finished_by_the_next_use(
    bench: Bench,
) -> None:
    await bench.create()
    await bench.publish(b"old")
    put_if = bench.records.put_if
    broken = True

    async def put(*arguments: Any) -> Any:
        if broken:
            raise StorageFull("no space")
        return await put_if(*arguments)

    bench.records.put_if = put  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown):
        await bench.topics.delete(TOPIC)
    broken = False
    with pytest.raises(TopicNotFound):
        await bench.publish(b"m")
    assert (await bench.create()).generation == 2


async def test_a_read_in_flight_does_not_bring_a_deleted_topic_back(bench: Bench) -> None:
    await bench.create()
    bench.restart()
    gate = Gate()
    bench.table.on("get", gate.after)
    reading = asyncio.ensure_future(bench.topics.get(TOPIC))
    await gate.reached.wait()
    deleting = asyncio.ensure_future(bench.topics.delete(TOPIC))
    await settle()
    gate.open()
    await asyncio.gather(reading, deleting)
    with pytest.raises(TopicNotFound):
        await bench.topics.get(TOPIC)


async def test_a_delete_goes_on_without_its_caller(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"m")
    gate = Gate()
    bench.table.on("head", gate.after)
    deleting = asyncio.ensure_future(bench.topics.delete(TOPIC))
    await gate.reached.wait()
    deleting.cancel()
    gate.open()
    await settle()
    assert await bench.names("ns") == []


async def test_a_queued_publish_is_refused_when_its_topic_is_deleted(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"m")
    gate = Gate()
    bench.table.on("append", gate.before)
    sent = asyncio.ensure_future(bench.publish(b"a"))
    await gate.reached.wait()
    queued = asyncio.ensure_future(bench.publish(b"c"))
    await settle()
    await bench.topics.delete(TOPIC)
    gate.open()
    for publishing in (sent, queued):
        with pytest.raises(TopicNotFound):
            await publishing


async def test_a_queued_publish_is_not_stored_in_the_next_generation(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"m")
    gate = Gate()
    bench.table.on("append", gate.before)
    sent = asyncio.ensure_future(bench.publish(b"a"))
    await gate.reached.wait()
    deleting = asyncio.ensure_future(bench.topics.delete(TOPIC))
    await deleting
    await bench.topics.create(TOPIC, {"ttl": "9", "transactions": "required"})
    gate.open()
    with pytest.raises((Fenced, TopicNotFound, BadRequest)):
        await sent
    assert await bench.payloads() == []


@pytest.mark.parametrize(
    ("use", "pointer", "is_allowed"),
    [
        ("optional", None, True),
        ("optional", 5, True),
        ("required", None, False),
        ("required", 5, True),
        ("refused", None, True),
        ("refused", 5, False),
    ],
)
async def test_the_property_transactions_is_enforced(
    bench: Bench, use: str, pointer: int | None, is_allowed: bool
) -> None:
    await bench.create()
    await bench.publish(b"first")
    await bench.topics.update(TOPIC, {"ttl": "9", "transactions": use})
    if is_allowed:
        await bench.publish(b"m", pointer=pointer)
    else:
        with pytest.raises(BadRequest):
            await bench.publish(b"m", pointer=pointer)
        if pointer is not None:
            with pytest.raises(BadRequest):
                await bench.stored(pointer, b"m")


async def test_malformed_requests_are_refused(bench: Bench) -> None:
    await bench.create(ttl_s=10)
    for asked in (
        bench.publish(),
        bench.topics.store(TOPIC, PublishRequest(None, [b"m"])),
        bench.topics.store(TOPIC, PublishRequest(5, [])),
        bench.publish(b"m", options=PublishOptions(ttl_s=11)),
        bench.publish(b"m", options=PublishOptions(ttl_s=0)),
    ):
        with pytest.raises(BadRequest):
            await asked
    await bench.publish(b"m", options=PublishOptions(ttl_s=10))


# Expiry on every reader.


@pytest.mark.parametrize("cached", [True, False])
async def test_all_readers_lose_a_message_at_the_same_millisecond(
    bench: Bench, cached: bool
) -> None:
    await bench.create(ttl_s=10)
    await bench.stored(5, b"stored")
    await bench.stored(5, b"stored short", options=PublishOptions(ttl_s=3))
    await bench.pass_ms(4000)
    began_ms = bench.clock.now_ms()
    await bench.publish(b"plain", b"plain")
    await bench.publish(b"short", options=PublishOptions(ttl_s=2))
    await bench.publish(b"tx", pointer=7)
    await bench.publish(pointer=5, options=PublishOptions(ttl_s=6))
    published_ms = {m.payload: m.timestamp_ms for m in await bench.poll()}
    lives_ms = {b"plain": 10_000, b"short": 2000, b"tx": 10_000}
    lives_ms |= {b"stored": 6000, b"stored short": 3000}
    snapshot = Snapshot(transaction_id=100, read_pointer=100)
    moments = {published_ms[p] + lives_ms[p] + d for p in lives_ms for d in (0, 1)}
    for moment in sorted(moments):
        await bench.pass_ms(moment - bench.clock.now_ms())
        assert bench.clock.now_ms() == moment
        alive = {p for p in lives_ms if moment <= published_ms[p] + lives_ms[p]}
        if not cached:
            bench.forget_cache()
        for poll in (Poll(), Poll(snapshot=snapshot), Poll(0), Poll(bytes(20), limit=100)):
            assert set(await bench.payloads(poll)) == alive, (moment - began_ms, poll)
        for descending in (True, False):
            query = BrowseQuery(None, None, 100, descending)
            page = await bench.topics.browse(TOPIC, query)
            shown = {entry.payload for entry in page.entries if entry.payload is not None}
            assert shown == alive


async def test_a_changed_ttl_applies_to_existing_messages(bench: Bench) -> None:
    await bench.create(ttl_s=100)
    await bench.publish(b"m")
    await bench.pass_ms(50_000)
    await bench.topics.update(TOPIC, {"ttl": "49"})
    assert await bench.payloads() == []
    await bench.topics.update(TOPIC, {"ttl": "51"})
    assert await bench.payloads() == [b"m"]


async def test_a_change_without_an_answer_counts_if_it_was_made(bench: Bench) -> None:
    await bench.create(ttl_s=100)
    await bench.publish(b"m")
    unknown = done_but(StorageFull("no space", outcome="unknown"))
    bench.table.on("record", unknown)
    with pytest.raises(StorageFull):
        await bench.topics.update(TOPIC, {"ttl": "50"})
    assert (await bench.topics.get(TOPIC)).ttl_s == 50
    with pytest.raises(BadRequest, match="ttl"):
        await bench.publish(b"n", options=PublishOptions(ttl_s=60))
    bench.table.on("record", unknown)
    with pytest.raises(StorageFull):
        await bench.topics.purge(TOPIC, bench.clock.now_ms())
    assert (await bench.topics.get(TOPIC)).purged_ms > 0


async def test_the_longest_ttl_works(bench: Bench) -> None:
    await bench.create(ttl_s=2_147_483_647)
    await bench.publish(b"m")
    assert await bench.payloads() == [b"m"]
