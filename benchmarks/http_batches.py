"""(c) 100 messages per request over 4 topics: our server, CDAP's own server, and LevelDB alone.

LevelDB alone is plyvel in a process on the servers' core. It writes rows like ours for as many topics, in one synced
write batch after the other. A further side writes to one topic, and shows the cost of several topics side by side. A
batch of 100 rows is one request. Our server joins requests that arrive during a sync. So there are also batches of
1,600 rows (a topic's 16 connections). Our server is judged by the faster of the two.
"""

from __future__ import annotations

import asyncio
import json
import sys
from array import array
from functools import partial

from benchmarks import peers, prepared
from benchmarks.figures import Question, best, compare
from benchmarks.harness import Bench, Side, not_measured
from benchmarks.load import Load, drive
from broker.local.servers.process import tied_to_us

CONNECTIONS, MESSAGES = 64, 100
TOPICS = ("bench-c1", "bench-c2", "bench-c3", "bench-c4")
OURS, CDAP = "ours", "CDAP's server"
ROWS = (100, 1_600)
ONE_LOG = f"plyvel, {ROWS[-1]:,} rows a sync, to one topic"


async def measure(bench: Bench) -> Question:
    """Measure all sides, and return their figures."""
    question = Question(
        letter="c",
        title=f"{MESSAGES} messages per request over {len(TOPICS)} topics, "
        f"{CONNECTIONS} connections",
    )
    queues = [
        prepared.publishes(TOPICS[number % len(TOPICS)], messages=MESSAGES, requests=16)
        for number in range(CONNECTIONS)
    ]
    sides: list[Side] = []
    for name, make in ((OURS, peers.OurServer), (CDAP, peers.cdap)):
        server = await bench.server(name, make)
        if server is None:
            not_measured(question, name, "msg/s", bench.absent(name))
            continue
        assert isinstance(server, peers.HttpServer)
        async with bench.awake(server):
            for topic in TOPICS:
                await prepared.create_topic(server.port, topic)
        sides.append(
            Side(
                name=name,
                run=partial(drive, server.port, queues, MESSAGES),
                server=server,
                warm_s=bench.plan.cdap_warm_s if name == CDAP else None,
                count_syncs=True,
            )
        )
    sides += [
        Side(name=_plyvel_name(rows), run=partial(_plyvel, rows, len(TOPICS)), warm_s=0)
        for rows in ROWS
    ]
    sides.append(Side(name=ONE_LOG, run=partial(_plyvel, ROWS[-1], 1), warm_s=0))
    await bench.measure(question, sides, run_s=bench.plan.long_run_s)
    ours = question.named(OURS)
    question.ratios.append(compare(ours, question.named(CDAP), must=0.9))
    fastest = best([question.named(_plyvel_name(rows)) for rows in ROWS])
    assert fastest is not None, "plyvel is always there"
    question.ratios.append(compare(ours, fastest, must=0.4))
    return question


def _plyvel_name(rows: int) -> str:
    return f"plyvel, {rows:,} rows a sync"


async def _plyvel(rows: int, topics: int, seconds: float) -> Load:
    command = [
        sys.executable,
        "-m",
        "benchmarks.bare_leveldb",
        str(rows),
        str(seconds),
        str(topics),
    ]
    process = await asyncio.create_subprocess_exec(
        *tied_to_us(command, cpu=peers.SERVER_CPU), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"bare_leveldb ended with {process.returncode}")
    given = json.loads(output)
    return Load(given["rows"], given["seconds"], array("q", given["latencies_ns"]))
