"""(b) One message per HTTP request at 64 connections: our server, CDAP's own server, and a bare aiohttp."""

from __future__ import annotations

from functools import partial

from benchmarks import peers, prepared
from benchmarks.figures import Question, compare
from benchmarks.harness import Bench, Side, not_measured
from benchmarks.load import drive

CONNECTIONS = 64
TOPIC = "bench-b"
OURS, CDAP, BARE = "ours", "CDAP's server", "bare aiohttp, nothing stored"


async def measure(bench: Bench) -> Question:
    """Measure all sides, and return their figures."""
    question = Question(
        letter="b", title=f"one message per HTTP request, {CONNECTIONS} connections"
    )
    queues = [prepared.publishes(TOPIC, messages=1, requests=512)] * CONNECTIONS
    sides: list[Side] = []
    for name, key, make in (
        (OURS, "ours", peers.OurServer),
        (CDAP, "CDAP's server", peers.cdap),
        (BARE, "bare aiohttp", peers.BareServer),
    ):
        server = await bench.server(key, make)
        if server is None:
            not_measured(question, name, "msg/s", bench.absent(key))
            continue
        assert isinstance(server, peers.HttpServer)
        async with bench.awake(server):
            await prepared.create_topic(server.port, TOPIC)
        sides.append(
            Side(
                name=name,
                run=partial(drive, server.port, queues, 1),
                server=server,
                warm_s=bench.plan.cdap_warm_s if name == CDAP else None,
                count_syncs=name != BARE,
            )
        )
    await bench.measure(question, sides)
    ours = question.named(OURS)
    question.ratios.append(compare(ours, question.named(CDAP), must=0.6, aim=0.85))
    question.ratios.append(compare(ours, question.named(BARE)))
    return question
