"""A request's deadline holds wherever it waits.

It waits carried to the next leader, in a claim, in the look-up of its key or its producer's number, behind its
producer's publish before, for a payload log, or for the same request in progress.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from broker.errors import Fenced, NoLeader, OutcomeUnknown, Overloaded, Unavailable
from broker.model import Poll, PublishRequest, RollbackRange, Snapshot
from broker.topics.settings import Producer, PublishOptions
from tests.kit.bench import TOPIC, Bench, Gate, failing, settle


def soon(bench: Bench, seconds: float) -> PublishOptions:
    return PublishOptions(deadline=bench.clock.monotonic() + seconds)


async def test_a_carried_publish_is_refused_at_its_deadline(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"first")
    append, claim = Gate(), Gate()
    bench.table.on("append", append.before)
    under_way = asyncio.ensure_future(bench.publish(b"sent"))
    await append.reached.wait()
    waiting = [
        asyncio.ensure_future(bench.publish(b"%d" % number, options=soon(bench, 1.5 + number)))
        for number in range(2)
    ]
    await settle()
    bench.table.on("head", claim.before)
    bench.leader().end(Fenced("let go"))
    append.open()
    await claim.reached.wait()
    begun = bench.clock.monotonic()
    with pytest.raises(Overloaded, match="deadline"):
        await waiting[0]
    assert bench.clock.monotonic() - begun < 1.6
    assert not waiting[1].done()
    claim.open()
    await waiting[1]
    await asyncio.gather(under_way, return_exceptions=True)
    assert b"0" not in await bench.payloads()


async def test_each_publish_that_was_certainly_not_stored_is_refused_at_its_own_deadline(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.table, "keeps_order", True, raising=False)
    await bench.create()
    await bench.publish(b"first")
    hanging = Gate()
    bench.table.on("append", hanging.before, failing(Fenced("over")))
    under_way = asyncio.ensure_future(bench.publish(b"sent"))
    await hanging.reached.wait()
    waiting = [
        asyncio.ensure_future(bench.publish(bytes(20_000), options=soon(bench, 1.5 + number)))
        for number in range(2)
    ]
    for each in waiting:
        with pytest.raises(Overloaded, match="deadline"):
            await each
    assert not under_way.done(), "its leader still waits for its outcome"
    hanging.open()
    await asyncio.gather(under_way, return_exceptions=True)


async def test_a_claim_that_hangs_holds_no_request_beyond_its_deadline(bench: Bench) -> None:
    await bench.create()
    claim = Gate()
    bench.table.on("make", claim.before)
    begun = bench.clock.monotonic()
    with pytest.raises(NoLeader):
        await bench.publish(b"a", options=soon(bench, 1.5))
    assert bench.clock.monotonic() - begun < 1.6
    claim.open()
    await bench.publish(b"b")
    assert await bench.payloads() == [b"b"]


LOOKED_UP = pytest.mark.parametrize(
    "options",
    [PublishOptions(key="k"), PublishOptions(producer=Producer("p", 1))],
    ids=["key", "number"],
)


async def refused_in_time(bench: Bench, publishing: Awaitable[object]) -> None:
    """Await a publish with a deadline of 1.5 s from now that can't end before its storage does."""
    begun = bench.clock.monotonic()
    with pytest.raises(Unavailable, match="deadline"):
        await publishing
    assert 1.4 < bench.clock.monotonic() - begun < 1.6


@LOOKED_UP
async def test_a_look_up_that_hangs_holds_no_request_beyond_its_deadline(
    bench: Bench, options: PublishOptions
) -> None:
    await bench.create()
    await bench.publish(b"first")
    bench.restart()
    await bench.publish(b"second")
    look_up = Gate()
    bench.table.on("scan", look_up.before)
    late = options._replace(deadline=bench.clock.monotonic() + 1.5)
    await refused_in_time(bench, bench.publish(b"late", options=late))
    look_up.open()
    await settle()
    assert await bench.payloads() == [b"first", b"second"]
    await bench.publish(b"again", options=options)
    assert await bench.payloads() == [b"first", b"second", b"again"]


