"""From a publish to the arrival of what a query makes of it: ten messages a second."""

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


def measure(spark: SparkSession, side: Tms | Kafka, folder: Path, messages: int) -> Run:
    """Copy messages from one topic into another as they come; return how long each took, in ms."""
    return asyncio.run(_measure(spark, side, folder, messages))


async def _measure(spark: SparkSession, side: Tms | Kafka, folder: Path, messages: int) -> Run:
    into, out = fresh("into"), fresh("out")
    for topic in (into, out):
        await side.create(topic)
    writer = side.write(side.follow(spark, into), out)
    checkpoint = tempfile.mkdtemp(dir=folder)
    query = await asyncio.to_thread(writer.option("checkpointLocation", checkpoint).start)
    try:
        async with side.ends(into, out) as ends:
            took_ms: list[float] = []
            whole = WARM_MESSAGES + messages

            async def take() -> None:
                async for payload in ends.arrivals():
                    took_ms.append((time.monotonic_ns() - int(payload)) / 1e6)
                    if len(took_ms) == whole:
                        return

            taking = asyncio.ensure_future(take())
            for _ in range(whole):
                await ends.publish(b"%d" % time.monotonic_ns())
                await asyncio.sleep(1 / PER_SECOND)
            await asyncio.wait_for(taking, 60)
    finally:
        await asyncio.to_thread(query.stop)
    ordered = sorted(took_ms[WARM_MESSAGES:])
    p50, p99 = percentile(ordered, 0.5), percentile(ordered, 0.99)
    return Run(value=p50, p50_ms=p50, p99_ms=p99)
