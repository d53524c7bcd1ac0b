"""The pages of a Parquet file, counted by their own headers before pyarrow unpacks them.

A page of some bytes may unpack to two gigabytes, and the sizes in the file's footer may be wrong. So this module reads the
header of each page of the wanted columns. A header is a struct of Thrift's compact protocol::

    1 type   2 bytes unpacked   3 bytes packed   5, 7, 8 header of a data or dictionary page, with 1 number of values
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, BinaryIO, Final, NamedTuple

from broker.wire.attributes import HEADERS_MAX

PAGE_BYTES_MAX: Final = 128 << 20
"""A message has 64 MiB at most, and a page some more messages."""
VALUES_MAX: Final = 20_000_000
"""How many headers one row group may have."""
BATCH_BYTES: Final = 32 << 20
ROWS_AT_ONCE: Final = 1000
HEADER_BYTES_MAX: Final = 1 << 20
_HEADER_BYTES: Final = 1 << 9
_UNREADABLE: Final = "the header of a page can't be read"
_BOOLEANS, _NUMBERS, _DOUBLE, _BINARY, _STRUCT = (1, 2), (3, 4, 5, 6), 7, 8, 12
_DEPTH_MAX: Final = 4


class Page(NamedTuple):
    """The sizes of a page, in bytes, and its number of values."""

    unpacked: int
    packed: int
    values: int


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
                rows = min(rows, max(BATCH_BYTES * page.values // max(page.unpacked, 1), 1))
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
            values = next((found[each][1] for each in (5, 8) if each in found), 0)
            page = Page(found[2], found[3], values)
        except (KeyError, TypeError) as error:
            raise ValueError(_UNREADABLE) from error
        at += header_bytes + page.packed
        if not 0 <= page.unpacked <= PAGE_BYTES_MAX:
            raise ValueError(
                f"{column.path_in_schema}: a page of {page.unpacked:,} bytes; {PAGE_BYTES_MAX:,} are allowed"
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
