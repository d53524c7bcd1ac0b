"""Attributes inside an entry: place and attributes of each message that has any, in order.

::

    place, 4 bytes | size, 2 bytes | attributes | place | …          no bytes if no message has any

They stay encoded until a reader needs them. This module treats them as bytes; wire.attributes decodes them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from broker.errors import StorageCorrupt

_ITEM = struct.Struct(">IH")
ITEM_BYTES: Final = _ITEM.size
"""The overhead of each message's attributes: its place and its size."""

Attributed = tuple[int, bytes]
"""A message's place, and its attributes."""


def pack(attributes: Sequence[bytes]) -> bytes:
    """Return the attributes of messages in their order; messages without any take no bytes."""
    return packed(enumerate(attributes)) if any(attributes) else b""


def packed(found: Iterator[Attributed]) -> bytes:
    """Encode places and attributes: the inverse of ``unpack``."""
    return b"".join([_ITEM.pack(place, len(each)) + each for place, each in found if each])


def unpack(section: bytes) -> Iterator[Attributed]:
    """Yield places and attributes, in order. Raises StorageCorrupt."""
    at, end = 0, len(section)
    while at < end:
        if at + ITEM_BYTES > end:
            raise StorageCorrupt("the attributes of an entry are cut off")
        place, size = _ITEM.unpack_from(section, at)
        at += ITEM_BYTES + size
        if not size or at > end:
            raise StorageCorrupt("the attributes of an entry are cut off")
        yield place, section[at - size : at]


def part(section: bytes, first: int, stop: int) -> bytes:
    """Return the attributes of the messages ``first`` to ``stop`` (exclusive), for an entry of only these."""
    if not section:
        return b""
    return packed((place - first, each) for place, each in unpack(section) if first <= place < stop)


def join(sections: Sequence[bytes], counts: Sequence[int]) -> bytes:
    """Return the attributes of one entry that joins several; ``counts`` has each one's number of messages."""
    if not any(sections):
        return b""
    out, base = [], 0
    for section, count in zip(sections, counts, strict=True):
        if section:
            out.append(packed((base + place, each) for place, each in list(unpack(section))))
        base += count
    return b"".join(out)
