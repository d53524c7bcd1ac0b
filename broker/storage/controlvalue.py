"""How a control row lies in its one cell: a head of fixed length, then what has none.

::

    format, state, epoch, generation, edits, pointer, floor, sealed at, published, token, three lengths
    owner | ranges | tokens of the side rows with older ranges | CRC-32 of it all

The bytes are compared by compare-and-set, so one row is always encoded in the same way.
"""

from __future__ import annotations

import struct
import zlib

from broker.errors import StorageCorrupt
from broker.model import ROW_ID_BYTES
from broker.storage.control import TOKEN_BYTES, Control, EpochRange, State

_HEAD = struct.Struct(f">BBQiQ{ROW_ID_BYTES}s{ROW_ID_BYTES}s{ROW_ID_BYTES}s{ROW_ID_BYTES}s16sHHH")
_RANGE = struct.Struct(f">QQ{ROW_ID_BYTES}s")
_CRC = struct.Struct(">I")
FORMAT = 1
"""Raised with every change of the encoding below; tests keep rows of each older one."""


def encode(control: Control) -> bytes:
    """Encode a control row: head, owner, ranges, tokens of older ranges, CRC-32 of it all."""
    owner = control.owner.encode()
    head = _HEAD.pack(
        FORMAT,
        control.state,
        control.epoch,
        control.generation,
        control.edits,
        control.pointer,
        control.floor,
        control.sealed_at,
        control.published,
        control.token,
        len(owner),
        len(control.ranges),
        len(control.older),
    )
    body = b"".join([head, owner, encode_ranges(control.ranges), *control.older])
    return body + _CRC.pack(zlib.crc32(body))


def decode(data: bytes) -> Control:
    """Decode a control row. Raises StorageCorrupt."""
    body, check = data[: -_CRC.size], data[-_CRC.size :]
    if len(data) < _HEAD.size + _CRC.size or check != _CRC.pack(zlib.crc32(body)):
        raise StorageCorrupt("a control row fails its checksum")
    if body[0] != FORMAT:
        raise StorageCorrupt(f"a control row has format {body[0]}; this release reads {FORMAT}")
    head = _HEAD.unpack_from(body)
    owner_end = _HEAD.size + head[10]
    ranges_end = owner_end + head[11] * _RANGE.size
    older = body[ranges_end:]
    return Control(
        state=State(head[1]),
        epoch=head[2],
        generation=head[3],
        edits=head[4],
        pointer=head[5],
        floor=head[6],
        sealed_at=head[7],
        published=head[8],
        token=head[9],
        owner=body[_HEAD.size : owner_end].decode(),
        ranges=decode_ranges(body[owner_end:ranges_end]),
        older=tuple(older[i : i + TOKEN_BYTES] for i in range(0, len(older), TOKEN_BYTES)),
    )


def encode_ranges(ranges: tuple[EpochRange, ...]) -> bytes:
    """Encode entries one behind the other: the value of an ``o`` row too."""
    return b"".join(_RANGE.pack(*entry) for entry in ranges)


def decode_ranges(data: bytes) -> tuple[EpochRange, ...]:
    """Decode what encode_ranges made. Raises struct.error if it was cut."""
    return tuple(EpochRange(*entry) for entry in _RANGE.iter_unpack(data))
