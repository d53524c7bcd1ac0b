"""What callers publish, as the request that the broker is sent: the one place that looks at their messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from broker.client.values import NewMessage, Payload, Publishable
from broker.model import NO_HEADERS, PublishRequest
from broker.wire import attributes

SINGLE: Final = (bytes, str, NewMessage)
"""The types of one message."""


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
    whole = [each if isinstance(each, NewMessage) else NewMessage(each) for each in several]
    encoded = [_attributes(each, key, headers) for each in whole]
    ttls_s = [each.ttl_s for each in whole]
    return PublishRequest(
        pointer,
        [payload_bytes(each.payload) for each in whole],
        attributes=encoded if any(encoded) else (),
        ttls_s=ttls_s if any(ttl_s is not None for ttl_s in ttls_s) else (),
    )


def _attributes(message: NewMessage, key: Payload | None, headers: Mapping[str, Payload]) -> bytes:
    """Return a message's key and headers, or else those that the call has for all, encoded."""
    own_key = key if message.key is None else message.key
    return attributes.encode(
        None if own_key is None else payload_bytes(own_key),
        {name: payload_bytes(value) for name, value in (message.headers or headers).items()},
    )
