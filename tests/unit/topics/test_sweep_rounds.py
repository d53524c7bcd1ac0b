"""One topic that hangs, or that fails by a bug, holds up no other topic's sweep."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest

from broker.errors import Unavailable
from broker.model import PublishRequest, TopicId
from broker.testing.virtual_time import pass_time
from broker.topics.retention import Sweeper
from tests.kit.bench import Bench

HUNG_S = 25.0
HUNG = [TopicId("ns", f"hung-{each}") for each in range(20)]
GOOD = [TopicId("ns", f"well-{each}") for each in range(20)]


@pytest.fixture
async def many(bench: Bench) -> Bench:
    """Twenty topics of a region that hangs, and twenty others; the sweep takes the former first."""
    for topic in HUNG + GOOD:
        await bench.create(topic)
    return bench


class Recorded(Sweeper):
    """A sweeper that notes when it is through with a topic. The hung ones fail after HUNG_S."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.topics.leaders)
        self.bench = bench
        self.tried: list[TopicId] = []
        self.swept_at: dict[TopicId, float] = {}
        self.under_way = 0

    async def sweep_topic(self, topic: TopicId, report: Any) -> None:
        self.tried.append(topic)
        self.under_way += 1
        try:
            if topic in HUNG:
                await pass_time(HUNG_S)
                raise Unavailable("the region does not answer")
            await super().sweep_topic(topic, report)
            await pass_time(0.1)
        finally:
            self.under_way -= 1
        self.swept_at[topic] = self.bench.clock.monotonic()


async def test_topics_of_a_hung_region_hold_up_no_other(many: Bench) -> None:
    sweeper = Recorded(many)
    began = many.clock.monotonic()
    report = await sweeper.sweep()
    assert sweeper.swept_at.keys() == set(GOOD)
    assert max(sweeper.swept_at.values()) - began < 5
    assert many.clock.monotonic() - began < HUNG_S + 5
    assert (report.topics, report.skipped) == (20, 20)
    assert report.problem is not None
    assert "the region does not answer" in report.problem


async def test_a_report_has_the_rows_of_topics_that_were_swept_side_by_side(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in GOOD[:3]:
        await bench.create(topic)
        await bench.topics.publish(topic, PublishRequest(None, [b"m"]))
        await bench.topics.delete(topic)
    real, calls = bench.table.scan, count()

    async def slow(*given: Any, **named: Any) -> Any:
        await pass_time(0.01 * (next(calls) % 3))
        return await real(*given, **named)

    monkeypatch.setattr(bench.table, "scan", slow, raising=False)
    report = await Sweeper(bench.topics.leaders).sweep()
    assert (report.topics, report.rows) == (3, 3)


async def test_a_hung_topic_is_tried_again_ever_later_and_the_others_each_time(many: Bench) -> None:
    sweeper = Recorded(many)
    tries = []
    for _ in range(12):
        sweeper.tried.clear()
        report = await sweeper.sweep()
        tries.append(sweeper.tried.count(HUNG[0]))
        assert set(sweeper.tried) >= set(GOOD)
        assert report.skipped == 20, "the report names them, tried or not"
        await pass_time(300)
    assert tries[0] == 1
    assert 3 <= sum(tries) <= 4


async def test_a_topic_that_fails_at_once_is_tried_by_each_sweep(many: Bench) -> None:
    tried = []

    class Failing(Sweeper):
        async def sweep_topic(self, topic: TopicId, report: Any) -> None:
            tried.append(topic)
            raise Unavailable("not now")

    sweeper = Failing(many.topics.leaders)
    assert (await sweeper.sweep()).skipped == 40
    assert (await sweeper.sweep()).skipped == 40
    assert len(tried) == 80


async def test_a_bug_at_one_topic_is_raised_once_the_others_are_swept(many: Bench) -> None:
    class Broken(Recorded):
        async def sweep_topic(self, topic: TopicId, report: Any) -> None:
            if topic == HUNG[0]:
                raise ZeroDivisionError
            await super().sweep_topic(topic, report)

    sweeper = Broken(many)
    with pytest.raises(ZeroDivisionError):
        await sweeper.sweep()
    assert sweeper.swept_at.keys() == set(GOOD)


async def test_a_sweep_that_never_ends_is_left_to_itself_and_not_begun_again(many: Bench) -> None:
    class Stuck(Recorded):
        async def sweep_topic(self, topic: TopicId, report: Any) -> None:
            if topic == HUNG[0]:
                self.tried.append(topic)
                await asyncio.Event().wait()
            elif topic not in HUNG:
                await super().sweep_topic(topic, report)

    sweeper = Stuck(many)
    first = await sweeper.sweep()
    assert first.skipped == 1
    assert first.problem is not None
    assert "still under way" in first.problem
    assert (await sweeper.sweep()).skipped == 1
    assert sweeper.tried.count(HUNG[0]) == 1
    await sweeper.close()


async def test_eight_topics_are_swept_at_once(many: Bench) -> None:
    sweeper = Recorded(many)
    sweeping = asyncio.create_task(sweeper.sweep())
    await pass_time(0.9)
    assert sweeper.under_way == 8
    await pass_time(1)
    assert sweeper.under_way == 16, "those that are late have given their places to others"
    await sweeping


async def test_a_cancelled_sweep_leaves_nothing_behind(many: Bench) -> None:
    sweeper = Recorded(many)
    sweeping = asyncio.create_task(sweeper.sweep())
    await pass_time(2)
    sweeping.cancel()
    await asyncio.gather(sweeping, return_exceptions=True)
    assert sweeper.under_way == 0
