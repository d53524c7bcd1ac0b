"""The schemas of the interface's JSON values, and the error replies that many operations share."""

from __future__ import annotations

from typing import Final

from broker.coordination.ports import Contact
from broker.errors import registry
from broker.operations.media_types import JSON, TEXT
from broker.operations.operation import (
    BOOLEAN,
    CURSOR_NAME,
    ID_PLACE,
    INTEGER,
    MESSAGE_ID,
    NUMBER,
    STAGE,
    STRING,
    TOPIC_NAME,
    TTL_SENT,
    Schema,
    of,
)

MOMENT: Final[Schema] = {
    "type": "string",
    "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$",
}
INT64: Final[Schema] = {"type": "integer", "minimum": -(1 << 63), "maximum": (1 << 63) - 1}
LONG: Final[Schema] = {"type": "string", "pattern": "^-?(0|[1-9][0-9]{0,18})$"}
LONG_SENT: Final[Schema] = {"anyOf": [LONG, INT64]}
CODE_POINTS: Final[Schema] = {
    "type": "string",
    "pattern": "^[\\u0000-\\u00ff]*$",
    "description": "Bytes, each as the code point of its value.",
}


def nullable(schema: Schema) -> Schema:
    """Return a schema that also allows null."""
    return {"anyOf": [schema, {"type": "null"}]}


def record(**properties: Schema) -> Schema:
    """Return the schema of an object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def partly(*required: str, **properties: Schema) -> Schema:
    """Return the schema of an object with no other properties, of which these are required."""
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "properties": properties, **needed, "additionalProperties": False}


def array(items: Schema) -> Schema:
    """Return the schema of a list of such items."""
    return {"type": "array", "items": items}


def _union(branch: str, schema: Schema) -> Schema:
    """Return the schema of a value that may be null, bare, or wrapped under its branch's name as in Avro."""
    return {"anyOf": [record(**{branch: schema}), schema, {"type": "null"}]}


SNAPSHOT: Final[Schema] = {
    "anyOf": [
        {"type": "string", "description": "A TTransaction, in hex or base64."},
        partly(
            "transaction_id",
            "read_pointer",
            transaction_id=LONG_SENT,
            read_pointer=LONG_SENT,
            write_pointer=LONG_SENT,
            first_short_in_progress=LONG_SENT,
            invalids=array(LONG_SENT),
            in_progress=array(LONG_SENT),
            checkpoint_pointers=array(LONG_SENT),
            long=BOOLEAN,
            visibility={"enum": ["SNAPSHOT", "SNAPSHOT_EXCLUDE_CURRENT", "SNAPSHOT_ALL"]},
        ),
    ]
}

_COUNT = record(value=INTEGER, estimate=BOOLEAN)
_END = nullable(record(id=MESSAGE_ID, time=MOMENT))
_NEXT = {
    **nullable(ID_PLACE),
    "description": "Where the next page begins: send it as `from`, or with `order=desc` as `to`.",
}
SHOWN_BYTES: Final[Schema] = {
    "anyOf": [STRING, record(base64=STRING)],
    "description": "Bytes: as text if they are UTF-8, else in base64.",
}
_BROWSED = record(
    id=MESSAGE_ID,
    time=MOMENT,
    timestamp_ms=INTEGER,
    size=INTEGER,
    expires_at=nullable(MOMENT),
    kind={"enum": ["inline", "stored", "reference"]},
    tx_state={"enum": ["none", "published", "rolled_back"]},
    write_pointer=nullable(LONG),
    encoding={"enum": ["text", "base64"]},
    payload=nullable(STRING),
    truncated=BOOLEAN,
    key=nullable(SHOWN_BYTES),
    headers={"type": "object", "additionalProperties": SHOWN_BYTES},
)

_INSTANCE: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 255}
_NODE_VIEW = record(
    node=_INSTANCE,
    incarnation=STRING,
    url=STRING,
    version=STRING,
    protocol=INTEGER,
    draining=BOOLEAN,
    slots_led=INTEGER,
    topics_led=INTEGER,
    topics=nullable(array(record(topic=TOPIC_NAME, epoch=INTEGER))),
    zookeeper=record(
        contact={"enum": [contact.value for contact in Contact]}, session=nullable(STRING)
    ),
    storage=record(
        calls=INTEGER,
        errors=INTEGER,
        last_success=nullable(MOMENT),
        last_failure=nullable(MOMENT),
        last_error=nullable(STRING),
    ),
    uptime_s=NUMBER,
    clock_skew_ms=nullable(INTEGER),
    now_ms=INTEGER,
)

