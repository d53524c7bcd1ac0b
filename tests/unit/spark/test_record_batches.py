import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from broker.client.dataframes import times_of
from broker.model import log_key
from broker.spark.record_batches import SCHEMA, TYPES, arrow_schema, with_columns

IDS = [log_key(ms, 1) + log_key(7, 7) for ms in (0, 1, 1_764_000_000_123, 1 << 40)]


def test_times_are_those_of_the_ids_also_of_a_slice() -> None:
    ids = pa.array(IDS, pa.binary())
    expected = [0, 1, 1_764_000_000_123, 1 << 40]
    assert times_of(ids).cast(pa.int64()).to_pylist() == expected
    assert times_of(ids.slice(2)).cast(pa.int64()).to_pylist() == expected[2:]
    assert len(times_of(ids.slice(4))) == 0


def test_columns_are_those_that_spark_asks_for_in_its_order() -> None:
    headers = [None, [("h", b"\xff")], None, [("a", b""), ("b", b"1")]]
    columns = {
        "id": pa.array(IDS, pa.binary()),
        "value": pa.array([b"a", b"", b"\xff", b"d"], pa.binary()),
        "key": pa.array([b"k", None, b"", None], pa.binary()),
        "headers": pa.array(headers, TYPES["headers"]),
    }
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    asked = StructType([SCHEMA["topic"], SCHEMA["value"]])
    made = with_columns(batch, "shop/orders", arrow_schema(asked))
    assert made.schema.names == ["topic", "value"]
    assert made.column("topic").to_pylist() == ["shop/orders"] * 4
    assert made.column("value").to_pylist() == [b"a", b"", b"\xff", b"d"]
    whole = with_columns(batch, "t", arrow_schema(SCHEMA))
    assert whole.schema.types == list(TYPES.values())
    assert whole.schema.names == list(TYPES)
    assert whole.column("key").to_pylist() == [b"k", None, b"", None]
    assert whole.column("headers").to_pylist() == headers


@pytest.mark.parametrize("field", [("offset", LongType()), ("id", StringType())])
def test_a_column_that_is_not_there_is_refused(field) -> None:
    with pytest.raises(ValueError, match=r"no column .* from which"):
        arrow_schema(StructType([StructField(*field)]))
