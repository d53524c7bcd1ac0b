"""The calls to HBase's Thrift-2 gateway, as bytes.

The numbers are those of hbase.thrift of HBase 2.6.1. tests/data/hbase2.thrift has the used part of it, and tests
compare each call with thriftpy2's encoding. The call of an append is built with as few copies as possible: the
module encodes only its own row, columns and values::

    checkAndPut    table | row | h | h | expected (or nothing) | put
    put            row | cells | durability
    cell           family | column | value

Times are the server's own. A cell that a checked change writes gets the later one of two times: that of the
server's clock, and that of the compared head (HBASE-14054; HRegion does this for every put of a checked mutation).
Every change of a row puts its head. So a cell of a row never hides one that is written later. HBase does not promise
this for deletes, so each delete has a time that no clock reaches.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from broker.storage.hbase import thrift
from broker.storage.hbase.thrift import STOP, begin, pack_size, text
from broker.storage.table import HEAD

HEADS: Final = b"h"
ENTRIES: Final = b"e"
"""The names of the two families."""
FSYNC_WAL: Final = 4
SYNC_WAL: Final = 3
"""Values of TDurability. SYNC_WAL sends a write to the file system's servers, but does not wait for their disks."""
THRIFT_2: Final = 2
"""The value of TThriftServerType for a Thrift-2 gateway."""
FRAME_BYTES_MAX: Final = 3 << 19
"""The largest call with many rows: 1.5 MiB."""
FOR_EVER: Final = 1 << 62
"""The time of a delete: it hides all cells that any clock has written or will write."""
_EQUAL, _DELETE_COLUMNS, _DELETE_FAMILY = 2, 1, 2

SERVER_TYPE: Final = thrift.call("getThriftServerType") + STOP
"""A call that a gateway answers without HBase."""


@functools.cache
def _begin(api: str, table: bytes) -> bytes:
    return thrift.call(api) + text(1, table)


@functools.lru_cache(maxsize=4096)
def _cell(column: bytes) -> bytes:
    """Return the bytes of a cell that come before its value's length."""
    family = HEADS if column == HEAD else ENTRIES
    return text(1, family) + text(2, column) + begin(3, thrift.STRING)


_HEAD_CELL = text(1, HEADS) + text(2, HEAD)
_CHECKED_CELL = text(3, HEADS) + text(4, HEAD)
_EXPECTED, _CHECKED_PUT = begin(5, thrift.STRING), begin(6, thrift.STRUCT)
_ROW, _CELLS = begin(1, thrift.STRING), begin(2, thrift.LIST) + bytes([thrift.STRUCT])


def _put(into: list[bytes], row: bytes, cells: Mapping[bytes, bytes], durability: int) -> None:
    into += (_ROW, pack_size(len(row)), row, _CELLS, pack_size(len(cells)))
    for column, value in cells.items():
        into += (_cell(column), pack_size(len(value)), value, STOP)
    into += (thrift.i32(6, durability), STOP)


def check_and_put(
    table: bytes, row: bytes, expected: bytes | None, cells: Mapping[bytes, bytes], durability: int
) -> bytes:
    """Return the call that puts cells if the row's head is ``expected`` (None: the row has no head)."""
    parts = [_begin("checkAndPut", table), text(2, row), _CHECKED_CELL]
    if expected is not None:
        parts += (_EXPECTED, pack_size(len(expected)), expected)
    parts.append(_CHECKED_PUT)
    _put(parts, row, cells, durability)
    parts.append(STOP)
    return b"".join(parts)


def check_and_mutate(
    table: bytes,
    row: bytes,
    expected: bytes,
    cells: Mapping[bytes, bytes],
    deletes: Sequence[bytes] | None,
    durability: int,
) -> bytes:
    """Return the call that puts cells and deletes columns. ``deletes`` None: every cell but the head."""
    parts = [_begin("checkAndMutate", table), text(2, row), _CHECKED_CELL, thrift.i32(5, _EQUAL)]
    parts += (text(6, expected), begin(7, thrift.STRUCT), text(1, row), thrift.records_begin(2, 2))
    parts += (thrift.record(2, _delete(row, deletes, durability)), STOP)
    parts.append(begin(1, thrift.STRUCT))
    _put(parts, row, cells, durability)
    parts.append(STOP * 3)  # The ends of the mutation, of all mutations, and of the call.
    return b"".join(parts)


def _delete(row: bytes, columns: Sequence[bytes] | None, durability: int) -> bytes:
    kind = _DELETE_FAMILY if columns is None else _DELETE_COLUMNS
    names = [b""] if columns is None else [text(2, column) for column in columns]
    # If the delete names columns, the time of each column counts, else the time of the delete.
    chosen = [text(1, ENTRIES) + name + thrift.i64(3, FOR_EVER) for name in names]
    ends = thrift.i32(4, kind) + thrift.i32(7, durability)
    return text(1, row) + thrift.records(2, chosen) + ends


