"""A snapshot as bytes: Tephra's TTransaction in Thrift's binary protocol, a bare struct.

::

    field   type (1 byte) | number (int16) | value          in any order; 00 ends the struct
    i64     8 bytes, big-endian                              i32 and enums: 4 bytes
    list    type of the items | count (int32) | items

    1 i64   transactionId          4 list  inProgress          7 i64   writePointer
    2 i64   readPointer            5 i64   firstShort          8 list  checkpointWritePointers
    3 list  invalids               6 i32   type (1 short)      9 i32   visibilityLevel

What is missing is read as the original reads it: a list is empty, a number 0, the level SNAPSHOT, and
any type but *short* is long. Unknown fields, and known ones of another type, are skipped. Bytes after
the struct are ignored. There is no library here because the two that know the format load a Thrift
stack into every client and trust the counts that they read.
"""

from __future__ import annotations

import struct
from typing import Final

from broker.errors import BadRequest
from broker.model import Snapshot

POINTERS_MAX: Final = 1_000_000
"""The longest list of pointers that is read; 8 MB, far more than a transaction service keeps."""

_STOP, _BOOL, _BYTE, _DOUBLE, _I16, _I32, _I64 = 0, 2, 3, 4, 6, 8, 10
_STRING, _STRUCT, _MAP, _SET, _LIST = 11, 12, 13, 14, 15
_FIXED_BYTES = {_BOOL: 1, _BYTE: 1, _DOUBLE: 8, _I16: 2, _I32: 4, _I64: 8}
_FIELD_TYPES = {
    1: _I64,
    2: _I64,
    3: _LIST,
    4: _LIST,
    5: _I64,
    6: _I32,
    7: _I64,
    8: _LIST,
    9: _I32,
}
_SHORT, _LONG = 1, 2
_NESTING_MAX = 16

_FIELD = struct.Struct(">bh")
_FIELD_I64 = struct.Struct(">bhq")
_FIELD_I32 = struct.Struct(">bhi")
_FIELD_LIST = struct.Struct(">bhbi")
_COUNT = struct.Struct(">i")
_LIST_HEAD = struct.Struct(">bi")
_MAP_HEAD = struct.Struct(">bbi")

_Value = int | tuple[int, ...]


def encode_transaction(snapshot: Snapshot) -> bytes:
    """Return a snapshot as the Java codec writes it: all nine fields, by number."""
    return b"".join(
        (
            _FIELD_I64.pack(_I64, 1, snapshot.transaction_id),
            _FIELD_I64.pack(_I64, 2, snapshot.read_pointer),
            _encode_list(3, snapshot.invalids),
            _encode_list(4, snapshot.in_progress),
            _FIELD_I64.pack(_I64, 5, snapshot.first_short_in_progress),
            _FIELD_I32.pack(_I32, 6, _LONG if snapshot.long else _SHORT),
            _FIELD_I64.pack(_I64, 7, snapshot.write_pointer),
            _encode_list(8, snapshot.checkpoint_pointers),
            _FIELD_I32.pack(_I32, 9, snapshot.visibility),
            bytes((_STOP,)),
        )
    )


def _encode_list(number: int, pointers: list[int]) -> bytes:
    head = _FIELD_LIST.pack(_LIST, number, _I64, len(pointers))
    return head + struct.pack(f">{len(pointers)}q", *pointers)


def decode_transaction(body: bytes) -> Snapshot:
    """Read a snapshot. Raises BadRequest, also for a list longer than POINTERS_MAX."""
    try:
        fields = _read_fields(body)
    except (IndexError, struct.error):
        raise BadRequest("transaction: its bytes end in the middle of a field.") from None
    return _snapshot(fields)


def _snapshot(fields: dict[int, _Value]) -> Snapshot:
    def number(field: int) -> int:
        value = fields.get(field, 0)
        return value if isinstance(value, int) else 0

    def pointers(field: int) -> tuple[int, ...]:
        value = fields.get(field, ())
        return value if isinstance(value, tuple) else ()

    levels = {level.value: level for level in Snapshot.Visibility}
    return Snapshot(
        transaction_id=number(1),
        read_pointer=number(2),
        invalids=pointers(3),
        in_progress=pointers(4),
        first_short_in_progress=number(5),
        long=number(6) != _SHORT,
        write_pointer=number(7),
        checkpoint_pointers=pointers(8),
        visibility=levels.get(number(9), Snapshot.Visibility.SNAPSHOT),
    )


def _read_fields(body: bytes) -> dict[int, _Value]:
    fields: dict[int, _Value] = {}
    at = 0
    while body[at] != _STOP:
        kind, number = _FIELD.unpack_from(body, at)
        at += _FIELD.size
        end = _skip(body, at, kind, _NESTING_MAX)
        if end > len(body):
            raise IndexError
        if _FIELD_TYPES.get(number) == kind:
            fields[number] = _read_list(body, at) if kind == _LIST else _integer(body, at, end)
        at = end
    return fields


def _integer(body: bytes, at: int, end: int) -> int:
    return int.from_bytes(body[at:end], "big", signed=True)


def _read_list(body: bytes, at: int) -> tuple[int, ...]:
    kind, count = _LIST_HEAD.unpack_from(body, at)
    if count and kind != _I64:
        raise BadRequest("transaction: a list of pointers holds something else.")
    if count > POINTERS_MAX:
        raise BadRequest(f"transaction: a list has {count} pointers; {POINTERS_MAX} are allowed.")
    return struct.unpack_from(f">{count}q", body, at + _LIST_HEAD.size)


def _skip(body: bytes, at: int, kind: int, depth: int) -> int:
    """Return the place after a value, which may lie beyond the body if the value does.

    Every step either jumps or consumes at least one byte, so that no count can make it long.
    """
    if kind in _FIXED_BYTES:
        return at + _FIXED_BYTES[kind]
    if depth == 0:
        raise BadRequest(f"transaction: nested deeper than {_NESTING_MAX} levels.")
    if kind == _STRING:
        return at + _COUNT.size + _count(*_COUNT.unpack_from(body, at))
    if kind == _STRUCT:
        return _skip_struct(body, at, depth - 1)
    if kind == _MAP:
        key_kind, value_kind, count = _MAP_HEAD.unpack_from(body, at)
        return _skip_items(body, at + _MAP_HEAD.size, (key_kind, value_kind), count, depth - 1)
    if kind in {_SET, _LIST}:
        item_kind, count = _LIST_HEAD.unpack_from(body, at)
        return _skip_items(body, at + _LIST_HEAD.size, (item_kind,), count, depth - 1)
    raise BadRequest(f"transaction: there is no type {kind}.")


def _skip_struct(body: bytes, at: int, depth: int) -> int:
    while body[at] != _STOP:
        kind, _ = _FIELD.unpack_from(body, at)
        at = _skip(body, at + _FIELD.size, kind, depth)
    return at + 1


def _skip_items(body: bytes, at: int, kinds: tuple[int, ...], count: int, depth: int) -> int:
    if all(kind in _FIXED_BYTES for kind in kinds):
        return at + _count(count) * sum(_FIXED_BYTES[kind] for kind in kinds)
    for _ in range(_count(count)):
        for kind in kinds:
            at = _skip(body, at, kind, depth)
    return at


def _count(count: int) -> int:
    if count < 0:
        raise BadRequest(f"transaction: a count is negative ({count}).")
    return count
