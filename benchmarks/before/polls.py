"""Measure reads from LevelDB's files, now and before: both servers run without a cache."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks import peers, prepared
from benchmarks.before.sides import BEFORE, NO_CACHE, NOW, both, end_both, named, related
from benchmarks.figures import Question, compare
from benchmarks.full_topic import fill
from benchmarks.harness import Bench, Side, not_measured, say
from benchmarks.load import Load, ask, connect, drive
from benchmarks.polls import consume, decoded
from broker.testing.server_process import ServerProcess

CDAP = "CDAP's server"
WHOLE, PAGES, TENS = "unlimited", "pages of 1,000", "pages of 10"
BIG, SMALL, OLD = "before-big", "before-small", "before-old"
MESSAGES, SMALL_MESSAGES, QUICK_SMALL_MESSAGES = 100_000, 50_000, 5_000
SMALL_SENDERS = 16
POLLERS = 8

Polls = Sequence[tuple[bytes, int]]


async def measure(bench: Bench, before: Path) -> Question:
    """Measure polls of messages that were published 1,000 at a time, beside CDAP's server."""
    question = Question(letter="polls", title="LevelDB: polls from disk, now and before")
    servers: dict[str, peers.HttpServer] = dict(await both(bench, before, *NO_CACHE))
    cdap = await bench.server(CDAP, peers.cdap)
    if cdap is not None:
        assert isinstance(cdap, peers.HttpServer)
        servers[CDAP] = cdap
    asked = {name: await _filled(bench, name, servers[name]) for name in servers}
    for case, of_cdap in ((PAGES, 1.5), (WHOLE, 2.0), (TENS, None)):
        sides = [_side(bench, name, case, servers[name], asked[name][case]) for name in servers]
        await bench.measure(question, sides, run_s=bench.plan.long_run_s / 2)
        related(question, case)
        if of_cdap is None:
            continue
        if CDAP not in servers:
            not_measured(question, named(CDAP, case), "msg/s", bench.absent(CDAP))
        theirs = question.named(named(CDAP, case))
        question.ratios.append(compare(question.named(named(NOW, case)), theirs, must=of_cdap))
        question.ratios.append(compare(question.named(named(BEFORE, case)), theirs))
    bench.stop(CDAP)
    return question


async def small(bench: Bench, before: Path) -> Question:
    """Measure polls of messages that were committed one at a time."""
    question = Question(letter="small", title="LevelDB: polls of messages committed one at a time")
    servers = await both(bench, before, *NO_CACHE)
    count = SMALL_MESSAGES if bench.plan.stored_messages >= 5_000_000 else QUICK_SMALL_MESSAGES
    asked = {}
    for name, server in servers.items():
        async with bench.awake(server):
            await prepared.create_topic(server.port, SMALL)
            wire = await connect(server.port)
            for request in prepared.publishes(SMALL, messages=1, requests=count):
                await wire.exchange(request)
            wire.close()
            asked[name] = await _requests(server.port, SMALL, count)
    for case in (PAGES, WHOLE, TENS):
        sides = [_side(bench, name, case, servers[name], asked[name][case]) for name in servers]
        await bench.measure(question, sides)
        related(question, case)
    return question


async def by_time(bench: Bench, before: Path) -> Question:
    """Measure polls by the publish times of old messages; end the servers."""
    count = bench.plan.stored_messages
    question = Question(letter="time", title=f"LevelDB: polls by old time, {count:,} messages")
    servers = await both(bench, before, *NO_CACHE)
    sides = []
    case = "by old time"
    for name, server in servers.items():
        async with bench.awake(server):
            await prepared.create_topic(server.port, OLD)
            say(f"  storing {count:,} messages in {name}")
            await fill(server.port, count, 1_000, OLD)
            messages = decoded(await ask(server.port, prepared.poll(OLD, limit=1)))
            newest = decoded(await ask(server.port, prepared.poll(OLD, limit=count)))[-1]
        first, last = (int.from_bytes(one.id[:8], "big") for one in (messages[0], newest))
        rng = random.Random(1)
        times = [rng.randint(first, first + (last - first) * 4 // 5) for _ in range(1_000)]
        queue = [prepared.poll(OLD, start=ms, limit=1_000) for ms in times]
        run = partial(_polled, server.port, [queue] * POLLERS)
        sides.append(Side(name=named(name, case), run=run, server=server, unit="polls/s"))
    await bench.measure(question, sides)
    related(question, case)
    end_both(bench, *NO_CACHE)
    return question


async def _paged(
    port: int, queues: Sequence[Sequence[bytes]], messages: int, seconds: float
) -> Load:
    return await drive(port, queues, units=messages, seconds=seconds)


async def _polled(port: int, queues: Sequence[Sequence[bytes]], seconds: float) -> Load:
    return await drive(port, queues, units=1, seconds=seconds)


def _side(bench: Bench, name: str, case: str, server: peers.HttpServer, polls: Polls) -> Side:
    # A reply of one page has a length and no chunks.
    queue = [request for request, _ in polls]
    run = (
        partial(_paged, server.port, [queue], polls[0][1])
        if case == TENS
        else partial(consume, server.port, polls)
    )
    warm_s = bench.plan.cdap_warm_s if name == CDAP else None
    assert isinstance(server, ServerProcess)
    return Side(name=named(name, case), run=run, server=server, warm_s=warm_s)


async def _filled(bench: Bench, name: str, server: peers.HttpServer) -> Mapping[str, Polls]:
    assert isinstance(server, ServerProcess)
    async with bench.awake(server):
        await prepared.create_topic(server.port, BIG)
        await fill(server.port, MESSAGES, 1_000, BIG)
        say(f"  {name} is filled")
        return await _requests(server.port, BIG, MESSAGES)


async def _requests(port: int, topic: str, count: int) -> Mapping[str, Polls]:
    """Return the polls of each kind, each with the number of messages that it returns."""
    ids = [message.id for message in decoded(await ask(port, prepared.poll(topic)))]
    assert len(ids) == count, f"{len(ids)} messages came back of {count}"
    rng = random.Random(2)

    def paged(limit: int) -> Polls:
        places = rng.choices(range(count - limit), k=200)
        return [(prepared.poll(topic, start=ids[at], limit=limit), limit) for at in places]

    return {WHOLE: [(prepared.poll(topic), count)], PAGES: paged(1_000), TENS: paged(10)}
