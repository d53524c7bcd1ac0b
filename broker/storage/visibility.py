"""Rows as cells: what a writer of an epoch puts, and which rows of a table count.

::

    column   value                        tag
    p        payload                      2 * epoch
    t        visibility pointer int64     2 * epoch, or 2 * later epoch + 1 once it is negated
    r        payload log number int64     2 * epoch
    x        lifetime in ms int64         2 * epoch
    e        epoch uint64                 2 * epoch
    v        a side row's value           2 * epoch

A key can hold cells of two writers: one that was fenced left its row above the pointer, and a later one
came to the same id. The tags keep them apart. A row is judged by its ``e``; its other cells count only
with the tag that belongs to it, ``t`` also with a higher one, because a rollback rewrites it in place. The
negated ``t`` has an odd tag, so that the original, arriving once more, does not bring the row back.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from broker import guards
from broker.errors import StorageCorrupt
from broker.model import RowId
from broker.storage.cells import Cell, Columns, RowCells
from broker.storage.control import Control
from broker.storage.keys import LogId, log_prefix, row_key, side_prefix
from broker.storage.ports import Batch, Row, Segment, SideRow

PAYLOAD, POINTER, NUMBER, LIFETIME, EPOCH, VALUE = b"p", b"t", b"r", b"x", b"e", b"v"

_INT64 = struct.Struct(">q")
_UINT64 = struct.Struct(">Q")


def row_tag(epoch: int) -> int:
    """Return the tag of everything that a writer of ``epoch`` publishes."""
    return 2 * epoch if guards.holds("cell-epoch") else 0


def negated_tag(epoch: int) -> int:
    """Return the tag of a pointer that a holder of ``epoch`` negates."""
    return row_tag(epoch) + 1 if guards.holds("pointer-tag") else row_tag(epoch)


def rows_of(log: LogId, batch: Batch, epoch: int) -> Iterator[RowCells]:
    """Give a batch's rows in the order of their ids."""
    prefix, tag = log_prefix(log), row_tag(epoch)
    for segment in batch.segments:
        shared = _shared(segment, epoch)
        if segment.payloads is None:
            for row in segment.ids:
                yield RowCells(prefix + row, shared)
        else:
            for row, payload in zip(segment.ids, segment.payloads, strict=True):
                yield RowCells(prefix + row, {**shared, PAYLOAD: Cell(tag, payload)})


def _shared(segment: Segment, epoch: int) -> dict[bytes, Cell]:
    tag = row_tag(epoch)
    columns = {EPOCH: Cell(tag, _UINT64.pack(epoch))}
    numbers = (
        (POINTER, segment.pointer),
        (NUMBER, segment.number),
        (LIFETIME, segment.lifetime_ms),
    )
    for column, number in numbers:
        if number is not None:
            columns[column] = Cell(tag, _INT64.pack(number))
    return columns


def side_rows_of(log: LogId, batch: Batch, epoch: int) -> Iterator[RowCells]:
    """Give a batch's side rows."""
    tag = row_tag(epoch)
    for side in batch.side:
        columns = {EPOCH: Cell(tag, _UINT64.pack(epoch)), VALUE: Cell(tag, side.value)}
        yield RowCells(side_prefix(log, side.kind) + side.key + side.row, columns)


def negation_of(log: LogId, row: RowId, pointer: int, epoch: int) -> RowCells:
    """Return what a rollback under ``epoch`` writes over one row."""
    cell = Cell(negated_tag(epoch), _INT64.pack(-abs(pointer)))
    return RowCells(row_key(log, row), {POINTER: cell})


def own_epoch(columns: Columns) -> int | None:
    """Return the epoch that wrote a row, None for a row that counts for nobody.

    Raises:
        StorageCorrupt: the epoch is no number.
    """
    own = columns.get(EPOCH)
    if own is None:
        return None
    (epoch,) = _unpacked(_UINT64, own)
    return epoch if own.tag == row_tag(epoch) else None


def judged(control: Control, row: RowId, columns: Columns) -> Row | None:
    """Return a row as ``control`` (with all its ranges) tells it, or None if it does not count."""
    epoch = own_epoch(columns)
    if epoch is None or not control.counts(row, epoch):
        return None
    tag = row_tag(epoch)
    payload = columns.get(PAYLOAD)
    return Row(
        row,
        payload.value if payload is not None and payload.tag == tag else None,
        _pointer(columns, tag),
        _number(columns, NUMBER, tag),
        _number(columns, LIFETIME, tag),
    )


def judged_side(control: Control, log: LogId, kind: bytes, row: RowCells) -> SideRow | None:
    """Return a side row if the id that it goes with counts under the epoch that wrote it."""
    rest = row.key[len(side_prefix(log, kind)) :]
    key, first = rest[: -len(control.pointer)], rest[-len(control.pointer) :]
    epoch = own_epoch(row.columns)
    value = row.columns.get(VALUE)
    if epoch is None or value is None or value.tag != row_tag(epoch):
        return None
    return SideRow(kind, key, first, value.value) if control.counts(first, epoch) else None


def _pointer(columns: Mapping[bytes, Cell], tag: int) -> int | None:
    cell = columns.get(POINTER)
    if cell is None or cell.tag < tag:
        return None
    (number,) = _unpacked(_INT64, cell)
    return number


def _number(columns: Mapping[bytes, Cell], column: bytes, tag: int) -> int | None:
    cell = columns.get(column)
    if cell is None or cell.tag != tag:
        return None
    (number,) = _unpacked(_INT64, cell)
    return number


def _unpacked(codec: struct.Struct, cell: Cell) -> tuple[int]:
    try:
        (number,) = codec.unpack(cell.value)
    except struct.error as error:
        raise StorageCorrupt(f"a cell of {len(cell.value)} bytes should be a number") from error
    return (number,)
