"""Which types a body may have, and the error that tells what to add.

The original takes exactly ``avro/binary``, no parameters, no other case. Its word stands for that type;
ours are the common ones, read as the world reads them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from broker.errors import BadRequest
from broker.http.reply import AVRO, AVRO_JSON, JSON, MESSAGES, media_type


class BodyType(enum.Enum):
    """How a body is to be read."""

    AVRO = AVRO
    MESSAGES = MESSAGES
    AVRO_JSON = AVRO_JSON
    JSON = JSON
    RAW = "text/plain"


JSON_BYTES_MAX: Final = 32 * 1024 * 1024
"""The largest body in JSON. Text that compresses well would else inflate to much that is then refused."""
_RAW = ("text/plain", "application/octet-stream")
_JSONS = (JSON, AVRO_JSON)


def bytes_max(headers: Mapping[str, str], most: int | None) -> int | None:
    """Return how many bytes a body of its type may have, inflated, where its route takes ``most``."""
    if headers.get("Content-Type") == AVRO or media_type(headers) not in _JSONS:
        return most
    return JSON_BYTES_MAX if most is None else min(most, JSON_BYTES_MAX)


def body_type(headers: Mapping[str, str], *, raw: bool = False, writes: bool = False) -> BodyType:
    """Return how to read the body. Raises BadRequest for a type that is not read.

    Args:
        headers: the request's.
        raw: whether a body may be one message as it is.
        writes: whether a body has messages, which may have keys and headers.
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