def put_heads(table: bytes, heads: Mapping[bytes, bytes], durability: int) -> Iterator[bytes]:
    """Yield the calls that put heads of rows. Each has at most FRAME_BYTES_MAX, or one row."""
    rows: list[bytes] = []
    count = size = 0
    for row, head in heads.items():
        if count and size + len(row) + len(head) > FRAME_BYTES_MAX:
            yield _put_all(table, rows, count)
            rows, count, size = [], 0, 0
        _put(rows, row, {HEAD: head}, durability)
        count, size = count + 1, size + len(row) + len(head) + 64
    if count:
        yield _put_all(table, rows, count)


def _put_all(table: bytes, rows: list[bytes], count: int) -> bytes:
    if count == 1:  # HBase needs a third less time for this than for a list with one row.
        return b"".join((_begin("put", table), begin(2, thrift.STRUCT), *rows, STOP))
    listed = thrift.records_begin(2, count)
    return b"".join((_begin("putMultiple", table), listed, *rows, STOP))


def delete_rows(table: bytes, rows: Sequence[bytes]) -> bytes:
    """Return the call that deletes whole rows, and does not wait for the disk."""
    end = thrift.i64(3, FOR_EVER) + thrift.i32(7, SYNC_WAL)
    deletes = thrift.records(2, [text(1, row) + end for row in rows])
    return _begin("deleteMultiple", table) + deletes + STOP


def get(table: bytes, row: bytes, columns: Sequence[bytes]) -> bytes:
    """Return the call that reads some cells of a row."""
    cells = [
        _HEAD_CELL if column == HEAD else text(1, ENTRIES) + text(2, column) for column in columns
    ]
    chosen = text(1, row) + thrift.records(2, cells)
    return _begin("get", table) + thrift.record(2, chosen) + STOP


def get_range(
    table: bytes, row: bytes, first: bytes, last: bytes, limit: int | None, *, lengths: bool = False
) -> bytes:
    """Return the call that reads a range of columns. ``lengths``: with an int32, its size, for each value."""
    chosen = b"ColumnRangeFilter (%b, true, %b, true)" % (_quoted(first), _quoted(last))
    if lengths:
        chosen += b" AND KeyOnlyFilter (true)"
    fields = text(1, row) + thrift.records(2, [text(1, ENTRIES)]) + text(6, chosen)
    if limit is not None:
        fields += thrift.i32(12, limit)
    return _begin("get", table) + thrift.record(2, fields) + STOP


def _quoted(column: bytes) -> bytes:
    return b"'%b'" % column.replace(b"'", b"''")


def scan_heads(table: bytes, start: bytes, stop: bytes, limit: int, *, reverse: bool) -> bytes:
    """Return the call that reads at most ``limit`` heads from ``start`` on, without ``stop``."""
    fields = text(1, start) + text(2, stop) + thrift.records(3, [text(1, HEADS)])
    fields += thrift.i32(4, limit)
    if reverse:
        fields += begin(11, thrift.BOOL) + b"\1"
    fields += thrift.i32(15, limit)
    called = _begin("getScannerResults", table) + thrift.record(2, fields) + thrift.i32(3, limit)
    return called + STOP


def of_table(api: str, namespace: bytes, name: bytes) -> bytes:
    """Return a call whose only argument is the name of a table."""
    return thrift.call(api) + thrift.record(1, _table_name(namespace, name)) + STOP


def _table_name(namespace: bytes, name: bytes) -> bytes:
    return text(1, namespace) + text(2, name)


def create_table(
    namespace: bytes,
    name: bytes,
    attributes: Mapping[bytes, bytes],
    durability: int,
    splits: Sequence[bytes],
) -> bytes:
    """Return the call that creates a table with both families, and one version of each cell."""
    families = [text(1, family) + thrift.i32(10, 1) for family in (HEADS, ENTRIES)]
    descriptor = (
        thrift.record(1, _table_name(namespace, name))
        + thrift.records(2, families)
        + thrift.mapping(3, attributes)
        + thrift.i32(4, durability)
    )
    return (
        thrift.call("createTable") + thrift.record(1, descriptor) + thrift.texts(2, splits) + STOP
    )


def region_locations(table: bytes) -> bytes:
    """Return the call that reads the location of each region."""
    return _begin("getAllRegionLocations", table) + STOP


LIST_NAMESPACES: Final = thrift.call("listNamespaces") + STOP


def create_namespace(name: bytes) -> bytes:
    """Return the call that creates a namespace."""
    return thrift.call("createNamespace") + thrift.record(1, text(1, name)) + STOP
