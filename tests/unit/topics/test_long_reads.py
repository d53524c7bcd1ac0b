"""Long reads run in slices, count the rows that they look at, and give out small pieces."""

import asyncio
from typing import Any

import pytest

from broker import long_work
from broker.errors import Overloaded
from broker.http.budget import Bounds, BudgetKind, Budgets, Usage
from broker.model import Message, Poll, Snapshot
from broker.topics.pages import PIECE_BYTES_MAX, WHOLE_BYTES_MAX, PollPage
from broker.topics.topic_reader import MESSAGES_AT_ONCE
from broker.wire.messages import PagesDecoder, PollDecoder
from broker.wire.varint import END
from tests.kit.bench import TOPIC, Bench, settle

OPEN_THEN_INVALID = 7
SNAPSHOT = Snapshot(transaction_id=100, read_pointer=100, invalids=[OPEN_THEN_INVALID])
SKIPPED = 5 * MESSAGES_AT_ONCE
PIECE = max(PIECE_BYTES_MAX, WHOLE_BYTES_MAX)


@pytest.fixture
def every_step_is_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_work, "SLICE_S", 0.0)


async def _skipped_then_one(bench: Bench) -> None:
    """Publish messages of an invalid transaction, each by itself, and then one that every consumer sees."""
    await bench.create()
    for _ in range(SKIPPED):
        await bench.publish(b"skipped", pointer=OPEN_THEN_INVALID)
    await bench.publish(b"seen")


@pytest.mark.usefixtures("every_step_is_a_slice")
@pytest.mark.parametrize("is_cached", [True, False])
async def test_a_poll_that_skips_many_messages_lets_other_tasks_run(
    bench: Bench, is_cached: bool
) -> None:
    await _skipped_then_one(bench)
    if not is_cached:
        bench.forget_cache()
    usage = Usage(None)
    poll = asyncio.ensure_future(bench.topics.poll(TOPIC, Poll(snapshot=SNAPSHOT), usage=usage))
    most_between = before = 0
    while not poll.done():
        await settle(1)
        rows = usage.used.get(BudgetKind.ROWS, 0)
        most_between, before = max(most_between, rows - before), max(before, rows)
    assert [m.payload async for some in poll.result().messages() for m in some] == [b"seen"]
    assert before >= SKIPPED - MESSAGES_AT_ONCE
    assert most_between <= MESSAGES_AT_ONCE


@pytest.mark.parametrize("is_cached", [True, False])
async def test_skipped_rows_are_counted_and_limited(bench: Bench, is_cached: bool) -> None:
    await _skipped_then_one(bench)
    if not is_cached:
        bench.forget_cache()
    budgets = Budgets({BudgetKind.ROWS: Bounds(2 * MESSAGES_AT_ONCE, SKIPPED * 2, SKIPPED * 2)})
    usage = Usage(budgets.account("client", lambda _: None))
    with pytest.raises(Overloaded):
        await bench.topics.poll(TOPIC, Poll(snapshot=SNAPSHOT), usage=usage)
    assert usage.used[BudgetKind.ROWS] == 2 * MESSAGES_AT_ONCE
    usage.close()
    limit = 2 * MESSAGES_AT_ONCE + 1
    stream = await bench.topics.poll(TOPIC, Poll(limit=limit), usage=usage)
    assert sum([len(some) async for some in stream.messages()]) == limit
    assert BudgetKind.ROWS not in usage.used, "messages that are given out count no more"


@pytest.mark.parametrize("limit", [1, 100])
async def test_a_poll_for_few_messages_skips_many_in_few_reads_and_counts_them(
    bench: Bench, limit: int
) -> None:
    await _skipped_then_one(bench)
    bench.forget_cache()
    budgets = Budgets({BudgetKind.ROWS: Bounds(SKIPPED // 2, SKIPPED * 2, SKIPPED * 2)})
    usage = Usage(budgets.account("client", lambda _: None))
    with pytest.raises(Overloaded):
        await bench.topics.poll(TOPIC, Poll(snapshot=SNAPSHOT, limit=limit), usage=usage)
    usage.close()
    bench.table.calls.clear()
    stream = await bench.topics.poll(TOPIC, Poll(snapshot=SNAPSHOT, limit=limit))
    assert [m.payload async for some in stream.messages() for m in some] == [b"seen"]
    assert len(bench.table.calls) < SKIPPED // 20


async def _all(stream: Any, decoder: PollDecoder | PagesDecoder, form: Any) -> list[Message]:
    found: list[Message] = []
    async for piece in stream.blocks(form):
        assert 0 < len(piece) <= PIECE
        found += decoder.feed(bytes(piece))
    return found + decoder.feed(END)


@pytest.mark.parametrize("is_stored", [True, False])
async def test_pieces_are_small_for_messages_of_any_size(bench: Bench, is_stored: bool) -> None:
    await bench.create()
    payloads = [b"a" * 10, b"b" * 3_000_000, b"c" * 70_000, *[b"d" * 600] * 900, b"e" * 300_000]
    if is_stored:
        await bench.stored(50, *payloads)
        await bench.publish(pointer=50)
    else:
        await bench.publish(*payloads)
    for form, decoder in ((PollPage.block, PollDecoder()), (PollPage.whole, PagesDecoder())):
        stream = await bench.topics.poll(TOPIC, Poll())
        found = await _all(stream, decoder, form)
        assert [message.payload for message in found] == payloads
        assert found == await bench.poll()


async def test_a_large_page_is_counted_until_it_is_taken(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"a" * 3_000_000)
    await bench.publish(b"b" * 3_000_000)
    usage = Usage(None)
    stream = await bench.topics.poll(TOPIC, Poll(), usage=usage)
    most = 0
    async for _ in stream.blocks():
        most = max(most, usage.used[BudgetKind.REPLY_BYTES])
    assert 3_000_000 < most < 3_100_000
    assert not usage.used


async def test_the_messages_of_a_large_page_stay_in_its_memory(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"a" * 3_000_000)
    await bench.stored(50, b"b" * 3_000_000)
    await bench.publish(pointer=50)
    usage = Usage(None)
    stream = await bench.topics.poll(TOPIC, Poll(), usage=usage)
    found = []
    async for some in stream.messages():
        assert 3_000_000 < usage.used[BudgetKind.REPLY_BYTES] < 3_100_000
        assert isinstance(some[0].payload, memoryview)
        found.append(bytes(some[0].payload))
    assert found == [b"a" * 3_000_000, b"b" * 3_000_000]
    assert not usage.used
