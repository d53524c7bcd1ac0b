"""Avro container files, with fastavro. Each chunk is a block, so an unfinished file can be continued."""

from __future__ import annotations

import bz2
import io
import json
import lzma
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from typing_extensions import override

from broker.errors import TaskFailed
from broker.model import Message
from broker.transfer.message_records import GrowingFile, message_of
from broker.wire.attributes import HEADERS_MAX
from broker.wire.varint import encode_bytes, encode_long, read_bytes, read_long

SCHEMA: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Message",
    "namespace": "broker",
    "fields": [
        {"name": "id", "type": "bytes"},
        {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "payload", "type": "bytes"},
        {"name": "key", "type": ["null", "bytes"], "default": None},
        {"name": "headers", "type": {"type": "map", "values": "bytes"}, "default": {}},
    ],
}


class AvroFile(GrowingFile):
    """The format ``avro``."""

    name = "avro"

    def check(self) -> None:
        """Check that fastavro is installed. Raises TaskFailed."""
        _fastavro()

    @override
    def write(self, file: BinaryIO, messages: Iterable[Message], *, is_new: bool) -> None:
        """Write a block; in a new file write the header first."""
        # With a schema fastavro writes a header; without one it appends with the header of the file.
        _fastavro().writer(file, SCHEMA if is_new else None, map(_record, messages))

    def read(self, file: Path) -> Iterator[Message]:
        """Yield the messages of a file; it needs the field ``payload``, and may have ``key`` and ``headers``."""
        fastavro = _fastavro()
        done = 0
        with file.open("rb") as opened:
            try:
                checked = CheckedFile(opened)
                for record in fastavro.reader(checked, checked.wanted):
                    yield message_of(record)
                    done += 1
                    checked.headers_left = HEADERS_MAX
            except OSError:
                raise
            except Exception as error:  # fastavro raises anything for values of others.
                reason = str(error) or type(error).__name__
                raise TaskFailed(f"{file}, after record {done:,}: {reason}") from error


def _record(message: Message) -> dict[str, Any]:
    return {
        "id": message.id,
        "time": message.timestamp_ms,
        "payload": message.payload,
        "key": message.key,
        "headers": dict(message.headers),
    }


def _fastavro() -> Any:
    try:
        import fastavro  # noqa: PLC0415 - An extra.
    except ImportError as error:
        raise TaskFailed(
            "Avro files need fastavro: pip install 'tms-broker[export]', or fastavro alone."
        ) from error
    return fastavro


MAGIC: Final = b"Obj\x01"
SYNC_BYTES: Final = 16
HEADER_BYTES_MAX: Final = 1 << 20
BLOCK_BYTES_MAX: Final = 80 << 20
"""A message has 64 MiB at most, and a block of an export little more than its last message."""
XZ_BYTES_MAX: Final = 128 << 20
"""How much memory an xz stream may ask for."""
DEPTH_MAX: Final = 32
_PRIMITIVE: Final = {"boolean", "int", "long", "float", "double", "bytes", "string"}
_NUMBERS_BYTES_MAX: Final = 20
"""Two numbers begin a block."""
_TOO_SHORT: Final = "it ends too early"


class CheckedFile:
    """A container file without compression, made of the blocks of another one. It holds one block at a time.

    A few bytes of Avro can stand for very much: a block may unpack to a thousand times its size, or have values that
    take no byte, in any number. So each block is counted before it is read, unpacked or decoded. These are refused:

    * a block that has, or unpacks to, more than BLOCK_BYTES_MAX;
    * a schema with a type that takes no byte: then a block has no more values than bytes;
    * a schema that is deep, or refers to itself: its values could be as deep as a block is long;
    * a message with more headers than a message may have.

    fastavro gets the checked blocks as one file, so that it parses the schema once: it may be long, and blocks many.
    It makes values of the fields ``wanted`` alone, and passes over the others: each byte of an array may become an
    object. It makes no dates or decimals: a long decimal takes hours.
    """

    def __init__(self, file: BinaryIO) -> None:
        """Read the header. Raises ValueError, IndexError."""
        meta, sync = _header(file)
        try:
            schema = json.loads(meta[b"avro.schema"])
            _Types().check(schema)
        except (RecursionError, KeyError) as error:
            raise ValueError("its schema is missing, or nested too deeply") from error
        plain = _plain(schema)
        self.wanted = _wanted(plain)
        """The schema of the fields of a message."""
        self.headers_left = HEADERS_MAX
        """How many headers the next message may still have."""
        for kind in _VALUES:
            _fastavro().read.LOGICAL_READERS[f"{kind}-{_HEADER}"] = self._count_header
        own_meta = encode_bytes(b"avro.schema") + encode_bytes(json.dumps(plain).encode())
        self._part = io.BytesIO(MAGIC + encode_long(1) + own_meta + encode_long(0) + sync)
        self._parts = _checked_blocks(file, meta.get(b"avro.codec", b"null"), sync)

    def _count_header(self, value: Any, *_schemas: Any) -> Any:
        self.headers_left -= 1
        if self.headers_left < 0:
            raise ValueError(f"headers: a message may have {HEADERS_MAX}")
        return value

    def read(self, size: int) -> bytes:
        """Return the next bytes of a part. A read never reaches beyond its part. Raises ValueError."""
        found = self._part.read(size)
        if not found and size:
            try:
                self._part = io.BytesIO(next(self._parts, b""))
            except IndexError as error:
                raise ValueError(_TOO_SHORT) from error
            found = self._part.read(size)
        return found


