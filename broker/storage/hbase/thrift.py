"""Thrift's binary protocol: calls to bytes, answers to values.

::

    message   version and kind int32 | name | number int32 | struct
    struct    fields | 0
    field     kind int8 | number int16 | value
    string    length int32 | bytes
    list      kind int8 | count int32 | values          map   kinds 2 x int8 | count int32 | pairs

Integers are big-endian. Fields have numbers, so the reader needs no definition: it reads a struct as a dict of its
fields, a list as a list, a string as bytes. requests.py has the meaning of the calls. A test compares both
directions with thriftpy2 and HBase's own definition.

This module replaces thriftpy2, because thriftpy2 does not tell whether an answer is complete. An unframed answer has
no length, and thriftpy2 fills missing bytes with any bytes in memory. So each answer needed a walk before its
decoding. Reading it once, here, takes 4 us for a lone cell (walk and thriftpy2: 14 us), 90 us for 20 cells of
16 KiB (112 us), and 0.8 ms for 10 MB (23 ms). A request needs no struct objects either.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

BOOL, BYTE, DOUBLE, I16, I32, I64 = 2, 3, 4, 6, 8, 10
STRING, STRUCT, MAP, SET, LIST = 11, 12, 13, 14, 15
_CALL, _REPLY, _EXCEPTION = 1, 2, 3
_VERSION, _VERSION_MASK = 0x80010000, 0xFFFF0000
STOP: Final = b"\0"
BEGIN: Final = b"\x80\x01"
"""The first bytes of every message."""

pack_size: Final = struct.Struct(">i").pack
_field = struct.Struct(">bh").pack
_field_i32 = struct.Struct(">bhi").pack
_field_i64 = struct.Struct(">bhq").pack
_i16 = struct.Struct(">h").unpack_from
_i32 = struct.Struct(">i").unpack_from
_i64_field = struct.Struct(">hq").unpack_from
_FIXED: Final = {
    kind: struct.Struct(">" + code)
    for kind, code in zip((BOOL, BYTE, DOUBLE, I16, I32, I64), "?bdhiq", strict=True)
}
_field_head = struct.Struct(">hi").unpack_from
"""Reads the number of a string field, and its length."""


class NotThrift(ConnectionError):
    """The bytes that arrived are not an answer."""


class ShortAnswer(Exception):
    """An answer has not arrived completely; it has at least ``needed`` bytes."""

    def __init__(self, needed: int) -> None:
        super().__init__()
        self.needed = needed


class GatewayError(Exception):
    """The gateway answers with an exception. ``by_hbase``: it is declared, and the connection can go on."""

    def __init__(self, message: str, *, by_hbase: bool) -> None:
        super().__init__(message)
        self.by_hbase = by_hbase


# Writing: each function returns one complete field, if it does not say otherwise.


def call(api: str) -> bytes:
    """Return the beginning of a call. The caller adds the arguments, as fields of a struct, and STOP."""
    return struct.pack(">Ii", _VERSION | _CALL, len(api)) + api.encode() + pack_size(0)


def begin(number: int, kind: int) -> bytes:
    """Return the bytes before a field's value."""
    return _field(kind, number)


def text(number: int, value: bytes) -> bytes:
    """Return a string."""
    return _field_i32(STRING, number, len(value)) + value


def i32(number: int, value: int) -> bytes:
    """Return an int32, or an enum."""
    return _field_i32(I32, number, value)


def i64(number: int, value: int) -> bytes:
    """Return an int64."""
    return _field_i64(I64, number, value)


def record(number: int, fields: bytes) -> bytes:
    """Return a struct."""
    return _field(STRUCT, number) + fields + STOP


def records(number: int, structs: Sequence[bytes]) -> bytes:
    """Return a list of structs, each given by its fields."""
    items = b"".join(fields + STOP for fields in structs)
    return records_begin(number, len(structs)) + items


def records_begin(number: int, count: int) -> bytes:
    """Return the bytes before the structs of a list."""
    return _field(LIST, number) + bytes([STRUCT]) + pack_size(count)


def texts(number: int, values: Sequence[bytes]) -> bytes:
    """Return a list of strings."""
    return _field(LIST, number) + bytes([STRING]) + pack_size(len(values)) + _joined(values)


def mapping(number: int, pairs: Mapping[bytes, bytes]) -> bytes:
    """Return a map of strings."""
    kinds = bytes([STRING, STRING])
    return _field(MAP, number) + kinds + pack_size(len(pairs)) + _joined(chain(*pairs.items()))


def _joined(values: Iterable[bytes]) -> bytes:
    return b"".join(pack_size(len(value)) + value for value in values)


# Reading.


def answer(data: bytes) -> Any:
    """Decode a complete answer: return its value, or None.

    Raises:
        ShortAnswer: the answer is not complete.
        NotThrift: the bytes are not an answer.
        GatewayError: the gateway says that the call failed.
    """
    if len(data) < 8:
        raise ShortAnswer(8)
    version, name_bytes = struct.unpack_from(">Ii", data)
    if version & _VERSION_MASK != _VERSION or name_bytes < 0:
        raise NotThrift(f"not an answer: {data[:16]!r}")
    try:
        fields, end = _struct(data, 12 + name_bytes)
    except (IndexError, struct.error):
        raise ShortAnswer(len(data) + 1) from None
    if end < len(data):
        raise NotThrift("the gateway sent more than one answer")
    if version & 0xFF == _EXCEPTION:
        raise GatewayError(_message(fields), by_hbase=False)
    for number, value in fields.items():
        if number == 0:
            return value
        raise GatewayError(_message(value), by_hbase=True)
    return None


def _message(error: Any) -> str:
    """Return the first line of an exception's message; the rest is Java's stack trace."""
    told = error.get(1) if isinstance(error, dict) else None
    return told.decode(errors="replace").partition("\n")[0] if told else "no message"


def _struct(data: bytes, at: int) -> tuple[Any, int]:
    """Read a struct. Raises IndexError, struct.error or ShortAnswer if it is not complete."""
    fields: dict[int, Any] = {}
    while kind := data[at]:
        if kind == STRING:
            number, length = _field_head(data, at + 1)
            begin = at + 7
            at = begin + length
            if not begin <= at <= len(data):
                raise _short(length, at)
            fields[number] = data[begin:at]
        elif kind == I64:
            number, fields[number] = _i64_field(data, at + 1)
            at += 11
        else:
            (number,) = _i16(data, at + 1)
            fields[number], at = _value(data, at + 3, kind)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    fixed = _FIXED.get(kind)
    if fixed is not None:
        return fixed.unpack_from(data, at)[0], at + fixed.size
    if kind == STRING:
        (length,) = _i32(data, at)
        end = at + 4 + length
        if not at + 4 <= end <= len(data):
            raise _short(length, end)
        return data[at + 4 : end], end
    if kind == STRUCT:
        return _struct(data, at)
    if kind in {LIST, MAP, SET}:
        return _many(data, at, kind)
    raise NotThrift(f"a value of kind {kind} in an answer")


def _many(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    kinds = data[at : at + 2] if kind == MAP else data[at : at + 1]
    at += 2 if kind == MAP else 1
    (count,) = _i32(data, at)
    at += 4
    found: list[Any] = []
    for _ in range(count):
        for each in kinds:
            value, at = _struct(data, at) if each == STRUCT else _value(data, at, each)
            found.append(value)
    if kind == MAP:
        return dict(zip(found[::2], found[1::2], strict=True)), at
    return found, at


def _short(length: int, end: int) -> Exception:
    return ShortAnswer(end) if length >= 0 else NotThrift(f"a length of {length} in an answer")
