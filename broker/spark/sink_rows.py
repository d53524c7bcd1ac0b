"""Turn the rows that Spark gives to the sink into the messages of store requests. Pure.

::

    value    binary or string                  the message                needed
    topic    string                            where it is published      if the option topic is not given
    ttl      int or long                       its life in seconds; null: the topic's
    key      binary or string                  its key; null: none
    headers  map<string, binary or string>     its headers; null: none

Rows may also have the source's columns ``id`` and ``timestamp``. The sink ignores them, and the broker makes new ones.
The option ``topic`` takes precedence over the column, as Kafka's does. Rows of one topic keep their order. Adjacent
rows of one topic and one ttl go into one request.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)

from broker.client.values import NewMessage
from broker.model import NO_HEADERS

CHUNK_BYTES: Final = 1 << 20
CHUNK_MESSAGES: Final = 10_000
"""The limits of one request. A single message may be larger."""

_TAKEN: Final[dict[str, tuple[type[DataType], ...]]] = {
    "value": (BinaryType, StringType),
    "topic": (StringType,),
    "ttl": (IntegerType, LongType),
    "key": (BinaryType, StringType),
    "headers": (MapType,),
}
_NAMES: Final[dict[str, str]] = {
    "value": "binary or string",
    "topic": "string",
    "ttl": "int or bigint",
    "key": "binary or string",
    "headers": "map<string,binary> or map<string,string>",
}
_LEFT_OUT: Final = {"id", "timestamp"}

Row = bytes | NewMessage
"""A message: a payload alone, or a NewMessage with a key or headers."""


class MessageRun(NamedTuple):
    """Adjacent messages of one topic and one ttl (None: the topic's ttl).

    ``keys`` or ``headers`` None: no message has any.
    """

    topic: str
    ttl_s: int | None
    values: pa.Array
    keys: pa.Array | None = None
    headers: pa.Array | None = None

    @property
    def nbytes(self) -> int:
        """The approximate size of the run."""
        found: int = sum(each.nbytes for each in self[2:] if each is not None)
        return found

    def messages(self) -> Sequence[Row]:
        """Return its messages. Raises ValueError if one has a header without a value."""
        values: list[bytes] = self.values.to_pylist()
        if self.keys is None and self.headers is None:
            return values
        nothing = [None] * len(values)
        keys = nothing if self.keys is None else self.keys.to_pylist()
        named = nothing if self.headers is None else self.headers.to_pylist()
        return [
            NewMessage(value, key, _headers(some)) if key is not None or some else value
            for value, key, some in zip(values, keys, named, strict=True)
        ]


def _headers(found: Sequence[tuple[str, bytes | str | None]] | None) -> Mapping[str, bytes | str]:
    if not found:
        return NO_HEADERS
    headers: dict[str, Any] = dict(found)
    for name, value in headers.items():
        if value is None:
            raise ValueError(
                f"A row's header {name!a:.80} is null: a header needs a value, which may be empty. "
                "map_filter(headers, (name, value) -> value IS NOT NULL) leaves such headers out."
            )
    return headers


def size_of(message: Row) -> int:
    """Return the approximate size of a message, in bytes."""
    if isinstance(message, bytes):
        return len(message)
    headers = sum(len(name) + len(value) for name, value in message.headers.items())
    return len(message.payload) + len(message.key or b"") + headers


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
                f"The format tms does not publish the column {field.name}. It takes value, key (binary or "
                "string), headers (a map of these), topic (string) and ttl (int or long, in seconds), and "
                "leaves out id and timestamp. Select what shall be published."
            )
        if type(field.dataType) not in kinds or not _is_of_bytes(field.dataType):
            raise ValueError(
                f"The column {field.name} must be {_NAMES[field.name]}, not {field.dataType.simpleString()}."
            )
    if "value" not in schema.names:
        raise ValueError(
            "The format tms publishes the column value (binary or string), which is not there: "
            'select one, for example to_json(struct("*")) AS value.'
        )
    if topic is None and "topic" not in schema.names:
        raise ValueError("Give the option topic, or a column topic that names each row's topic.")


def _is_of_bytes(kind: DataType) -> bool:
    """Return whether a map can be headers; True if the type is no map."""
    if not isinstance(kind, MapType):
        return True
    return type(kind.keyType) is StringType and type(kind.valueType) in _TAKEN["value"]


def runs_of(batch: pa.RecordBatch, topic: str | None) -> Iterator[MessageRun]:
    """Yield a batch's rows as runs; the runs of each topic are in order.

    Raises:
        ValueError: a value or a topic is null, or a ttl is not positive.
    """
    table = {
        name: batch.column(name)
        for name in ("value", "ttl", "key", "headers")
        if name in batch.schema.names
    }
    for name in ("key", "headers"):
        if name in table and table[name].null_count == batch.num_rows:
            del table[name]
    table["value"] = table["value"].cast(pa.binary())
    if table["value"].null_count:
        raise ValueError("A row's value is null: a message needs a value, which may be empty.")
    if topic is not None:
        yield from _runs_of_topic(topic, table)
        return
    topics = batch.column("topic")
    if topics.null_count:
        raise ValueError("A row's topic is null: every row must name its topic.")
    names = pc.unique(topics).to_pylist()
    for name in names:
        rows = table
        if len(names) > 1:
            here = pc.equal(topics, name)
            rows = {column: values.filter(here) for column, values in table.items()}
        yield from _runs_of_topic(name, rows)


def _runs_of_topic(topic: str, table: dict[str, pa.Array]) -> Iterator[MessageRun]:
    values = table["value"]
    if not len(values):
        return
    whole = MessageRun(topic, None, values, table.get("key"), table.get("headers"))
    if "ttl" not in table:
        yield whole
        return
    lives = pc.run_end_encode(table["ttl"])
    begin = 0
    for end, ttl_s in zip(lives.run_ends.to_pylist(), lives.values.to_pylist(), strict=True):
        if ttl_s is not None and ttl_s < 1:
            raise ValueError(f"A row's ttl is {ttl_s}: it must be at least one second, or null.")
        parts = [None if each is None else each.slice(begin, end - begin) for each in whole[2:]]
        yield MessageRun(topic, ttl_s, *parts)
        begin = end


def chunks_of(run: MessageRun) -> Iterator[Sequence[Row]]:
    """Yield the messages of a run in chunks, one for each request."""
    if run.keys is not None or run.headers is not None:
        yield from _chunks_by_size(run.messages())
        return
    values, count = run.values, len(run.values)
    if not count:
        return
    ends = memoryview(values.buffers()[1]).cast("i")[values.offset : values.offset + count + 1]
    begin = 0
    while begin < count:
        end = bisect_right(ends, ends[begin] + CHUNK_BYTES, begin + 1) - 1
        end = min(max(end, begin + 1), begin + CHUNK_MESSAGES)
        yield values.slice(begin, end - begin).to_pylist()
        begin = end


def _chunks_by_size(messages: Sequence[Row]) -> Iterator[Sequence[Row]]:
    begin = size = 0
    for place, message in enumerate(messages):
        more = size_of(message)
        if place > begin and (size + more > CHUNK_BYTES or place - begin >= CHUNK_MESSAGES):
            yield messages[begin:place]
            begin, size = place, 0
        size += more
    if begin < len(messages):
        yield messages[begin:]
