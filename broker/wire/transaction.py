"""A snapshot as bytes: Tephra's TTransaction in Thrift's binary protocol, a bare struct.

::

    field   type (1 byte) | number (int16) | value          in any order; 00 ends the struct
    i64     8 bytes, big-endian                              i32 and enums: 4 bytes
    list    type of the items | count (int32) | items

    1 i64   transactionId          4 list  inProgress          7 i64   writePointer
    2 i64   readPointer            5 i64   firstShort          8 list  checkpointWritePointers
    3 list  invalids               6 i32   type (1 short)      9 i32   visibilityLevel

What is missing is read as the original reads it: a list is empty, a number 0, the level SNAPSHOT, and
any type but *short* is long. Unknown fields, and known ones of another type, are skipped, up to a count of
parts: a list of empty structs is one byte for each, and takes longer to skip than any other body to read. Bytes
after the struct are ignored. There is no library here because the two that know the format load a Thrift
stack into every client and trust the counts that they read.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Final

from broker.errors import BadRequest
from broker.model import Snapshot
from broker.wire import pointers
from broker.wire.steps import Steps, Take, finish, free

PARTS_MAX: Final = 10_000
"""The most fields and parts of fields that are read or skipped. Numbers and booleans in a list are passed over at once,
and count as one."""

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

_EMPTY: Final = array("q")
_Value = int | Sequence[int]


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


def _encode_list(number: int, listed: Sequence[int]) -> bytes:
    head = _FIELD_LIST.pack(_LIST, number, _I64, len(listed))
    return head + struct.pack(f">{len(listed)}q", *listed)


def decode_transaction(body: bytes) -> Snapshot:
    """Read a snapshot. Raises BadRequest, also for more than POINTERS_MAX pointers or PARTS_MAX parts."""
    return finish(transaction_steps(body))


def transaction_steps(body: bytes, *, take: Take = free) -> Steps[Snapshot]:
    """Read a snapshot in steps, as ``decode_transaction``. ``take`` is told of its pointers."""
    try:
        fields = yield from _Reader(body, take).fields()
    except (IndexError, struct.error):
        raise BadRequest("transaction: its bytes end in the middle of a field.") from None
    return _snapshot(fields)


def _snapshot(fields: dict[int, _Value]) -> Snapshot:
    def number(field: int) -> int:
        value = fields.get(field, 0)
        return value if isinstance(value, int) else 0

    def listed(field: int) -> Sequence[int]:
        value = fields.get(field, _EMPTY)
        return _EMPTY if isinstance(value, int) else value

    levels = {level.value: level for level in Snapshot.Visibility}
    return Snapshot(
        transaction_id=number(1),
        read_pointer=number(2),
        invalids=listed(3),
        in_progress=listed(4),
        first_short_in_progress=number(5),
        long=number(6) != _SHORT,
        write_pointer=number(7),
        checkpoint_pointers=listed(8),
        visibility=levels.get(number(9), Snapshot.Visibility.SNAPSHOT),
    )


class _Reader:
    """Reads the fields of a struct. Its parts, and the pointers in it, are counted and bounded."""

    def __init__(self, body: bytes, take: Take) -> None:
        self._body = body
        self._take = take
        self._parts = 0
        self._pointers = 0

    def fields(self) -> Steps[dict[int, _Value]]:
        """Return the fields that are known. Raises BadRequest, and IndexError, struct.error at the end of the body."""
        body, at = self._body, 0
        found: dict[int, _Value] = {}
        while body[at] != _STOP:
            kind, number = _FIELD.unpack_from(body, at)
            at += _FIELD.size
            end = self._skip(at, kind, _NESTING_MAX)
            if end > len(body):
                raise IndexError
            if _FIELD_TYPES.get(number) == kind:
                if kind == _LIST:
                    found[number] = yield from self._list(at)
                else:
                    found[number] = int.from_bytes(body[at:end], "big", signed=True)
            at = end
        return found

    def _list(self, at: int) -> Steps[array[int]]:
        kind, count = _LIST_HEAD.unpack_from(self._body, at)
        if count and kind != _I64:
            raise BadRequest("transaction: a list of pointers holds something else.")
        self._pointers += count
        if self._pointers > pointers.POINTERS_MAX:
            raise BadRequest(
                f"transaction: it has {self._pointers} pointers; {pointers.POINTERS_MAX} are allowed in all lists "
                "together."
            )
        self._take(pointers.items(count))
        return (yield from pointers.of_bytes(self._body, at + _LIST_HEAD.size, count))

    def _skip(self, at: int, kind: int, depth: int) -> int:
        """Return the place after a value, which may lie beyond the body if the value does."""
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise BadRequest(f"transaction: it has more than {PARTS_MAX} fields and parts of them.")
        if kind in _FIXED_BYTES:
            return at + _FIXED_BYTES[kind]
        if depth == 0:
            raise BadRequest(f"transaction: nested deeper than {_NESTING_MAX} levels.")
        if kind == _STRING:
            return at + _COUNT.size + _count(*_COUNT.unpack_from(self._body, at))
        if kind == _STRUCT:
            return self._skip_struct(at, depth - 1)
        if kind == _MAP:
            key_kind, value_kind, count = _MAP_HEAD.unpack_from(self._body, at)
            return self._skip_items(at + _MAP_HEAD.size, (key_kind, value_kind), count, depth - 1)
        if kind in {_SET, _LIST}:
            item_kind, count = _LIST_HEAD.unpack_from(self._body, at)
            return self._skip_items(at + _LIST_HEAD.size, (item_kind,), count, depth - 1)
        raise BadRequest(f"transaction: there is no type {kind}.")

    def _skip_struct(self, at: int, depth: int) -> int:
        while self._body[at] != _STOP:
            kind, _ = _FIELD.unpack_from(self._body, at)
            at = self._skip(at + _FIELD.size, kind, depth)
        return at + 1

    def _skip_items(self, at: int, kinds: tuple[int, ...], count: int, depth: int) -> int:
        if all(kind in _FIXED_BYTES for kind in kinds):
            return at + _count(count) * sum(_FIXED_BYTES[kind] for kind in kinds)
        if count > len(self._body) - at:  # Each takes a byte at least.
            raise IndexError
        for _ in range(_count(count)):
            for kind in kinds:
                at = self._skip(at, kind, depth)
        return at


def _count(count: int) -> int:
    if count < 0:
        raise BadRequest(f"transaction: a count is negative ({count}).")
    return count
