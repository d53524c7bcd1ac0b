"""The state that Spark stores for a job is read back: of chains, and of Spark's own aggregates and joins."""

from collections.abc import Callable
from typing import Any

import pytest

from broker.streams import Json, Stream, StreamBuilder, session, tumbling
from broker.streams.state_view import StateEntry
from broker.streams.stored_state import JobEndState, NoState
from tests.integration.spark.bed import Bed

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

HOUR_MS = 3_600_000
WINDOW = {"start": "1970-01-01T01:00:00.000Z", "end": "1970-01-01T02:00:00.000Z"}


ORDERS = [
    {"customer": "a", "amount": 1.0, "t": HOUR_MS},
    {"customer": "a", "amount": 2.5, "t": HOUR_MS + 1},
    {"customer": "b", "amount": 4.0, "t": HOUR_MS + 2},
]
End = Callable[[Stream[Any]], Any]


def stored(bed: Bed, write: End) -> JobEndState:
    """Run a job over the orders; return its stored state."""
    builder = StreamBuilder("stored", lateness="0s")
    orders = builder.source(bed.topic("orders"), Json("customer STRING, amount DOUBLE, t BIGINT"))
    write(orders.select_timestamp("t")).sink(bed.topic("out"), Json(), name="end")
    bed.publish("orders", *ORDERS)
    bed.run(builder.build())
    return JobEndState(bed.spark, bed.checkpoint, "end")


@pytest.mark.nightly
def test_the_sums_that_spark_keeps_are_read_back(bed: Bed) -> None:
    found = stored(
        bed, lambda orders: orders.key_by("customer").window(tumbling("1h")).sum("amount")
    )
    [entry] = found.entries(None, "a", 10)
    assert entry == StateEntry("sum-1", "a", WINDOW, {"sum": 3.5})
    assert len(found.entries("sum-1", None, 10)) == 2
    assert len(found.entries("sum-1", None, 1)) == 1
    with pytest.raises(NoState, match=r"These do: sum-1\."):
        found.entries("sum-2", None, 1)
    with pytest.raises(NoState, match="no checkpoint of an end called nothing"):
        JobEndState(bed.spark, bed.checkpoint, "nothing")


@pytest.mark.nightly
def test_the_sessions_that_spark_keeps_are_read_back(bed: Bed) -> None:
    found = stored(bed, lambda orders: orders.key_by("customer").window(session("1h")).count())
    [entry] = found.entries(None, "a", 10)
    window = {**WINDOW, "end": "1970-01-01T02:00:00.001Z"}
    assert entry == StateEntry("count-1", "a", window, {"count": 2})


@pytest.mark.nightly
def test_both_sides_of_a_join_of_sparks_are_read_back(bed: Bed) -> None:
    def joined(orders: Stream[Any]) -> Any:
        same = orders.join(orders).where("customer").equal_to("customer")
        return same.window(tumbling("1h")).apply("struct(left.amount AS l, right.amount AS r)")

    found = stored(bed, joined).entries("join-1", "a", 10)
    assert {entry.window["start"] for entry in found if entry.window} == {WINDOW["start"]}
    # Spark keeps only the amount, under its own name.
    sides = [
        (side, amount)
        for entry in found
        for side, fields in entry.kept.items()
        for amount in fields.values()
    ]
    assert sorted(sides) == [("left", 1.0), ("left", 2.5), ("right", 1.0), ("right", 2.5)]


@pytest.mark.nightly
def test_the_windows_of_a_chain_are_read_back(bed: Bed) -> None:
    def best(orders: Stream[Any]) -> Any:
        keyed = orders.key_by("customer").window(tumbling("1h"))
        return keyed.max(lambda order: order["amount"])

    [entry] = stored(bed, best).entries("max-1", "a", 10)
    assert entry.window == WINDOW
    assert entry.kept["best"][0] == 2.5


@pytest.mark.nightly
def test_an_end_without_state_says_so(bed: Bed) -> None:
    with pytest.raises(NoState, match="keep no state"):
        stored(bed, lambda orders: orders.filter("amount > 2")).entries(None, None, 1)
