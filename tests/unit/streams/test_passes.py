"""The passes over batches: a record that Spark can't take fails alone."""

from asyncio import CancelledError
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, IntegerType, StructType

from broker.model import LOG_KEY_MIN, log_key
from broker.spark.record_batches import SCHEMA, arrow_schema
from broker.streams.accumulators import Count
from broker.streams.failures import Failures
from broker.streams.operators import Chain, RunningAggregate
from broker.streams.passes import KeyedPass, MessageWriter, Pass, RowWriter, SourceReader, TypedPass
from broker.streams.serdes import Json
from broker.streams.stateless_steps import Keying, Mapping, Step, Timing
from broker.streams.stream_records import LETTER, StreamRecord, packed_rows
from broker.wire.attributes import BYTES_MAX

FAILURES = Failures("job", "dead")
READ = SourceReader("source-1", Json(), FAILURES, is_processing_time=False)


def batch(*payloads: bytes) -> pa.RecordBatch:
    count = len(payloads)
    columns = [
        pa.array([log_key(1000 + i, 0) + LOG_KEY_MIN for i in range(count)], pa.binary()),
        pa.array(payloads, pa.binary()),
        pa.array(["t"] * count),
        pa.array([(1000 + i) * 1000 for i in range(count)], pa.timestamp("us", tz="UTC")),
        pa.array([None] * count, pa.binary()),
        pa.array([None] * count, pa.map_(pa.string(), pa.binary())),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(SCHEMA))


def rows(work: Pass, *payloads: bytes) -> list[dict[str, Any]]:
    return [row for found in work([batch(*payloads)]) for row in found.to_pylist()]


@pytest.mark.parametrize("time", [b"1e30", b"1700000000000000000", b"-1e300"])
def test_a_record_whose_time_spark_can_not_hold_fails_alone(time: bytes) -> None:
    timing = Step("time", Timing(lambda value: value["t"]))
    keying = Step("key", Keying(lambda _: 1))
    work = Pass(READ, [timing, keying], RowWriter("key", "time", FAILURES), FAILURES)
    found = rows(work, b'{"t": 1}', b'{"t": %b}' % time)
    letters = [row for row in found if row["kind"] == LETTER]
    assert len(found) == 2
    (letter,) = letters
    assert dict(letter["headers"])["operator"] == b"time"
    assert letter["value"] == b'{"t": %b}' % time


class Given:
    """A serde that gives what it is told: an error, or a result."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def deserialize(self, payload: bytes) -> Any:
        if isinstance(self._given, BaseException):
            raise self._given
        return self._given

    serialize = deserialize


def test_any_end_of_a_decoder_fails_only_its_message() -> None:
    read = SourceReader("source-1", Given(CancelledError()), FAILURES, is_processing_time=False)
    found = rows(
        Pass(read, [], MessageWriter("sink-1", "t", Json(), FAILURES, has_keys=False), FAILURES),
        b"1",
        b"2",
    )
    assert [(row["value"], dict(row["headers"])["reason"]) for row in found] == [
        (b"1", b"decode"),
        (b"2", b"decode"),
    ]


@pytest.mark.parametrize(
    ("given", "key"), [(1, "k"), (["a"], "k"), (CancelledError(), "k"), (b"", "k" * BYTES_MAX)]
)
def test_what_no_message_can_hold_fails_only_its_record(given: Any, key: str) -> None:
    write = MessageWriter("sink-1", "t", Given(given), FAILURES, has_keys=True)
    found = rows(Pass(READ, [Step("key", Keying(lambda _: key))], write, FAILURES), b"1")
    assert [(row["topic"], row["value"]) for row in found] == [("dead", b"1")]


@pytest.mark.parametrize("given", ["a", b"a", bytearray(b"a"), memoryview(b"a")], ids=type)
def test_text_and_buffers_are_payloads(given: Any) -> None:
    write = MessageWriter("sink-1", "t", Given(given), FAILURES, has_keys=False)
    assert [row["value"] for row in rows(Pass(READ, [], write, FAILURES), b"1")] == [b"a"]


class Unlike(Sequence[int]):
    """Arrow asks it for its parts, and it fails."""

    def __getitem__(self, _: object) -> Any:
        raise RuntimeError

    def __len__(self) -> int:
        return 1


def test_a_result_that_arrow_can_not_take_fails_only_its_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = StructType().add("value", ArrayType(IntegerType()))
    monkeypatch.setattr(StructType, "fromDDL", lambda _: numbers)  # Spark would parse the text.
    step = Step("map-1", Mapping(lambda value: Unlike() if value == 1 else [value]))
    found = rows(TypedPass(READ, [step], FAILURES, "map-1", "ARRAY<INT>"), b"1", b"2")
    assert [(row["_payload"], row["value"]) for row in found] == [(b"1", None), (None, [2])]


class OneWay:
    """An object that can be pickled, but not made again."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


class Values:
    """A state variable of Spark."""

    found: Any = None

    def get(self) -> Any:
        return self.found

    def exists(self) -> bool:
        return self.found is not None

    def update(self, value: Any) -> None:
        self.found = value


def test_a_value_that_can_not_be_made_again_fails_only_its_record() -> None:
    chain = Chain([RunningAggregate("count-1", Count)], FAILURES)
    work = KeyedPass(chain, MessageWriter("sink-1", "t", Json(), FAILURES, has_keys=False))
    work.init(SimpleNamespace(getValueState=lambda *_: Values()))  # type: ignore[arg-type]
    keyed = RowWriter("key", "key", FAILURES)
    given = [StreamRecord(each, b"%d" % at, 0, "k") for at, each in enumerate([1, OneWay(), 2])]
    [row] = packed_rows([keyed(each) for each in given])  # type: ignore[misc]
    [found] = work.handleInputRows((row[3],), iter([row]), None)
    assert list(zip(found.topic, found.value, strict=True)) == [
        ("dead", b""),
        ("t", b"1"),
        ("t", b"2"),
    ]
