"""The key and headers of a workload's message. They follow from its label, so any reader can check them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from broker.client import NewMessage
from broker.client.values import Publishable
from broker.model import NO_HEADERS

WITHOUT = 5
"""This many of eight messages have neither a key nor headers."""
RAW = "raw-"
"""The prefix of labels of plain-text messages, which have neither a key nor headers."""


def beside(label: str) -> tuple[bytes | None, Mapping[str, bytes]]:
    """Return the key and the headers of a label's message."""
    if label.startswith(RAW):
        return None, NO_HEADERS
    value = label.encode()
    kind = zlib.crc32(value) % 8
    key = value if kind in (WITHOUT, 7) else None
    return key, {"label": value, "none": b""} if kind in (6, 7) else NO_HEADERS


def message_of(label: str, payload: bytes) -> Publishable:
    """Return the message to publish for a label."""
    key, headers = beside(label)
    return payload if key is None and not headers else NewMessage(payload, key, headers)


def others(label: str, key: bytes | None, headers: Mapping[str, bytes]) -> list[str]:
    """Return the key and headers of a read message, as a history has them; nothing if they are correct."""
    wanted_key, wanted = beside(label)
    if key == wanted_key and dict(headers) == dict(wanted):
        return []
    return [f"key {key!r}, headers {dict(headers)!r}"]
