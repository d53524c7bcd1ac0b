"""Streams with SQL functions: Spark's plan, and the messages that pass."""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from broker.streams import Json, StreamBuilder, graph, session
from broker.streams.accumulators import Count
from broker.streams.compiler import Compiler
from broker.streams.passes import TypedPass
from broker.streams.sql_columns import aggregated, as_values
from broker.streams.stateless_steps import Mapping, Step
from tests.integration.spark.bed import Bed
from tests.unit.streams.test_passes import FAILURES, READ, rows

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_message_is_parsed_once_for_any_number_of_fields(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    builder = StreamBuilder("once")
    orders = builder.source("orders", Json("customer STRING, amount DOUBLE, t BIGINT"))
    large = orders.filter("amount > 10").filter("customer <> ''").select_timestamp("t")
    large.map("struct(customer, amount, t)").sink("out", Json())
    job = builder.build()
    [end] = job.graph.ends
    names = {operator.name for operator in graph.upstream(end)}
    compiler = Compiler(job.graph, spark, {"url": "http://127.0.0.1:1"}, names)
    compiler.messages(end).explain()
    plan = capsys.readouterr().out
    assert plan.count("from_json(") == 1, plan


@pytest.mark.nightly
def test_messages_that_do_not_match_the_schema_become_dead_letters(bed: Bed) -> None:
    builder = StreamBuilder("sql-letters", dead_letters=bed.topic("dead"))
    orders = builder.source(bed.topic("orders"), Json("customer STRING, amount DOUBLE"))
    orders.filter("amount > 10").map("customer").sink(bed.topic("out"), Json())
    bed.publish("orders", {"customer": "a", "amount": 50}, b"{", {"customer": "b"})
    bed.publish("orders", {"customer": "c", "amount": "much"}, {"customer": "d", "amount": 11})
    bed.run(builder.build())
    assert bed.read("out") == ["a", "d"]
    letters = [message.payload for message in bed.client.poll(bed.topic("dead"))]
    assert letters == [b"{", b'{"customer": "c", "amount": "much"}']


def test_two_records_exactly_a_gap_apart_are_two_sessions(spark: SparkSession) -> None:
    """As in Python (tests/unit/streams/test_chains.py)."""
    given = spark.sql(
        "SELECT false AS _beat, CAST('' AS BINARY) AS _at, timestamp_millis(t) AS _time, k AS _key, "
        "CAST(NULL AS STRUCT<start: TIMESTAMP, end: TIMESTAMP>) AS _window, k AS value "
        "FROM VALUES (0L, 'apart'), (5000L, 'apart'), (0L, 'near'), (4999L, 'near') AS x(t, k)"
    )
    operator = graph.Aggregate(name="count-1", kind="count", make=Count, windows=session("5s"))
    found = as_values(aggregated([(given, 0)], operator)).select("key", "start", "end", "value")
    assert sorted(map(tuple, found.collect())) == [
        ("apart", 0, 5000, 1),
        ("apart", 5000, 10_000, 1),
        ("near", 0, 9999, 2),
    ]


@pytest.mark.parametrize(
    ("function", "returns"),
    [
        (lambda _: "\ud800", "STRING"),
        (lambda _: 1 << 80, "BIGINT"),
        (lambda _: 5, "STRUCT<a: INT>"),
    ],
    ids=["surrogate", "too-large", "no-struct"],
)
def test_a_result_that_is_not_of_its_type_fails_alone(
    spark: SparkSession, function: Callable[[Any], Any], returns: str
) -> None:
    assert spark.version, "Spark reads the type"
    work = TypedPass(READ, [Step("map", Mapping(function))], FAILURES, "map", returns)
    (letter,) = rows(work, b"7")
    assert (letter["_payload"], dict(letter["_headers"])["operator"]) == (b"7", b"map")


def test_records_without_a_time_become_dead_letters(bed: Bed) -> None:
    builder = StreamBuilder("timeless", dead_letters=bed.topic("dead"))
    orders = builder.source(bed.topic("orders"), Json("k STRING, t BIGINT"))
    orders.select_timestamp("t").map("k").sink(bed.topic("out"), Json())
    far = {"k": "far", "t": 1_700_000_000_000_000_000}
    seconds = {"k": "seconds", "t": 1_700_000_000}
    bed.publish("orders", {"k": "a", "t": 1}, {"k": "none"}, far, seconds, {"k": "b", "t": 2})
    bed.run(builder.build())
    assert bed.read("out") == ["a", "b"]
    assert bed.letters("dead") == [
        ("error", "select_timestamp-1", b'{"k":"far","t":1700000000000000000}'),
        ("error", "select_timestamp-1", b'{"k":"none","t":null}'),
        ("error", "select_timestamp-1", b'{"k":"seconds","t":1700000000}'),
    ]


@pytest.mark.parametrize("kind", ["TIMESTAMP_NTZ", "DATE"])
def test_a_time_without_a_zone_is_refused(spark: SparkSession, kind: str) -> None:
    builder = StreamBuilder("zoneless")
    orders = builder.source("orders", Json(f"k STRING, t {kind}"))
    orders.select_timestamp("t").map("k").sink("out", Json())
    job = builder.build()
    [end] = job.graph.ends
    names = {operator.name for operator in graph.upstream(end)}
    compiler = Compiler(job.graph, spark, {"url": "http://127.0.0.1:1"}, names)
    with pytest.raises(ValueError, match="has no time zone"):
        compiler.messages(end)


def test_without_a_topic_for_letters_a_record_without_a_time_stops_the_job(bed: Bed) -> None:
    builder = StreamBuilder("timeless")
    orders = builder.source(bed.topic("orders"), Json("k STRING, t TIMESTAMP"))
    orders.select_timestamp("t").map("k").sink(bed.topic("out"), Json())
    bed.publish("orders", {"k": "none"})
    with pytest.raises(StreamingQueryException, match=r"select_timestamp-1 failed .* time is null"):
        bed.run(builder.build())
