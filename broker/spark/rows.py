"""The rows that Spark hands to the sink, as the messages that one request stores. Pure.

::

    value  binary or string   the message                    needed
    topic  string             where it is published           if the option topic is not given
    ttl    int or long        its life in seconds; null: the topic's

``id`` and ``timestamp`` may be there too, as the source has them; the broker makes new ones. The option
``topic`` comes before the column, as Kafka's does. Rows of one topic keep their order; rows of one topic
and one ttl that stand together are stored together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
)

CHUNK_BYTES: Final = 1 << 20
CHUNK_MESSAGES: Final = 10_000
"""What one request stores at most; one message may always be stored."""

_TAKEN: Final[dict[str, tuple[type[DataType], ...]]] = {
    "value": (BinaryType, StringType),
    "topic": (StringType,),
    "ttl": (IntegerType, LongType),
}
_LEFT_OUT: Final = {"id", "timestamp"}


class Run(NamedTuple):
    """Messages that stand together: of one topic and one life (None: the topic's)."""

    topic: str
    ttl_s: int | None
    values: pa.Array


def check_columns(schema: StructType, topic: str | None) -> None:
    """Refuse columns that the sink can't publish.

    Raises:
        ValueError: a column is missing, is not known, or has another type.
    """
    for field in schema.fields:
        kinds = _TAKEN.get(field.name)
        if field.name in _LEFT_OUT:
            continue
        if kinds is None:
            raise ValueError(
                f"The format tms does not publish the column {field.name}. It takes value (binary or "
                "string), topic (string) and ttl (int or long, in seconds), and leaves out id and "
                "timestamp. Select what shall be published."
            )
        if type(field.dataType) not in kinds:
            names = " or ".join(kind().simpleString() for kind in kinds)
            raise ValueError(
                f"The column {field.name} must be {names}, not {field.dataType.simpleString()}."
            )
    if "value" not in schema.names:
        raise ValueError(
            "The format tms publishes the column value (binary or string), which is not there: "
            'select one, for example to_json(struct("*")) AS value.'
        )
    if topic is None and "topic" not in schema.names:
        raise ValueError("Give the option topic, or a column topic that says where each row goes.")


def runs_of(batch: pa.RecordBatch, topic: str | None) -> Iterator[Run]:
    """Give a batch's rows as runs; those of each topic in their order.

    Raises:
        ValueError: a value or a topic is null, or a ttl is not positive.
    """
    table = {name: batch.column(name) for name in ("value", "ttl") if name in batch.schema.names}
    table["value"] = table["value"].cast(pa.binary())
    if table["value"].null_count:
        raise ValueError("A row's value is null: a message has bytes, if only none of them.")
    if topic is not None:
        yield from _runs_of_topic(topic, table)
        return
    topics = batch.column("topic")
    if topics.null_count:
        raise ValueError("A row's topic is null: every row says where it goes.")
    names = pc.unique(topics).to_pylist()
    for name in names:
        rows = table
        if len(names) > 1:
            here = pc.equal(topics, name)
            rows = {column: values.filter(here) for column, values in table.items()}
        yield from _runs_of_topic(name, rows)


def _runs_of_topic(topic: str, table: dict[str, pa.Array]) -> Iterator[Run]:
    values = table["value"]
    if not len(values):
        return
    if "ttl" not in table:
        yield Run(topic, None, values)
        return
    lives = pc.run_end_encode(table["ttl"])
    begin = 0
    for end, ttl_s in zip(lives.run_ends.to_pylist(), lives.values.to_pylist(), strict=True):
        if ttl_s is not None and ttl_s < 1:
            raise ValueError(f"A row's ttl is {ttl_s}: a life has at least one second, or is null.")
        yield Run(topic, ttl_s, values.slice(begin, end - begin))
        begin = end


def chunks_of(values: pa.Array) -> Iterator[list[bytes]]:
    """Give the payloads of a run in the pieces that one request stores each."""
    count = len(values)
    if not count:
        return
    ends = memoryview(values.buffers()[1]).cast("i")[values.offset : values.offset + count + 1]
    begin = 0
    while begin < count:
        end = bisect_right(ends, ends[begin] + CHUNK_BYTES, begin + 1) - 1
        end = min(max(end, begin + 1), begin + CHUNK_MESSAGES)
        yield values.slice(begin, end - begin).to_pylist()
        begin = end
