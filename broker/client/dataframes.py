"""Convert messages into tables of pyarrow, and these into tables of pandas and polars.

The client does not require these packages; a function imports them when the caller asks for a table.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from broker.errors import install_command
from broker.model import MessageId

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    PandasFrame: TypeAlias = pd.DataFrame
    PolarsFrame: TypeAlias = pl.DataFrame
    Table: TypeAlias = pa.Table

_TIME_BYTES: Final = 8


def check_pyarrow() -> Any:
    """Return pyarrow. Raises ImportError, which says what to install."""
    try:
        import pyarrow.compute  # noqa: PLC0415 - An extra, and slow to import.
        import pyarrow.ipc  # noqa: PLC0415 - The same.
    except ImportError as error:
        raise ImportError(
            f"Record batches and tables need pyarrow: {install_command('arrow')}, or pyarrow alone."
        ) from error
    return pyarrow


def check_pandas() -> None:
    """Check that pandas can be imported. Raises ImportError, which says what to install."""
    check_pyarrow()
    try:
        import pandas as pd  # noqa: F401, PLC0415 - pyarrow imports it later, with a less helpful error.
    except ImportError as error:
        raise ImportError("A table of pandas needs pandas: pip install pandas") from error


def check_polars() -> Any:
    """Return polars. Raises ImportError, which says what to install."""
    check_pyarrow()
    try:
        import polars as pl  # noqa: PLC0415 - Not needed by the client, and slow to import.
    except ImportError as error:
        raise ImportError("A table of polars needs polars: pip install polars") from error
    return pl


def with_attributes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with the columns ``key`` and ``headers``. They are null if the broker does not send them."""
    arrow = check_pyarrow()
    for name, kind in (
        ("key", arrow.binary()),
        ("headers", arrow.map_(arrow.string(), arrow.binary())),
    ):
        if name not in batch.schema.names:
            batch = batch.append_column(name, arrow.nulls(batch.num_rows, kind))
    return batch


def cut(
    batch: pa.RecordBatch, has_begun: Callable[[MessageId], bool], stop: MessageId
) -> pa.RecordBatch:
    """Return the rows of a batch from the first for which ``has_begun`` is true, with ids below ``stop``."""
    ids, places = batch.column("id"), range(batch.num_rows)
    begin = bisect_left(places, True, key=lambda place: has_begun(ids[place].as_py()))
    end = bisect_left(places, stop, begin, key=lambda place: ids[place].as_py())
    return batch.slice(begin, end - begin)


def table_of(batches: Sequence[pa.RecordBatch]) -> Table:
    """Return batches of a bulk read as one table, with the columns that ``Reading`` documents."""
    arrow = check_pyarrow()
    schema = arrow.schema(
        [
            arrow.field("id", arrow.binary(), nullable=False),
            arrow.field("time", arrow.timestamp("ms", tz="UTC"), nullable=False),
            arrow.field("value", arrow.binary(), nullable=False),
            arrow.field("key", arrow.binary()),
            arrow.field("headers", arrow.map_(arrow.string(), arrow.binary())),
        ]
    )
    rows = [
        arrow.record_batch(
            [
                times_of(batch.column("id")) if name == "time" else batch.column(name)
                for name in schema.names
            ],
            schema=schema,
        )
        for batch in batches
    ]
    return arrow.Table.from_batches(rows, schema)


def times_of(ids: pa.Array) -> pa.Array:
    """Return the publish times in message ids, in ms and UTC. Each id begins with its time."""
    arrow = check_pyarrow()
    compute = arrow.compute
    big_endian = compute.binary_reverse(compute.binary_slice(ids, 0, _TIME_BYTES))
    _, offsets, data = big_endian.buffers()
    assert offsets is not None, "a binary array has offsets"
    first = memoryview(offsets).cast("i")[big_endian.offset]
    buffers = [None, data.slice(first)]
    return arrow.Array.from_buffers(arrow.timestamp("ms", tz="UTC"), len(big_endian), buffers)


def pandas_of(table: Table) -> PandasFrame:
    """Return a table as a pandas DataFrame, with headers as dicts."""
    frame: PandasFrame = table.to_pandas(maps_as_pydicts="strict")
    return frame


def polars_of(table: Table) -> PolarsFrame:
    """Return a table as a polars DataFrame."""
    frame: PolarsFrame = check_polars().from_arrow(table)
    return frame
