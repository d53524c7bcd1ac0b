"""Requests that wait for their turn are refused when their deadline comes, in virtual time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

from broker.errors import Fenced, OutcomeUnknown, Overloaded
from broker.testing.virtual_time import pass_time, within
from broker.topics.overdue import LOOK_S, Overdue
from broker.topics.settings import NO_OPTIONS, Producer, PublishOptions
from tests.kit.bench import Bench, Gate, settle


class Stalled:
    """A topic whose storage takes batches but answers only when a test lets it."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._gates: list[Gate] = []

    async def begin(self) -> Stalled:
        await self.bench.create()
        await self.bench.publish(b"first")
        gate = self.stall()
        self.under_way = self.publish(b"under way", within_s=math.inf)
        await gate.reached.wait()
        return self

    def stall(self) -> Gate:
        """Hold up the next batch."""
        gate = Gate()
        self.bench.table.on("append", gate.before)
        self._gates.append(gate)
        return gate

    def publish(self, payload: bytes, within_s: float, **options: Any) -> asyncio.Future[Any]:
        deadline = self.bench.clock.monotonic() + within_s
        publishing = self.bench.publish(
            payload, options=PublishOptions(deadline=deadline, **options)
        )
        return asyncio.ensure_future(publishing)

    def open(self) -> None:
        for gate in self._gates:
            gate.open()

    async def go_on(self, *waiting: asyncio.Future[Any]) -> list[bytes]:
        """Let storage answer; return the payloads after those that were in flight."""
        self.open()
        await asyncio.gather(self.under_way, *waiting)
        payloads = await self.bench.payloads()
        assert payloads[:2] == [b"first", b"under way"]
        assert self.bench.around.queue.bytes == 0
        return payloads[2:]


@pytest.fixture
async def stalled(bench: Bench) -> AsyncIterator[Stalled]:
    made = await Stalled(bench).begin()
    yield made
    made.open()


async def refused(publishing: asyncio.Future[Any]) -> None:
    with pytest.raises(Overloaded, match="deadline passed in the queue") as caught:
        await within(100, publishing, lambda: "the request was not refused")
    assert (caught.value.outcome, caught.value.retriable) == ("refused", True)


@pytest.mark.parametrize("options", [{}, {"key": "k"}, {"ttl_s": 5}])
async def test_a_queued_request_is_refused_in_time_although_storage_does_not_answer(
    stalled: Stalled, options: dict[str, Any]
) -> None:
    clock = stalled.bench.clock
    due = clock.monotonic() + 2.0
    await refused(stalled.publish(b"late", within_s=2.0, **options))
    assert clock.monotonic() == pytest.approx(due)
    assert await stalled.go_on() == []


async def test_a_store_that_waits_is_refused_in_time(bench: Bench) -> None:
    await bench.create()
    await bench.stored(7, b"first")
    stalled = Stalled(bench)
    gate = stalled.stall()
    under_way = asyncio.ensure_future(bench.stored(7, b"under way"))
    await gate.reached.wait()
    try:
        options = PublishOptions(deadline=bench.clock.monotonic() + 2.0)
        await refused(asyncio.ensure_future(bench.stored(7, b"late", options=options)))
    finally:
        stalled.open()
    await under_way
    await bench.publish(pointer=7)
    assert await bench.payloads() == [b"first", b"under way"]


async def test_deadlines_need_not_come_in_the_order_of_the_queue(stalled: Stalled) -> None:
    patience_s = {b"a": 5.0, b"b": 1.0, b"c": 3.0, b"d": 2.0, b"e": 60.0, b"f": math.inf}
    waiting = {name: stalled.publish(name, s) for name, s in patience_s.items()}
    for name in (b"b", b"d", b"c", b"a"):
        await refused(waiting.pop(name))
        assert not any(done.done() for done in waiting.values())
    assert await stalled.go_on(*waiting.values()) == [b"e", b"f"]


async def test_a_refused_request_frees_its_room_in_the_queue(stalled: Stalled) -> None:
    queue = stalled.bench.around.queue
    held = queue.bytes
    queue.bytes_max = held + 100
    late = stalled.publish(b"late", within_s=1.0)
    gone = stalled.publish(bytes(100), within_s=30.0)
    await settle()
    gone.cancel()
    with pytest.raises(Overloaded, match="queues of this node are full"):
        await stalled.publish(b"too many", within_s=30.0)
    await refused(late)
    assert queue.bytes == held
    assert await stalled.go_on(stalled.publish(b"in time", within_s=30.0)) == [b"in time"]


