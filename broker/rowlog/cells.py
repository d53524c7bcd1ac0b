"""The execution state of a message as bytes, and a row lock. Pure.

Version 1 is Lily's 2.0. A put writes it, so a reader of Lily's cells can read it::

    01 | timestamp int64 | n varint | n x ( length int32 | subscription UTF-8 | done 1 byte: 0, 1 )

Version 2 has the same frame. More fields follow a standing that has the bit 80::

    02 | timestamp int64 | n varint | n x ( length int32 | subscription | standing 1 byte | more )

    more   epoch int64 | tries int32 | not before int64 | claimed at int64 | token: length 1, bytes
           | reason: length int16, UTF-8

``timestamp`` is the message's. The varint has its low group of seven bits first; the bit 80 says that another group
follows.
"""

from __future__ import annotations

import struct
from typing import Final

from broker.errors import StorageCorrupt
from broker.rowlog.execution_state import Part, Standing, State

_MORE: Final = 0x80
_REASON_BYTES_MAX: Final = 400
_more = struct.Struct(">qiqqB")
_i16 = struct.Struct(">H")
_i32 = struct.Struct(">i")
_i64 = struct.Struct(">q")


def encode_state(state: State) -> bytes:
    """Write a state: as version 1 if that has all its fields, else as version 2."""
    is_plain = all(part.is_plain for part in state.parts.values())
    pieces = [
        bytes([1 if is_plain else 2]),
        _i64.pack(state.timestamp),
        _varint(len(state.parts)),
    ]
    for name, part in state.parts.items():
        raw = name.encode()
        more = 0 if part.is_plain else _MORE
        pieces += (_i32.pack(len(raw)), raw, bytes([part.standing | more]))
        if more:
            pieces.append(_encode_more(part))
    return b"".join(pieces)


def _encode_more(part: Part) -> bytes:
    reason = part.reason.encode(errors="backslashreplace")[:_REASON_BYTES_MAX]
    head = _more.pack(part.epoch, part.tries, part.not_before, part.claimed_at, len(part.token))
    return head + part.token + _i16.pack(len(reason)) + reason


def decode_state(data: bytes) -> State:
    """Read a state of either version. Raises StorageCorrupt: the bytes are no state."""
    try:
        return _decode(data)
    except (IndexError, struct.error, ValueError) as error:
        raise StorageCorrupt(f"An execution state can't be read: {data[:32].hex()}.") from error


def _decode(data: bytes) -> State:
    if data[0] not in {1, 2}:
        raise ValueError("another version")
    (timestamp,) = _i64.unpack_from(data, 1)
    count, at = _read_varint(data, 9)
    parts: dict[str, Part] = {}
    for _ in range(count):
        (length,) = _i32.unpack_from(data, at)
        at += 4
        if length < 0 or at + length >= len(data):
            raise ValueError("a length that does not fit")
        name, at = data[at : at + length].decode(), at + length
        kind = data[at]
        parts[name], at = _decode_part(data, at + 1, kind)
    if at != len(data):
        raise ValueError("more bytes than there should be")
    return State(timestamp, parts)


def _decode_part(data: bytes, at: int, kind: int) -> tuple[Part, int]:
    standing = Standing(kind & ~_MORE)
    if not kind & _MORE:
        return Part(standing), at
    epoch, tries, not_before, claimed_at, length = _more.unpack_from(data, at)
    at += _more.size
    token, at = data[at : at + length], at + length
    (size,) = _i16.unpack_from(data, at)
    at += 2
    if at + size > len(data):
        raise ValueError("a reason that does not fit")
    reason = data[at : at + size].decode(errors="replace")
    return Part(standing, epoch, tries, not_before, claimed_at, token, reason), at + size


def _varint(value: int) -> bytes:
    groups = bytearray()
    while value >= _MORE:
        groups.append(value & 0x7F | _MORE)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        group = data[at]
        at += 1
        value |= (group & 0x7F) << shift
        if not group & _MORE:
            return value, at
        shift += 7
        if shift > 28:
            raise ValueError("a count that is too large")


_permit = struct.Struct(">q4s")


def encode_permit(taken_at: int, chance: bytes) -> bytes:
    """Write a row lock as Lily does: the time in ms, and 4 random bytes."""
    return _permit.pack(taken_at, chance)
