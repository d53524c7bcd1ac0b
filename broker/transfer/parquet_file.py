"""Parquet files, with pyarrow.

A Parquet file can't be read without its end, so an unfinished file can't be continued. So the part is a folder with
one complete file for each chunk. The finished file has the row groups of all chunks, copied one by one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from broker import small_files as files
from broker.errors import TaskFailed
from broker.model import MESSAGE_ID_BYTES, Message
from broker.transfer.message_records import changed, message_of
from broker.wire.attributes import BYTES_MAX, HEADERS_MAX

_WHOLE: Final = "whole"


class ParquetFile:
    """The format ``parquet``."""

    name = "parquet"

    def check(self) -> None:
        """Check that pyarrow is installed. Raises TaskFailed."""
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
        files.place(whole, file)

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
            raise TaskFailed(f"{file}, after row {done:,}: {error}") from error


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
        raise TaskFailed(
            "Parquet files need pyarrow: pip install 'tms-broker[export]', or pyarrow alone."
        ) from error
    return pyarrow


# --- Pages -----------------------------------------------------------------------------------------
#
# A page of some bytes may unpack to two gigabytes, and the sizes in the file's footer may be wrong. So pages are counted
# by their own headers before pyarrow unpacks them. A header is a struct of Thrift's compact protocol:
#
#     1 type   2 bytes unpacked   3 bytes packed   5, 7, 8 header of a data or dictionary page, with 1 number of values
#
# A value of the encoding DELTA_BYTE_ARRAY repeats the beginning of the value before: each value may have as many bytes
# as its page, and one row of headers very many of them.

PAGE_BYTES_MAX: Final = 128 << 20
"""A message has 64 MiB at most, and a page some more messages."""
VALUES_MAX: Final = 20_000_000
"""How many values a page, and how many headers a row group may have."""
BATCH_BYTES: Final = 32 << 20
ROWS_AT_ONCE: Final = 1000
HEADER_BYTES_MAX: Final = 1 << 20
_HEADER_BYTES: Final = 1 << 9
_UNREADABLE: Final = "the header of a page can't be read"
_BOOLEANS, _NUMBERS, _DOUBLE, _BINARY, _STRUCT = (1, 2), (3, 4, 5, 6), 7, 8, 12
_DEPTH_MAX: Final = 4
_DATA_PAGES: Final = {5: 2, 8: 4}
"""The headers of data pages, each with its field of the encoding."""
_DELTA_BYTE_ARRAY: Final = 7


class Page(NamedTuple):
    """The sizes of a page, in bytes, and its number of values. In a page of ``repeats`` each may have all its bytes."""

    unpacked: int
    packed: int
    values: int
    repeats: bool


def rows_at_once(file: BinaryIO, metadata: Any, names: list[str]) -> int:
    """Return how many rows may be read at once. Raises ValueError: a page, or the headers of rows, are too large."""
    rows = ROWS_AT_ONCE
    for group in (metadata.row_group(number) for number in range(metadata.num_row_groups)):
        for column in (group.column(number) for number in range(group.num_columns)):
            name = column.path_in_schema.partition(".")[0]
            if name not in names:
                continue
            values = 0
            for page in pages(file, column):
                values += page.values
                if page.repeats and name == "headers":
                    raise ValueError(
                        "headers: in the encoding DELTA_BYTE_ARRAY; write them in another"
                    )
                sized = 1 if page.repeats else page.values
                rows = min(rows, max(BATCH_BYTES * sized // max(page.unpacked, 1), 1))
            if name == "headers" and values > min(group.num_rows * HEADERS_MAX, VALUES_MAX):
                raise ValueError(f"headers: {values:,} of {group.num_rows:,} rows are too many")
    return rows


def pages(file: BinaryIO, column: Any) -> Iterator[Page]:
    """Yield the pages of a column of a row group. Raises ValueError."""
    at = column.data_page_offset
    if column.has_dictionary_page and column.dictionary_page_offset:
        at = min(at, column.dictionary_page_offset)
    end = at + column.total_compressed_size
    while at < end:
        found, header_bytes = _header(file, at, end)
        try:
            data = next((each for each in _DATA_PAGES if each in found), None)
            values = 0 if data is None else found[data][1]
            repeats = data is not None and found[data][_DATA_PAGES[data]] == _DELTA_BYTE_ARRAY
            page = Page(found[2], found[3], values, repeats)
        except (KeyError, TypeError) as error:
            raise ValueError(_UNREADABLE) from error
        at += header_bytes + page.packed
        if not 0 <= page.unpacked <= PAGE_BYTES_MAX:
            raise ValueError(
                f"{column.path_in_schema}: a page of {page.unpacked:,} bytes; {PAGE_BYTES_MAX:,} are allowed"
            )
        if page.values > VALUES_MAX:
            raise ValueError(
                f"{column.path_in_schema}: a page of {page.values:,} values; {VALUES_MAX:,} are allowed"
            )
        if page.packed < 0 or page.values < 0 or at > end:
            raise ValueError(f"{column.path_in_schema}: a page is longer than its column")
        yield page


def _header(file: BinaryIO, at: int, end: int) -> tuple[Mapping[int, Any], int]:
    """Return the header of a page, and its size. Most are short, and a column may have millions. Raises ValueError."""
    for size in (_HEADER_BYTES, HEADER_BYTES_MAX):
        file.seek(at)
        header = _Compact(file.read(min(size, end - at)))
        with suppress(IndexError):
            return header.struct(), header.at
    raise ValueError(_UNREADABLE)


class _Compact:
    """Reads structs of Thrift's compact protocol. Errors: IndexError at the end, ValueError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def struct(self, depth: int = 0) -> Mapping[int, Any]:
        """Return the fields of a struct by their numbers."""
        if depth > _DEPTH_MAX:
            raise ValueError("a page's header is nested too deeply")
        found: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            found[number] = self._value(head & 0x0F, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if kind in _BOOLEANS:
            return kind == _BOOLEANS[0]
        if kind in _NUMBERS:
            return self._byte() if kind == _NUMBERS[0] else self._signed()
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind not in (_DOUBLE, _BINARY):
            raise ValueError("a page's header can't be read")
        size = 8 if kind == _DOUBLE else self._unsigned()
        self.at += size
        return None

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _unsigned(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
        raise ValueError("a number that is too long")

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)
