"""Bulk reads, compared with the same model as polls."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings

from broker.errors import BadRequest, ClockSkew, TopicNotFound
from broker.model import (
    LOG_KEY_MIN,
    Message,
    MessageId,
    Poll,
    RollbackRange,
    Snapshot,
    TopicId,
    log_key_after,
)
from broker.storage.ownpage import PageBounds
from broker.testing.virtual_time import VirtualLoop, simulate
from broker.topics import streams
from broker.topics import topics as service
from broker.topics.ranges import RangeQuery
from broker.topics.retention import Sweeper
from broker.topics.settings import PublishOptions
from broker.topics.topics import Topics
from tests.kit.bench import TOPIC, Bench
from tests.unit.topics.test_consuming import SNAPSHOT, Shown, expected, make, places, steps


async def read(
    topics: Topics,
    after: MessageId | None,
    through: MessageId,
    snapshot: Snapshot | None = None,
) -> list[Message]:
    stream = await topics.bulk(TOPIC, after, through, snapshot)
    found: list[Message] = []
    while (page := await stream.next()) is not None:
        assert page.count
        found += [message for some in page.messages() for message in some]
    return found


async def latest(bench: Bench) -> MessageId:
    return (await bench.topics.range(TOPIC, RangeQuery())).latest + LOG_KEY_MIN


def wanted_of(
    rows: list[Shown], after: MessageId | None, through: MessageId, snapshot: Snapshot | None
) -> list[Message]:
    """Return the messages of a poll by the model, within the range."""
    if after is None:
        poll = Poll(snapshot=snapshot)
    elif after[10:] == LOG_KEY_MIN:
        poll = Poll(log_key_after(after[:10]) + LOG_KEY_MIN, snapshot=snapshot)
    else:
        poll = Poll(after, inclusive=False, snapshot=snapshot)
    within = [row for row in rows if row.key <= through[:10]]
    return expected(within, poll)


async def check_all(bench: Bench, rows: list[Shown], snapshot: Snapshot | None) -> None:
    end = await latest(bench)
    ids = places(rows)
    for after in [None, *ids]:
        for through in ids[:: max(len(ids) // 4, 1)]:
            if through[:10] <= end[:10]:
                wanted = wanted_of(rows, after, through, snapshot)
                assert await read(bench.topics, after, through, snapshot) == wanted


@pytest.mark.slow
@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(steps)
def test_every_range_equals_the_model(
    wanted: list[tuple[str, object, str | None]],
) -> None:
    async def main(_: VirtualLoop) -> None:
        bench = Bench()
        rows = await make(bench, wanted)
        for snapshot in (None, SNAPSHOT):
            await check_all(bench, rows, snapshot)
            bench.forget_cache()
            await check_all(bench, rows, snapshot)
        await bench.topics.close()
        bench.restart(page_messages_max=2, poll_messages_max=1)
        for snapshot in (None, SNAPSHOT):
            await check_all(bench, rows, snapshot)

    simulate(main)


@pytest.fixture(params=[True, False], ids=["cached", "stored"])
async def full(bench: Bench, request: pytest.FixtureRequest) -> Bench:
    """A topic of many pages and small batches."""
    bench.bounds = PageBounds(cells_max=3)
    bench.restart()
    await bench.create()
    for number in range(20):
        await bench.publish(*[b"%d" % (number * 5 + place) for place in range(5)])
    if not request.param:
        bench.forget_cache()
    return bench


def numbers(messages: Sequence[Message]) -> list[int]:
    return [int(message.payload) for message in messages]


async def test_parts_of_a_range_are_the_whole(full: Bench) -> None:
    found = await full.topics.range(TOPIC, RangeQuery(messages_max=83, parts=7))
    got: list[Message] = []
    after = found.after
    for end in found.ends:
        got += await read(full.topics, after + LOG_KEY_MIN, end + LOG_KEY_MIN)
        after = end
    assert numbers(got) == list(range(83))


async def test_a_batch_has_a_limited_number_of_bytes(
    full: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (service, streams):
        monkeypatch.setattr(module, "BULK_BYTES", 300)
    stream = await full.topics.bulk(TOPIC, None, await latest(full))
    sizes = []
    while (page := await stream.next()) is not None:
        assert page.bytes == len(b"".join(page.block())) - 1
        sizes.append(page.bytes)
    assert len(sizes) > 5
    assert max(sizes) < 300 + 30, "one message more at most"


async def test_later_messages_are_not_part_of_a_range(full: Bench) -> None:
    end = await latest(full)
    stream = await full.topics.bulk(TOPIC, None, end)
    await full.publish(b"100")
    assert numbers(await read(full.topics, None, end)) == list(range(100))
    assert stream.blocked_by is None


async def test_an_empty_range_has_no_messages(full: Bench) -> None:
    end = await latest(full)
    assert await read(full.topics, end, end) == []
    assert await read(full.topics, end, bytes(20)) == []
    assert await read(full.topics, None, bytes(20)) == []


async def test_a_range_that_ends_behind_the_latest_message_is_refused(full: Bench) -> None:
    end = await latest(full)
    beyond = log_key_after(end[:10]) + LOG_KEY_MIN
    with pytest.raises(BadRequest, match="through"):
        await read(full.topics, None, beyond)
    await full.publish(b"100")
    assert numbers(await read(full.topics, end, await latest(full))) == [100]


async def test_a_topic_without_messages_has_an_empty_range(bench: Bench) -> None:
    await bench.create()
    assert await read(bench.topics, None, await latest(bench)) == []
    with pytest.raises(TopicNotFound):
        await bench.topics.bulk(TopicId("no", "topic"), None, bytes(20))


async def test_only_expired_messages_are_left_out(full: Bench) -> None:
    old = await latest(full)
    await full.pass_ms(1_000_000)
    await full.publish(b"new", options=PublishOptions(ttl_s=100))
    await full.publish(b"newer")
    end = await latest(full)
    for _ in range(3):
        assert [m.payload for m in await read(full.topics, None, end)] == [b"new", b"newer"]
        assert await read(full.topics, None, old) == []
        await Sweeper(full.topics.leaders).sweep()
    await full.pass_ms(101_000)
    assert [m.payload for m in await read(full.topics, old, end)] == [b"newer"]
    await full.pass_ms(1_000_000)
    for _ in range(3):
        assert await read(full.topics, None, end) == []
        await Sweeper(full.topics.leaders).sweep()


async def test_a_transaction_reads_up_to_the_message_that_holds_it(full: Bench) -> None:
    before = await latest(full)
    done = await full.publish(b"100", pointer=50)
    await full.publish(b"101")
    end = await latest(full)
    assert numbers(await read(full.topics, None, end, SNAPSHOT)) == list(range(100))
    assert numbers(await read(full.topics, None, end)) == list(range(102))
    held = await full.topics.bulk(TOPIC, before, end, SNAPSHOT)
    assert (await held.next(), held.blocked_by) == (None, 50)
    await full.topics.rollback(TOPIC, RollbackRange(50, done.first, done.last))
    got = await read(full.topics, None, end, SNAPSHOT)
    assert numbers(got) == [*range(100), 101]


async def test_a_bulk_read_is_refused_if_the_clock_is_off(
    full: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def compare(**_: object) -> None:
        raise ClockSkew("this clock is off")

    end = await latest(full)
    monkeypatch.setattr(full.topics.leaders.claims.clocks, "compare", compare)
    with pytest.raises(ClockSkew):
        await read(full.topics, None, end)
