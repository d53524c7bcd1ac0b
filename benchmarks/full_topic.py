"""(f) Measure if a full topic is slower: two brokers take turns, both restarted after they were filled.

One broker has a topic with 5 M messages. The other has an empty topic, and one with just enough messages for the
polls. After the restart old messages are in LevelDB alone. There are three pairs:

    publishing         one message a request, 64 connections
    polling, recent    by time, pages of 100, of messages published since the start
    polling, old       by time, pages of 1,000, anywhere in what was stored before it
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from benchmarks import occupancy, peers, prepared
from benchmarks.figures import Question, compare
from benchmarks.harness import Bench, Side, say
from benchmarks.load import connect, drive

STORED, NEW = "bench-f", "bench-f-new"
FULL, EMPTY = "full topic", "empty topic"
CONNECTIONS, POLLERS = 64, 8
RECENT_PAGE, OLD_PAGE = 100, 1_000
SMALL_MESSAGES = 10_000
MUST = 0.9
_SETTLED_CORES = 0.02
_SETTLE_S_MAX = 45.0


class _Filled(NamedTuple):
    """A broker, its topic for publishes, and the times (ms) between which its old messages were published."""

    server: peers.OurServer
    publish_to: str
    began_ms: int
    ended_ms: int


_Make = Callable[[_Filled], Awaitable[list[list[bytes]]]]


async def measure(bench: Bench) -> Question:
    """Measure all pairs, and return their figures."""
    count = bench.plan.stored_messages
    question = Question(letter="f", title=f"{count:,} stored messages beside an empty topic")
    if count < 5_000_000:
        question.notes.append(f"Only {count:,} messages were stored: a quick look.")
    brokers = {
        FULL: await _filled(bench, FULL, messages=count, per_request=10_000),
        EMPTY: await _filled(bench, EMPTY, messages=SMALL_MESSAGES, per_request=100),
    }
    pairs: tuple[tuple[str, str, _Make], ...] = (
        ("publishing", "msg/s", _publishing),
        ("polling by time, recent", "polls/s", _recent),
        ("polling by time, old", "polls/s", _old),
    )
    for kind, unit, make in pairs:
        sides = [
            await _side(bench, f"{kind}, {name}", unit, make, filled)
            for name, filled in brokers.items()
        ]
        await bench.measure(question, sides)
        full, empty = (question.named(side.name) for side in sides)
        question.ratios.append(compare(full, empty, must=MUST))
    for name in brokers:
        bench.stop(name)
    return question


async def _side(bench: Bench, name: str, unit: str, make: _Make, filled: _Filled) -> Side:
    async with bench.awake(filled.server):
        queues = await make(filled)
    run = partial(drive, filled.server.port, queues, 1)
    return Side(name=name, run=run, server=filled.server, unit=unit)


async def _publishing(filled: _Filled) -> list[list[bytes]]:
    return [prepared.publishes(filled.publish_to, messages=1, requests=512)] * CONNECTIONS


async def _recent(filled: _Filled) -> list[list[bytes]]:
    """Publish some messages, and return polls by times behind which there are enough messages."""
    wire = await connect(filled.server.port)
    began_ms = _now_ms()
    for request in prepared.publishes(STORED, messages=10, requests=200):
        await wire.exchange(request)
    wire.close()
    return _polls(began_ms, _now_ms(), 0.5, RECENT_PAGE)


async def _old(filled: _Filled) -> list[list[bytes]]:
    return _polls(filled.began_ms, filled.ended_ms, 0.8, OLD_PAGE)


def _polls(began_ms: int, ended_ms: int, part: float, limit: int) -> list[list[bytes]]:
    """Return polls from random times in the first ``part`` of an interval."""
    rng = random.Random(began_ms)
    latest_ms = began_ms + int((ended_ms - began_ms) * part)
    times = [rng.randint(began_ms, latest_ms) for _ in range(1_000)]
    return [[prepared.poll(STORED, start=ms, limit=limit) for ms in times]] * POLLERS


async def _filled(bench: Bench, name: str, *, messages: int, per_request: int) -> _Filled:
    """Start a broker, fill it, and restart it."""
    server = await bench.server(name, peers.OurServer)
    assert isinstance(server, peers.OurServer)
    async with bench.awake(server):
        for topic in (STORED, NEW):
            await prepared.create_topic(server.port, topic)
        say(f"  storing {messages:,} messages")
        began_ms = _now_ms()
        await fill(server.port, messages, per_request)
        ended_ms = _now_ms()
        say(f"  stored in {(ended_ms - began_ms) / 1000:.0f} s; waiting for LevelDB to settle")
        await settled(server.pid)
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)
        await settled(server.pid)
    return _Filled(server, STORED if name == FULL else NEW, began_ms, ended_ms)


async def fill(port: int, messages: int, per_request: int, topic: str = STORED) -> None:
    """Publish a number of messages as fast as possible."""
    requests = prepared.publishes(topic, messages=per_request, requests=10)
    wires = [await connect(port) for _ in range(2)]
    left = messages // per_request

    async def publish(number: int) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await wires[number].exchange(requests[left % len(requests)])

    await asyncio.gather(*(publish(number) for number in range(len(wires))))
    for wire in wires:
        wire.close()


async def settled(pid: int) -> None:
    """Wait until the server is idle: LevelDB compacts for a while after many writes."""
    deadline = time.monotonic() + _SETTLE_S_MAX
    used_s = occupancy.process_s(pid)
    while time.monotonic() < deadline:
        await asyncio.sleep(1.0)
        before_s, used_s = used_s, occupancy.process_s(pid)
        if used_s - before_s <= _SETTLED_CORES:
            return
    say("  it has not settled; going on")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