def _header(file: BinaryIO) -> tuple[dict[bytes, bytes], bytes]:
    """Return the metadata and the mark between blocks. Raises ValueError, IndexError."""
    meta, at = _meta(file.read(HEADER_BYTES_MAX))
    file.seek(at)
    return meta, _exactly(file, SYNC_BYTES)


def _checked_blocks(file: BinaryIO, codec: bytes, sync: bytes) -> Iterator[bytes]:
    """Yield each block. Raises ValueError, IndexError."""
    while head := file.read(_NUMBERS_BYTES_MAX):
        count, at = read_long(head, 0)
        size, at = read_long(head, at)
        file.seek(at - len(head), os.SEEK_CUR)
        if not 0 <= size <= BLOCK_BYTES_MAX:
            raise ValueError(f"a block of {size:,} bytes; {BLOCK_BYTES_MAX:,} are allowed")
        data = _unpacked(_exactly(file, size), codec)
        if not 0 <= count <= len(data):
            raise ValueError(f"a block of {len(data):,} bytes says that it has {count:,} records")
        if _exactly(file, SYNC_BYTES) != sync:
            raise ValueError("a block does not end where it says")
        yield encode_long(count) + encode_bytes(data) + sync


def _meta(header: bytes) -> tuple[dict[bytes, bytes], int]:
    """Return the metadata, and the position behind them. Raises ValueError, IndexError."""
    if not header.startswith(MAGIC):
        raise ValueError("it is no Avro container file")
    meta: dict[bytes, bytes] = {}
    count, at = read_long(header, len(MAGIC))
    while count:
        if count < 0:
            _, at = read_long(header, at)
        for _ in range(abs(count)):
            name, at = read_bytes(header, at)
            meta[name], at = read_bytes(header, at)
        count, at = read_long(header, at)
    return meta, at


def _exactly(file: BinaryIO, size: int) -> bytes:
    found = file.read(size)
    if len(found) != size:
        raise ValueError(_TOO_SHORT)  # fastavro would take an EOFError for the end.
    return found


def _unpacked(data: bytes, codec: bytes) -> bytes:
    """Unpack a block, at most BLOCK_BYTES_MAX of it. Raises ValueError: it has more, or is damaged."""
    most = BLOCK_BYTES_MAX + 1
    try:
        match codec:
            case b"null":
                return data
            case b"deflate":
                unpacked = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, most)
            case b"bzip2":
                unpacked = bz2.BZ2Decompressor().decompress(data, most)
            case b"xz":
                unpacked = lzma.LZMADecompressor(memlimit=XZ_BYTES_MAX).decompress(data, most)
            case b"zstandard" | b"snappy":
                unpacked = _unpacked_by_arrow(data, codec, most)
            case _:
                raise ValueError(f"its codec {codec.decode(errors='replace')!r} is not supported")
    except (zlib.error, lzma.LZMAError, OSError) as error:
        raise ValueError(f"a block can't be unpacked: {error}") from error
    if len(unpacked) > BLOCK_BYTES_MAX:
        raise ValueError(f"a block unpacks to more than {BLOCK_BYTES_MAX:,} bytes")
    return unpacked


def _unpacked_by_arrow(data: bytes, codec: bytes, most: int) -> bytes:
    try:
        import pyarrow as pa  # noqa: PLC0415 - An extra, and slow to import.
    except ImportError as error:
        raise ValueError(f"its codec {codec.decode()} needs pyarrow") from error
    if codec == b"zstandard":
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            return bytes(stream.read(most))
    # Snappy tells its size first. Behind its bytes Avro has a checksum.
    size, at = 0, 0
    for at, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << (7 * at)
        if not byte & 0x80:
            break
    if size >= most:
        raise ValueError(f"a block unpacks to more than {BLOCK_BYTES_MAX:,} bytes")
    return bytes(pa.Codec("snappy").decompress(data[:-4], size, asbytes=True))


