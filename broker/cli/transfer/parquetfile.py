"""Parquet files, with pyarrow.

A Parquet file can't be read without its end, so an unfinished file can't be continued. So the part is a folder with
one complete file for each chunk. The finished file has the row groups of all chunks, copied one by one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from broker.cli.transfer import sidecars
from broker.cli.transfer.growing_file import changed
from broker.cli.transfer.message_records import message_of
from broker.cli.transfer.parquet_pages import rows_at_once
from broker.model import MESSAGE_ID_BYTES, Message
from broker.wire.attributes import BYTES_MAX, HEADERS_MAX

_WHOLE: Final = "whole"


class ParquetFile:
    """The format ``parquet``."""

    name = "parquet"

    def check(self) -> None:
        """Check that pyarrow is installed. Raises click.ClickException."""
        _pyarrow()

    def append(self, part: Path, position: int, messages: Sequence[Message]) -> int:
        """Write a chunk; a position is the number of chunks."""
        arrow = _pyarrow()
        if position and not (part / _name(position - 1)).is_file():
            raise changed(part, f"it had {position:,} chunks")
        part.mkdir(exist_ok=True)
        if not messages:
            return position
        columns = {
            "id": [message.id for message in messages],
            "time": [message.timestamp_ms for message in messages],
            "payload": [message.payload for message in messages],
            "key": [message.key for message in messages],
            "headers": [list(message.headers.items()) for message in messages],
        }
        table = arrow.table(columns, schema=_schema(arrow))
        chunk = part / _name(position)
        arrow.parquet.write_table(table, chunk)
        _sync(chunk)
        return position + 1

    def finish(self, part: Path, position: int, file: Path) -> None:
        """Copy the row groups of all ``position`` chunks into one file, and rename it to ``file``."""
        arrow = _pyarrow()
        whole = part / _WHOLE
        try:
            with arrow.parquet.ParquetWriter(whole, _schema(arrow)) as writer:
                for number in range(position):
                    with arrow.parquet.ParquetFile(part / _name(number)) as chunk:
                        for group in range(chunk.num_row_groups):
                            writer.write_table(chunk.read_row_group(group))
        except (FileNotFoundError, arrow.ArrowException) as error:
            raise changed(part, str(error)) from error
        _sync(whole)
        sidecars.place(whole, file)

    def discard(self, part: Path) -> None:
        """Remove the folder."""
        if part.exists():
            shutil.rmtree(part)

    def read(self, file: Path) -> Iterator[Message]:
        """Yield the messages of a file; it needs the column ``payload``, and may have ``key`` and ``headers``."""
        arrow = _pyarrow()
        done = 0
        try:
            with file.open("rb") as raw, arrow.parquet.ParquetFile(file) as opened:
                there = opened.schema_arrow.names
                names = [name for name in ("payload", "key", "headers") if name in there]
                rows = rows_at_once(raw, opened.metadata, names)
            shared = _dictionaries(opened.metadata)
            with arrow.parquet.ParquetFile(file, read_dictionary=shared) as opened:
                for batch in opened.iter_batches(rows, columns=names):
                    for at in range(batch.num_rows):
                        yield message_of({name: _value(name, batch[name][at]) for name in names})
                        done += 1
        except Exception as error:  # pyarrow raises anything for values of others.
            raise click.ClickException(f"{file}, after row {done:,}: {error}") from error


def _dictionaries(metadata: Any) -> list[str]:
    """Return the columns to keep as Parquet has them: each value once, and for each row the number of its value."""
    columns = {
        (column.path_in_schema, column.physical_type)
        for group in map(metadata.row_group, range(metadata.num_row_groups))
        for column in map(group.column, range(group.num_columns))
        if column.has_dictionary_page
    }
    return [path for path, kind in columns if kind == "BYTE_ARRAY"]


def _value(name: str, scalar: Any) -> Any:
    """Return the value of a row. Raises ValueError: it has more headers than a message may have."""
    if name == "headers" and scalar.is_valid and isinstance(scalar, _pyarrow().MapScalar):
        entries = scalar.values
        if len(entries) > HEADERS_MAX:
            raise ValueError(f"headers: {len(entries):,}; a message may have {HEADERS_MAX}")
        size = sum(_size(part) for entry in entries for part in entry.values())
        if size > BYTES_MAX:
            raise ValueError(f"headers: {size:,} bytes; a message may have {BYTES_MAX:,}")
    return scalar.as_py()


def _size(scalar: Any) -> int:
    """Return the size of a text or bytes, without a copy of it."""
    if hasattr(scalar, "index"):
        scalar = scalar.value  # Of a dictionary.
    return len(scalar.as_buffer() or b"") if hasattr(scalar, "as_buffer") else 0


def _schema(arrow: Any) -> Any:
    return arrow.schema(
        [
            arrow.field("id", arrow.binary(MESSAGE_ID_BYTES), nullable=False),
            arrow.field("time", arrow.timestamp("ms", "UTC"), nullable=False),
            arrow.field("payload", arrow.binary(), nullable=False),
            arrow.field("key", arrow.binary()),
            arrow.field("headers", arrow.map_(arrow.string(), arrow.binary())),
        ]
    )


def _name(chunk: int) -> str:
    return f"{chunk:08}"


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet  # noqa: PLC0415 - An extra, and slow to import.
    except ImportError as error:
        raise click.ClickException(
            "Parquet files need pyarrow: pip install 'tms-broker[export]', or pyarrow alone."
        ) from error
    return pyarrow
