"""The Avro schemas of the protocol, as data: the original's four, and two for messages with keys and headers.

The tests give them to an independent Avro implementation. The order of fields and of union branches is the wire format:
it never changes. Clients in other languages find them in docs/reference/http.md.

::

    PublishRequest    transactionWritePointer  union 0=long 1=null
                      messages                 array of bytes
    PublishResponse   transactionWritePointer  union 0=long 1=null
                      rollbackRange            long, int, long, int
    ConsumeRequest    startFrom                union 0=bytes 1=long 2=null
                      inclusive                boolean
                      limit                    union 0=int 1=null
                      transaction              union 0=bytes 1=null
    ConsumeResponse   array of                 id bytes, payload bytes

    PublishMessages   transactionWritePointer  union 0=long 1=null
                      messages                 array of payload, key, headers, ttl in seconds
    Pages             array of                 messages as in ConsumeResponse; attributes: array of
                                               place in messages, key, headers
"""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]

PUBLISH_REQUEST: Final[Schema] = {
    "type": "record",
    "name": "PublishRequest",
    "fields": [
        {"name": "transactionWritePointer", "type": ["long", "null"]},
        {"name": "messages", "type": {"type": "array", "items": "bytes"}},
    ],
}

PUBLISH_RESPONSE: Final[Schema] = {
    "type": "record",
    "name": "PublishResponse",
    "fields": [
        {"name": "transactionWritePointer", "type": ["long", "null"]},
        {
            "name": "rollbackRange",
            "type": {
                "type": "record",
                "name": "RollbackRange",
                "fields": [
                    {"name": "startTimestamp", "type": "long"},
                    {"name": "startSequenceId", "type": "int"},
                    {"name": "endTimestamp", "type": "long"},
                    {"name": "endSequenceId", "type": "int"},
                ],
            },
        },
    ],
}

CONSUME_REQUEST: Final[Schema] = {
    "type": "record",
    "name": "ConsumeRequest",
    "fields": [
        {"name": "startFrom", "type": ["bytes", "long", "null"]},
        {"name": "inclusive", "type": "boolean", "default": True},
        {"name": "limit", "type": ["int", "null"]},
        {"name": "transaction", "type": ["bytes", "null"]},
    ],
}

CONSUME_RESPONSE: Final[Schema] = {
    "type": "array",
    "items": {
        "type": "record",
        "name": "Messages",
        "fields": [{"name": "id", "type": "bytes"}, {"name": "payload", "type": "bytes"}],
    },
}

_KEY_AND_HEADERS: Final[list[Schema]] = [
    {"name": "key", "type": ["null", "bytes"]},
    {"name": "headers", "type": {"type": "map", "values": "bytes"}},
]

PUBLISH_MESSAGES: Final[Schema] = {
    "type": "record",
    "name": "PublishMessages",
    "fields": [
        {"name": "transactionWritePointer", "type": ["long", "null"]},
        {
            "name": "messages",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "NewMessage",
                    "fields": [
                        {"name": "payload", "type": "bytes"},
                        *_KEY_AND_HEADERS,
                        {"name": "ttl", "type": ["null", "int"]},
                    ],
                },
            },
        },
    ],
}

PAGES: Final[Schema] = {
    "type": "array",
    "items": {
        "type": "record",
        "name": "Page",
        "fields": [
            {"name": "messages", "type": CONSUME_RESPONSE},
            {
                "name": "attributes",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "Attributes",
                        "fields": [{"name": "place", "type": "int"}, *_KEY_AND_HEADERS],
                    },
                },
            },
        ],
    },
}
