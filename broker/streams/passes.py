"""The passes in which Spark runs Python on records: thin shells around stateless_steps.py and operators.py.

A **pass** reads batches, runs steps and writes rows. A **keyed pass** is a chain that Spark calls for each key. Spark
pickles both for its workers, with the functions in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, Protocol

import orjson
import pyarrow as pa
from pyspark.sql import Row as SparkRow
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType
from typing_extensions import override

from broker.client.publish_request import payload_bytes
from broker.clock import SystemClock
from broker.model import NO_HEADERS
from broker.streams import stateless_steps
from broker.streams.failures import Failures
from broker.streams.key_codec import decode_key, encode_key
from broker.streams.operators import Cells, Chain, packed, unpacked
from broker.streams.serdes import Serde
from broker.streams.stateless_steps import Step
from broker.streams.stream_records import (
    BEAT,
    COLUMNS,
    LETTER,
    MESSAGES,
    NO_KEY,
    RECORD,
    Letter,
    Row,
    StreamRecord,
    beat_row,
    kinds_of,
    packed_rows,
    unpacked_records,
)
from broker.streams.windows import Window
from broker.wire import attributes

ROWS_AT_ONCE: Final = 20_000
BYTES_AT_ONCE: Final = 8 << 20
"""The most rows that a pass gives to Spark in one batch, and about the most bytes of their values."""

TYPES: Final = {
    "kind": pa.int8(),
    "at": pa.binary(),
    "time": pa.int64(),
    "key": pa.binary(),
    "value": pa.binary(),
    "side": pa.int8(),
    "start": pa.int64(),
    "end": pa.int64(),
    "topic": pa.string(),
    "headers": pa.map_(pa.string(), pa.binary()),
}
ROWS_OF_KEY: Final = 1_000
"""The most rows of a key that a keyed pass gives to Spark in one row of lists."""

Read = StreamRecord | Letter | Row
"""A record, a letter, or a finished row: a beat, or a letter of an earlier pass."""


class RecordReader(Protocol):
    """Turns a batch from Spark into records."""

    def __call__(self, batch: pa.RecordBatch) -> Iterator[Read]:
        """Yield the records, letters and rows of a batch."""


class SourceReader:
    """Reads the batches of the format ``tms``."""

    def __init__(
        self, name: str, serde: Serde[Any], failures: Failures, *, is_processing_time: bool
    ) -> None:
        """Keep the parts."""
        self._name = name
        self._serde = serde
        self._failures = failures
        self._is_processing_time = is_processing_time
        self._clock = SystemClock()

    def __call__(self, batch: pa.RecordBatch) -> Iterator[Read]:
        """Yield a record for each message, and the beats."""
        ids, payloads = batch.column("id").to_pylist(), batch.column("value").to_pylist()
        times = batch.column("timestamp").cast(pa.int64()).to_pylist()
        now_ms = self._clock.now_ms()
        for message_id, payload, time_us in zip(ids, payloads, times, strict=True):
            time_ms = now_ms if self._is_processing_time else time_us // 1000
            if payload is None:
                yield beat_row(time_ms)
                continue
            record = StreamRecord(None, message_id, time_ms, payload=payload)
            try:
                record.value = self._serde.deserialize(payload)
            except BaseException as error:  # noqa: BLE001 - The user's serde may raise anything.
                yield self._failures.letter("decode", self._name, record, error)
            else:
                yield record


def read_values(batch: pa.RecordBatch) -> Iterator[Read]:
    """Yield the records of a batch with the columns kind, at, time, key, value, start, end."""
    columns = (batch.column(place).to_pylist() for place in range(batch.num_columns))
    for kind, at, time_ms, key, value, start, end in zip(*columns, strict=True):
        if kind == RECORD:
            window = None if start is None else Window(start, end)
            yield StreamRecord(value, at or b"", time_ms, key, window)
        else:
            yield beat_row(time_ms)


Write = Callable[[StreamRecord], Row | Letter | None]


class RowWriter:
    """Writes records for the next pass.

    ``keyed_by`` and ``made_by`` are the operators that made the key and the value. ``side`` is the side of a join.
    """

    def __init__(self, keyed_by: str, made_by: str, failures: Failures, side: int = 0) -> None:
        """Keep the parts."""
        self._keyed_by = keyed_by
        self._made_by = made_by
        self._failures = failures
        self._side = side

    def __call__(self, record: StreamRecord) -> Row | Letter | None:
        """Return a record as a row, or as a letter if its key or its value can't be encoded."""
        record.side = self._side
        name = self._keyed_by
        try:
            key = encode_key(record.key)
            name = self._made_by
            return record.row(key)
        except BaseException as error:  # noqa: BLE001 - Pickle calls methods of the user's classes.
            return self._failures.letter("error", name, record, error)


