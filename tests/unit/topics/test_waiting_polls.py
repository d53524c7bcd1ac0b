"""Polls that wait: a commit wakes them, a deadline, a drain or a transaction ends them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.errors import (
    NoLeader,
    Overloaded,
)
from broker.http.budget import Account, Bounds, BudgetKind, Budgets, Usage
from broker.model import Poll, RollbackRange, Snapshot
from broker.topics.streams import PollStream
from broker.topics.topic_state import WOKEN_AT_ONCE
from tests.kit.bench import TOPIC, Bench, Gate, settle

SNAPSHOT = Snapshot(transaction_id=100, read_pointer=100, in_progress=[50])


def waiting(bench: Bench, poll: Poll | None = None, wait_s: float = 60) -> asyncio.Task[Any]:
    return asyncio.ensure_future(bench.topics.poll(TOPIC, poll or Poll(), wait_s=wait_s))


async def payloads_of(stream: Any) -> list[bytes]:
    return [message.payload async for messages in stream.messages() for message in messages]


async def test_a_waiting_poll_is_woken_by_the_commit(bench: Bench) -> None:
    await bench.create()
    polls = [waiting(bench) for _ in range(3)]
    await bench.pass_ms(5000)
    assert bench.topics.waiting_polls == 3
    before = bench.clock.monotonic()
    await bench.publish(b"m")
    for poll in polls:
        assert await payloads_of(await poll) == [b"m"]
    assert bench.clock.monotonic() - before < 0.001
    assert bench.topics.waiting_polls == 0


async def test_a_waiting_poll_ends_empty_in_time(bench: Bench) -> None:
    await bench.create()
    before = bench.clock.monotonic()
    stream = await waiting(bench, wait_s=7)
    assert (stream.empty, stream.ended, stream.blocked_by) == (True, True, None)
    assert bench.clock.monotonic() - before == pytest.approx(7)


async def test_no_wake_up_is_lost_between_the_reading_and_the_waiting(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"old")
    (old,) = await bench.poll()
    for call in ("before", "after"):
        bench.forget_cache()
        gate = Gate()
        bench.table.on("cells", getattr(gate, call))
        poll = waiting(bench, Poll(old.id, inclusive=False))
        await gate.reached.wait()
        await bench.publish(call.encode())
        gate.open()
        before = bench.clock.monotonic()
        stream = await poll
        assert bench.clock.monotonic() - before < 1
        messages = [m async for ms in stream.messages() for m in ms]
        assert [m.payload for m in messages] == [call.encode()]
        old = messages[-1]


async def test_a_wait_ends_when_an_open_transaction_holds_the_consumer(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"first", pointer=40)
    (first,) = await bench.poll()
    poll = waiting(bench, Poll(first.id, False, None, SNAPSHOT), wait_s=10)
    await bench.pass_ms(1000)
    before = bench.clock.monotonic()
    rolled = await bench.publish(b"open", pointer=50)
    await bench.publish(b"behind", pointer=41)
    stream = await poll
    assert (stream.empty, stream.blocked_by) == (True, 50)
    assert bench.clock.monotonic() - before < 1
    # After the rollback the same snapshot shows the later messages.
    await bench.topics.rollback(TOPIC, RollbackRange(50, rolled.first, rolled.last))
    poll = waiting(bench, Poll(first.id, False, None, SNAPSHOT), wait_s=10)
    assert await payloads_of(await poll) == [b"behind"]


async def test_a_blocked_poll_names_the_blocking_pointer(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"a")
    await bench.publish(pointer=50)
    stream = await bench.topics.poll(TOPIC, Poll(snapshot=SNAPSHOT))
    assert await payloads_of(stream) == [b"a"]
    assert stream.blocked_by == 50


async def test_a_waiting_poll_ends_with_its_topic(bench: Bench) -> None:
    await bench.create()
    poll = waiting(bench)
    await bench.pass_ms(1000)
    await bench.topics.delete(TOPIC)
    await bench.create()
    before = bench.clock.monotonic()
    assert (await poll).empty
    assert bench.clock.monotonic() - before < 1


async def test_a_drain_answers_waiting_polls_and_lets_no_poll_wait(bench: Bench) -> None:
    await bench.create()
    poll = waiting(bench)
    await bench.pass_ms(1000)
    before = bench.clock.monotonic()
    bench.topics.begin_drain()
    assert (await poll).empty
    assert (await waiting(bench)).empty
    assert bench.clock.monotonic() == before
    await bench.publish(b"still taken")


async def test_waiting_polls_are_counted_while_they_wait(bench: Bench) -> None:
    budgets = Budgets({BudgetKind.WAITING: Bounds(1, 2, 2)})
    accounts = [budgets.account("client", lambda _: None) for _ in range(3)]

    def wait_as(account: Account, wait_s: float) -> asyncio.Future[PollStream]:
        usage = Usage(account)
        return asyncio.ensure_future(bench.topics.poll(TOPIC, Poll(), wait_s=wait_s, usage=usage))

    await bench.create()
    polls = [wait_as(account, 5) for account in accounts[:2]]
    await bench.pass_ms(1)
    assert budgets.used[BudgetKind.WAITING] == bench.topics.waiting_polls == 2
    with pytest.raises(Overloaded):
        await wait_as(accounts[2], 5)
    assert await bench.payloads() == [], "a poll that does not wait is allowed"
    for poll in polls:
        await poll
    assert not budgets.used[BudgetKind.WAITING]
    assert (await wait_as(accounts[2], 1)).empty
    await bench.publish(b"a")
    assert await bench.payloads() == [b"a"]


async def test_other_work_runs_while_a_commit_wakes_many_polls(bench: Bench) -> None:
    await bench.create()
    count = 10 * WOKEN_AT_ONCE
    polls = [waiting(bench) for _ in range(count)]
    await bench.pass_ms(1)
    publishing = asyncio.ensure_future(bench.publish(b"a"))
    waiting_before, most_woken = count, 0
    while not all(poll.done() for poll in polls):
        await settle(1)
        most_woken = max(most_woken, waiting_before - bench.topics.waiting_polls)
        waiting_before = bench.topics.waiting_polls
    await publishing
    assert most_woken < count / 2
    assert [await payloads_of(poll.result()) for poll in polls] == [[b"a"]] * count


async def test_a_waiting_poll_survives_a_change_of_leaders(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"a")
    (a,) = await bench.poll()
    poll = waiting(bench, Poll(a.id, inclusive=False))
    await bench.pass_ms(1000)
    bench.leader().end(NoLeader("over"))
    await bench.pass_ms(1000)
    await bench.publish(b"b")
    assert await payloads_of(await poll) == [b"b"]


async def test_a_stream_goes_on_while_its_topic_is_deleted_and_made_anew(bench: Bench) -> None:
    bench.restart(page_messages_max=2, cache_bytes_max=0)
    await bench.create()
    await bench.publish(*(b"%d" % number for number in range(10)))
    stream = await bench.topics.poll(TOPIC, Poll())
    got: list[bytes] = []
    async for messages in stream.messages():
        got += [message.payload for message in messages]
        if len(got) == 2:
            await bench.topics.delete(TOPIC)
        if len(got) == 4:
            await bench.create()
            await bench.publish(b"new")
    assert got == [b"%d" % number for number in range(len(got))], "a prefix, never another log"


async def test_a_waiting_poll_keeps_its_topic_in_use(bench: Bench) -> None:
    await bench.create()
    poll = waiting(bench)
    await bench.pass_ms(10)
    for _ in range(3):
        await bench.topics.forget_idle()
    await bench.publish(b"m")
    assert await payloads_of(await poll) == [b"m"]
