"""The leader of a topic ends while stores, and publishes of their references, are under way."""

from __future__ import annotations

import asyncio

import pytest

from broker.errors import NotLeader, PayloadsSealed, TopicNotFound
from tests.kit.bench import TOPIC, Bench, Gate, settle


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
