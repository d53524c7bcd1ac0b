"""What callers publish, as the request that the broker is sent: the one place that looks at their messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from broker.client.values import NewMessage, Payload, Publishable
from broker.model import NO_HEADERS, PublishRequest
from broker.wire import attributes

SINGLE: Final = (bytes, str, NewMessage)
"""The types of one message."""


class Parts(NamedTuple):
    """One message as it travels: its payload, its key and headers, encoded, and how many seconds it lives."""

    payload: bytes
    attributes: bytes = b""
    ttl_s: int | None = None

    @property
    def size(self) -> int:
        """How many bytes it counts for in queues."""
        return len(self.payload) + len(self.attributes)


def payload_bytes(payload: Payload) -> bytes:
    """Return the bytes of a payload; text travels as UTF-8."""
    return payload.encode() if isinstance(payload, str) else payload


def request_of(
    messages: Publishable | Sequence[Publishable],
    *,
    pointer: int | None = None,
    key: Payload | None = None,
    headers: Mapping[str, Payload] = NO_HEADERS,
) -> PublishRequest:
    """Return one message, or several, as a request.

    ``key`` and ``headers`` are those of the messages that have none of their own.

    Raises:
        BadRequest: the headers of a message are too many, or too large.
    """
    several: Sequence[Publishable] = [messages] if isinstance(messages, SINGLE) else messages
    if key is None and not headers and not any(isinstance(each, NewMessage) for each in several):
        return PublishRequest(pointer, [payload_bytes(each) for each in several])  # type: ignore[arg-type]
    parts = [parts_of(each, key=key, headers=headers) for each in several]
    return joined(parts)._replace(pointer=pointer)


def parts_of(
    message: Publishable, *, key: Payload | None = None, headers: Mapping[str, Payload] = NO_HEADERS
) -> Parts:
    """Return one message as it travels. Raises as ``request_of`` does."""
    whole = message if isinstance(message, NewMessage) else NewMessage(message)
    own_key = key if whole.key is None else whole.key
    encoded = attributes.encode(
        None if own_key is None else payload_bytes(own_key),
        {name: payload_bytes(value) for name, value in (whole.headers or headers).items()},
    )
    return Parts(payload_bytes(whole.payload), encoded, whole.ttl_s)


def joined(parts: Sequence[Parts]) -> PublishRequest:
    """Return messages as one request."""
    encoded = [each.attributes for each in parts]
    ttls_s = [each.ttl_s for each in parts]
    return PublishRequest(
        None,
        [each.payload for each in parts],
        attributes=encoded if any(encoded) else (),
        ttls_s=ttls_s if any(ttl_s is not None for ttl_s in ttls_s) else (),
    )
