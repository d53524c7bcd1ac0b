from __future__ import annotations

import pytest

from broker import long_work
from broker.model import LOG_KEY_MIN
from broker.storage import payloads
from broker.storage.keys import LogId
from broker.storage.ownpage import PageBounds
from broker.storage.root import RootState
from broker.topics import stats
from broker.topics.settings import PublishOptions
from tests.kit.bench import TOPIC, Bench


async def test_stats_count_the_live_messages(bench: Bench) -> None:
    await bench.create()
    empty = await bench.topics.stats(TOPIC)
    assert (empty.messages, empty.first, empty.last, empty.open_payload_logs) == (0, None, None, 0)
    first = await bench.publish(b"ab", b"c")
    await bench.publish(b"brief", options=PublishOptions(ttl_s=1))
    await bench.pass_ms(1500)
    counted = await bench.topics.stats(TOPIC)
    assert (counted.messages, counted.messages_exact, counted.bytes) == (2, True, 3)
    assert counted.last == first.last + bytes(10), "expired messages are not shown"
    assert counted.poll_per_s == 0
    await bench.poll()
    assert (await bench.topics.stats(TOPIC)).poll_per_s > 0
    await bench.stored(5, b"x")
    await bench.stored(6, b"p", b"q")
    last = await bench.publish(pointer=6)
    found = await bench.topics.stats(TOPIC)
    assert (found.messages, found.messages_exact, found.bytes_exact) == (4, True, False)
    assert found.published == 5, "expired messages count as published"
    assert (found.first, found.last) == (first.first + bytes(10), last.first + bytes(10))
    assert found.open_payload_logs == 1
    assert found.publish_per_s > 0
    root = await bench.around.payload_logs.root(LogId(TOPIC, 1, 5))
    assert root is not None
    assert root.state is RootState.OPEN


@pytest.mark.parametrize("cells_max", [1, 2, 3, 100])
async def test_first_and_last_are_those_of_live_messages(bench: Bench, cells_max: int) -> None:
    bench.bounds = PageBounds(cells_max=cells_max)
    bench.restart(page_bytes_max=1)
    await bench.create()
    brief = PublishOptions(ttl_s=1)
    await bench.publish(*[b"brief"] * 5, options=brief)
    first = await bench.publish(b"a")
    last = await bench.publish(b"b")
    await bench.publish(*[b"brief"] * 5, options=brief)
    await bench.pass_ms(1500)
    found = await bench.topics.stats(TOPIC)
    assert (found.first, found.last) == (first.first + bytes(10), last.last + bytes(10))
    await bench.pass_ms(10**6)
    found = await bench.topics.stats(TOPIC)
    assert (found.first, found.last) == (None, None)


async def test_more_than_a_page_is_estimated_by_the_payloads_of_the_page(bench: Bench) -> None:
    bench.bounds = PageBounds(cells_max=2)
    bench.restart(page_bytes_max=16)
    await bench.create()
    for _ in range(10):
        await bench.publish(b"four")
    found = await bench.topics.stats(TOPIC)
    assert (found.messages, found.bytes) == (10, 40)
    assert (found.messages_exact, found.bytes_exact) == (False, False)


async def test_open_payload_logs_are_counted_some_at_a_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payloads, "ROOTS_AT_ONCE", 3)
    await bench.create()
    for number in range(1, 9):
        await bench.stored(number, b"x")
    await bench.publish(pointer=2)
    assert (await bench.topics.stats(TOPIC)).open_payload_logs == 7
    monkeypatch.setattr(stats, "PAYLOAD_LOGS_MAX", 6)
    assert (await bench.topics.stats(TOPIC)).open_payload_logs == 5, "of the first six"


@pytest.mark.parametrize("entries_max", [3, 100])
async def test_of_many_entries_only_some_are_counted_exactly(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, entries_max: int
) -> None:
    monkeypatch.setattr(stats, "ENTRIES_MAX", entries_max)
    monkeypatch.setattr(long_work, "SLICE_S", 0.0)
    bench.bounds = PageBounds(cells_max=2)
    bench.restart(page_bytes_max=1000)
    await bench.create()
    for _ in range(9):
        await bench.publish(b"ab", options=PublishOptions(ttl_s=500))
    found = await bench.topics.stats(TOPIC)
    assert (found.messages, found.bytes) == (9, 18)
    assert found.messages_exact == (entries_max > 9)


@pytest.mark.parametrize("cells_max", [1, 2, 100])
async def test_lag_counts_the_messages_after_a_cursor(bench: Bench, cells_max: int) -> None:
    """A reference counts as its stored messages, and expired messages count too."""
    bench.bounds = PageBounds(cells_max=cells_max)
    bench.restart()
    await bench.create()
    nothing = LOG_KEY_MIN + bytes(10)
    assert await bench.topics.lag(TOPIC, nothing) == 0
    await bench.stored(5, b"x", b"y")
    await bench.stored(5, b"z")
    rows = [
        await bench.publish(b"a", b"b"),
        await bench.publish(pointer=5),
        await bench.publish(b"brief", options=PublishOptions(ttl_s=1)),
        await bench.publish(b"c"),
    ]
    await bench.pass_ms(2000)
    for _ in range(2):
        behind = [await bench.topics.lag(TOPIC, row.last + bytes(10)) for row in rows]
        assert behind == [5, 2, 1, 0]
        assert await bench.topics.lag(TOPIC, rows[0].first + bytes(10)) == 6
        assert await bench.topics.lag(TOPIC, nothing) == 7
        assert (await bench.topics.stats(TOPIC)).published == 7
        bench.restart()
