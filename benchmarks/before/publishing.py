"""Measure publishes to a standalone node, now and before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks import client_publish, http_batches, http_single, prepared
from benchmarks.before.sides import BEFORE, NOW, both, named, related
from benchmarks.figures import Question
from benchmarks.harness import Bench, Side, p50_of
from benchmarks.latency import Meter
from benchmarks.load import drive
from benchmarks.peers import OurServer

ONE, HUNDRED = "one message a request", "100 a request"
CLIENT, LONE = "through the client", "publish to waiting consumer"


async def measure(bench: Bench, before: Path) -> Question:
    """Measure how fast both store messages: questions (a), (b), (c) and (e) of ``python -m benchmarks``."""
    question = Question(letter="publish", title="LevelDB: publishing, now and before")
    servers = await both(bench, before)
    for server in servers.values():
        async with bench.awake(server):
            for topic in (http_single.TOPIC, *http_batches.TOPICS, client_publish.TOPIC, "bench-e"):
                await prepared.create_topic(server.port, topic)
    one = [prepared.publishes(http_single.TOPIC, messages=1, requests=512)]
    topics, each = http_batches.TOPICS, http_batches.CONNECTIONS // len(http_batches.TOPICS)
    hundred = [prepared.publishes(topic, messages=100, requests=16) for topic in topics]
    await _rates(bench, question, servers, ONE, one * http_single.CONNECTIONS, 1)
    clients = [
        Side(
            name=named(side, CLIENT),
            run=partial(client_publish.ours_published, server),
            server=server,
        )
        for side, server in servers.items()
    ]
    await bench.measure(question, clients)
    await _latency(bench, question, servers)
    # This comes last: the faster side stores more in the same time, and LevelDB has more to merge afterwards.
    await _rates(bench, question, servers, HUNDRED, hundred * each, 100)
    for case in (CLIENT, ONE, HUNDRED):
        related(question, case)
    related(question, LONE, at_most=True)
    return question


async def _rates(
    bench: Bench,
    question: Question,
    servers: Mapping[str, OurServer],
    case: str,
    queues: Sequence[Sequence[bytes]],
    units: int,
) -> None:
    sides = [
        Side(
            name=named(side, case),
            run=partial(drive, servers[side].port, queues, units),
            server=servers[side],
        )
        for side in (NOW, BEFORE)
    ]
    run_s = bench.plan.long_run_s if units > 1 else None
    await bench.measure(question, sides, run_s=run_s)


async def _latency(bench: Bench, question: Question, servers: Mapping[str, OurServer]) -> None:
    sides = []
    for side, server in servers.items():
        meter = Meter(server.port)
        sides.append(
            Side(name=named(side, LONE), run=meter.run, server=server, unit="ms", figure=p50_of)
        )
    await bench.measure(question, sides)
