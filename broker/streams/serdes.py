"""Serdes turn the bytes of a message into a value, and a value into bytes. Pure.

Any object with the methods of Serde is a serde. If ``deserialize`` raises, the message is a record that can't be
decoded. Spark itself decodes Json with a schema, Text and Bytes, as long as a stream's functions are SQL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import orjson

T = TypeVar("T")


class Serde(Protocol[T]):
    """Serializes and deserializes values. Spark pickles it for its workers, so it must be picklable."""

    def deserialize(self, payload: bytes) -> T:
        """Return the value of a message. May raise anything."""
        ...

    def serialize(self, value: T) -> bytes | None:
        """Return the payload for a value, or None to publish nothing. May raise anything."""
        ...


@dataclass(frozen=True)
class Bytes:
    """The bytes as they are."""

    def deserialize(self, payload: bytes) -> bytes:
        """Return the payload."""
        return payload

    def serialize(self, value: bytes) -> bytes:
        """Return the value. Raises TypeError if it is not bytes."""
        if not isinstance(value, bytes):
            raise TypeError(
                f"the value is a {type(value).__name__}, and Bytes() publishes bytes alone"
            )
        return value


@dataclass(frozen=True)
class Text:
    """Text in UTF-8."""

    def deserialize(self, payload: bytes) -> str:
        """Return the text. Raises UnicodeDecodeError."""
        return payload.decode()

    def serialize(self, value: Any) -> bytes:
        """Return the value's text in UTF-8."""
        return str(value).encode()


@dataclass(frozen=True)
class Json:
    """JSON.

    Attributes:
        schema: the fields of a value, in Spark's notation: ``"customer STRING, amount DOUBLE"``. Fields outside
            the schema are left out, and missing fields are None. Without a schema a value has all of the JSON.
    """

    schema: str | None = None

    def deserialize(self, payload: bytes) -> Any:
        """Return dicts, lists, text, numbers, true, false or None. Raises ValueError."""
        return orjson.loads(payload)

    def serialize(self, value: Any) -> bytes:
        """Return the value as JSON; it may hold dataclasses and times. Raises TypeError."""
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
