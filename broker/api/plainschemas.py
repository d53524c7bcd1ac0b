"""The schemas of the JSON that ``plainjson`` reads and writes."""

from __future__ import annotations

from typing import Final

from broker.api.json_schemas import (
    LONG,
    LONG_SENT,
    MOMENT,
    SHOWN_BYTES,
    SNAPSHOT,
    array,
    nullable,
    partly,
    record,
)
from broker.operations.operation import BOOLEAN, INTEGER, MESSAGE_ID, STRING, TTL_SENT, Schema

_BASE64 = record(base64={"type": "string", "contentEncoding": "base64"})
_JSON_VALUE: Final[Schema] = {
    **record(json={}),
    "description": "Any JSON value. The message is its compact text in UTF-8.",
}
_NEW_MESSAGE: Final[Schema] = {
    "anyOf": [
        STRING,
        _BASE64,
        _JSON_VALUE,
        partly(
            "value",
            value={"anyOf": [SHOWN_BYTES, _JSON_VALUE]},
            key=nullable(SHOWN_BYTES),
            headers=nullable({"type": "object", "additionalProperties": SHOWN_BYTES}),
            ttl=nullable(TTL_SENT),
        ),
    ]
}
PLAIN_SCHEMAS: Final[dict[str, Schema]] = {
    "PublishRequest": {
        "anyOf": [
            partly("messages", write_pointer=nullable(LONG_SENT), messages=array(_NEW_MESSAGE)),
            array(_NEW_MESSAGE),
            _NEW_MESSAGE,
        ]
    },
    "Published": {
        **partly(
            *("first_id", "last_id", "count", "replayed"),
            first_id=nullable(MESSAGE_ID),
            last_id=nullable(MESSAGE_ID),
            count=nullable(INTEGER),
            replayed=BOOLEAN,
            write_pointer=LONG,
        ),
        "description": "The result of a publish; values that are not known any more are null. With a write pointer, "
        "it is also the body of the rollback.",
    },
    "RollbackRequest": partly(
        *("write_pointer", "first_id", "last_id"),
        write_pointer=LONG_SENT,
        first_id=MESSAGE_ID,
        last_id=MESSAGE_ID,
        count=nullable(INTEGER),
        replayed=BOOLEAN,
    ),
    "PollRequest": partly(
        start={
            "anyOf": [
                MESSAGE_ID,
                {"type": "string", "format": "date-time"},
                {"type": "integer", "minimum": 0, "maximum": (1 << 63) - 1},
                {"type": "null"},
            ]
        },
        inclusive=BOOLEAN,
        limit=nullable({"type": "integer", "minimum": 1, "maximum": (1 << 31) - 1}),
        snapshot=nullable(SNAPSHOT),
    ),
    "Polled": array(
        record(
            id=MESSAGE_ID,
            time=MOMENT,
            timestamp_ms=INTEGER,
            encoding={"enum": ["text", "base64"]},
            payload=STRING,
            key=nullable(SHOWN_BYTES),
            headers={"type": "object", "additionalProperties": SHOWN_BYTES},
        )
    ),
}
