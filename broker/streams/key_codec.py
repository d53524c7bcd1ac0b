"""Encode keys as bytes: equal keys have equal bytes. Pure.

Spark groups records by these bytes, and finds state by them, also in a later run. So the bytes depend on the key's
content alone: not on hashes, on the order of a dict, or on how pickle shares objects. ``decode_key`` reads them back.
Each value is a tag, a length and a body::

    N  None      T F  true, false      i  an integer in decimal      f  a float, 8 bytes
    s  text, UTF-8        b  bytes        (  a tuple   [  a list   {  a dict, sorted by key   : their parts
    o  a dataclass, a named tuple or an enum: its class as module:name, and its parts
    d t m  a decimal, a date, a moment, as text

Because of the lengths, different keys can't have the same bytes. Numbers of different types are different keys, so 1
and 1.0 are different. An object can be a key only if its class can be imported, and can make the object of its parts.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from typing import Any, Final

from broker import user_code

_FLOAT: Final = struct.Struct(">d")
_SIZE: Final = struct.Struct(">I")

Make = Callable[[str, Sequence[Any]], Any]
"""Makes an object. It gets the name of the class as module:name, and the object's parts."""


def encode_key(key: object) -> bytes:
    """Return a key's bytes. Raises TypeError if its type, or a type inside it, can't be a key."""
    tag, body = _parts(key)
    return tag + _SIZE.pack(len(body)) + body


def made(name: str, parts: Sequence[Any]) -> Any:
    """Import a class and return an object of it. Raises the errors of the import and of the class."""
    kind = _class_of(name)
    return kind[parts[0]] if issubclass(kind, enum.Enum) else kind(*parts)


def decode_key(data: bytes, make: Make = made) -> Any:
    """Return the key of these bytes; ``make`` makes the objects in it. Raises ValueError if no key has them."""
    key, end = _decode(data, 0, make)
    if end != len(data):
        raise ValueError("there is more behind the key")
    return key


def _parts(key: object) -> tuple[bytes, bytes]:  # noqa: C901, PLR0911, PLR0912 - One line for each type.
    if key is None:
        return b"N", b""
    if isinstance(key, bool):
        return (b"T" if key else b"F"), b""
    if isinstance(key, enum.Enum) and key.name in type(key).__members__:
        return b"o", _object(type(key), [key.name])
    if type(key) is int:
        return b"i", b"%d" % key
    if type(key) is float:
        return b"f", _FLOAT.pack(key + 0.0)  # 0.0 for -0.0, which equals it.
    if type(key) is str:
        return b"s", key.encode("utf-8", "surrogatepass")
    if type(key) is bytes:
        return b"b", key
    if type(key) is datetime:
        return b"m", (key if key.tzinfo is None else key.astimezone(UTC)).isoformat().encode()
    if type(key) is date:
        return b"t", key.isoformat().encode()
    if type(key) is Decimal:
        return b"d", _decimal(key)
    if dataclasses.is_dataclass(key) and not isinstance(key, type):
        return b"o", _object(type(key), _fields_of(key))
    if isinstance(key, tuple) and hasattr(key, "_fields"):
        return b"o", _object(type(key), key)
    if type(key) is tuple:
        return b"(", _joined(key)
    if type(key) is list:
        return b"[", _joined(key)
    if type(key) is dict:
        items = sorted((encode_key(name), encode_key(value)) for name, value in key.items())
        return b"{", b"".join(part for item in items for part in item)
    raise TypeError(
        f"A {type(key).__name__} can't be a key: make it of text, numbers, bytes, times, None, tuples, lists, dicts, "
        "dataclasses and enums."
    )


def _decimal(number: Decimal) -> bytes:
    """Return a number's text, the same for equal numbers. ``normalize`` is no way: it would round."""
    sign, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int):  # NaN or infinity.
        return str(number).encode()
    if not any(digits):  # Zero, which has no sign.
        return b"0"
    text = "".join(map(str, digits)).lstrip("0")
    short = text.rstrip("0")
    return f"{'-' if sign else ''}{short}E{exponent + len(text) - len(short)}".encode()


def _fields_of(key: Any) -> list[object]:
    """Return the fields of a dataclass's object. Raises TypeError if ``__init__`` doesn't take them in this order."""
    fields = dataclasses.fields(key)
    if not all(field.init and not field.kw_only for field in fields):
        raise TypeError(
            f"A {type(key).__name__} can't be a key: a dataclass that is one takes all its fields, in their order."
        )
    return [getattr(key, field.name) for field in fields]


def _joined(parts: Sequence[object]) -> bytes:
    return b"".join(map(encode_key, parts))


def _object(kind: type, parts: Sequence[object]) -> bytes:
    name = _name_of(kind)
    if not issubclass(kind, enum.Enum):
        _check_made_again(kind, parts)
    return encode_key(name) + _joined(parts)


def _check_made_again(kind: type, parts: Sequence[object]) -> None:
    """Raise TypeError unless a class makes the same object of its parts again, as ``made`` needs it."""

    def is_same() -> bool:
        again = kind(*parts)
        return list(again if isinstance(again, tuple) else _fields_of(again)) == list(parts)

    ended = user_code.call(is_same)
    if not ended.value:
        raise TypeError(
            f"A {kind.__name__} can't be a key: its class does not make the same object again of its fields."
        ) from ended.error


@cache
def _name_of(kind: type) -> str:
    """Return a class's name. Raises TypeError if an import of the name doesn't find the class.

    A key with such a class could not be decoded.
    """
    name = f"{kind.__module__}:{kind.__qualname__}"
    try:
        found = _class_of(name)
    except (ImportError, AttributeError):
        found = None
    if found is not kind:
        raise TypeError(
            f"A {kind.__name__} can't be a key: a worker can't import its class {name}. Define it in a module, outside "
            "of functions."
        )
    return name


def _decode(data: bytes, at: int, make: Make) -> tuple[Any, int]:
    tag, begin = data[at : at + 1], at + 1 + _SIZE.size
    if len(data) < begin:
        raise ValueError("the key is cut off")
    end = begin + _SIZE.unpack_from(data, at + 1)[0]
    if len(data) < end:
        raise ValueError("the key is cut off")
    return _value(tag, data[begin:end], make), end


def _value(tag: bytes, body: bytes, make: Make) -> Any:  # noqa: C901, PLR0911, PLR0912 - One line for each type.
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
        case b"d":
            return Decimal(body.decode())
        case b"t":
            return date.fromisoformat(body.decode())
        case b"m":
            return datetime.fromisoformat(body.decode())
        case b"(":
            return tuple(_all(body, make))
        case b"[":
            return _all(body, make)
        case b"{":
            found = _all(body, make)
            return dict(zip(found[::2], found[1::2], strict=True))
        case b"o":
            name, *parts = _all(body, make)
            return make(name, parts)
        case _:
            raise ValueError(f"no key begins with {tag!r}")


def _all(body: bytes, make: Make) -> list[Any]:
    found, at = [], 0
    while at < len(body):
        value, at = _decode(body, at, make)
        found.append(value)
    return found


@cache
def _class_of(name: str) -> Any:
    module, _, path = name.partition(":")
    kind: Any = importlib.import_module(module)
    for part in path.split("."):
        kind = getattr(kind, part)
    return kind