@pytest.mark.parametrize(
    "options",
    [
        NO_OPTIONS,
        PublishOptions(ttl_s=500),
        PublishOptions(key="k"),
        PublishOptions(producer=Producer("p", 1)),
    ],
    ids=["plain", "lifetime", "key", "number"],
)
async def test_a_request_in_flight_is_unknown_at_its_deadline(
    bench: Bench, options: PublishOptions
) -> None:
    await bench.create()
    await bench.publish(b"first")
    gate = Gate()
    bench.table.on("append", gate.before)
    begun = bench.clock.monotonic()
    with pytest.raises(OutcomeUnknown, match="deadline"):
        await bench.publish(b"slow", options=options._replace(deadline=begun + 1.0))
    assert 0.9 < bench.clock.monotonic() - begun < 1.2
    assert gate.reached.is_set()
    gate.open()
    await bench.leader().idle()
    if options.key or options.producer:
        assert (await bench.publish(b"slow", options=options)).replayed
    assert await bench.payloads() == [b"first", b"slow"]
    assert bench.around.queue.bytes == 0


async def test_a_writer_that_waits_for_ids_becomes_idle_when_its_requests_are_refused(
    bench: Bench,
) -> None:
    bench.restart(id_lead_ms_max=2)
    bench.around.is_alone = False
    bench.around.instance = 0  # 256 ids a millisecond.
    await bench.create()
    await bench.publish(*[b"x"] * 20_000)
    options = PublishOptions(deadline=bench.clock.monotonic() + 0.01)
    late = asyncio.ensure_future(bench.publish(b"late", options=options))
    await settle()
    writer = bench.leader().writer
    quiet = asyncio.ensure_future(writer.idle())
    await refused(late)
    async with asyncio.timeout(10):
        await quiet
    assert bench.around.queue.bytes == 0


async def test_a_writer_whose_hold_is_done_refuses_unsent_requests_in_time(
    stalled: Stalled,
) -> None:
    late, in_time = stalled.publish(b"late", within_s=1.0), stalled.publish(b"in time", 60.0)
    await settle()
    stalled.bench.leader().end(Fenced("over"))
    await refused(late)
    assert await stalled.go_on(in_time) == [b"in time"]


async def test_a_request_carried_to_the_next_leader_is_refused_in_time(bench: Bench) -> None:
    bench.restart(batch_messages_max=1)
    stalled = await Stalled(bench).begin()
    try:
        ahead = stalled.publish(b"ahead", math.inf)
        late = stalled.publish(b"late", within_s=2.0)
        await settle()
        bench.leader().end(Fenced("over"))
        stalled.open()
        await stalled.stall().reached.wait()
        await refused(late)
        assert await stalled.go_on(ahead) == [b"ahead"]
    finally:
        stalled.open()


async def test_one_timer_serves_a_queue_whose_deadlines_come_in_their_order(
    stalled: Stalled, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    set_timer, timers = loop.call_at, list[float]()

    def call_at(when: float, *arguments: Any, **named: Any) -> asyncio.TimerHandle:
        timers.append(when)
        return set_timer(when, *arguments, **named)

    monkeypatch.setattr(loop, "call_at", call_at)
    waiting = []
    began = loop.time()
    for _ in range(100):
        waiting.append(stalled.publish(b"m", within_s=30.0))
        await pass_time(0.001)
    assert [when for when in timers if when > began + 10] == [pytest.approx(began + 30.0)]
    assert await stalled.go_on(*waiting) == [b"m"] * 100


class Deadlines:
    """A queue of deadlines for an Overdue."""

    def __init__(self, bench: Bench, *deadlines: float) -> None:
        self.bench = bench
        self.left = list(deadlines)
        self.looked: list[float] = []
        self.overdue = Overdue(bench.clock, self.look)

    def look(self) -> float:
        now = self.bench.clock.monotonic()
        self.looked.append(round(now, 3))
        self.left = [deadline for deadline in self.left if deadline > now]
        return min(self.left, default=math.inf)


async def test_the_timer_fires_at_each_deadline_and_stops_after_the_last(bench: Bench) -> None:
    watched = Deadlines(bench, 3.0, 1.0, 2.0, math.inf)
    for deadline in watched.left:
        watched.overdue.watch(deadline)
    assert watched.overdue.due == 1.0
    await pass_time(10.0)
    assert watched.looked == [1.0, 2.0, 3.0]
    assert watched.overdue.due == math.inf


async def test_many_deadlines_do_not_fire_the_timer_all_the_time(bench: Bench) -> None:
    watched = Deadlines(bench, *(1 + number / 1000 for number in range(1000)))
    watched.overdue.watch(1.0)
    await pass_time(10.0)
    assert watched.left == []
    assert len(watched.looked) <= 1 + 1 / LOOK_S


async def test_the_timer_fires_at_once_for_a_passed_deadline(bench: Bench) -> None:
    await pass_time(5.0)
    watched = Deadlines(bench, 3.0)
    watched.overdue.watch(3.0)
    await settle(3)
    assert watched.looked == [5.0]
    await bench.pass_ms(1)
