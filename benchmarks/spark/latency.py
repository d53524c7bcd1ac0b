"""Measure the time from a publish to the arrival of the query's result, at ten messages a second."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.figures import Run, percentile
from benchmarks.spark.sides import Kafka, Tms, fresh

PER_SECOND = 10
WARM_MESSAGES = 50
ARRIVAL_S = 60.0


def measure(spark: SparkSession, side: Tms | Kafka, folder: Path, messages: int) -> Run:
    """Copy messages from one topic to another as they come; return p50 and p99 of their times."""
    into, out = fresh("into"), fresh("out")
    for topic in (into, out):
        asyncio.run(side.create(topic))
    writer = side.write(side.follow(spark, into), out)
    checkpoint = tempfile.mkdtemp(dir=folder)
    query = writer.option("checkpointLocation", checkpoint).start()
    try:
        took_ms = asyncio.run(_times_ms(side, into, out, WARM_MESSAGES + messages))
    finally:
        query.stop()
    ordered = sorted(took_ms[WARM_MESSAGES:])
    p50, p99 = percentile(ordered, 0.5), percentile(ordered, 0.99)
    return Run(value=p50, p50_ms=p50, p99_ms=p99)


async def _times_ms(side: Tms | Kafka, into: str, out: str, count: int) -> list[float]:
    """Publish ``count`` messages to one topic, and return the times until they arrive in the other."""
    took_ms: list[float] = []
    async with side.ends(into, out) as ends:

        async def take() -> None:
            async for payload in ends.arrivals():
                took_ms.append((time.monotonic_ns() - int(payload)) / 1e6)
                if len(took_ms) == count:
                    return

        taking = asyncio.ensure_future(take())
        for _ in range(count):
            await ends.publish(b"%d" % time.monotonic_ns())
            await asyncio.sleep(1 / PER_SECOND)
        await asyncio.wait_for(taking, ARRIVAL_S)
    return took_ms
