"""Turn the messages of a caller into a publish request. Only this module checks their types.

Several messages are given as a list or a tuple. No other iterable is accepted: a dict would publish its names, a
bytearray its numbers, and a received message its id and its payload, all without an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from broker.client.values import NewMessage, Payload, Publishable, shown
from broker.errors import BadRequest
from broker.model import NO_HEADERS, Message, PublishRequest
from broker.operations.scalars import TTL_MAX_S
from broker.wire import attributes

SINGLE: Final = (bytes, str, NewMessage)
"""The types of one message."""


class EncodedMessage(NamedTuple):
    """One message as it is sent: its payload, its encoded key and headers, and how many seconds it lives."""

    payload: bytes
    attributes: bytes = b""
    ttl_s: int | None = None

    @property
    def size(self) -> int:
        """The size that queues count for it, in bytes."""
        return len(self.payload) + len(self.attributes)


def payload_bytes(payload: Payload, name: str = "message", place: int | None = None) -> bytes:
    """Return the bytes of a payload; text becomes UTF-8.

    Args:
        payload: the payload from the caller.
        name: the caller's name for it, for errors.
        place: its index in a list, for errors.

    Raises:
        TypeError: it is neither bytes nor text.
        BadRequest: it is text that UTF-8 can't encode, such as half of a surrogate pair.
    """
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, str):
        try:
            return payload.encode()
        except UnicodeEncodeError:
            where = name if place is None else f"{name}[{place}]"
            raise BadRequest(
                f"{where}: is not valid Unicode text; give its bytes instead."
            ) from None
    raise _no_message(name if place is None else f"{name}[{place}]", payload, "bytes or text")


def request_of(
    messages: Publishable | Sequence[Publishable],
    *,
    pointer: int | None = None,
    key: Payload | None = None,
    headers: Mapping[str, Payload] = NO_HEADERS,
) -> PublishRequest:
    """Return one or several messages as a request.

    ``key`` and ``headers`` apply to the messages that have none of their own.

    Raises:
        TypeError: they are not messages; the error says which one, and what to give instead.
        BadRequest: there is no message, or a message has too many headers, or too large ones.
    """
    found = several(messages)
    if key is None and not headers and not any(isinstance(each, NewMessage) for each in found):
        payloads = [payload_bytes(each, "messages", at) for at, each in enumerate(found)]  # type: ignore[arg-type]
        return PublishRequest(pointer, payloads)
    parts = [
        parts_of(each, key=key, headers=headers, name="messages", place=at)
        for at, each in enumerate(found)
    ]
    return joined(parts)._replace(pointer=pointer)


def parts_of(
    message: Publishable,
    *,
    key: Payload | None = None,
    headers: Mapping[str, Payload] = NO_HEADERS,
    name: str = "message",
    place: int | None = None,
) -> EncodedMessage:
    """Return one message in its encoded form; ``name`` and ``place`` as for ``payload_bytes``.

    Raises:
        TypeError, BadRequest: as ``request_of`` does.
    """
    whole = message if isinstance(message, NewMessage) else NewMessage(message)
    where = name if place is None else f"{name}[{place}]"
    payload = payload_bytes(whole.payload, where)
    own_key = key if whole.key is None else whole.key
    own_headers = whole.headers or headers
    if not isinstance(own_headers, Mapping):
        raise _refused(where, "headers", own_headers, "a dict from names to bytes or text")
    encoded = attributes.encode(
        None if own_key is None else _value_bytes(where, "key", own_key),
        {
            _name(where, header): _value_bytes(where, f"header {header!a:.80}", value)
            for header, value in own_headers.items()
        },
    )
    return EncodedMessage(payload, encoded, _life(where, whole.ttl_s))


def with_life(parts: list[EncodedMessage], ttl_s: int | None) -> list[EncodedMessage]:
    """Give a lifetime to those messages that have none of their own. Raises TypeError, BadRequest: it is not valid."""
    if _life("messages", ttl_s) is None:
        return parts
    return [part if part.ttl_s is not None else part._replace(ttl_s=ttl_s) for part in parts]


def joined(parts: Sequence[EncodedMessage]) -> PublishRequest:
    """Return encoded messages as one request."""
    encoded = [each.attributes for each in parts]
    ttls_s = [each.ttl_s for each in parts]
    return PublishRequest(
        None,
        [each.payload for each in parts],
        attributes=encoded if any(encoded) else (),
        ttls_s=ttls_s if any(ttl_s is not None for ttl_s in ttls_s) else (),
    )


def several(messages: Publishable | Sequence[Publishable]) -> Sequence[Publishable]:
    """Return one or several messages as a sequence. Raises TypeError, BadRequest."""
    if isinstance(messages, SINGLE):
        return [messages]
    if not isinstance(messages, list | tuple) or hasattr(messages, "_fields"):
        wanted = "bytes or text, a NewMessage, or a list or tuple of these"
        raise _no_message("messages", messages, wanted)
    if not messages:
        raise BadRequest(
            "messages: the list is empty. To publish messages stored in a transaction, call publish_stored."
        )
    return messages


def _name(where: str, name: str) -> str:
    if isinstance(name, str):
        return name
    raise _refused(where, "the name of a header", name, "text")


def _value_bytes(where: str, part: str, value: Payload) -> bytes:
    if isinstance(value, bytes | str):
        return payload_bytes(value, f"{where}, {part}")
    raise _refused(where, part, value, "bytes or text")


def _life(where: str, ttl_s: int | None) -> int | None:
    if ttl_s is not None and (isinstance(ttl_s, bool) or not isinstance(ttl_s, int)):
        raise _refused(where, "ttl_s", ttl_s, "whole seconds, or None")
    if ttl_s is not None and not 1 <= ttl_s <= TTL_MAX_S:
        raise BadRequest(f"{where}, ttl_s: give 1 to {TTL_MAX_S} seconds, not {ttl_s}.")
    return ttl_s


def _refused(where: str, part: str, value: Any, wanted: str) -> TypeError:
    return TypeError(f"{where}, {part}: give {wanted}, not {shown(value)}.")


def _no_message(name: str, value: Any, wanted: str) -> TypeError:
    return TypeError(f"{name}: give {wanted}, not {shown(value)}.{_advice(value)}")


def _advice(value: Any) -> str:
    if isinstance(value, Message):
        return " To publish a message again: NewMessage(it.payload, it.key, it.headers)."
    if isinstance(value, bytearray | memoryview):
        return " bytes(…) of it is one message."
    if value is None:
        return ""
    if isinstance(value, list | tuple | Mapping):
        return " json.dumps(…) of it is one message."
    if isinstance(value, Iterable):
        return " list(…) of it is several messages."
    return " str(…) of it, or json.dumps(…), is one message."
