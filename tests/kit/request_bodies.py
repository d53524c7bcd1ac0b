"""Bodies of requests: written in Avro's JSON encoding, and read at once in any encoding."""

from __future__ import annotations

import json
from types import ModuleType

from broker.model import Poll, PublishRequest
from broker.wire.transaction import encode_transaction


def publish_in_avro_json(request: PublishRequest) -> bytes:
    """Return the body of a publish or a store."""
    return _dump(
        {
            "transactionWritePointer": _union("long", request.pointer),
            "messages": [_text(payload) for payload in request.payloads],
        }
    )


def poll_in_avro_json(poll: Poll) -> bytes:
    """Return the body of a poll."""
    if isinstance(poll.start, bytes):
        start = _union("bytes", _text(poll.start))
    else:
        start = _union("long", poll.start)
    snapshot = None if poll.snapshot is None else _text(encode_transaction(poll.snapshot))
    return _dump(
        {
            "startFrom": start,
            "inclusive": poll.inclusive,
            "limit": _union("int", poll.limit),
            "transaction": _union("bytes", snapshot),
        }
    )


def read_publish(codec: ModuleType, body: bytes, messages_max: int = 1_000_000) -> PublishRequest:
    """Read the body of a publish or a store with the codec of its content type."""
    read: PublishRequest = codec.decode_publish_request(body, messages_max=messages_max)
    return read


def read_poll(codec: ModuleType, body: bytes) -> Poll:
    """Read the body of a poll with the codec of its content type."""
    read: Poll = codec.decode_poll(body)
    return read


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _text(value: bytes) -> str:
    return value.decode("latin-1")


def _union(branch: str, value: object) -> object:
    return None if value is None else {branch: value}
