"""The same jobs, written by hand in PySpark with the same format ``tms``.

Each function returns a writer, which still needs a checkpoint and a trigger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
import pandas as pd
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from typing_extensions import override

from benchmarks.streams.here import WINDOW
from benchmarks.streams.payloads import SCHEMA
from broker.spark import publish


@dataclass(frozen=True)
class Place:
    """The place where a job reads and writes."""

    spark: SparkSession
    url: str
    at_once: int

    def read(self, topic: str) -> DataFrame:
        """Read a topic."""
        reader = self.spark.readStream.format("tms").options(
            url=self.url,
            topic=topic,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=self.at_once,
        )
        return reader.load()

    def orders(self, topic: str) -> DataFrame:
        """Read a topic's values: a column for each field."""
        value = sf.from_json(sf.col("value").cast("string"), SCHEMA).alias("order")
        return self.read(topic).select(value).select("order.*")

    def timed(self, topic: str) -> DataFrame:
        """Read a topic's values, with a watermark."""
        timed = self.orders(topic).withColumn("time", sf.timestamp_millis("t"))
        return timed.withWatermark("time", "0 seconds")

    def write(self, frame: DataFrame, topic: str) -> DataStreamWriter:
        """Write a frame that has a column ``value``."""
        return frame.writeStream.format("tms").options(url=self.url, topic=topic)


def _json(*columns: Column | str) -> Column:
    return sf.to_json(sf.struct(*columns)).alias("value")


def stateless_sql(place: Place, source: str, out: str) -> DataStreamWriter:
    """Filter and map by functions of DataFrames."""
    large = place.orders(source).where(sf.col("amount") > 500)
    twice = (sf.col("amount") * 2).alias("twice")
    return place.write(large.select(_json("user", "number", twice)), out)


def _large(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        found = []
        for payload in frame["value"]:
            order = orjson.loads(payload)
            if order["amount"] > 500:
                twice = {
                    "user": order["user"],
                    "number": order["number"],
                    "twice": order["amount"] * 2,
                }
                found.append(orjson.dumps(twice))
        yield pd.DataFrame({"value": found})


def stateless_python(place: Place, source: str, out: str) -> DataStreamWriter:
    """Filter and map in Python: a function over frames of pandas."""
    payloads = place.read(source).select("value")
    return place.write(payloads.mapInPandas(_large, "value BINARY"), out)


class _Counting(StatefulProcessor):
    """Counts the rows of each key, one result for each row."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "count BIGINT")

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        found = self._count.get()
        count = 0 if found is None else found[0]
        for _ in rows:
            count += 1
            yield Row(key=key[0].encode(), value=b"%d" % count)
        self._count.update((count,))

    @override
    def close(self) -> None:
        pass


def keyed_count(place: Place, source: str, out: str) -> DataStreamWriter:
    """Count the orders of each user, one result for each order."""
    grouped = place.orders(source).select("user").groupBy("user")
    schema = "key BINARY, value BINARY"
    return place.write(grouped.transformWithState(_Counting(), schema, "Append", "None"), out)


def grouped_count(place: Place, source: str, out: str) -> DataStreamWriter:
    """Count the orders of each user, one result for each user and micro-batch."""
    counts = place.orders(source).groupBy(sf.col("user").alias("key")).count()
    messages = counts.select("key", sf.col("count").cast("string").alias("value"))
    put = partial(publish, url=place.url, topic=out)
    return messages.writeStream.outputMode("update").foreachBatch(put)


def windowed_count(place: Place, source: str, out: str) -> DataStreamWriter:
    """Count the orders of each user and window."""
    window = sf.window("time", WINDOW.replace("s", " seconds"))
    counts = place.timed(source).groupBy(window, "user").count()
    return place.write(
        counts.select(_json("user", "count", sf.col("window.start").alias("start"))), out
    )


def windowed_join(place: Place, left: str, right: str, out: str) -> DataStreamWriter:
    """Join orders with payments of the same number and window: all pairs."""
    window = sf.window("time", WINDOW.replace("s", " seconds"))
    orders = place.timed(left).select("number", "user", window.alias("window"))
    payments = place.timed(right).select("number", "amount", window.alias("window"))
    pairs = orders.join(payments, ["number", "window"])
    return place.write(pairs.select(_json("number", "user", "amount")), out)