_CURSOR: Final[dict[str, Schema]] = {
    "name": CURSOR_NAME,
    "after": nullable(MESSAGE_ID),
    "version": STRING,
    "data": STRING,
    "updated_ms": INTEGER,
    "generation": INTEGER,
}
_CURSOR_LAG: Final = record(
    **_CURSOR,
    lag=record(messages=INTEGER, lost=INTEGER, oldest=_END),
)
SCHEMAS: Final[dict[str, Schema]] = {
    "Error": partly(
        *("code", "message", "retriable", "outcome"),
        code={"enum": sorted({error.code for error in registry()})},
        message=STRING,
        retriable=BOOLEAN,
        outcome={"enum": ["refused", "unknown"]},
        cursor={
            **nullable(record(**{name: _CURSOR[name] for name in _CURSOR if name != "generation"})),
            "description": "Only in `cursor_moved`: the current cursor, or null if there is none.",
        },
    ),
    "PropertiesSent": {
        "type": "object",
        "description": "All properties. A missing property gets its default.",
        "properties": {
            "ttl": {**TTL_SENT, "description": "How long messages live: seconds, or `1d`."},
            "transactions": {"enum": ["optional", "required", "refused"]},
        },
        "additionalProperties": {"type": ["string", "number", "boolean"]},
    },
    "Properties": {
        "type": "object",
        "properties": {"ttl": STRING, "generation": STRING},
        "required": ["ttl", "generation"],
        "additionalProperties": STRING,
    },
    "Names": array(STRING),
    "AvroPublishRequest": partly(
        "messages",
        transactionWritePointer=_union("long", INT64),
        messages=array(CODE_POINTS),
    ),
    "AvroPublishResponse": record(
        transactionWritePointer=record(long=INT64),
        rollbackRange=record(
            startTimestamp=INT64, startSequenceId=INTEGER, endTimestamp=INT64, endSequenceId=INTEGER
        ),
    ),
    "AvroConsumeRequest": partly(
        startFrom={
            "anyOf": [
                record(bytes=CODE_POINTS),
                record(long=INT64),
                CODE_POINTS,
                INT64,
                {"type": "null"},
            ]
        },
        inclusive=BOOLEAN,
        limit=_union("int", {"type": "integer", "minimum": 1, "maximum": (1 << 31) - 1}),
        transaction=_union("bytes", CODE_POINTS),
    ),
    "AvroConsumeResponse": array(record(id=CODE_POINTS, payload=CODE_POINTS)),
    "BrowsePage": record(messages=array(_BROWSED), next=_NEXT),
    "BrowsePageAs": record(
        messages=array(
            {
                **_BROWSED,
                "properties": {**_BROWSED["properties"], "consumable": BOOLEAN},
                "required": [*_BROWSED["required"], "consumable"],
            }
        ),
        next=_NEXT,
    ),
    "Snapshot": record(snapshot=SNAPSHOT),
    "Stats": record(
        namespace=STRING,
        topic=STRING,
        generation=INTEGER,
        published=INTEGER,
        messages=_COUNT,
        bytes=_COUNT,
        first=_END,
        last=_END,
        rates=record(publish_per_s=NUMBER, poll_per_s=NUMBER),
        open_payload_logs=INTEGER,
        ids_ahead_ms=INTEGER,
    ),
    "Purged": record(purged_before=MOMENT, purged_ms=INTEGER),
    "Lag": record(after=MESSAGE_ID, messages=INTEGER),
    "Cursor": record(**_CURSOR),
    "CursorLag": _CURSOR_LAG,
    "Cursors": record(cursors=array(_CURSOR_LAG), next=nullable(CURSOR_NAME)),
    "CursorSent": partly(
        "after",
        "expected",
        after=nullable(ID_PLACE),
        expected=nullable(STRING),
        data={
            "type": "string",
            "maxLength": 1024,
            "description": "Text of the reader's own, at most 1,024 bytes of UTF-8.",
        },
    ),
    "CursorDeleted": record(deleted=BOOLEAN),
    "Range": record(
        earliest=MESSAGE_ID,
        latest=MESSAGE_ID,
        after=MESSAGE_ID,
        through=MESSAGE_ID,
        messages=INTEGER,
        bytes=INTEGER,
        lost=INTEGER,
        ends=array(MESSAGE_ID),
        generation=INTEGER,
    ),
    "Stage": record(stage=STAGE, ends_at=MOMENT),
    "StagesSent": partly(
        "stages",
        stages={**array(STAGE), "minItems": 1, "maxItems": 5000, "uniqueItems": True},
        write_pointer=nullable(LONG_SENT),
    ),
    "Event": record(
        id=MESSAGE_ID,
        timestamp_ms=INTEGER,
        encoding={"enum": ["text", "base64"]},
        payload=STRING,
        key=nullable(SHOWN_BYTES),
        headers={"type": "object", "additionalProperties": SHOWN_BYTES},
    ),
    "Leader": record(node=nullable(INTEGER), url=nullable(STRING), epoch=nullable(INTEGER)),
    "ClusterStatus": record(
        asked=_INSTANCE,
        contact={"enum": [contact.value for contact in Contact]},
        nodes=array(
            record(
                node=_INSTANCE,
                url=STRING,
                version=STRING,
                protocol=INTEGER,
                state={"enum": ["serving", "drained", "stopping", "silent"]},
                drained=nullable(BOOLEAN),
                problem=nullable(STRING),
                view=nullable(_NODE_VIEW),
            )
        ),
        drained=nullable(array(_INSTANCE)),
        pins=nullable(INTEGER),
        problem=nullable(STRING),
    ),
    "ClusterNode": _NODE_VIEW,
    "Drained": record(node=_INSTANCE, url=nullable(STRING), drained=BOOLEAN, changed=BOOLEAN),
    "Pins": record(pins=array(record(topic=TOPIC_NAME, node=_INSTANCE, lives=BOOLEAN))),
    "PinSent": record(
        node={"anyOf": [_INSTANCE, STRING], "description": "A live node's instance id or URL."}
    ),
    "Pinned": record(
        topic=TOPIC_NAME, node=nullable(_INSTANCE), url=nullable(STRING), changed=BOOLEAN
    ),
    "Health": record(status={"const": "ok"}, version=STRING),
    "Product": record(
        product={"const": "tms-broker"}, version=STRING, interface={"const": "/openapi.json"}
    ),
    "Ready": record(status={"const": "ready"}),
    "ServiceStatus": record(status={"const": "OK"}),
}


