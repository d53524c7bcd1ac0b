"""The requests that every commit is made of, as the bytes that thriftpy2 would make of them.

thriftpy2 makes an object of each cell and walks over its fields: a tenth of what a node does for a small
commit, most of it for a large one. What is written has always the same shape, so the bytes are put together
here::

    message   version, kind | name | number 0 | arguments
    put       row | cells | durability
    cell      family | column | value | tag

A test compares them with thriftpy2's. Everything else that is said to HBase, and all that it answers, is left
to thriftpy2.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator, Sequence
from typing import Final

from thriftpy2.thrift import TMessageType, TType

from broker.storage.cells import CONTROL_COLUMN, Cell, RowCells

FAMILY: Final = b"d"
FRAME_BYTES_MAX = 3 << 19
"""1.5 MiB; a framed gateway takes 2 MiB by default."""

_VERSION = 0x80010000
_I32, _I64, _FIELD = struct.Struct(">i"), struct.Struct(">q"), struct.Struct(">bh")
_STOP = bytes([TType.STOP])


def _bytes(value: bytes) -> bytes:
    return _I32.pack(len(value)) + value


def _field(number: int, kind: int = TType.STRING) -> bytes:
    return _FIELD.pack(kind, number)


def _begin(api: str) -> bytes:
    """Return a call's bytes up to its first argument, which is the table."""
    kind = (_VERSION | TMessageType.CALL).to_bytes(_I32.size, "big")
    return kind + _bytes(api.encode()) + _I32.pack(0) + _field(1)


_STRUCTS = bytes([TType.STRUCT])
"""What a list holds."""
_PUT, _PUT_MULTIPLE, _CHECK_AND_PUT = map(_begin, ("put", "putMultiple", "checkAndPut"))
_ONE_PUT, _MANY_PUTS = _field(2, TType.STRUCT), _field(2, TType.LIST) + _STRUCTS
_CHECKED_ROW = _field(2)
_CHECKED_CELL = _field(3) + _bytes(FAMILY) + _field(4) + _bytes(CONTROL_COLUMN)
_CHECKED_VALUE, _CHECKED_PUT = _field(5), _field(6, TType.STRUCT)
# Of a TPut.
_ROW, _CELLS, _DURABILITY = _field(1), _field(2, TType.LIST) + _STRUCTS, _field(6, TType.I32)
# Of a TColumnValue.
_FAMILY, _COLUMN, _VALUE, _TAG = _field(1), _field(2), _field(3), _field(4, TType.I64)


def puts(
    table: bytes, prefix: bytes, rows: Sequence[RowCells], durability: int
) -> list[tuple[str, bytes]]:
    """Return the calls that write rows, in order: each one's name and bytes.

    ``prefix`` goes in front of every key. Calls are cut at FRAME_BYTES_MAX; a row that fits none has one of
    its own.
    """
    end = _put_end(durability)
    last: dict[bytes, tuple[Cell, bytes]] = {}
    encoded = [_row(prefix, row, last, end) for row in rows]
    return [_call(table, frame) for frame in _frames(encoded)]


def _call(table: bytes, encoded: Sequence[bytes]) -> tuple[str, bytes]:
    if len(encoded) == 1:
        # Takes HBase a third less time than a list of one.
        return "put", b"".join((_PUT, _bytes(table), _ONE_PUT, encoded[0], _STOP))
    count = _I32.pack(len(encoded))
    return "putMultiple", b"".join(
        (_PUT_MULTIPLE, _bytes(table), _MANY_PUTS, count, *encoded, _STOP)
    )


def check_and_put(
    table: bytes, key: bytes, expected: bytes | None, value: bytes, durability: int
) -> bytes:
    """Return the call that writes a row's control cell if its value is ``expected``."""
    checked = b"" if expected is None else _CHECKED_VALUE + _bytes(expected)
    row = _bytes(key)
    return b"".join(
        (
            _CHECK_AND_PUT,
            _bytes(table),
            _CHECKED_ROW,
            row,
            _CHECKED_CELL,
            checked,
            _CHECKED_PUT,
            _ROW,
            row,
            _CELLS,
            _I32.pack(1),
            _cell_begin(CONTROL_COLUMN),
            _bytes(value),
            _STOP,
            _put_end(durability),
            _STOP,
        )
    )


def _frames(encoded: list[bytes]) -> Iterator[list[bytes]]:
    if encoded and sum(map(len, encoded)) <= FRAME_BYTES_MAX:
        yield encoded
        return
    first = size = 0
    for at, row in enumerate(encoded):
        if size + len(row) > FRAME_BYTES_MAX and at > first:
            yield encoded[first:at]
            first, size = at, 0
        size += len(row)
    if first < len(encoded):
        yield encoded[first:]


def _row(prefix: bytes, row: RowCells, last: dict[bytes, tuple[Cell, bytes]], end: bytes) -> bytes:
    """Return a put; ``last`` has each column's last cell, which many rows may share."""
    key, columns = row
    parts = [_ROW, _I32.pack(len(prefix) + len(key)), prefix, key, _CELLS, _I32.pack(len(columns))]
    for column, cell in columns.items():
        known = last.get(column)
        if known is None or known[0] is not cell:
            tag, value = cell
            size = _I32.pack(len(value))
            encoded = b"".join((_cell_begin(column), size, value, _cell_end(tag)))
            known = last[column] = cell, encoded
        parts.append(known[1])
    parts.append(end)
    return b"".join(parts)


@functools.cache
def _cell_begin(column: bytes) -> bytes:
    """Return a cell's bytes up to its value."""
    return _FAMILY + _bytes(FAMILY) + _COLUMN + _bytes(column) + _VALUE


@functools.lru_cache(maxsize=1024)
def _cell_end(tag: int) -> bytes:
    return _TAG + _I64.pack(tag) + _STOP


@functools.cache
def _put_end(durability: int) -> bytes:
    return _DURABILITY + _I32.pack(durability) + _STOP
