"""Kill a node that leads 1,000 topics, and measure the time until all of them accept messages again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

from benchmarks import prepared
from benchmarks.cluster.ground import AGAIN_S, WAIT_S, Ground
from benchmarks.cluster.pauses import SESSION_TIMEOUT_MS
from benchmarks.figures import Question, Run, Series, percentile
from benchmarks.harness import Bench, say
from benchmarks.load import LoadFailed, Wire, connect, http_request

TOPICS, SENDERS = 1000, 64


async def measure(_: Bench, ground: Ground) -> Question:
    """Measure when 1,000 topics of a killed node accept messages again. The node stays down."""
    question = Question(letter="j", title=f"failover of {TOPICS:,} led topics")
    victim, survivor = ground.nodes[2], ground.nodes[0]
    names = ground.names("many", TOPICS, victim.instance)
    puts = [
        http_request("PUT", f"/v1/namespaces/{prepared.NAMESPACE}/topics/{name}") for name in names
    ]
    publishes = [prepared.publishes(name, messages=1, requests=1)[0] for name in names]
    made_s = max(await answered(victim.port, puts, time.perf_counter()))
    claimed_s = max(await answered(victim.port, publishes, time.perf_counter()))
    say(f"  {TOPICS:,} topics created in {made_s:.1f} s, and led in {claimed_s:.1f} s")
    began = time.perf_counter()
    await asyncio.to_thread(victim.process.kill)
    taken = sorted(await answered(survivor.port, publishes, began))
    run = Run(
        value=taken[-1] * 1e3,
        p50_ms=percentile(taken, 0.5) * 1e3,
        p99_ms=percentile(taken, 0.99) * 1e3,
    )
    name = f"until all {TOPICS:,} topics took a message again"
    question.series.append(Series(name=name, unit="ms", runs=[run], runs_wanted=1))
    question.notes.append(
        f"Counted from the kill, with the session's time-out ({SESSION_TIMEOUT_MS:.0f} ms); asked on "
        f"{SENDERS} connections to one of the two nodes that were left. Claiming the {TOPICS:,} topics "
        f"at first took {claimed_s:.1f} s, creating them {made_s:.1f} s."
    )
    return question


async def answered(port: int, requests: Sequence[bytes], began: float) -> list[float]:
    """Send all requests, and retry those that fail; return the seconds from ``began`` to each success."""
    left = iter(requests)
    taken: list[float] = []
    async with asyncio.timeout(3 * WAIT_S):
        await asyncio.gather(*(_sender(port, left, began, taken) for _ in range(SENDERS)))
    return taken


async def _sender(port: int, left: Iterator[bytes], began: float, taken: list[float]) -> None:
    wire: Wire | None = None
    for request in left:  # All senders share this iterator.
        while True:
            try:
                wire = wire or await connect(port)
                await wire.exchange(request)
                break
            except (LoadFailed, OSError):
                if wire is not None:
                    wire.close()
                wire = None
                await asyncio.sleep(AGAIN_S)
        taken.append(time.perf_counter() - began)
    if wire is not None:
        wire.close()
