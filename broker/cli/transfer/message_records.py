"""Messages as records of other formats: named fields, of which only ``payload`` is required."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from broker.model import MESSAGE_ID_BYTES, NO_HEADERS, Message

NO_ID: Final = bytes(MESSAGE_ID_BYTES)
"""The id of a message from a file; the broker gives it a real id when it is published."""


def size_of(message: Message) -> int:
    """Return a message's approximate size in memory, in bytes."""
    attributes = sum(len(name) + len(value) for name, value in message.headers.items())
    return len(message.payload) + len(message.key or b"") + attributes


def message_of(record: object) -> Message:
    """Return the message of a record; ``key`` and ``headers`` are optional. Raises ValueError."""
    if not isinstance(record, Mapping) or "payload" not in record:
        raise ValueError("has no field payload")
    key = record.get("key")
    headers = _headers(record.get("headers") or {})
    return Message(
        NO_ID,
        _bytes("payload", record["payload"]),
        None if key is None else _bytes("key", key),
        {name: _bytes(f"headers.{name}", value) for name, value in headers.items()} or NO_HEADERS,
    )


def _headers(value: object) -> Mapping[Any, object]:
    """Return headers by their names. Parquet's maps come as lists of pairs. Raises ValueError."""
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, list) or not all(isinstance(each, tuple) for each in value):
        raise ValueError("headers: is not a map of names and values")
    return dict(value)


def _bytes(name: str, value: object) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise ValueError(f"{name}: is neither bytes nor text")
