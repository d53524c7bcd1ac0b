"""The measured queries. Each runs until it has read all rows."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks import occupancy
from benchmarks.figures import Run
from benchmarks.spark.rows import KEY
from broker.testing.server_process import ServerProcess

Write = Callable[[DataFrame], DataStreamWriter]


def to_noop(frame: DataFrame) -> DataStreamWriter:
    """Only read every row."""
    return frame.writeStream.format("noop")


def to_count(frame: DataFrame) -> DataStreamWriter:
    """Count by key, with the state in RocksDB."""
    counts = frame.selectExpr(f"{KEY} as key").groupBy("key").count()
    return counts.writeStream.format("noop").outputMode("complete")


def run(frame: DataFrame, write: Write, server: ServerProcess | None, folder: Path) -> Run:
    """Run a query; return its rows a second, and the server's processor time a row.

    The rate leaves out the first micro-batch, which starts processes and compiles code.
    """
    before_s = occupancy.process_s(server.pid) if server is not None else 0.0
    checkpoint = tempfile.mkdtemp(dir=folder)
    query = write(frame).trigger(availableNow=True).option("checkpointLocation", checkpoint).start()
    try:
        query.awaitTermination()
        progress = [each for each in query.recentProgress if each.numInputRows]
    finally:
        query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)
    took_s = (occupancy.process_s(server.pid) if server is not None else 0.0) - before_s
    rows = sum(each.numInputRows for each in progress)
    counted = progress[1:]
    seconds = sum(each.durationMs["triggerExecution"] for each in counted) / 1000
    return Run(
        value=sum(each.numInputRows for each in counted) / seconds,
        server_cpu_us=took_s / rows * 1e6 if server is not None else None,
    )
