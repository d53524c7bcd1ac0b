"""The jobs, written with ``broker.streams``. Each takes one or two topics, and the topic of its results."""

from __future__ import annotations

from typing import Any

from benchmarks.streams.payloads import SCHEMA
from broker.streams import Job, Json, StreamBuilder, tumbling

WINDOW = "10s"


def stateless_sql(source: str, out: str, at_once: int) -> Job:
    """Filter and map in SQL."""
    builder = StreamBuilder("stateless-sql")
    orders = builder.source(source, Json(SCHEMA), maxOffsetsPerTrigger=str(at_once))
    large = orders.filter("amount > 500")
    large.map("struct(user, number, amount * 2 AS twice)").sink(out, Json())
    return builder.build()


def stateless_python(source: str, out: str, at_once: int) -> Job:
    """Filter and map in Python."""
    builder = StreamBuilder("stateless-python")
    orders: Any = builder.source(source, Json(), maxOffsetsPerTrigger=str(at_once))
    large = orders.filter(lambda order: order["amount"] > 500)
    large.map(
        lambda order: {
            "user": order["user"],
            "number": order["number"],
            "twice": order["amount"] * 2,
        }
    ).sink(out, Json())
    return builder.build()


def keyed_count(source: str, out: str, at_once: int) -> Job:
    """Count the orders of each user, one result for each order."""
    builder = StreamBuilder("keyed-count")
    orders = builder.source(source, Json(SCHEMA), maxOffsetsPerTrigger=str(at_once))
    orders.key_by("user").count().sink(out, Json())
    return builder.build()


def windowed_count(source: str, out: str, at_once: int) -> Job:
    """Count the orders of each user and window."""
    builder = StreamBuilder("windowed-count", lateness="0s")
    orders = builder.source(source, Json(SCHEMA), maxOffsetsPerTrigger=str(at_once))
    counted = orders.select_timestamp("t").key_by("user").window(tumbling(WINDOW)).count()
    counted.to_stream("struct(key AS user, value AS count, window.start AS start)").sink(
        out, Json()
    )
    return builder.build()


def windowed_join(left: str, right: str, out: str, at_once: int) -> Job:
    """Join orders with payments of the same number and window: all pairs."""
    builder = StreamBuilder("windowed-join", lateness="0s")
    orders, payments = (
        builder.source(topic, Json(SCHEMA), maxOffsetsPerTrigger=str(at_once)).select_timestamp("t")
        for topic in (left, right)
    )
    joined = orders.join(payments).where("number").equal_to("number").window(tumbling(WINDOW))
    joined.apply("struct(left.number AS number, left.user AS user, right.amount AS amount)").sink(
        out, Json()
    )
    return builder.build()
