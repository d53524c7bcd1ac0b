"""Measure the cost of removing expired messages, and the size of messages and topics on disk, now and before."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from pathlib import Path

from benchmarks import occupancy, prepared
from benchmarks.before.sides import BEFORE, NOW, both, end_both, named, related
from benchmarks.figures import Question, Run, Series, judged, percentile
from benchmarks.full_topic import fill, settled
from benchmarks.harness import Bench, say
from benchmarks.load import Load, ask, drive, http_request
from benchmarks.peers import OurServer

SWEEPS = ("--sweep-interval", "1", "--sweep-margin", "0", "--sweep-rest", "0")
TOPIC, BESIDE = "expired", "beside"
QUIET_S, SENDERS = 5.0, 4
SLICE_S, SWEPT_S_MAX = 5.0, 900.0
QUICK_SLICE_S = 1.0
STILL_SLICES = 3
LEAST = 2_000_000
"""Of fewer messages the removal can't be measured, and frees less space than the publishes beside take."""
QUIET_SLICES = 5
IDLE_TOPICS = 1_000
P99_MUST, IDLE_MUST = 1.5, 1024.0


async def measure(bench: Bench, before: Path) -> Question:
    """Measure the processor time of removing messages, and the latency of publishes meanwhile."""
    count = max(bench.plan.stored_messages, LEAST)
    question = Question(letter="expiry", title=f"LevelDB: removing {count:,} expired messages")
    servers = await both(bench, before, *SWEEPS)
    for name in (NOW, BEFORE):
        await _removed(bench, question, name, servers[name], count)
    related(question, "processor time", at_most=True)
    for name in (NOW, BEFORE):
        during, quiet = (question.named(named(name, f"publish p99, {when}")) for when in _WHEN)
        value = (during.median_of_all or 0.0) / (quiet.median_of_all or 1.0)
        must = P99_MUST if name == NOW else None
        text = f"{name}: publish p99 while removing / quiet"
        question.ratios.append(judged(text, value, must=must, at_most=True))
    end_both(bench, *SWEEPS)
    return question


_WHEN = ("while removing", "quiet")


async def _removed(
    bench: Bench, question: Question, name: str, server: OurServer, count: int
) -> None:
    """Fill a topic, let all its messages expire, and measure the processor time of their removal.

    Publishes to another topic run all the time. Their processor time is subtracted, at the cost of a request before.
    A removal that costs no more than that estimate may be wrong has no figure: its run is kept apart.
    """
    async with bench.awake(server):
        for topic in (TOPIC, BESIDE):
            await prepared.create_topic(server.port, topic)
        say(f"  storing {count:,} messages in {name}")
        await fill(server.port, count, 1_000, TOPIC)
        await settled(server.pid)
        slice_s = QUIET_S if count > LEAST else QUICK_SLICE_S
        quiet = [await _published(server, slice_s) for _ in range(QUIET_SLICES)]
        quiet_p99 = statistics.median(_p99(load) for load, _ in quiet)
        costs_s = [cpu_s / _requests(load) for load, cpu_s in quiet]
        request_s = statistics.mean(costs_s)
        full = _bytes(server)
        await _expire(server.port, TOPIC)
        taken: list[float] = []
        p99s: list[float] = []
        requests = 0
        still, began = 0, time.monotonic()
        while still < STILL_SLICES and time.monotonic() - began < SWEPT_S_MAX:
            load, cpu_s = await _published(server, slice_s)
            taken.append(cpu_s - request_s * _requests(load))
            requests += _requests(load)
            p99s.append(_p99(load))
            # The removal goes on while the server uses more than a tenth of a core above publishing alone.
            busy = taken[-1] > slice_s / 10
            still = 0 if busy or _bytes(server) > full / 2 else still + 1
    error_s = 2 * statistics.stdev(costs_s) * requests
    say(
        f"  {name}: {sum(taken):.1f} s of processor time in {len(taken) * slice_s:.0f} s, "
        f"known to {error_s:.1f} s"
    )
    apart = "" if sum(taken) > error_s else "it took less than the publishes beside it vary"
    p99 = statistics.median(p99s[: max(len(p99s) - still, 1)])
    for case, unit, run in (
        ("processor time", "s", Run(value=sum(taken), apart=apart)),
        (f"publish p99, {_WHEN[0]}", "ms", Run(value=p99)),
        (f"publish p99, {_WHEN[1]}", "ms", Run(value=quiet_p99)),
    ):
        series = Series(name=named(name, case), unit=unit, runs=[run], runs_wanted=1)
        question.series.append(series)


async def _published(server: OurServer, seconds: float) -> tuple[Load, float]:
    """Publish to another topic; return the load and the server's processor time."""
    queues = [prepared.publishes(BESIDE, messages=1, requests=64)] * SENDERS
    before_s = occupancy.process_s(server.pid)
    load = await drive(server.port, queues, units=1, seconds=seconds)
    return load, occupancy.process_s(server.pid) - before_s


async def _expire(port: int, topic: str) -> None:
    """Set the shortest ttl on a topic."""
    path = f"/v1/namespaces/{prepared.NAMESPACE}/topics/{topic}/properties"
    body = json.dumps({"ttl": "1"}).encode()
    await ask(port, http_request("PUT", path, body, "application/json"))


def _requests(load: Load) -> int:
    return max(len(load.latencies_ns), 1)


def _p99(load: Load) -> float:
    return percentile(sorted(load.latencies_ns), 0.99) / 1e6


async def disk(bench: Bench, before: Path) -> Question:
    """Measure the bytes on disk of a message of 256 B, and of a topic with one message."""
    question = Question(letter="disk", title="LevelDB: bytes on disk")
    count = min(bench.plan.stored_messages, 1_000_000)
    flags = ("--sweep-interval", "3600")
    servers = await both(bench, before, *flags)
    for name, server in servers.items():
        async with bench.awake(server):
            empty = await _at_rest(server)
            await prepared.create_topic(server.port, TOPIC)
            await fill(server.port, count, 100, TOPIC)
            full = await _at_rest(server)
            for number in range(IDLE_TOPICS):
                await prepared.create_topic(server.port, f"idle-{number}")
                (request,) = prepared.publishes(f"idle-{number}", messages=1, requests=1)
                await ask(server.port, request)
            idle = await _at_rest(server)
        for case, value in (
            ("a message", (full - empty) / count),
            ("an idle topic", (idle - full) / IDLE_TOPICS - prepared.PAYLOAD_BYTES),
        ):
            series = Series(name=named(name, case), unit="B", runs_wanted=1)
            series.runs.append(Run(value=max(value, 1.0)))
            question.series.append(series)
    related(question, "a message", at_most=True)
    value = question.named(named(NOW, "an idle topic")).median or 0.0
    question.ratios.append(judged("an idle topic, B", value, must=IDLE_MUST, at_most=True))
    end_both(bench, *flags)
    return question


async def _at_rest(server: OurServer) -> int:
    """Return the bytes on disk after a restart. After it no data is in LevelDB's log alone."""
    await settled(server.pid)
    await asyncio.to_thread(server.stop)
    await asyncio.to_thread(server.start)
    await settled(server.pid)
    return _bytes(server)


def _bytes(server: OurServer) -> int:
    files = (server.folder / "data").rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())
