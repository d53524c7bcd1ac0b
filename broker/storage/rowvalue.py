"""How the columns of a row lie in one value of an ordered key-value store.

HBase keeps a row's columns apart; LevelDB has one value per key. A value here is a head, then the
payload to its end::

    byte 0        format (high nibble, 1) | flags (low nibble)
    8 bytes       e   epoch, unsigned
    8 bytes       t   visibility pointer, signed       if flag 1
    8 bytes       r   payload log number, signed       if flag 2
    8 bytes       x   lifetime in ms, signed           if flag 4
    the rest      p   payload; none at all             if flag 8 (a reference)

All rows of one segment have the same head, so writing a row is one concatenation, and reading a run of
rows decodes their head once. Rows carry no checksum of their own: it would cost more than the rest of
the encoding, and LevelDB's, over the same bytes, are verified on every read. What is small and decides
much (side rows, records) does carry one::

    8 bytes epoch or version | data | CRC-32 of both
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from broker.errors import StorageCorrupt
from broker.storage.ports import Segment

FORMAT = 1
"""Raised with every change of the encoding; at most 15."""

_POINTER, _NUMBER, _LIFETIME, _REFERENCE = 1, 2, 4, 8
_PLAIN = struct.Struct(">BQ")
_FIELD = struct.Struct(">q")
_EPOCH = struct.Struct(">Q")
_CRC = struct.Struct(">I")

HEAD_BYTES = tuple(
    _PLAIN.size + _FIELD.size * (byte & 7).bit_count() if byte >> 4 == FORMAT else 0
    for byte in range(256)
)
"""The length of a head by its first byte; 0 where no head of this format begins so."""


class Head(NamedTuple):
    """All that a row's value says beside its payload."""

    epoch: int
    is_reference: bool
    pointer: int | None
    number: int | None
    lifetime_ms: int | None


def encode_head(head: Head) -> bytes:
    """Encode a head. Raises struct.error if a field is out of range."""
    flags = _REFERENCE if head.is_reference else 0
    fields = b""
    optional = ((_POINTER, head.pointer), (_NUMBER, head.number), (_LIFETIME, head.lifetime_ms))
    for flag, field in optional:
        if field is not None:
            flags |= flag
            fields += _FIELD.pack(field)
    return _PLAIN.pack(FORMAT << 4 | flags, head.epoch) + fields


def segment_head(segment: Segment, epoch: int) -> bytes:
    """Return the head that all rows of a segment share."""
    is_reference = segment.payloads is None
    return encode_head(
        Head(epoch, is_reference, segment.pointer, segment.number, segment.lifetime_ms)
    )


def head_bytes(value: bytes) -> int:
    """Return the length of the head with which a value begins. Raises StorageCorrupt."""
    size = HEAD_BYTES[value[0]] if value else 0
    if not size or len(value) < size or (value[0] & _REFERENCE and len(value) != size):
        raise StorageCorrupt(f"a row's value begins with no head of format {FORMAT}")
    return size


def decode_head(value: bytes) -> Head:
    """Decode the head with which a value begins. Raises StorageCorrupt."""
    size = head_bytes(value)
    flags, epoch = _PLAIN.unpack_from(value)
    fields = (field for (field,) in _FIELD.iter_unpack(value[_PLAIN.size : size]))
    return Head(
        epoch,
        bool(flags & _REFERENCE),
        next(fields) if flags & _POINTER else None,
        next(fields) if flags & _NUMBER else None,
        next(fields) if flags & _LIFETIME else None,
    )


def with_pointer(value: bytes, pointer: int) -> bytes:
    """Return the value with another visibility pointer and all else as it is."""
    head = decode_head(value)._replace(pointer=pointer)
    return encode_head(head) + value[head_bytes(value) :]


def encode_checked(number: int, data: bytes) -> bytes:
    """Encode a small value with its epoch or version and a checksum."""
    body = _EPOCH.pack(number) + data
    return body + _CRC.pack(zlib.crc32(body))


def decode_checked(value: bytes) -> tuple[int, bytes]:
    """Return what encode_checked was given. Raises StorageCorrupt."""
    body, check = value[: -_CRC.size], value[-_CRC.size :]
    if len(value) < _EPOCH.size + _CRC.size or check != _CRC.pack(zlib.crc32(body)):
        raise StorageCorrupt("a side row or a record fails its checksum")
    (number,) = _EPOCH.unpack_from(body)
    return number, body[_EPOCH.size :]
