r"""The same four records in Avro's JSON encoding, ``avro/json``, for clients that have Avro's tools.

::

    publish    {"transactionWritePointer": {"long": 1}, "messages": ["a", "b"]}
    answer     {"transactionWritePointer": {"long": 1}, "rollbackRange": {
                "startTimestamp": 1480000000000, "startSequenceId": 2,
                "endTimestamp": 1480000000000, "endSequenceId": 3}}
    poll       {"startFrom": {"long": 0}, "inclusive": true, "limit": {"int": 10},
                "transaction": null}
    reply      [{"id": "...", "payload": "a"}]

A byte string is a string of the code points 0 to 255, one for each byte. Text beyond ASCII has to be
encoded first (the two bytes of e-acute in UTF-8 are ``"\u00c3\u00a9"``). The writers write the full
form. The readers also accept a body that leaves out fields that can be null (and ``inclusive``), or has
the bare value instead of a union's object with the type's name. They refuse unknown names, because
these are probably typing errors.

Readers raise BadRequest with the field's name; TooManyMessages as the binary reader does.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from broker.errors import BadRequest, TooManyMessages
from broker.model import (
    MessageId,
    Poll,
    PublishRequest,
    RollbackRange,
    ShownMessage,
    unpack_log_key,
)
from broker.operations.media_types import AVRO_JSON
from broker.wire import Take, free
from broker.wire.avro import (
    checked_limit,
    checked_log_key,
    checked_message_id,
    checked_time,
)
from broker.wire.jsonlist import read_list
from broker.wire.jsontext import parse, read_long
from broker.wire.transaction import decode_transaction
from broker.wire.varint import INT_MAX, LONG_MAX

CONTENT_TYPE: Final = AVRO_JSON

ROLLBACK_BYTES_MAX: Final = 64 * 1024
"""The longest answer to a publish that is read."""
PART_BYTES: Final = 36 * 1024
"""A larger payload is encoded part by part, each of so many bytes. In JSON, a part of control characters or of bytes
beyond ASCII takes six times as many. It is a multiple of 3, as base64 needs."""
_PUBLISH: Final = ("transactionWritePointer", "messages")
_COMPACT = json.JSONEncoder(separators=(",", ":"))
_Value = TypeVar("_Value")


def decode_publish_request(body: bytes, *, messages_max: int, take: Take = free) -> PublishRequest:
    """Read the body of a publish or a store. Raises BadRequest, BodyTooLarge, TooManyMessages."""
    payloads: list[bytes] = []

    def add(messages: list[Any]) -> None:
        if len(payloads) + len(messages) > messages_max:
            raise TooManyMessages(
                f"messages: a request may have {messages_max} messages, not more."
            )
        take(len(messages))
        payloads.extend([_bytes("messages", message) for message in messages])

    def check_name(name: str) -> None:
        _refuse_unknown((name,), _PUBLISH)

    value = read_list(body, "messages", add, check_name)
    record = _check_record(value, _PUBLISH)
    pointer = _pointer(record)
    if not isinstance(record.get("messages"), list):
        raise BadRequest("messages: a list of strings is needed.")
    return PublishRequest(pointer, payloads)


def encode_publish_response(span: RollbackRange) -> bytes:
    """Return the answer to a transactional publish, which is also the body of its rollback."""
    first_ms, first_seq = unpack_log_key(span.first)
    last_ms, last_seq = unpack_log_key(span.last)
    return _dump(
        {
            "transactionWritePointer": {"long": span.pointer},
            "rollbackRange": {
                "startTimestamp": first_ms,
                "startSequenceId": first_seq,
                "endTimestamp": last_ms,
                "endSequenceId": last_seq,
            },
        }
    )


def decode_publish_response(body: bytes) -> RollbackRange:
    """Read the answer to a transactional publish. Raises BadRequest, also if it has no pointer."""
    value = parse(body, bytes_max=ROLLBACK_BYTES_MAX)
    record = _check_record(value, ("transactionWritePointer", "rollbackRange"))
    pointer = _pointer(record)
    if pointer is None:
        raise BadRequest("transactionWritePointer: a rollback needs a write pointer, not null.")
    span = record.get("rollbackRange")
    names = ("startTimestamp", "startSequenceId", "endTimestamp", "endSequenceId")
    if not isinstance(span, dict):
        raise BadRequest(f"rollbackRange: an object with {', '.join(names)} is needed.")
    _refuse_unknown(span, names)
    ends = [
        checked_log_key(
            _long(f"{end}Timestamp", span.get(f"{end}Timestamp")),
            _int(f"{end}SequenceId", span.get(f"{end}SequenceId")),
            end,
        )
        for end in ("start", "end")
    ]
    return RollbackRange(pointer, *ends)


def decode_poll(body: bytes, *, take: Take = free) -> Poll:
    """Read the body of a poll. It calls ``take`` for the snapshot's pointers.

    Raises:
        BadRequest: the body can't be read.
        BodyTooLarge: it is longer than ``jsontext.BYTES_MAX``.
    """
    value = parse(body)
    record = _check_record(value, ("startFrom", "inclusive", "limit", "transaction"))
    start = _optional(record, "startFrom", {"bytes": _start_id, "long": _start_time})
    inclusive = record.get("inclusive", True)
    if not isinstance(inclusive, bool):
        raise BadRequest("inclusive: true or false is needed.")
    limit = _optional(record, "limit", {"int": _int})
    transaction = _optional(record, "transaction", {"bytes": _bytes})
    snapshot = None if transaction is None else decode_transaction(transaction, take=take)
    return Poll(
        start=start,
        inclusive=inclusive,
        limit=None if limit is None else checked_limit(limit),
        snapshot=snapshot,
    )


def encode_items(messages: Sequence[ShownMessage]) -> bytes:
    """Return messages as JSON objects with commas between them.

    A reply is ``[``, any number of such non-empty results with commas between them, and ``]``.
    """
    return _dump(
        [{"id": _text(message.id), "payload": _text(message.payload)} for message in messages]
    )[1:-1]


async def item_in_pieces(message: ShownMessage) -> AsyncIterator[bytes]:
    """Yield one message as the same JSON object, part by part."""
    yield _dump({"id": _text(message.id)})[:-1] + b',"payload":"'
    payload = message.payload
    for at in range(0, len(payload), PART_BYTES):
        yield _dump(_text(payload[at : at + PART_BYTES]))[1:-1]
    yield b'"}'


def _dump(value: object) -> bytes:
    return _COMPACT.encode(value).encode("ascii")


def _text(value: bytes | memoryview) -> str:
    return str(value, "latin-1")


def _check_record(record: object, names: Sequence[str]) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise BadRequest(f"The body must be a JSON object with {', '.join(names)}.")
    _refuse_unknown(record, names)
    return record


def _refuse_unknown(given: Iterable[str], names: Sequence[str]) -> None:
    for name in given:
        if name not in names:
            raise BadRequest(f"{name!a:.80}: there is no such field; there are {', '.join(names)}.")


def _optional(
    record: dict[str, Any], field: str, branches: Mapping[str, Callable[[str, Any], _Value]]
) -> _Value | None:
    """Read a union of null and ``branches``, wrapped in an object or bare.

    The type of a bare value selects the branch: a string is bytes, a number is a number.
    """
    value = record.get(field)
    if value is None:
        return None
    if isinstance(value, dict):
        branch, bare = next(iter(value.items()), ("", None))
        if len(value) != 1 or branch not in branches:
            raise BadRequest(f"{field}: an object with one of {', '.join(branches)} is needed.")
        return branches[branch](field, bare)
    is_text = isinstance(value, str)
    for branch, read in branches.items():
        if is_text == (branch == "bytes"):
            return read(field, value)
    raise BadRequest(f"{field}: {' or '.join(branches)} or null is needed.")


def integer(field: str, value: object, value_max: int) -> int:
    """Return a whole number within the given range. Raises BadRequest."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRequest(f"{field}: a whole number is needed.")
    if not -value_max - 1 <= value <= value_max:
        raise BadRequest(
            f"{field}: the number does not fit into {value_max.bit_length() + 1} bits."
        )
    return value


def _long(field: str, value: object) -> int:
    return integer(field, value, LONG_MAX)


def _pointer(record: dict[str, Any]) -> int | None:
    """Return the write pointer: a number, which Avro's tools write exactly, or a string of digits."""
    field = "transactionWritePointer"
    value = record.get(field)
    if isinstance(value, dict) and set(value) == {"long"}:
        value = value["long"]
    if isinstance(value, str):
        return read_long(field, value)
    return _optional(record, field, {"long": _long})


def _int(field: str, value: object) -> int:
    return integer(field, value, INT_MAX)


def _bytes(field: str, value: object) -> bytes:
    if not isinstance(value, str):
        raise BadRequest(f"{field}: a string is needed.")
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError:
        raise BadRequest(
            f"{field}: bytes are written as a string of the code points 0 to 255, one for each "
            "byte; this one has others. Encode the text first, or use application/json."
        ) from None


def _start_id(field: str, value: object) -> MessageId | int:
    return checked_message_id(_bytes(field, value))


def _start_time(field: str, value: object) -> MessageId | int:
    return checked_time(_long(field, value))