def _error(text: str) -> Schema:
    return {
        "description": text,
        "headers": {
            "X-Request-Id": {"required": True, "schema": STRING},
            "Broker-Error": {
                "description": "The error's code.",
                "required": True,
                "schema": STRING,
            },
            "Broker-Outcome": {
                "description": "refused: the request certainly had no effect. unknown: it may have had one.",
                "required": True,
                "schema": {"enum": ["refused", "unknown"]},
            },
            "Retry-After": {"description": "Seconds.", "schema": INTEGER},
        },
        "content": {JSON: {"schema": of("Error")}, TEXT: {"schema": STRING}},
    }


RESPONSES: Final[dict[str, Schema]] = {
    "400": _error("The request is malformed, or a name is not valid."),
    "403": _error(
        "The caller may not do this, or a browser sent the request for a page of another site."
    ),
    "404": _error(
        "The topic, path, cursor or node does not exist, the node is standalone, or a node of this role does not serve it."
    ),
    "405": _error("The path does not have this method. The header Allow names its methods."),
    "409": _error(
        "The object exists already, is sealed or over, conflicts, has moved, or there are too many."
    ),
    "410": _error("The place is in another generation: the topic was created again."),
    "413": _error("The body, a message, or the number of messages is above its limit."),
    "422": _error("The transaction is too old, or the idempotency key was used with another body."),
    "500": _error("The outcome of the request is unknown."),
    "501": _error("This node lacks a package that the answer needs."),
    "503": _error("The request was not done. Try again later."),
    "507": _error("The disk is full."),
}