class MessageWriter:
    """Writes records as messages of a sink."""

    def __init__(
        self, name: str, topic: str | None, serde: Serde[Any], failures: Failures, *, has_keys: bool
    ) -> None:
        """Keep the parts."""
        self._name = name
        self._topic = topic
        self._serde = serde
        self._failures = failures
        self._has_keys = has_keys

    def __call__(self, record: StreamRecord) -> Row | Letter | None:
        """Return the message of a record as a row: its payload and its key."""
        try:
            serialized: Any = self._serde.serialize(record.value)
            if serialized is None:
                return None
            if isinstance(serialized, bytearray | memoryview):
                serialized = bytes(serialized)
            payload = payload_bytes(serialized, "the result of serialize")
            key = key_bytes(record.key) if self._has_keys else None
            attributes.encode(key, NO_HEADERS)  # A larger key no broker takes.
        except BaseException as error:  # noqa: BLE001 - The user's serde may raise anything.
            return self._failures.letter("error", self._name, record, error)
        return (RECORD, record.at, 0, key, payload, 0, None, None, self._topic, None)


def key_bytes(key: Any) -> bytes | None:
    """Return the message key of a record's key: text and bytes as they are, others as JSON. Raises TypeError."""
    if key is None or isinstance(key, bytes):
        return key
    return (
        key.encode() if isinstance(key, str) else orjson.dumps(key, option=orjson.OPT_NON_STR_KEYS)
    )


def _written(given: Iterable[StreamRecord | Letter], write: Write) -> Iterator[Row]:
    """Yield the rows of records and letters. ``write`` may make a letter of a record, or nothing."""
    for found in given:
        row = found if isinstance(found, Letter) else write(found)
        if row is not None:
            yield row.row() if isinstance(row, Letter) else row


class _Leaving:
    """Turns the rows of a pass into its output columns: of messages, or of the packed records of keys."""

    def __init__(self, write: Write) -> None:
        self._is_packed = isinstance(write, RowWriter)
        self.columns = MESSAGES if isinstance(write, MessageWriter) else COLUMNS
        """The output columns, as SQL."""
        self.names = list(kinds_of(self.columns))
        self._places = [list(TYPES).index(name) for name in self.names]

    def __call__(self, rows: Sequence[Row]) -> list[Sequence[Any]]:
        """Return the columns of rows."""
        columns = list(zip(*(packed_rows(rows) if self._is_packed else rows), strict=True))
        return [columns[place] for place in self._places]


class Pass:
    """Reads batches, runs steps, and writes rows."""

    def __init__(
        self, read: RecordReader, run: Sequence[Step], write: Write, failures: Failures
    ) -> None:
        """Keep the parts."""
        self._read = read
        self._steps = run
        self._write = write
        self._failures = failures
        self._leave = _Leaving(write)
        self.columns = self._leave.columns
        """The columns of its rows, as SQL."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows for batches."""
        rows: list[Row] = []
        size = 0
        for batch in batches:
            for read in self._read(batch):
                for row in self._rows(read):
                    rows.append(row)
                    size += len(row[4] or b"")
                if len(rows) >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
                    yield self._batch_of(rows)
                    rows, size = [], 0
        if rows:
            yield self._batch_of(rows)

    def _batch_of(self, rows: Sequence[Row]) -> pa.RecordBatch:
        names = self._leave.names
        found = zip(self._leave(rows), names, strict=True)
        arrays = [pa.array(column, TYPES[name]) for column, name in found]
        return pa.RecordBatch.from_arrays(arrays, names=names)

    def _rows(self, read: Read) -> Iterator[Row]:
        if isinstance(read, StreamRecord | Letter):
            given = stateless_steps.run(self._steps, self._failures, read)
            yield from _written(given, self._write)
        else:
            yield read


