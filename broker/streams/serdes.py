"""Serdes: how the bytes of a message become a value, and a value bytes. Pure.

Any object with the methods of Serde is one. What ``deserialize`` raises makes its message a record that can't be
decoded. Json with a schema, Text and Bytes are decoded by Spark itself, as long as a stream's functions are SQL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import orjson

T = TypeVar("T")


class Serde(Protocol[T]):
    """Both directions. It travels to Spark's workers, so it must be picklable."""

    def deserialize(self, payload: bytes) -> T:
        """Return the value of a message. May raise anything."""
        ...

    def serialize(self, value: T) -> bytes | None:
        """Return the message of a value; None: nothing is published. May raise anything."""
        ...


@dataclass(frozen=True)
class Bytes:
    """The bytes as they are."""

    def deserialize(self, payload: bytes) -> bytes:
        """Return the payload."""
        return payload

    def serialize(self, value: bytes) -> bytes:
        """Return the value. Raises TypeError if it is no bytes."""
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
        """Return text as bytes; of other values, their text."""
        return str(value).encode()


@dataclass(frozen=True)
class Json:
    """JSON.

    Attributes:
        schema: what a value has, as Spark writes it: ``"customer STRING, amount DOUBLE"``. Fields that are not in
            it are left out, those that are missing are None. Without it a value is whatever the JSON says.
    """

    schema: str | None = None

    def deserialize(self, payload: bytes) -> Any:
        """Return dicts, lists, text, numbers, true, false or None. Raises ValueError."""
        return orjson.loads(payload)

    def serialize(self, value: Any) -> bytes:
        """Return JSON; dataclasses and times are written, too. Raises TypeError."""
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