class _Types:
    """The types of a schema. ``check`` raises ValueError if one of them is not allowed."""

    def __init__(self) -> None:
        self._heights: dict[str, int | None] = {}
        """The heights of the named types; None: the type is not complete yet."""

    def check(  # noqa: C901, PLR0911 - One case for each kind of type.
        self, kind: Any, depth: int = 0, *, in_union: bool = False
    ) -> int:
        """Return the height of a type."""
        if depth > DEPTH_MAX:
            raise ValueError("its schema is nested too deeply")
        match kind:
            case "null" if in_union:
                return 1
            case str() if kind in _PRIMITIVE:
                return 1
            case str() if kind.rpartition(".")[2] in self._heights:
                return self._named(kind.rpartition(".")[2], depth)
            case [_, *_] if not in_union:
                return 1 + max(self.check(each, depth + 1, in_union=True) for each in kind)
            case {"type": "array", "items": inner} | {"type": "map", "values": inner}:
                return 1 + self.check(inner, depth + 1)
            case {"type": "fixed", "name": str(name), "size": int(size)} if size > 0:
                return self._heights.setdefault(name.rpartition(".")[2], 1) or 1
            case {"type": "enum", "name": str(name), "symbols": [_, *_]}:
                return self._heights.setdefault(name.rpartition(".")[2], 1) or 1
            case {"type": "record" | "error", "name": str(name), "fields": [_, *_] as fields}:
                name = name.rpartition(".")[2]
                self._heights[name] = None
                height = 1 + max(self.check(each["type"], depth + 1) for each in fields)
                self._heights[name] = height
                return height
            case {"type": inner} if inner not in (
                "array",
                "map",
                "fixed",
                "enum",
                "record",
                "error",
            ):
                return self.check(inner, depth + 1, in_union=in_union)
        raise ValueError(
            f"its schema has {json.dumps(kind)[:100]}: a type that takes no byte, or no type of Avro"
        )

    def _named(self, name: str, depth: int) -> int:
        height = self._heights[name]
        if height is None or depth + height > DEPTH_MAX:
            raise ValueError(f"its schema refers to {name!r} within itself, or too deeply")
        return height


_FIELDS: Final = ("payload", "key", "headers")
_KEPT: Final = ("type", "name", "namespace", "symbols", "size")
_VALUES: Final = {"null", "bytes", "string"}
_TOLD: Final = "is neither bytes nor text"
_HEADER: Final = "broker-header"
"""The logical type of a header: fastavro calls a function for each value of a logical type."""


def _plain(kind: Any) -> Any:
    """Return a checked type as its binary form alone needs it: without logical types and defaults."""
    match kind:
        case list():
            return [_plain(each) for each in kind]
        case {"type": dict() | list() as inner}:
            return _plain(inner)
        case dict():
            plain = {name: kind[name] for name in _KEPT if name in kind}
            plain |= {name: _plain(kind[name]) for name in ("items", "values") if name in kind}
            if "fields" in kind:
                plain["fields"] = [
                    {"name": each["name"], "type": _plain(each["type"])} for each in kind["fields"]
                ]
            return plain
        case _:
            return kind


def _wanted(whole: Any) -> dict[str, Any]:
    """Return the schema of a message's fields in records of a plain schema. Mark the headers in that. Raises ValueError."""
    if not isinstance(whole, dict) or whole["type"] != "record":
        raise ValueError("its values are no records")
    fields = [each for each in whole["fields"] if each["name"] in _FIELDS]
    for each in fields:
        if each["name"] == "headers":
            each["type"] = _marked(each["type"])
    named: dict[str, Any] = {}
    name = _fastavro().parse_schema(whole, named)["name"]
    fields = [each for each in named[name]["fields"] if each["name"] in _FIELDS]
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": each["name"], "type": _defined(each, named)} for each in fields],
    }


def _marked(kind: Any, *, in_map: bool = False) -> Any:
    """Return the type of headers with their values marked. Raises ValueError."""
    match kind:
        case list():
            return [_marked(each, in_map=in_map) for each in kind]
        case {"type": "map", "values": values} if not in_map:
            return {"type": "map", "values": _marked(values, in_map=True)}
        case str() | {"type": str()}:
            name = kind if isinstance(kind, str) else kind["type"]
            if in_map and name in _VALUES:
                return {"type": name, "logicalType": _HEADER}
            if name == "null":
                return kind
        case _:
            pass
    raise ValueError(f"headers: {_TOLD}" if in_map else "headers: is not a map of names and values")


def _defined(field: Any, named: dict[str, Any]) -> Any:
    """Return the type of a wanted field, with the definition of a type that it names. Raises ValueError."""

    def defined(kind: Any) -> Any:
        if isinstance(kind, list):
            return [defined(each) for each in kind]
        # A definition is given once.
        kind = named.pop(kind, kind) if isinstance(kind, str) else kind
        if field["name"] != "headers" and isinstance(kind, dict):
            if kind["type"] in ("array", "map", "record", "error"):
                raise ValueError(f"{field['name']}: {_TOLD}")
            named.pop(kind.get("name", ""), None)
        return kind

    return defined(field["type"])
