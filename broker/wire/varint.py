"""Avro's numbers: zig-zag, then seven bits in each byte, the lowest first.

::

    value     0   -1    1   -2   63      64          a long takes at most 10 bytes, an int 5
    zig-zag   0    1    2    3   126     128
    bytes    00   01   02   03   7e      80 01

The lowest bit of the first byte is the sign. A form longer than necessary is legal (``80 00`` is 0), as in
the original's decoder. A form longer than the type can need is not legal.

Readers take a body and a position, and return the value and the position after it. If the body ends too
early, they raise IndexError; their callers turn it into an error that names the field.
"""

from __future__ import annotations

import io
from typing import Final

INT_MAX: Final = (1 << 31) - 1
LONG_MAX: Final = (1 << 63) - 1
END: Final = b"\x00"
"""The end of an array: a block of no items."""
_LONG_BYTES_MAX = 10
_INT_BYTES_MAX = 5
_COPY_BYTES = 512 * 1024


class Malformed(ValueError):
    """These bytes do not match the schema. It never leaves the package."""


def _encode(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


# Nearly every length, count and sequence number is one of these.
SHORT_LONGS: Final = tuple(_encode(value) for value in range(8192))
_SHORT = len(SHORT_LONGS)


def encode_long(value: int) -> bytes:
    """Return the Avro form of a 64-bit number."""
    return SHORT_LONGS[value] if 0 <= value < _SHORT else _encode(value)


def encode_bytes(value: bytes) -> bytes:
    """Return the Avro form of a byte string: its length, then its bytes."""
    return encode_long(len(value)) + value


def read_long(body: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return a 64-bit number and the position after it. Raises Malformed, IndexError."""
    rest = body[at]
    at += 1
    if rest > 0x7F:
        rest, at = _continue(body, at, rest & 0x7F, _LONG_BYTES_MAX)
        if rest >> 64:
            raise Malformed("a number needs more than 64 bits")
    return (rest >> 1) ^ -(rest & 1), at


def read_int(body: bytes, at: int) -> tuple[int, int]:
    """Return a 32-bit number and the position after it. Raises Malformed, IndexError."""
    rest = body[at]
    at += 1
    if rest > 0x7F:
        rest, at = _continue(body, at, rest & 0x7F, _INT_BYTES_MAX)
        if rest >> 32:
            raise Malformed("an int needs more than 32 bits")
    return (rest >> 1) ^ -(rest & 1), at


def _continue(body: bytes | memoryview, at: int, rest: int, bytes_max: int) -> tuple[int, int]:
    for shift in range(7, 7 * bytes_max, 7):
        byte = body[at]
        at += 1
        rest |= (byte & 0x7F) << shift
        if byte <= 0x7F:
            return rest, at
    raise Malformed(f"a number takes more than {bytes_max} bytes")


def read_bytes(body: bytes, at: int) -> tuple[bytes, int]:
    """Return a byte string and the position after it. Raises Malformed, IndexError."""
    size, at = read_size(body, at)
    return copied(body, at, at + size), at + size


def copied(body: bytes, start: int, end: int) -> bytes:
    """Return ``body[start:end]``. Between the parts of a large copy, other threads may run."""
    if end - start <= _COPY_BYTES:
        return body[start:end]
    view, copy = memoryview(body), io.BytesIO()
    for at in range(start, end, _COPY_BYTES):
        copy.write(view[at : min(at + _COPY_BYTES, end)])
    return copy.getvalue()  # It returns the written bytes without another copy.


def read_size(body: bytes, at: int) -> tuple[int, int]:
    """Return the length of a complete byte string, and the position of its first byte. Raises Malformed, IndexError."""
    size, at = read_long(body, at)
    if size < 0:
        raise Malformed(f"a length is negative ({size})")
    if size > len(body) - at:
        raise IndexError
    return size, at
