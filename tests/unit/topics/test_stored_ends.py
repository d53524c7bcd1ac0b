"""The leader of a topic ends while stores, and publishes of their references, are under way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.errors import NoLeader, NotLeader, PayloadsSealed, TopicNotFound
from broker.model import POINTERS_PER_MS, PublishRequest
from broker.storage import payloads
from broker.storage.keys import LogId, root_key
from broker.storage.table import TableError, WriteUnknown
from broker.testing.virtual_time import pass_time
from tests.kit.bench import TOPIC, Bench, Gate, Hook, failing, settle


def pointer_now(bench: Bench) -> int:
    return bench.clock.now_ms() * 10**6 + 1


async def test_a_store_is_answered_though_its_topic_is_deleted_while_a_publish_waits_for_it(
    bench: Bench,
) -> None:
    await bench.create()
    number = pointer_now(bench)
    await bench.stored(number, b"first")
    gate = Gate()
    bench.table.on("append", gate.after)
    storing = asyncio.ensure_future(bench.stored(number, b"second"))
    await gate.reached.wait()
    publishing = asyncio.ensure_future(bench.publish(pointer=number))
    await settle()
    await bench.topics.delete(TOPIC)
    gate.open()
    for asked in (storing, publishing):
        with pytest.raises(TopicNotFound):
            await asyncio.wait_for(asked, 60)


async def test_stores_are_answered_though_their_leader_ends_while_a_publish_waits_for_them(
    bench: Bench,
) -> None:
    await bench.create()
    number = pointer_now(bench)
    await bench.stored(number, b"first")
    gate = Gate()
    bench.table.on("append", gate.before)
    stores = [asyncio.ensure_future(bench.stored(number, b"second"))]
    await gate.reached.wait()
    stores.append(asyncio.ensure_future(bench.stored(number, b"third")))
    await settle()
    publishing = asyncio.ensure_future(bench.publish(pointer=number))
    await settle()
    bench.leader().end(NotLeader("Another node should lead it."))
    bench.restart()
    await bench.publish(pointer=number)  # The next leader closes the log.
    gate.open()
    for asked in stores:
        with pytest.raises(PayloadsSealed):
            await asyncio.wait_for(asked, 60)
    assert (await asyncio.wait_for(publishing, 60)).replayed
    assert await bench.payloads() == [b"first"]


def no_answers(bench: Bench, call: str) -> None:
    """Let storage make the next such call, and answer neither this nor any read."""

    async def answer_no_more(real: Hook, *arguments: Any, **named: Any) -> Any:
        await real(*arguments, **named)
        bench.table.on("get", *[failing(TableError("no answer"))] * 10_000)
        raise WriteUnknown("no answer")

    bench.table.on(call, answer_no_more)


async def test_a_store_whose_payload_log_cannot_be_claimed_is_refused_and_may_be_repeated(
    bench: Bench,
) -> None:
    await bench.create()
    await bench.publish(b"m")
    number, appends = pointer_now(bench), bench.table.calls.count("append")
    no_answers(bench, "make")
    with pytest.raises(NoLeader) as refused:
        await bench.stored(number, b"payload")
    assert refused.value.outcome == "refused"
    assert bench.table.calls.count("append") == appends, "it sent no payload"
    bench.table.forget_hooks()
    await bench.stored(number, b"payload")
    await bench.publish(pointer=number)
    assert await bench.payloads() == [b"m", b"payload"]


async def test_a_publish_whose_payload_log_cannot_be_closed_is_refused_and_may_be_repeated(
    bench: Bench,
) -> None:
    await bench.create()
    number = pointer_now(bench)
    await bench.stored(number, b"payload")
    no_answers(bench, "head")
    with pytest.raises(NoLeader) as refused:
        await bench.publish(pointer=number)
    assert refused.value.outcome == "refused"
    bench.table.forget_hooks()
    assert not (await bench.publish(pointer=number)).replayed
    assert await bench.payloads() == [b"payload"]


async def test_a_sweep_goes_on_though_the_log_that_it_drops_is_forgotten_meanwhile(
    bench: Bench,
) -> None:
    bench.restart(stage_life_s=5, payload_logs_open_max=1, sweep_margin_ms=0)
    await bench.create()
    stage = await bench.topics.begin_stage(TOPIC)
    await bench.topics.store(TOPIC, PublishRequest(None, (b"x",), stages=(stage,)))
    await bench.pass_ms(20_000)
    gate = Gate()

    async def wait(real: Hook, space: Any, row: bytes, *rest: Any) -> Any:
        if row == root_key(LogId(TOPIC, 1, stage)):
            return await gate.before(real, space, row, *rest)
        return await real(space, row, *rest)

    bench.table.on("get", *[wait] * 100)
    sweeping = asyncio.ensure_future(bench.sweeper.sweep())
    await asyncio.wait_for(gate.reached.wait(), 10)
    await bench.stored(pointer_now(bench), b"opens another log, so this node forgets the idle one")
    gate.open()
    assert (await sweeping).payload_logs == 1


async def test_a_sweep_holds_few_of_the_payload_logs_that_it_removes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It removes the first ones before it reads the last ones."""
    monkeypatch.setattr(payloads, "ROOTS_AT_ONCE", 2)
    bench.restart(transaction_life_max_s=5, sweep_margin_ms=0)
    await bench.create(ttl_s=10)
    begun = bench.clock.now_ms() * POINTERS_PER_MS
    for number in range(7):
        await bench.stored(begun + number, b"x")
    await pass_time(60)
    bench.table.calls.clear()
    report = await bench.sweeper.sweep()
    assert report.payload_logs == 7
    calls = [call for call in bench.table.calls if call in {"scan", "root"}]
    first_removed = calls.index("root")
    assert calls[first_removed:].count("scan") >= 3
