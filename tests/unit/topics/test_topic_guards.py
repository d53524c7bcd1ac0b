"""Guards of topics that need two leaders, a crash at one moment, or two clocks: with each, and without it."""

from __future__ import annotations

import contextlib

import pytest

from broker.errors import BrokerError, ClockSkew, OutcomeUnknown
from broker.storage.keys import LogId
from broker.storage.log import Logs
from broker.storage.table import NotSent
from broker.testing.bench import TOPIC, Bench, failing
from broker.testing.mutants import in_force


async def store_at_a_leader_that_was_fenced(bench: Bench) -> None:
    """Let a leader store whose topic was deleted by another node: of that it can't know by this log."""
    bench.memory.is_alone = False
    await bench.create()
    await bench.stored(42, b"before")
    await Logs(bench.memory, bench.clock).delete(LogId(TOPIC, 1), "another")
    await bench.stored(42, b"after")


async def test_a_store_is_acknowledged_by_who_leads_the_topic(bench: Bench) -> None:
    with pytest.raises(OutcomeUnknown):
        await store_at_a_leader_that_was_fenced(bench)


async def test_without_the_proof_a_deleted_topic_takes_stores(bench: Bench) -> None:
    with in_force("store-proof"):
        await store_at_a_leader_that_was_fenced(bench)


async def publish_twice_over_a_crash(bench: Bench) -> int:
    """Publish a reference, die before that is noted, and publish it again; how often it is there."""
    await bench.create()
    await bench.stored(42, b"stored")
    bench.table.on("root", *_only_the_first_passes())
    await bench.publish(pointer=42)
    await bench.pass_ms(1)
    bench.restart()
    with contextlib.suppress(BrokerError):
        await bench.publish(pointer=42)
    return len(await bench.payloads())


def _only_the_first_passes():
    async def passes(real, *arguments, **named):
        return await real(*arguments, **named)

    return [passes, *[failing(NotSent("the node died"))] * 3]


async def test_a_reference_is_looked_for_before_it_is_published_again(bench: Bench) -> None:
    assert await publish_twice_over_a_crash(bench) == 1


async def test_without_a_look_it_is_there_twice(bench: Bench) -> None:
    with in_force("look-for-the-reference"):
        assert await publish_twice_over_a_crash(bench) == 2


async def publish_by_a_clock_that_is_behind(bench: Bench) -> None:
    bench.memory.is_alone = False
    bench.memory.server_ms = lambda: bench.clock.now_ms() + 10_000
    await bench.create()
    await bench.publish(b"by a wrong clock")


async def test_a_leader_whose_clock_is_far_off_takes_nothing(bench: Bench) -> None:
    with pytest.raises(ClockSkew):
        await publish_by_a_clock_that_is_behind(bench)


async def test_without_a_look_at_the_clock_it_does(bench: Bench) -> None:
    with in_force("clock"):
        await publish_by_a_clock_that_is_behind(bench)
