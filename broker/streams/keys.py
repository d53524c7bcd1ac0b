"""Keys as bytes: equal keys have equal bytes, whatever is in them. Pure.

Spark groups records by these bytes, and state is found by them, also by a later run. So they depend on the
key's content alone: not on hashes, on the order of a dict, or on how pickle shares objects. They can be read back::

    N  None      T F  true, false      i  an integer in decimal      f  a float, 8 bytes
    s  text, UTF-8        b  bytes        (  a tuple   [  a list   {  a dict, sorted by key   : their parts
    o  a dataclass, a named tuple or an enum: its class as module:name, and its parts

Each has its length before it, so no content can be taken for another key's. Numbers of different types are
different keys, 1 and 1.0 also.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import struct
from collections.abc import Sequence
from typing import Any, Final

_FLOAT: Final = struct.Struct(">d")
_SIZE: Final = struct.Struct(">I")


def encode_key(key: object) -> bytes:
    """Return a key's bytes. Raises TypeError for a type that can't be a key, or is inside of one."""
    tag, body = _parts(key)
    return tag + _SIZE.pack(len(body)) + body


def decode_key(data: bytes) -> Any:
    """Return the key that has these bytes. Raises ValueError if none has."""
    key, end = _decode(data, 0)
    if end != len(data):
        raise ValueError("there is more behind the key")
    return key


def _parts(key: object) -> tuple[bytes, bytes]:  # noqa: C901, PLR0911 - One line for each type.
    if key is None:
        return b"N", b""
    if isinstance(key, bool):
        return (b"T" if key else b"F"), b""
    if isinstance(key, enum.Enum):
        return b"o", _object(type(key), [key.name])
    if type(key) is int:
        return b"i", b"%d" % key
    if type(key) is float:
        return b"f", _FLOAT.pack(key + 0.0)  # 0.0 for -0.0, which equals it.
    if type(key) is str:
        return b"s", key.encode("utf-8", "surrogatepass")
    if type(key) is bytes:
        return b"b", key
    if dataclasses.is_dataclass(key) and not isinstance(key, type):
        fields = [getattr(key, field.name) for field in dataclasses.fields(key)]
        return b"o", _object(type(key), fields)
    if isinstance(key, tuple):
        named = type(key) is not tuple
        return (b"o", _object(type(key), key)) if named else (b"(", _joined(key))
    if type(key) is list:
        return b"[", _joined(key)
    if type(key) is dict:
        items = sorted((encode_key(name), encode_key(value)) for name, value in key.items())
        return b"{", b"".join(part for item in items for part in item)
    raise TypeError(
        f"A {type(key).__name__} can't be a key: make it of text, numbers, bytes, None, tuples, lists, dicts, "
        "dataclasses and enums."
    )


def _joined(parts: Sequence[object]) -> bytes:
    return b"".join(map(encode_key, parts))


def _object(kind: type, parts: Sequence[object]) -> bytes:
    return encode_key(f"{kind.__module__}:{kind.__qualname__}") + _joined(parts)


def _decode(data: bytes, at: int) -> tuple[Any, int]:
    tag, begin = data[at : at + 1], at + 1 + _SIZE.size
    if len(data) < begin:
        raise ValueError("the key is cut off")
    end = begin + _SIZE.unpack_from(data, at + 1)[0]
    if len(data) < end:
        raise ValueError("the key is cut off")
    return _value(tag, data[begin:end]), end


def _value(tag: bytes, body: bytes) -> Any:  # noqa: PLR0911 - One line for each type.
    match tag:
        case b"N" | b"T" | b"F":
            return {b"N": None, b"T": True, b"F": False}[tag]
        case b"i":
            return int(body)
        case b"f":
            return _FLOAT.unpack(body)[0]
        case b"s":
            return body.decode("utf-8", "surrogatepass")
        case b"b":
            return body
        case b"(":
            return tuple(_all(body))
        case b"[":
            return _all(body)
        case b"{":
            found = _all(body)
            return dict(zip(found[::2], found[1::2], strict=True))
        case b"o":
            return _made(_all(body))
        case _:
            raise ValueError(f"no key begins with {tag!r}")


def _all(body: bytes) -> list[Any]:
    found, at = [], 0
    while at < len(body):
        value, at = _decode(body, at)
        found.append(value)
    return found


def _made(parts: list[Any]) -> Any:
    module, _, name = parts[0].partition(":")
    kind: Any = importlib.import_module(module)
    for part in name.split("."):
        kind = getattr(kind, part)
    return kind[parts[1]] if issubclass(kind, enum.Enum) else kind(*parts[1:])