class TypedPass(Pass):
    """A pass that writes values of a type of Spark.

    Its columns are _beat, _at, _time, _payload and _headers of a letter, and value.
    """

    def __init__(
        self, read: RecordReader, run: Sequence[Step], failures: Failures, name: str, returns: str
    ) -> None:
        """Keep the parts. Raises ValueError if ``returns`` is no SQL type."""
        super().__init__(read, run, self._typed, failures)
        self._name = name
        self._returns = returns
        schema = StructType.fromDDL(f"value {returns}")
        assert isinstance(schema, StructType)
        self._type = to_arrow_type(schema.fields[0].dataType, timezone="UTC")

    def _typed(self, record: StreamRecord) -> Row | Letter:
        try:
            pa.scalar(record.value, self._type)
        except BaseException as error:  # noqa: BLE001 - Arrow calls methods of the user's classes.
            if isinstance(error, pa.ArrowException | OverflowError | ValueError):
                error = TypeError(f"its result is no {self._returns}: {error}")
            return self._failures.letter("error", self._name, record, error)
        return (RECORD, record.at, record.time_ms, NO_KEY, record.value, 0, None, None, None, None)

    @override
    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield typed values for batches."""
        for batch in batches:
            rows = [row for read in self._read(batch) for row in self._rows(read)]
            kinds, ats, times, _, values, _, _, _, _, headers = (
                zip(*rows, strict=True) if rows else [()] * 10
            )
            is_letter = [kind == LETTER for kind in kinds]
            arrays = [
                pa.array([kind == BEAT for kind in kinds], pa.bool_()),
                pa.array(ats, pa.binary()),
                pa.array([ms * 1000 for ms in times], pa.timestamp("us", tz="UTC")),
                pa.array(
                    [v if is_ else None for v, is_ in zip(values, is_letter, strict=True)],
                    pa.binary(),
                ),
                pa.array(headers, TYPES["headers"]),
                pa.array(
                    [None if is_ else v for v, is_ in zip(values, is_letter, strict=True)],
                    self._type,
                ),
            ]
            yield pa.RecordBatch.from_arrays(
                arrays, names=["_beat", "_at", "_time", "_payload", "_headers", "value"]
            )


class KeyedPass(StatefulProcessor):
    """Runs a chain. Spark calls it for each key with its rows, and for each key whose timer has expired."""

    def __init__(self, chain: Chain, write: Write) -> None:
        """Keep the chain, and how to write its results."""
        self._chain = chain
        self._write = write
        self._leave = _Leaving(write)
        self.columns = self._leave.columns
        """The columns of its rows, as SQL; Spark gets a list of each."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        """Get the state from Spark."""
        self._handle = handle
        self._state = handle.getValueState(STATE, f"{STATE} BINARY")

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[SparkRow]:
        """Yield the results of a key's rows. Letters have no key, and pass through."""
        if bytes(key[0]) == NO_KEY:
            yield from self._lists(tuple(row) for row in rows)
            return
        decoded = decode_key(bytes(key[0]))
        cells = self._cells()
        due_ms = self._chain.due_ms(cells)
        watermark_ms = self._watermark_ms(timerValues)
        unreadable = self._chain.unreadable
        records = [each for row in rows for each in unpacked_records(row, decoded, unreadable)]
        yield from self._packed(self._chain.take(records, cells, watermark_ms))
        self._keep(cells, due_ms)

    @override
    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[SparkRow]:
        """Yield the results that are due for a key."""
        cells = self._cells()
        watermark_ms = self._watermark_ms(timerValues)
        found = self._chain.expire(decode_key(bytes(key[0])), cells, watermark_ms)
        yield from self._packed(found)
        self._keep(cells, None)

    @override
    def close(self) -> None:
        """Do nothing: no resource is open."""

    def _watermark_ms(self, times: Any) -> int:
        return int(times.getCurrentWatermarkInMs()) if self._chain.is_timed else 0

    def _cells(self) -> Cells:
        found = self._state.get()
        return {} if found is None else unpacked(bytes(found[0]))

    def _keep(self, cells: Cells, due_before_ms: int | None) -> None:
        if any(cells.values()):
            self._state.update((packed(cells),))
        elif self._state.exists():
            self._state.clear()
        due_ms = self._chain.due_ms(cells)
        if due_ms is not None and due_ms != due_before_ms:
            self._handle.registerTimer(due_ms)

    def _packed(self, given: Iterable[StreamRecord | Letter]) -> Iterator[SparkRow]:
        return self._lists(_written(given, self._write))

    def _lists(self, rows: Iterator[Row]) -> Iterator[SparkRow]:
        """Yield rows as lists, one for each column."""
        named = SparkRow(*self._leave.names)
        while some := list(islice(rows, ROWS_OF_KEY)):
            yield named(*self._leave(some))


STATE: Final = "cells"
"""The name of the only state variable of a chain in Spark's store."""