async def test_a_number_waits_behind_its_producers_publish_until_its_deadline(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"0", options=PublishOptions(producer=Producer("p", 1)))
    append = Gate()
    bench.table.on("append", append.before)
    before = asyncio.ensure_future(
        bench.publish(b"1", options=PublishOptions(producer=Producer("p", 2)))
    )
    await append.reached.wait()
    options = soon(bench, 1.5)._replace(producer=Producer("p", 3))
    await refused_in_time(bench, bench.publish(b"2", options=options))
    append.open()
    await before
    assert await bench.payloads() == [b"0", b"1"]


async def test_a_request_that_joins_another_is_unknown_at_its_own_deadline(bench: Bench) -> None:
    await bench.create()
    append = Gate()
    bench.table.on("append", append.before)
    first = asyncio.ensure_future(bench.publish(b"a", options=PublishOptions(key="k")))
    await append.reached.wait()
    begun = bench.clock.monotonic()
    with pytest.raises(OutcomeUnknown, match="in progress"):
        await bench.publish(b"a", options=soon(bench, 1.5)._replace(key="k"))
    assert bench.clock.monotonic() - begun < 1.6
    append.open()
    assert not (await first).replayed
    assert await bench.payloads() == [b"a"]


async def test_a_reference_whose_log_is_not_closed_in_time_is_never_published(
    bench: Bench,
) -> None:
    await bench.create()
    pointer = bench.clock.now_ms() * 10**6
    stored = PublishRequest(pointer, [b"stored"])
    await bench.topics.store(TOPIC, stored)
    seal = Gate()
    bench.table.on("root", seal.before)
    reference = PublishRequest(pointer, [])
    publishing = bench.topics.publish(TOPIC, reference, soon(bench, 1.5))
    await refused_in_time(bench, publishing)
    seal.open()
    await settle()
    assert await bench.payloads() == []
    await bench.topics.publish(TOPIC, reference)
    assert await bench.payloads() == [b"stored"]


@pytest.mark.parametrize("how", ["create", "update", "purge", "delete"])
async def test_a_change_of_a_record_waits_for_its_turn_until_its_deadline(
    bench: Bench, how: str
) -> None:
    await bench.create()
    await bench.publish(b"kept")
    properties, record, begun = {"ttl": "99"}, Gate(), bench.clock.monotonic()
    bench.table.on("record", record.before)
    ahead = asyncio.ensure_future(bench.topics.update(TOPIC, {"ttl": "100"}))
    await record.reached.wait()
    deadline = begun + 1.5
    changes = {
        "create": lambda: bench.topics.create(TOPIC, properties, deadline),
        "update": lambda: bench.topics.update(TOPIC, properties, deadline),
        "purge": lambda: bench.topics.purge(TOPIC, 0, deadline),
        "delete": lambda: bench.topics.delete(TOPIC, deadline=deadline),
    }
    await refused_in_time(bench, changes[how]())
    record.open()
    await ahead
    assert (await bench.topics.get(TOPIC)).ttl_s == 100
    assert await bench.payloads() == [b"kept"]


async def test_a_rollback_in_progress_is_unknown_at_its_deadline_and_goes_on(bench: Bench) -> None:
    await bench.create()
    pointer = bench.clock.now_ms() * 10**6
    ids = await bench.publish(b"back", pointer=pointer)
    rolled, begun = Gate(), bench.clock.monotonic()
    bench.table.on("rolled", rolled.before)
    with pytest.raises(OutcomeUnknown, match="deadline"):
        await bench.topics.rollback(
            TOPIC, RollbackRange(pointer, ids.first, ids.last), soon(bench, 1.5)
        )
    assert bench.clock.monotonic() - begun < 1.7
    rolled.open()
    await bench.leader().idle()
    everything = Snapshot(transaction_id=0, read_pointer=pointer)
    assert await bench.payloads(Poll(snapshot=everything)) == []


async def test_a_store_waits_for_its_payload_log_until_its_deadline(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"first")
    claim = Gate()
    bench.table.on("root", claim.before)
    bench.table.on("make", claim.before)
    stored = PublishRequest(bench.clock.now_ms() * 10**6, [b"stored"])
    await refused_in_time(bench, bench.topics.store(TOPIC, stored, soon(bench, 1.5)))
    claim.open()
    await settle()
    await bench.topics.store(TOPIC, stored)
