"""Read and write ``application/json``, the form for people, of publish, store, rollback and poll.

::

    publish    {"messages": ["café", {"base64": "/w=="}, {"json": {"id": 7}}, {"value": "x", "key": "k", "ttl": 60,
                "headers": {"trace": "7f"}}], "write_pointer": "17"}
    answer     {"first_id": "…", "last_id": "…", "count": 3, "replayed": false, "write_pointer": "17"}
    rollback   the answer of the publish
    poll       {"start": "2026-11-20T12:00:00Z", "inclusive": true, "limit": 10, "snapshot": …}
    reply      [{"id": "…", "time": "…", "timestamp_ms": 1, "encoding": "text", "payload": "café",
                "key": null, "headers": {}}]

A string stands for its bytes in UTF-8. Bytes that are not UTF-8 are ``{"base64": "…"}``. A publish without a write
pointer may be the list alone, or one message alone. Ids are 40 hex digits in both directions.

An unknown field name is refused, since it is probably a typing error; the error suggests the right name. Avro's
field names are refused, too: Avro's JSON encoding has its own content type (wire/avrojson.py). Readers raise
BadRequest, whose message begins with the place of the error, like ``messages[3].headers.a: …``.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from broker.api import asked
from broker.api.asked import parse_place
from broker.api.messages.message_list import ShownParts, form_of, parts_of_message
from broker.errors import BadRequest, TooManyMessages
from broker.model import (
    LOG_KEY_BYTES,
    NO_HEADERS,
    LogKey,
    Poll,
    PublishRequest,
    RollbackRange,
    ShownMessage,
    Snapshot,
    message_id_from_hex,
)
from broker.moments import checked_ms, rfc3339, whole_s
from broker.operations.replies import PublishResult
from broker.operations.scalars import TTL_MAX_S
from broker.operations.sent import MessageSent, MessagesSent, PollRequest, RollbackRequest
from broker.operations.shapes import fields_of
from broker.places import Place
from broker.topics.settings import PublishedIds
from broker.wire import Take, attributes, avrojson, free
from broker.wire.jsonlist import read_list
from broker.wire.jsontext import encode_json, parse, read_long
from broker.wire.transaction import decode_snapshot
from broker.wire.varint import INT_MAX

ROLLBACK_BYTES_MAX: Final = 64 * 1024
"""The longest body of a rollback."""

_PUBLISH = tuple(fields_of(MessagesSent))
_MESSAGE = tuple(fields_of(MessageSent))
_ALONE = ("base64", "json")
"""The field of a message, or of a value, that has no other field beside it."""
_PUBLISH_OR_MESSAGE = (*_PUBLISH, *_MESSAGE, *_ALONE)
_A_VALUE = 'text, or {"base64": "…"}'

# --- Publishing -----------------------------------------------------------------------------------


def decode_publish_request(body: bytes, *, messages_max: int, take: Take = free) -> PublishRequest:
    """Read the body of a publish or a store. Raises BadRequest, BodyTooLarge, TooManyMessages."""
    read = _Messages(messages_max, take)
    value = read_list(body, "messages", read.add, _check_name)
    pointer = None
    if isinstance(value, list):
        pass
    elif isinstance(value, str) or (isinstance(value, dict) and _is_one_message(value)):
        read.alone(value)
    elif isinstance(value, dict):
        asked.refuse_unknown(value, _PUBLISH)
        pointer = _pointer(value.get("write_pointer"))
        if not isinstance(value.get("messages"), list):
            raise BadRequest("messages: must be a list of messages.")
    else:
        raise BadRequest(
            'The body must be an object {"messages": […]}, a list of messages, or one message.'
        )
    return read.request(pointer)


def _check_name(name: str) -> None:
    asked.refuse_unknown((name,), _PUBLISH_OR_MESSAGE)


def _is_one_message(value: Mapping[str, Any]) -> bool:
    return "messages" not in value and not value.keys().isdisjoint(("value", *_ALONE))


class _Messages:
    """Collects the messages of a publish or a store while the body is read."""

    def __init__(self, messages_max: int, take: Take) -> None:
        self._messages_max = messages_max
        self._take = take
        self._payloads: list[bytes] = []
        self._attributes: list[bytes] = []
        self._ttls_s: list[int | None] = []

    def add(self, messages: Sequence[Any]) -> None:
        """Read some messages of the list. Raises BadRequest, TooManyMessages, and the errors of ``take``."""
        before = len(self._payloads)
        if before + len(messages) > self._messages_max:
            raise TooManyMessages(
                f"messages: a request may have at most {self._messages_max} messages."
            )
        self._take(len(messages))
        if {*map(type, messages)} == {str}:
            self._add_texts(messages)
            return
        for place, message in enumerate(messages, before):
            if isinstance(message, dict):
                self._add_object(f"messages[{place}]", message)
            else:
                self._add(_bytes("messages", place, message), b"", None)

    def alone(self, message: str | Mapping[str, Any]) -> None:
        """Read the only message of a body."""
        if isinstance(message, str):
            self.add([message])
        else:
            self._take(1)
            self._add_object("the message", message)

    def request(self, pointer: int | None) -> PublishRequest:
        """Return the request with all messages read."""
        return PublishRequest(
            pointer,
            self._payloads,
            attributes=self._attributes if any(self._attributes) else (),
            ttls_s=self._ttls_s if any(self._ttls_s) else (),
        )

    def _add_texts(self, texts: Sequence[str]) -> None:
        before, count = len(self._payloads), len(texts)
        self._payloads += [
            _bytes("messages", place, text) for place, text in enumerate(texts, before)
        ]
        self._attributes += [b""] * count
        self._ttls_s += [None] * count

    def _add_object(self, where: str, message: Mapping[str, Any]) -> None:
        try:
            self._add(*_message(message))
        except BadRequest as error:
            raise BadRequest(f"{where}{error.message}") from error

    def _add(self, payload: bytes, attributes_: bytes, ttl_s: int | None) -> None:
        self._payloads.append(payload)
        self._attributes.append(attributes_)
        self._ttls_s.append(ttl_s)


def _message(message: Mapping[str, Any]) -> tuple[bytes, bytes, int | None]:
    """Return a message's payload, its attributes, and its ttl in seconds.

    Raises:
        BadRequest: a field is wrong. The error begins with the place in the message, like ``.headers.a: …``.
    """
    if not message.keys().isdisjoint(_ALONE):
        return _payload_of("", message), b"", None
    asked.refuse_unknown(message, _MESSAGE, ": ")
    if "value" not in message:
        raise BadRequest(f'.value: is missing; it must be {_A_VALUE}, or {{"json": …}}.')
    payload = _payload_of(".value", message["value"])
    key, headers = message.get("key"), message.get("headers")
    key = None if key is None else _bytes_of(".key", key)
    encoded = b"" if key is None and headers is None else _attributes(key, headers)
    return payload, encoded, _ttl_s(".ttl", message.get("ttl"))


def _payload_of(where: str, value: object) -> bytes:
    """Return the payload of a value: text, ``{"base64": …}``, or the compact text of ``{"json": …}``."""
    if not isinstance(value, dict) or "json" not in value:
        return _bytes_of(where, value)
    if len(value) > 1:
        raise BadRequest(
            f'{where}: no other field may stand beside json. Put them one level up: {{"value": {{"json": …}}, …}}.'
        )
    return encode_json(value["json"], f"{where}.json")


def _attributes(key: bytes | None, headers: object) -> bytes:
    if headers is None:
        return attributes.encode(key, NO_HEADERS)
    if not isinstance(headers, dict):
        raise BadRequest(".headers: must be an object of names and values.")
    values = {name: _bytes_of(f".headers.{name:.80}", value) for name, value in headers.items()}
    try:
        return attributes.encode(key, values)
    except BadRequest as error:
        raise BadRequest(f".{error.message}") from error


def _bytes(field: str, place: int, value: object) -> bytes:
    """Return the same as ``_bytes_of``, but format the place only for an error, which is faster."""
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            pass
    return _bytes_of(f"{field}[{place}]", value)


def _bytes_of(where: str, value: object) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise BadRequest(
                f"{where}: is not valid Unicode text; send its bytes as base64."
            ) from None
    if isinstance(value, dict) and "base64" in value:
        if len(value) > 1:
            raise BadRequest(
                f'{where}: no other field may stand beside base64. Put them one level up: {{"value": {{"base64": "…"}}, …}}.'
            )
        return _decode_base64(f"{where}.base64", value["base64"])
    if value is None:
        raise BadRequest(f"{where}: must be {_A_VALUE}, not null.")
    raise BadRequest(
        f'{where}: must be {_A_VALUE}. To send a JSON value as a message, send {{"json": …}}, or a body of text/plain.'
    )


def _decode_base64(where: str, value: object) -> bytes:
    if not isinstance(value, str):
        raise BadRequest(f"{where}: must be a string.")
    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except ValueError as error:
        raise BadRequest(f"{where}: is not base64: {error}.") from None


def _ttl_s(where: str, value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = whole_s(value)
        except ValueError as error:
            raise BadRequest(f"{where}: {error}") from None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= TTL_MAX_S:
        raise BadRequest(
            f"{where}: must be whole seconds from 1 to {TTL_MAX_S}, or text such as 1d, not {value!a:.80}."
        )
    return value


def _pointer(value: object) -> int | None:
    return None if value is None else read_long("write_pointer", value)


def encode_published(published: PublishedIds) -> bytes:
    """Return the answer of a publish. If it has a write pointer, it is also the body of the rollback."""
    known = published.is_known
    told = PublishResult(
        first_id=asked.shown_id(published.first) if known else None,
        last_id=asked.shown_id(published.last) if known else None,
        count=published.messages,
        replayed=published.replayed,
    )
    if published.pointer is not None:
        told["write_pointer"] = str(published.pointer)
    return orjson.dumps(told)


# --- Rolling back ---------------------------------------------------------------------------------


def decode_rollback(body: bytes) -> RollbackRange:
    """Read the answer of a transactional publish. Raises BadRequest."""
    sent: RollbackRequest = asked.read_small(body, RollbackRequest, bytes_max=ROLLBACK_BYTES_MAX)
    pointer = read_long("write_pointer", sent["write_pointer"])
    return RollbackRange(
        pointer, _row("first_id", sent["first_id"]), _row("last_id", sent["last_id"])
    )


def _row(name: str, text: str) -> LogKey:
    try:
        return message_id_from_hex(text)[:LOG_KEY_BYTES]
    except BadRequest as error:
        raise BadRequest(f"{name}: {error.message}") from error


# --- Polling --------------------------------------------------------------------------------------


def decode_poll(body: bytes, *, take: Take = free) -> Poll:
    """Read the body of a poll. ``take`` counts the snapshot's pointers. Raises BadRequest, BodyTooLarge."""
    sent: PollRequest = asked.checked(parse(body), PollRequest)
    limit = sent.get("limit")
    if limit is not None and avrojson.integer("limit", limit, INT_MAX) < 1:
        raise BadRequest(f"limit: must be at least 1, not {limit}.")
    place, snapshot = _start(sent.get("start")), None
    if (given := sent.get("snapshot")) is not None:
        snapshot = _snapshot(given, take)
    start, generation = place if isinstance(place, Place) else (place, None)
    return Poll(start, sent.get("inclusive", True), limit, snapshot, generation)


def _snapshot(value: object, take: Take) -> Snapshot:
    try:
        return decode_snapshot(value, take=take)
    except BadRequest as error:
        raise BadRequest(f"snapshot: {error.message.removeprefix('snapshot: ')}") from error


def _start(value: str | int | None) -> Place | int | None:
    if value is None:
        return None
    if isinstance(value, str):
        return parse_place("start", value)
    try:
        return checked_ms(value)
    except ValueError as error:
        raise BadRequest(f"start: {error}") from None


def _polled(message: ShownMessage) -> ShownParts:
    time_ms = message.timestamp_ms
    place = {"id": message.id.hex(), "time": rfc3339(time_ms), "timestamp_ms": time_ms}
    return parts_of_message(place, message)


POLLED: Final = form_of(_polled)
"""The form of the messages of a reply."""
