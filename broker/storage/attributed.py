"""Attributes inside an entry: of those of its messages that have any, the place and the attributes, in order.

::

    place, 4 bytes | size, 2 bytes | attributes | place | …          no bytes if no message has any

They stay as they are stored until a reader wants them. Nothing here knows what is in them (wire.attributes).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from broker.errors import StorageCorrupt

_ITEM = struct.Struct(">IH")
ITEM_BYTES: Final = _ITEM.size
"""What each message's attributes take besides themselves."""

Attributed = tuple[int, bytes]
"""A message's place, and its attributes."""


def pack(attributes: Sequence[bytes]) -> bytes:
    """Return the attributes of messages in their order; those without any have no bytes here."""
    return packed(enumerate(attributes)) if any(attributes) else b""


def packed(found: Iterator[Attributed]) -> bytes:
    """Return what ``unpack`` gave."""
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
    """Return the attributes of the messages ``first`` to ``stop`` (exclusive), as an entry of their own has them."""
    if not section:
        return b""
    return packed((place - first, each) for place, each in unpack(section) if first <= place < stop)


def join(sections: Sequence[bytes], counts: Sequence[int]) -> bytes:
    """Return the attributes of entries, with so many messages each, as those of one entry."""
    if not any(sections):
        return b""
    out, base = [], 0
    for section, count in zip(sections, counts, strict=True):
        if section:
            out.append(packed((base + place, each) for place, each in list(unpack(section))))
        base += count
    return b"".join(out)
