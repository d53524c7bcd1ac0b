from __future__ import annotations

import asyncio

import pytest

from broker.errors import ClockSkew, TopicNotFound
from broker.model import LogKey, TopicId
from broker.storage.ownpage import PageBounds
from broker.topics import ranges
from broker.topics.ranges import Range, RangeQuery
from broker.topics.retention import Sweeper
from tests.kit.bench import TOPIC, Bench


@pytest.fixture
async def bench(bench: Bench) -> Bench:
    bench.bounds = PageBounds(cells_max=3)
    bench.restart()
    await bench.create()
    return bench


async def found(bench: Bench, **query: object) -> Range:
    return await bench.topics.range(TOPIC, RangeQuery(**query))  # type: ignore[arg-type]


async def published(bench: Bench, requests: int, messages: int) -> list[LogKey]:
    """Publish; return the last id of each request."""
    return [(await bench.publish(*[b"payload"] * messages)).last for _ in range(requests)]


async def test_an_empty_topic_has_an_empty_range(bench: Bench) -> None:
    whole = await found(bench)
    assert (whole.messages, whole.bytes, whole.lost, whole.ends) == (0, 0, 0, [])
    assert whole.earliest == whole.latest == whole.after == whole.through
    with pytest.raises(TopicNotFound):
        await bench.topics.range(TopicId("no", "topic"), RangeQuery())


async def test_a_range_goes_from_the_oldest_to_the_newest_message(bench: Bench) -> None:
    ids = await published(bench, 20, 5)
    whole = await found(bench)
    assert (whole.messages, whole.bytes, whole.through) == (100, 700, ids[-1])
    assert whole.latest == ids[-1]
    assert whole.ends == [ids[-1]]
    part = await found(bench, after=ids[3], through=ids[7])
    assert (part.after, part.through, part.messages) == (ids[3], ids[7], 20)
    beyond = await found(bench, after=ids[3], through=b"\x7f" * 10)
    assert (beyond.through, beyond.messages) == (ids[-1], 80)
    backwards = await found(bench, after=ids[7], through=ids[3])
    assert (backwards.through, backwards.messages, backwards.ends) == (ids[7], 0, [])


async def test_later_messages_have_ids_above_the_latest_id(bench: Bench) -> None:
    await published(bench, 3, 2)
    latest = (await found(bench)).latest
    assert (await found(bench, after=latest)).messages == 0
    await published(bench, 4, 2)
    more = await found(bench, after=latest)
    assert (more.messages, (await found(bench, through=latest)).messages) == (8, 6)


async def test_a_range_is_bounded_and_divided(bench: Bench) -> None:
    ids = await published(bench, 20, 5)
    some = await found(bench, after=ids[0], messages_max=33)
    assert some.messages == 33
    assert (await found(bench, after=some.through)).messages == 100 - 5 - 33
    assert (await found(bench, messages_max=10**9)).messages == 100
    few = await found(bench, bytes_max=1)
    assert few.messages == 1, "one message goes in any case"
    divided = await found(bench, parts=4)
    counts = []
    for after, through in zip([divided.after, *divided.ends], divided.ends, strict=False):
        counts.append((await found(bench, after=after, through=through)).messages)
    assert counts == [25, 25, 25, 25]
    assert len((await found(bench, after=ids[-2], parts=50)).ends) == 5


async def test_long_parts_end_at_page_ends_without_reading_entries(bench: Bench) -> None:
    ids = await published(bench, 60, 5)
    calls = bench.table.calls
    await found(bench)
    calls.clear()
    ends = (await found(bench, parts=2)).ends
    assert ends in ([ids[29], ids[-1]], [ids[28], ids[-1]], [ids[27], ids[-1]])
    assert "cells" not in calls
    calls.clear()
    await found(bench, parts=7)
    assert "cells" in calls


async def test_a_range_is_refused_if_the_clock_is_off(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def compare(**_: object) -> None:
        raise ClockSkew("this clock is off")

    monkeypatch.setattr(bench.topics.leaders.claims.clocks, "compare", compare)
    with pytest.raises(ClockSkew):
        await found(bench)


async def test_a_range_does_not_divide_the_messages_of_a_reference(bench: Bench) -> None:
    await published(bench, 2, 1)
    await bench.stored(7, *[b"p"] * 50)
    reference = (await bench.publish(pointer=7)).last
    whole = await found(bench, parts=10)
    assert whole.messages == 52
    assert whole.ends[-1] == whole.through == reference
    first = await found(bench, messages_max=2)
    rest = await found(bench, after=first.through, messages_max=2)
    assert (first.messages, rest.messages, rest.through) == (2, 50, reference)


async def test_a_range_reports_expired_messages_as_lost(bench: Bench) -> None:
    ids = await published(bench, 20, 5)
    await bench.pass_ms(1_000_000)
    kept = await published(bench, 2, 5)
    whole = await found(bench)
    assert (whole.messages, whole.lost) == (10, 0)
    for sweep in range(2):
        late = await found(bench, after=ids[3])
        assert late.messages == 10
        assert 80 - sweep * 3 * 5 <= late.lost <= 80, (
            "messages that are removed count by whole pages"
        )
        assert (await found(bench, after=whole.earliest)).lost == 0
        assert late.through == kept[-1]
        await Sweeper(bench.topics.leaders).sweep()
    assert (await found(bench, after=ids[-1])).lost == 0, "nothing lay between"


async def test_the_pages_of_the_least_recently_requested_topic_are_forgotten(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "KEPT_MAX", 5)
    await published(bench, 20, 5)
    other = TopicId("default", "other")
    await bench.create(other)

    async def reads_all_heads(topic: TopicId) -> bool:
        bench.table.calls.clear()
        await bench.topics.range(topic, RangeQuery())
        return "scan" in bench.table.calls

    assert await reads_all_heads(TOPIC)
    assert not await reads_all_heads(TOPIC)
    await bench.topics.range(other, RangeQuery())
    assert await reads_all_heads(TOPIC)
    assert (await found(bench)).messages == 100


async def test_concurrent_requests_for_ranges_get_their_own_answers(bench: Bench) -> None:
    await published(bench, 20, 5)
    answers = await asyncio.gather(*(found(bench, messages_max=n) for n in range(1, 30)))
    assert [answer.messages for answer in answers] == list(range(1, 30))
