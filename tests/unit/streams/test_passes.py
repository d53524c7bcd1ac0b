"""The passes over batches: a record that Spark can't take fails alone."""

from typing import Any

import pyarrow as pa
import pytest

from broker.model import ROW_ID_MIN, row_id
from broker.spark.record_batches import SCHEMA, arrow_schema
from broker.streams.failures import Failures
from broker.streams.passes import Pass, RowWriter, SourceReader
from broker.streams.serdes import Json
from broker.streams.stateless_steps import Keying, Step, Timing
from broker.streams.stream_records import LETTER

FAILURES = Failures("job", "dead")
READ = SourceReader("source-1", Json(), FAILURES, is_processing_time=False)


def batch(*payloads: bytes) -> pa.RecordBatch:
    count = len(payloads)
    columns = [
        pa.array([row_id(1000 + i, 0) + ROW_ID_MIN for i in range(count)], pa.binary()),
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
