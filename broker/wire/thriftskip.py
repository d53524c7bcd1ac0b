"""Skip unwanted values in Thrift's binary protocol, in bounded time.

::

    i64     8 bytes, big-endian                              bool, byte: 1    i16: 2    i32, enums: 4    double: 8
    string  length (int32) | bytes                           also binary
    list    type of the items | count (int32) | items        also set
    map     type of the keys | type of the values | count (int32) | keys and values, by turns
    struct  fields, each: type (1 byte) | number (int16) | value; 00 ends it

The skipper does not trust counts in a body. It skips numbers and booleans in a list all at once. It counts all other
values as parts, and bounds them: a list of empty structs takes one byte for each, and is the slowest input to skip.
"""

from __future__ import annotations

import struct
from typing import Final, Protocol, overload

from broker.errors import BadRequest

STOP, BOOL, BYTE, DOUBLE, I16, I32, I64 = 0, 2, 3, 4, 6, 8, 10
STRING, STRUCT, MAP, SET, LIST = 11, 12, 13, 14, 15
FIXED_BYTES: Final = {BOOL: 1, BYTE: 1, DOUBLE: 8, I16: 2, I32: 4, I64: 8}
NESTING_MAX: Final = 16
PARTS_MAX: Final = 10_000
"""The maximum number of fields, and parts of fields, to skip."""

SEGMENT_BYTES: Final = 512 * 1024
"""At least as much as a connection reads at once."""

FIELD: Final = struct.Struct(">bh")
LIST_HEAD: Final = struct.Struct(">bi")
_COUNT = struct.Struct(">i")
_MAP_HEAD = struct.Struct(">bbi")


class ThriftBody(Protocol):
    """The bytes of a body."""

    def __len__(self) -> int:
        """Return their number."""

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> bytes | bytearray: ...


class Segments:
    """The bytes of a long frame, in segments of SEGMENT_BYTES; the last one may be shorter.

    One call that makes 16 MiB of bytes would keep the event loop waiting for the interpreter's lock for several ms. So
    a long frame is never joined: its reader takes small parts.
    """

    def __init__(self, segments: list[bytearray]) -> None:
        """Keep the segments."""
        self._segments = segments
        self._size = sum(map(len, segments))

    def __len__(self) -> int:
        """Return the number of bytes."""
        return self._size

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> bytes: ...

    def __getitem__(self, at: int | slice) -> int | bytes:
        """Return one byte, or the bytes of a slice without a step."""
        if isinstance(at, int):
            return self._segments[at // SEGMENT_BYTES][at % SEGMENT_BYTES]
        start, stop, _ = at.indices(self._size)
        first, begin = divmod(start, SEGMENT_BYTES)
        if stop - start <= SEGMENT_BYTES - begin:
            return bytes(
                self._segments[first][begin : begin + stop - start] if start < stop else b""
            )
        last, end = divmod(stop, SEGMENT_BYTES)
        middle = self._segments[first + 1 : last]
        behind = self._segments[last][:end] if end else b""
        return b"".join((self._segments[first][begin:], *middle, behind))


class Skipper:
    """Skips values of one body, and counts them. ``what`` names the body in errors."""

    def __init__(self, body: ThriftBody, what: str) -> None:
        """Begin with a count of zero."""
        self._body = body
        self._what = what
        self._parts = 0

    def past(self, at: int, kind: int, depth: int = NESTING_MAX) -> int:
        """Return the position after a value. It may lie beyond the body, if the value does.

        Raises:
            BadRequest: it is not a value, it is nested too deeply, or there are too many parts.
            IndexError, struct.error: the body ends within it.
        """
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise BadRequest(
                f"{self._what}: it has more than {PARTS_MAX} fields and parts of them."
            )
        if kind in FIXED_BYTES:
            return at + FIXED_BYTES[kind]
        if depth == 0:
            raise BadRequest(f"{self._what}: nested deeper than {NESTING_MAX} levels.")
        if kind == STRING:
            return at + _COUNT.size + self._count(*_COUNT.unpack(self._body[at : at + _COUNT.size]))
        if kind == STRUCT:
            return self._past_struct(at, depth - 1)
        if kind == MAP:
            key_kind, value_kind, count = _MAP_HEAD.unpack(self._body[at : at + _MAP_HEAD.size])
            return self._past_items(at + _MAP_HEAD.size, (key_kind, value_kind), count, depth - 1)
        if kind in {SET, LIST}:
            item_kind, count = LIST_HEAD.unpack(self._body[at : at + LIST_HEAD.size])
            return self._past_items(at + LIST_HEAD.size, (item_kind,), count, depth - 1)
        raise BadRequest(f"{self._what}: there is no type {kind}.")

    def _past_struct(self, at: int, depth: int) -> int:
        while self._body[at] != STOP:
            kind, _ = FIELD.unpack(self._body[at : at + FIELD.size])
            at = self.past(at + FIELD.size, kind, depth)
        return at + 1

    def _past_items(self, at: int, kinds: tuple[int, ...], count: int, depth: int) -> int:
        if all(kind in FIXED_BYTES for kind in kinds):
            return at + self._count(count) * sum(FIXED_BYTES[kind] for kind in kinds)
        if count > len(self._body) - at:  # Each item takes at least one byte.
            raise IndexError
        for _ in range(self._count(count)):
            for kind in kinds:
                at = self.past(at, kind, depth)
        return at

    def _count(self, count: int) -> int:
        if count < 0:
            raise BadRequest(f"{self._what}: a count is negative ({count}).")
        return count
