"""The content types that a body may have, and the error for all others.

For ``avro/binary`` this module follows the original, which takes exactly that text: no parameters, no other
case. All other types are read as HTTP says: without regard to case, and with parameters.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from broker.errors import BadRequest
from broker.http.reply import media_type
from broker.operations.media_types import AVRO, AVRO_JSON, JSON, MESSAGES


class BodyType(enum.Enum):
    """How to read a body."""

    AVRO = AVRO
    MESSAGES = MESSAGES
    AVRO_JSON = AVRO_JSON
    JSON = JSON
    RAW = "text/plain"


JSON_BYTES_MAX: Final = 32 * 1024 * 1024
"""The largest body in JSON. Without it, a small compressed body could inflate to a very large text that the broker
then refuses."""
KEPT: Final = frozenset({"create_topic", "update_topic"})
"""The routes whose bodies a node keeps in memory."""
_RAW = ("text/plain", "application/octet-stream")
_JSONS = (JSON, AVRO_JSON)


def check_coding(headers: Mapping[str, str], route: str) -> None:
    """Refuse a compressed body of a route that keeps the body: a small request would take much memory for ever.

    Raises:
        BadRequest: the body is compressed.
    """
    if route in KEPT and headers.get("Content-Encoding", "identity").lower() != "identity":
        raise BadRequest("Properties can't be compressed. Send them without Content-Encoding.")


def bytes_max(headers: Mapping[str, str], most: int | None) -> int | None:
    """Return how many bytes an inflated body may have. ``most`` is the limit of the route."""
    if headers.get("Content-Type") == AVRO or media_type(headers) not in _JSONS:
        return most
    return JSON_BYTES_MAX if most is None else min(most, JSON_BYTES_MAX)


def body_type(headers: Mapping[str, str], *, raw: bool = False, writes: bool = False) -> BodyType:
    """Return how to read the body. Raises BadRequest for any other type.

    Args:
        headers: the request's headers.
        raw: True if the route takes a body that is one message, as raw bytes.
        writes: True if the body carries messages to publish; these may have keys and headers.
    """
    sent = headers.get("Content-Type", "")
    if sent == AVRO:
        return BodyType.AVRO
    if sent == MESSAGES and writes:
        return BodyType.MESSAGES
    named = media_type(headers)
    if named in _JSONS:
        return BodyType(named)
    if raw and named in _RAW:
        return BodyType.RAW
    also = f" {JSON} and {AVRO_JSON} are read, too"
    also += f", and {' or '.join(_RAW)} as one message." if raw else "."
    raise BadRequest(
        f"Only {AVRO} content type is supported, not {sent!a:.80}. "
        f'Add the header "Content-Type: {AVRO}".{also}'
    )
