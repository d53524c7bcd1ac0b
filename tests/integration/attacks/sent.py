"""Bodies for the attacks: small on the wire, and large or slow for a broker that does not bound them."""

import functools
import gzip
import struct
import zlib
from collections.abc import Iterable

from broker.clock import SystemClock

MIB = 1024 * 1024
LARGE = 127 * MIB
"""Just below the limit of an inflated body."""

_LIST, _STRING, _STRUCT, _I64, _UNKNOWN = 15, 11, 12, 10, 99


def gzipped(pieces: Iterable[bytes]) -> bytes:
    """Compress pieces, without all of them in memory at once."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([*(packer.compress(piece) for piece in pieces), packer.flush()])


def pointers(count: int) -> list[int]:
    """Return write pointers of transactions that have just begun, in order."""
    first = SystemClock().now_ms() * 1_000_000
    return list(range(first, first + count))


def repeated(piece: bytes, count: int) -> Iterable[bytes]:
    """Repeat a piece, a thousand at a time."""
    thousand = piece * 1000
    yield from (thousand for _ in range(count // 1000))
    yield piece * (count % 1000)


def varint(number: int) -> bytes:
    """Encode a number as Avro does."""
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def poll_head(snapshot_bytes: int) -> bytes:
    """Return the bytes of a poll before its snapshot: from the oldest message on, without a limit."""
    return bytes((4, 1, 2, 0)) + varint(snapshot_bytes)


def field(kind: int, number: int) -> bytes:
    """Return the head of a field of a Thrift struct."""
    return struct.pack(">bh", kind, number)


IDS = field(_I64, 1) + struct.pack(">q", 9) + field(_I64, 2) + struct.pack(">q", 9)
"""The two fields that every snapshot has."""


@functools.cache
def poll_of_empty_structs(count: int = LARGE) -> bytes:
    """Return a gzipped poll whose snapshot has an unknown field: a list of very many empty structs."""
    head = IDS + field(_LIST, _UNKNOWN) + struct.pack(">bi", _STRUCT, count)
    return gzipped([poll_head(len(head) + count + 1), head, *repeated(b"\0", count), b"\0"])


@functools.cache
def poll_of_a_long_string(count: int = LARGE) -> bytes:
    """Return a valid gzipped poll whose snapshot has an unknown field: a very long string."""
    head = IDS + field(_STRING, _UNKNOWN) + struct.pack(">i", count)
    return gzipped([poll_head(len(head) + count + 1), head, *repeated(b"\0", count), b"\0"])


def poll_of_pointers(count: int) -> bytes:
    """Return a gzipped poll whose snapshot has three lists with ``count`` pointers in total."""
    each = count // 3
    pointers = struct.pack(f">{each}q", *range(10, 10 + each))
    lists = [
        field(_LIST, number) + struct.pack(">bi", _I64, each) + pointers for number in (3, 4, 8)
    ]
    snapshot = IDS + b"".join(lists) + b"\0"
    return gzip.compress(poll_head(len(snapshot)) + snapshot, 1)


@functools.cache
def json_of_empty_strings(count: int = 42 * MIB) -> bytes:
    """Return a gzipped JSON list of empty texts."""
    return gzipped([b"[", *repeated(b'"",', count), b'""]'])


@functools.cache
def json_of_one_text(count: int = LARGE) -> bytes:
    """Return a gzipped JSON text of ASCII characters. Only the last character is wide, and makes the text four times as large in memory."""
    return gzipped([b'{"messages": ["', *repeated(b"a", count), "\N{PILE OF POO}".encode(), b'"]}'])


@functools.cache
def json_of_properties(count: int = 100 * MIB) -> bytes:
    """Return gzipped topic properties with one very long value."""
    return gzipped([b'{"note": "', *repeated(b"a", count), b'"}'])


@functools.cache
def zeros(count: int) -> bytes:
    """Return gzipped zeros."""
    return gzipped(repeated(b"\0", count))


def empty_members(bytes_min: int) -> bytes:
    """Return empty gzip members."""
    member = gzip.compress(b"", 9, mtime=0)
    return member * (bytes_min // len(member))
