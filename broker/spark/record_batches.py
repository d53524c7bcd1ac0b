"""Read a part of a topic as Arrow batches, with exactly the columns that Spark expects.

::

    id         binary, the message's 20 bytes          value       binary, its payload
    topic      string, as the option names it          timestamp   µs UTC, from the first half of the id
    key        binary, null: none                      headers     map<string, binary>, null: none

This module makes the columns of a whole batch at once. No value of a message becomes an object of Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from broker.client.dataframes import times_of
from broker.client.sync import SyncClient
from broker.model import MessageId, Snapshot
from broker.places import Place

SCHEMA: Final = StructType(
    [
        StructField("id", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("timestamp", TimestampType()),
        StructField("key", BinaryType()),
        StructField("headers", MapType(StringType(), BinaryType())),
    ]
)
TYPES: Final[Mapping[str, pa.DataType]] = {
    "id": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "key": pa.binary(),
    "headers": pa.map_(pa.string(), pa.binary()),
}


class TaskRange(NamedTuple):
    """A range ``(after, through]`` in one generation of a topic that one task reads."""

    topic: str
    after: MessageId
    through: MessageId
    snapshot: Snapshot | None = None
    generation: int | None = None


def arrow_schema(asked: StructType) -> pa.Schema:
    """Return the Arrow schema of the columns that Spark asks for.

    Raises:
        ValueError: there is no such column, or it has another type.
    """
    types = {field.name: field.dataType for field in SCHEMA.fields}
    for field in asked.fields:
        if types.get(field.name) != field.dataType:
            raise ValueError(
                f"The format tms has no column {field.name} of the type "
                f"{field.dataType.simpleString()}. It has these, from which .schema(…) may choose: "
                f"{SCHEMA.simpleString()}."
            )
    return pa.schema(
        [pa.field(field.name, TYPES[field.name], field.nullable) for field in asked.fields]
    )


def read_part(client: SyncClient, part: TaskRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield all messages of a part, in order. Raises TopicRecreated."""
    through = Place(part.through, part.generation)
    found = client.read_arrow(part.topic, after=part.after, through=through, snapshot=part.snapshot)
    with closing(found):
        for batch in found:
            yield with_columns(batch, part.topic, schema)


def with_columns(batch: pa.RecordBatch, topic: str, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of a schema for messages of a bulk read."""
    make: Mapping[str, Callable[[], pa.Array]] = {
        "id": lambda: batch.column("id"),
        "value": lambda: batch.column("value"),
        "topic": lambda: pa.repeat(pa.scalar(topic, pa.string()), batch.num_rows),
        "key": lambda: batch.column("key"),
        "headers": lambda: batch.column("headers"),
        "timestamp": lambda: times_of(batch.column("id")).cast(TYPES["timestamp"]),
    }
    return pa.RecordBatch.from_arrays([make[name]() for name in schema.names], schema=schema)
