"""Guards of topics that need two leaders, a crash, or two clocks. Each has tests with the guard and without it."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

import pytest

from broker.errors import BrokerError, ClockSkew, OutcomeUnknown, TopicNotFound
from broker.storage.hold import LogHold
from broker.storage.keys import LogId
from broker.storage.log import Logs
from broker.storage.payloads import PayloadLogs
from broker.storage.table import NotWritten
from broker.testing.mutants import in_force
from broker.topics.settings import PublishOptions
from tests.kit.bench import TOPIC, Bench, failing, passing


async def store_at_a_leader_that_was_fenced(bench: Bench) -> None:
    """Let a leader store after another node deleted the topic; the payload log does not show the deletion."""
    bench.memory.is_alone = False
    await bench.create()
    await bench.stored(42, b"before")
    await Logs(bench.memory, bench.clock).delete(LogId(TOPIC, 1), "another")
    await bench.stored(42, b"after")


async def test_a_store_after_a_deletion_is_refused(bench: Bench) -> None:
    with pytest.raises(TopicNotFound):
        await store_at_a_leader_that_was_fenced(bench)


async def another_leads(bench: Bench) -> tuple[Logs, LogHold]:
    logs = Logs(bench.memory, bench.clock)
    return logs, await logs.claim(LogId(TOPIC, 1), "another")


async def store_before(
    bench: Bench, meanwhile: Callable[[], Awaitable[None]], key: str | None = None
) -> None:
    """Store, and let something happen between the store and its proof."""

    async def stored(real, *arguments, **named):
        done = await real(*arguments, **named)
        await meanwhile()
        return done

    bench.memory.is_alone = False
    await bench.create()
    await bench.stored(42, b"before")
    bench.table.on("append", stored)
    await bench.stored(42, b"after", options=PublishOptions(key=key))


@pytest.mark.parametrize("key", [None, "key"])
async def test_a_store_that_races_a_deletion_is_refused(bench: Bench, key: str | None) -> None:
    async def delete() -> None:
        await Logs(bench.memory, bench.clock).delete(LogId(TOPIC, 1), "another")

    with pytest.raises(TopicNotFound):
        await store_before(bench, delete, key)


async def test_a_store_that_races_a_begun_deletion_is_refused(
    bench: Bench,
) -> None:
    async def close() -> None:
        logs = Logs(bench.memory, bench.clock)
        log = LogId(TOPIC, 1)
        assert await logs.close_tail(log, await logs.root(log), "another")

    with pytest.raises(TopicNotFound):
        await store_before(bench, close)


async def test_a_store_is_unknown_if_another_node_claims_the_topic_meanwhile(bench: Bench) -> None:
    async def take_over() -> None:
        await another_leads(bench)

    with pytest.raises(OutcomeUnknown):
        await store_before(bench, take_over)


async def test_a_store_that_was_published_before_the_deletion_is_not_refused(bench: Bench) -> None:
    """Its outcome is unknown, since readers may have seen it."""

    async def publish_and_delete() -> None:
        logs, hold = await another_leads(bench)
        assert (await PayloadLogs(logs, "another").seal(hold, 42)).was_open
        await logs.delete(LogId(TOPIC, 1), "another")

    with pytest.raises(OutcomeUnknown):
        await store_before(bench, publish_and_delete)


async def test_without_the_proof_a_deleted_topic_takes_stores(bench: Bench) -> None:
    with in_force("store-proof"):
        await store_at_a_leader_that_was_fenced(bench)


async def publish_twice_over_a_crash(bench: Bench) -> int:
    """Publish a reference, crash before its root is marked, and publish it again; return its count."""
    await bench.create()
    await bench.stored(42, b"stored")
    bench.table.on("root", passing, *[failing(NotWritten("the node died"))] * 3)
    await bench.publish(pointer=42)
    await bench.pass_ms(1)
    bench.restart()
    with contextlib.suppress(BrokerError):
        await bench.publish(pointer=42)
    return len(await bench.payloads())


async def test_a_reference_is_looked_for_before_it_is_published_again(bench: Bench) -> None:
    assert await publish_twice_over_a_crash(bench) == 1


async def test_without_the_search_a_reference_is_published_twice(bench: Bench) -> None:
    with in_force("look-for-the-reference"):
        assert await publish_twice_over_a_crash(bench) == 2


async def publish_by_a_clock_that_is_behind(bench: Bench) -> None:
    bench.memory.is_alone = False
    bench.memory.server_ms = lambda: bench.clock.now_ms() + 10_000
    await bench.create()
    await bench.publish(b"by a wrong clock")


async def test_a_leader_whose_clock_is_far_off_refuses_publishes(bench: Bench) -> None:
    with pytest.raises(ClockSkew):
        await publish_by_a_clock_that_is_behind(bench)


async def test_without_the_check_of_the_clock_it_takes_them(bench: Bench) -> None:
    with in_force("clock"):
        await publish_by_a_clock_that_is_behind(bench)
