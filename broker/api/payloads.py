"""Bytes inside JSON, payloads, keys and headers: as text where they are text, else in base64."""

from __future__ import annotations

import base64
import codecs
from collections.abc import Mapping
from typing import Any, NamedTuple


class ShownPayload(NamedTuple):
    """What stands in the JSON; ``truncated`` if it is not all."""

    encoding: str
    text: str
    truncated: bool


_UTF8 = codecs.getincrementaldecoder("utf-8")


def shown(payload: bytes, bytes_max: int | None = None) -> ShownPayload:
    """Return at most ``bytes_max`` bytes of a payload as text, if they are UTF-8, or as base64.

    A cut never goes through the middle of a character.
    """
    truncated = bytes_max is not None and len(payload) > bytes_max
    part = payload[:bytes_max] if truncated else payload
    try:
        text = _UTF8().decode(part, final=not truncated)
    except UnicodeDecodeError:
        return ShownPayload("base64", base64.b64encode(part).decode("ascii"), truncated)
    return ShownPayload("text", text, truncated)


def shown_beside(key: bytes | None, headers: Mapping[str, bytes]) -> dict[str, Any]:
    """Return what a message has beside its payload: ``key``, null if it has none, and ``headers``."""
    return {
        "key": None if key is None else _value(key),
        "headers": {name: _value(value) for name, value in headers.items()},
    }


def _value(value: bytes) -> str | dict[str, str]:
    """Return bytes as text, if they are UTF-8, or as ``{"base64": …}``."""
    whole = shown(value)
    return whole.text if whole.encoding == "text" else {"base64": whole.text}
