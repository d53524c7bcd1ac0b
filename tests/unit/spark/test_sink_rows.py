import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from broker.client import NewMessage
from broker.spark import sink_rows
from broker.spark.sink_rows import MessageRun, check_columns, chunks_of, runs_of

VALUE = StructField("value", BinaryType())
TOPIC = StructField("topic", StringType())
HEADERS = MapType(StringType(), BinaryType())
TEXT_HEADERS = MapType(StringType(), StringType(), valueContainsNull=False)


def batch(**columns: list) -> pa.RecordBatch:
    types = {
        "value": pa.binary(),
        "topic": pa.string(),
        "ttl": pa.int32(),
        "key": pa.binary(),
        "headers": pa.map_(pa.string(), pa.binary()),
    }
    return pa.record_batch(
        [pa.array(values, types[name]) for name, values in columns.items()], names=list(columns)
    )


def listed(found) -> list[tuple[str, int | None, list[bytes]]]:
    return [(run.topic, run.ttl_s, run.values.to_pylist()) for run in found]


@pytest.mark.parametrize(
    "fields",
    [
        [VALUE],
        [StructField("value", StringType())],
        [VALUE, TOPIC, StructField("ttl", LongType())],
        [StructField("id", BinaryType()), VALUE, StructField("timestamp", TimestampType())],
        [VALUE, StructField("key", BinaryType()), StructField("headers", HEADERS)],
        [VALUE, StructField("key", StringType()), StructField("headers", TEXT_HEADERS)],
    ],
)
def test_columns_that_can_be_published_are_taken(fields: list[StructField]) -> None:
    check_columns(StructType(fields), "t")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ([StructField("value", IntegerType())], "value must be binary or string, not int"),
        ([VALUE, StructField("ttl", StringType())], "ttl must be int or bigint, not string"),
        ([VALUE, StructField("tll", LongType())], "does not publish the column tll"),
        ([VALUE, StructField("key", LongType())], "key must be binary or string, not bigint"),
        (
            [VALUE, StructField("headers", StringType())],
            "headers must be map<string,binary> or map<string,string>, not string",
        ),
        (
            [VALUE, StructField("headers", MapType(StringType(), LongType()))],
            "headers must be map<string,binary> or map<string,string>, not map<string,bigint>",
        ),
        ([TOPIC], "the column value (binary or string), which is not there"),
        ([VALUE], "Give the option topic, or a column topic"),
    ],
)
def test_other_columns_are_refused(fields: list[StructField], told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        check_columns(StructType(fields), None)


def test_the_option_comes_before_the_column() -> None:
    found = batch(value=[b"a", b"b"], topic=["x", "y"])
    assert listed(runs_of(found, "t")) == [("t", None, [b"a", b"b"])]


def test_rows_of_each_topic_keep_their_order() -> None:
    found = batch(value=[b"1", b"2", b"3", b"4"], topic=["x", "y", "x", "y"])
    assert listed(runs_of(found, None)) == [("x", None, [b"1", b"3"]), ("y", None, [b"2", b"4"])]


def test_rows_with_one_ttl_that_stand_together_are_one_run() -> None:
    found = batch(value=[b"1", b"2", b"3", b"4", b"5"], ttl=[5, 5, None, None, 5])
    assert listed(runs_of(found, "t")) == [
        ("t", 5, [b"1", b"2"]),
        ("t", None, [b"3", b"4"]),
        ("t", 5, [b"5"]),
    ]


def test_rows_have_their_keys_and_headers_in_every_run() -> None:
    found = batch(
        value=[b"1", b"2", b"3", b"4"],
        topic=["x", "y", "x", "y"],
        ttl=[None, 5, None, None],
        key=[b"k", None, None, b""],
        headers=[None, [("h", b"2")], [], [("a", b""), ("b", b"\xff")]],
    )
    assert [(run.topic, run.ttl_s, *run.messages()) for run in runs_of(found, None)] == [
        ("x", None, NewMessage(b"1", b"k"), b"3"),
        ("y", 5, NewMessage(b"2", None, {"h": b"2"})),
        ("y", None, NewMessage(b"4", b"", {"a": b"", "b": b"\xff"})),
    ]


def test_columns_without_a_key_or_header_cost_nothing() -> None:
    (run,) = runs_of(batch(value=[b"1", b"2"], key=[None, None], headers=[None, None]), "t")
    assert (run.keys, run.headers, run.messages()) == (None, None, [b"1", b"2"])


def test_a_header_without_a_value_is_refused() -> None:
    found = batch(value=[b"1"], headers=[[("h", None)]])
    (run,) = runs_of(found, "t")
    with pytest.raises(ValueError, match="header 'h' is null"):
        run.messages()


def test_keys_and_headers_count_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_rows, "CHUNK_BYTES", 100)
    monkeypatch.setattr(sink_rows, "CHUNK_MESSAGES", 4)
    (run,) = runs_of(batch(value=[b"1"] * 9, key=[bytes(n * 10) for n in range(9)]), "t")
    chunks = list(chunks_of(run))
    assert [message for chunk in chunks for message in chunk] == run.messages()
    assert [len(chunk) for chunk in chunks] == [4, 2, 1, 1, 1]


def test_text_travels_as_utf_8() -> None:
    found = pa.record_batch([pa.array(["ä", ""])], names=["value"])
    assert listed(runs_of(found, "t")) == [("t", None, ["ä".encode(), b""])]


def test_a_batch_without_rows_has_no_runs() -> None:
    assert listed(runs_of(batch(value=[], topic=[], ttl=[]), None)) == []
    assert listed(runs_of(batch(value=[]), "t")) == []


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"value": [None], "topic": ["t"]}, "value is null"),
        ({"value": [b""], "topic": [None]}, "topic is null"),
        ({"value": [b""], "topic": ["t"], "ttl": [0]}, "ttl is 0"),
    ],
)
def test_a_value_that_is_no_message_is_refused(columns: dict[str, list], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        list(runs_of(batch(**columns), None))


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(0, 10))
def test_chunks_are_bounded_whole_and_in_order(sizes: list[int], skipped: int) -> None:
    values = pa.array([bytes([n % 251]) * size for n, size in enumerate(sizes)], pa.binary())
    values = values.slice(min(skipped, len(values)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sink_rows, "CHUNK_BYTES", 50)
        patch.setattr(sink_rows, "CHUNK_MESSAGES", 7)
        chunks = list(chunks_of(MessageRun("t", None, values)))
    assert [payload for chunk in chunks for payload in chunk] == values.to_pylist()
    for chunk in chunks:
        assert 1 <= len(chunk) <= 7
        assert len(chunk) == 1 or sum(map(len, chunk)) <= 50
