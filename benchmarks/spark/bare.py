"""A Python source that makes the same Arrow batches from memory. It shows the most that Spark can read from Python.

An offset is a number of messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType
from typing_extensions import override

from benchmarks.spark.rows import payload
from broker.spark.record_batches import SCHEMA, arrow_schema

BATCH_ROWS = 16_384
PARTS = 2


class BareSource(DataSource):
    """The format ``bare``."""

    @classmethod
    @override
    def name(cls) -> str:
        return "bare"

    @override
    def schema(self) -> StructType:
        return SCHEMA

    @override
    def streamReader(self, schema: StructType) -> BareReader:
        return BareReader(
            rows=int(self.options["rows"]),
            at_once=int(self.options["rowspertrigger"]),
            payload_bytes=int(self.options["payloadbytes"]),
        )


class BareReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads ``rows`` rows, ``at_once`` of them in each micro-batch."""

    def __init__(self, *, rows: int, at_once: int, payload_bytes: int) -> None:
        self._rows = rows
        self._at_once = at_once
        self._payload_bytes = payload_bytes

    @override
    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        """Do nothing: no rows come later."""

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._at_once)

    @override
    def reportLatestOffset(self) -> dict[str, int]:
        return {"rows": self._rows}

    @override
    def latestOffset(self, start: Any, limit: ReadLimit) -> Any:
        stop = min(start["rows"] + self._at_once, self._rows)
        return start if stop == start["rows"] else {"rows": stop}

    @override
    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        rows = end["rows"] - start["rows"]
        return [InputPartition(rows // PARTS) for _ in range(PARTS)]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        whole = _batch(self._payload_bytes)
        left = partition.value
        while left > 0:
            yield whole.slice(0, min(left, BATCH_ROWS))
            left -= BATCH_ROWS


@lru_cache(maxsize=1)
def _batch(payload_bytes: int) -> pa.RecordBatch:
    """Return a batch; a process makes it once."""
    numbers = range(BATCH_ROWS)
    columns = [
        pa.array([n.to_bytes(20, "big") for n in numbers], pa.binary()),
        pa.array([payload(n, payload_bytes) for n in numbers], pa.binary()),
        pa.repeat(pa.scalar("bare"), BATCH_ROWS),
        pa.array([n * 1000 for n in numbers], pa.timestamp("us", tz="UTC")),
    ]
    schema = arrow_schema(SCHEMA)
    columns += [pa.nulls(BATCH_ROWS, schema.field(name).type) for name in ("key", "headers")]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
