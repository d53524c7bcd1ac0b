"""A snapshot as bytes: Tephra's TTransaction in Thrift's binary protocol, a bare struct.

::

    field   type (1 byte) | number (int16) | value          in any order; 00 ends the struct
    i64     8 bytes, big-endian                              i32 and enums: 4 bytes
    list    type of the items | count (int32) | items

    1 i64   transactionId          4 list  inProgress          7 i64   writePointer
    2 i64   readPointer            5 i64   firstShort          8 list  checkpointWritePointers
    3 list  invalids               6 i32   type (1 short)      9 i32   visibilityLevel

The reader treats a missing field as the original does: a list is empty, a number is 0, the level is SNAPSHOT, and any
type other than *short* is long. It skips unknown fields, and known ones of another type, up to a number of parts: a
list of empty structs takes one byte for each, and is slower to skip than any other body is to read. It ignores bytes
after the struct. It uses no library, because the two that know the format load a Thrift stack into every client and
trust the counts that they read.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Final

from broker.errors import BadRequest
from broker.model import Snapshot
from broker.wire import Take, free, pointers
from broker.wire.thriftskip import FIELD, I32, I64, LIST, LIST_HEAD, STOP, Skipper

_FIELD_TYPES = {1: I64, 2: I64, 3: LIST, 4: LIST, 5: I64, 6: I32, 7: I64, 8: LIST, 9: I32}
_SHORT, _LONG = 1, 2

_FIELD_I64 = struct.Struct(">bhq")
_FIELD_I32 = struct.Struct(">bhi")
_FIELD_LIST = struct.Struct(">bhbi")

_EMPTY: Final = array("q")
_Value = int | Sequence[int]


def encode_transaction(snapshot: Snapshot) -> bytes:
    """Return a snapshot in the form that the Java codec writes: all nine fields, by number."""
    return b"".join(
        (
            _FIELD_I64.pack(I64, 1, snapshot.transaction_id),
            _FIELD_I64.pack(I64, 2, snapshot.read_pointer),
            _encode_list(3, snapshot.invalids),
            _encode_list(4, snapshot.in_progress),
            _FIELD_I64.pack(I64, 5, snapshot.first_short_in_progress),
            _FIELD_I32.pack(I32, 6, _LONG if snapshot.long else _SHORT),
            _FIELD_I64.pack(I64, 7, snapshot.write_pointer),
            _encode_list(8, snapshot.checkpoint_pointers),
            _FIELD_I32.pack(I32, 9, snapshot.visibility),
            bytes((STOP,)),
        )
    )


def _encode_list(number: int, listed: Sequence[int]) -> bytes:
    head = _FIELD_LIST.pack(LIST, number, I64, len(listed))
    numbers = array("q", listed)
    if sys.byteorder == "little":
        numbers.byteswap()
    return head + numbers.tobytes()


def decode_transaction(body: bytes, *, take: Take = free) -> Snapshot:
    """Read a snapshot. It calls ``take`` for its pointers.

    Raises BadRequest, as Skipper.past and for more than POINTERS_MAX pointers.
    """
    try:
        fields = _FieldReader(body, take).fields()
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


class _FieldReader:
    """Reads the fields of a struct. It counts and bounds their parts and pointers."""

    def __init__(self, body: bytes, take: Take) -> None:
        self._body = body
        self._take = take
        self._skipper = Skipper(body, "transaction")
        self._pointers = 0

    def fields(self) -> dict[int, _Value]:
        """Return the known fields. Raises BadRequest; IndexError and struct.error if the body ends too early."""
        body, at = self._body, 0
        found: dict[int, _Value] = {}
        while body[at] != STOP:
            kind, number = FIELD.unpack_from(body, at)
            at += FIELD.size
            end = self._skipper.past(at, kind)
            if end > len(body):
                raise IndexError
            if _FIELD_TYPES.get(number) == kind:
                if kind == LIST:
                    found[number] = self._list(at)
                else:
                    found[number] = int.from_bytes(body[at:end], "big", signed=True)
            at = end
        return found

    def _list(self, at: int) -> array[int]:
        kind, count = LIST_HEAD.unpack_from(self._body, at)
        if count and kind != I64:
            raise BadRequest("transaction: a list of pointers contains values of another type.")
        self._pointers += count
        if self._pointers > pointers.POINTERS_MAX:
            raise BadRequest(
                f"transaction: it has {self._pointers} pointers; {pointers.POINTERS_MAX} are allowed in all lists "
                "together."
            )
        self._take(pointers.items(count))
        return pointers.of_bytes(self._body, at + LIST_HEAD.size, count)
