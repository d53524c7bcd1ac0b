"""The OpenAPI document of this interface, made from the table of routes.

Each route has one entry in OPERATIONS, by its name; a missing or a superfluous one, or a query parameter
that its route does not take, is an error when the document is made, so that it can't drift from what is
served.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Final

import orjson

from broker import __version__
from broker.api.arrow import ARROW
from broker.api.blocker_schemas import BLOCKER_OPERATIONS, BLOCKER_SCHEMAS
from broker.api.cluster import TOPICS_NAMED_MAX
from broker.api.cursors import LIMIT_MAX
from broker.api.json_schemas import (
    BYTES,
    CURSOR_NAME,
    INTEGER,
    MESSAGE_ID,
    RESPONSES,
    SCHEMAS,
    STAGE,
    STRING,
    TOPIC_NAME,
    Spec,
    of,
)
from broker.api.plainschemas import PLAIN_SCHEMAS
from broker.api.routes import SHAPES, TOPIC, TRANSACTIONS, Shape
from broker.api.specs import body, header, ok, query
from broker.api.transaction_schemas import TRANSACTION_OPERATIONS, TRANSACTION_SCHEMAS
from broker.http.reply import AVRO, AVRO_JSON, EVENTS, JSON, MESSAGES
from broker.metrics import CONTENT_TYPE
from broker.routing.deadlines import REQUEST_TIMEOUT_S_MAX
from broker.wire.topics import TTL_MAX_S

_PARAMETER = re.compile(r"\{(\w+)\}")
_ALWAYS = ("400", "403", "404", "405", "413", "500", "503")
_NAMES = {
    "namespace": {"type": "string", "pattern": "^[a-zA-Z0-9_]+$"},
    "topic": {"type": "string", "pattern": "^[a-zA-Z0-9_-]+$"},
    "service": {"type": "string", "pattern": "^[a-zA-Z0-9._-]+$"},
    "stage": STAGE,
    "cursor": CURSOR_NAME,
    "transaction": {"type": "string", "pattern": "^[0-9]{1,19}$"},
    "node": {
        "type": "string",
        "pattern": "^([0-9]{1,3}|https?://[^/]+/?)$",
        "description": "An instance id, or a URL, percent-encoded.",
    },
}


_KEY = header(
    "Idempotency-Key",
    "Repeating a request under its key has no further effect.",
    {"type": "string", "pattern": "^[!-~]{1,255}$"},
)
_TTL = query(
    "ttl",
    "Seconds that these messages live; at most the topic's.",
    {"type": "integer", "minimum": 1, "maximum": TTL_MAX_S},
)
_PRODUCER = [
    header(
        "Producer-Id",
        "Who numbers its publishes: a number at or below its last one in this topic stores nothing.",
        {"type": "string", "pattern": "^[!-~]{1,255}$"},
    ),
    header(
        "Producer-Number",
        "Comes with Producer-Id. 0 to 2^63-1, above the one before; gaps are fine.",
        {"anyOf": [{"const": "0"}, STAGE]},
    ),
]
_REPLAYED = {
    "Idempotency-Replayed": {
        "description": "It was done before, by its key, its producer's number or its stages.",
        "schema": {"const": "true"},
    }
}
_PUBLISHED = {
    **_REPLAYED,
    "Broker-First-Id": {
        "description": "The id of the first message that was published, if it is known; of stages and what a "
        "transaction stored, that of the row that refers to it.",
        "schema": MESSAGE_ID,
    },
    "Broker-Last-Id": {"description": "The id of the last one.", "schema": MESSAGE_ID},
    "Broker-Count": {"description": "How many messages, if it is known.", "schema": INTEGER},
}
_SENT = (
    (AVRO, BYTES),
    (MESSAGES, BYTES),
    (JSON, of("PublishRequest")),
    (AVRO_JSON, of("AvroPublishRequest")),
)
_RAW = (("text/plain", STRING), ("application/octet-stream", BYTES))
_PLACE = "40 hex digits of a message id, milliseconds since 1970, or a moment of RFC 3339"
_BROWSE_QUERY = [
    query("from", f"{_PLACE}; inclusive.", STRING),
    query("to", f"{_PLACE}; exclusive.", STRING),
    query(
        "limit", "Messages.", {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 100}
    ),
    query("order", "By message id.", {"enum": ["asc", "desc"], "default": "asc"}),
    query(
        "payload",
        "The first 1024 bytes, or all.",
        {"enum": ["preview", "full"], "default": "preview"},
    ),
]
_TIMEOUT = header(
    "Request-Timeout",
    "Seconds that it may wait for a leader, another node, or its turn to be stored.",
    {"type": "number", "exclusiveMinimum": 0, "maximum": REQUEST_TIMEOUT_S_MAX},
)
_LEADER = {
    "Broker-Leader": {
        "description": "In a cluster: URL, number and epoch of the node that leads the topic.",
        "schema": {"type": "string", "pattern": r"^[^;]+(;node=\d+)?(;epoch=\d+)?$"},
    }
}
_BLOCKED_BY = {
    "Broker-Blocked-By": {
        "description": "The write pointer of the open transaction that holds the consumer, if there "
        "is nothing for it.",
        "schema": INTEGER,
    }
}
_RANGE_QUERY = [
    query(
        "after",
        "The range begins behind this id: a message of a reference, or the row of any other. "
        "Absent: with the oldest.",
        MESSAGE_ID,
    ),
    {
        **query("through", "It ends with the row of this id, which must be there.", MESSAGE_ID),
        "required": True,
    },
]
_ARROW = ok(
    "Batches with the columns `id`, `value`, `key` and `headers`; without the end-of-stream marker it was cut.",
    (ARROW, BYTES),
    headers=_BLOCKED_BY,
)
_DONE = ok("Done.")
_TOPICS_TOO = query(
    "topics",
    f"Whether to name the topics led: the first {TOPICS_NAMED_MAX} by name, or one, if it is led.",
    {"anyOf": [{"enum": ["no", "yes"]}, TOPIC_NAME], "default": "no"},
)

OPERATIONS: Final[dict[str, Spec]] = {
    "create_topic": {
        "summary": "Create a topic.",
        "requestBody": body((JSON, of("PropertiesSent")), required=False),
        "responses": {"200": _DONE},
        "errors": ("409",),
    },
    "update_topic": {
        "summary": "Replace all properties of a topic.",
        "requestBody": body((JSON, of("PropertiesSent")), required=False),
        "responses": {"200": _DONE},
        "errors": ("404",),
    },
    "show_topic": {
        "summary": "Show a topic's properties.",
        "responses": {"200": ok("All properties, as strings.", (JSON, of("Properties")))},
        "errors": ("404",),
    },
    "list_topics": {
        "summary": "List the topics of a namespace.",
        "responses": {"200": ok("Their names, as keys sort.", (JSON, of("Names")))},
    },
    "namespaces": {
        "summary": "List the namespaces that have topics.",
        "responses": {"200": ok("Their names, sorted.", (JSON, of("Names")))},
    },
    "delete_topic": {
        "summary": "Delete a topic.",
        "responses": {"200": _DONE},
        "errors": ("404",),
    },
    "publish": {
        "summary": "Publish messages, or the reference to what a transaction stored.",
        "parameters": [_KEY, *_PRODUCER, _TTL],
        "requestBody": body(*_SENT, *_RAW),
        "responses": {
            "200": ok(
                "Published. Of Avro empty without a transaction, else what a rollback needs.",
                (JSON, of("Published")),
                (AVRO, BYTES),
                (AVRO_JSON, of("AvroPublishResponse")),
                headers=_PUBLISHED,
            )
        },
        "errors": ("404", "409", "422", "507"),
    },
    "store": {
        "summary": "Store messages of a transaction, to be published by reference.",
        "parameters": [_KEY, _TTL],
        "requestBody": body(*_SENT),
        "responses": {"200": ok("Stored.", headers=_REPLAYED)},
        "errors": ("404", "409", "422", "507"),
    },
    "begin_stage": {
        "summary": "Begin a stage, into which one writer stores messages that are published later.",
        "responses": {"200": ok("Its number, and when its life ends.", (JSON, of("Stage")))},
        "errors": ("404", "507"),
    },
    "store_staged": {
        "summary": "Store messages in a stage.",
        "parameters": [_KEY, _TTL],
        "requestBody": body(*_SENT, *_RAW),
        "responses": {"200": ok("Stored.", headers=_REPLAYED)},
        "errors": ("404", "409", "422", "507"),
    },
    "publish_stages": {
        "summary": "Publish stages, in the order of the list, at once.",
        "parameters": [*_PRODUCER, _TTL],
        "requestBody": body((JSON, of("StagesSent"))),
        "responses": {
            "200": ok("Published.", (JSON, of("Published")), (AVRO, BYTES), headers=_PUBLISHED)
        },
        "errors": ("404", "409", "422", "507"),
    },
    "rollback": {
        "summary": "Roll a transactional publish back.",
        "requestBody": body(
            (AVRO, BYTES),
            (JSON, of("RollbackRequest")),
            (AVRO_JSON, of("AvroPublishResponse")),
        ),
        "responses": {"200": ok("Rolled back, also if there was nothing.")},
        "errors": ("404", "422", "507"),
    },
    "poll": {
        "summary": "Read messages as a consumer.",
        "parameters": [
            query(
                "wait",
                "Seconds to wait for a message.",
                {"type": "number", "minimum": 0, "maximum": 60},
            )
        ],
        "requestBody": body(
            (AVRO, BYTES), (JSON, of("PollRequest")), (AVRO_JSON, of("AvroConsumeRequest"))
        ),
        "responses": {
            "200": ok(
                "Messages, chunk by chunk; an Avro array ends with a zero block, or was cut. "
                f"With `Accept: {MESSAGES}` with their keys and headers.",
                (AVRO, BYTES),
                (MESSAGES, BYTES),
                (JSON, of("Polled")),
                (AVRO_JSON, of("AvroConsumeResponse")),
                headers=_BLOCKED_BY,
            )
        },
        "errors": ("404",),
    },
    "browse": {
        "summary": "Look at messages without consuming.",
        "parameters": _BROWSE_QUERY,
        "responses": {"200": ok("A page.", (JSON, of("BrowsePage")))},
        "errors": ("404",),
    },
    "browse_as": {
        "summary": "Look at messages, and whether a transaction could consume them.",
        "parameters": _BROWSE_QUERY,
        "requestBody": body((JSON, of("Snapshot"))),
        "responses": {"200": ok("A page.", (JSON, of("BrowsePageAs")))},
        "errors": ("404",),
    },
    "purge": {
        "summary": "Remove what was published before a moment. Nothing brings it back.",
        "parameters": [
            {
                **query(
                    "before",
                    "Milliseconds since 1970 or a moment of RFC 3339, neither in the future; or `now`, for all "
                    "that is stored. A lower moment than before changes nothing.",
                    STRING,
                ),
                "required": True,
            }
        ],
        "responses": {"200": ok("From now on no node shows it.", (JSON, of("Purged")))},
        "errors": ("404", "507"),
    },
    "stats": {
        "summary": "Show what a topic holds.",
        "responses": {"200": ok("Figures; estimates say so.", (JSON, of("Stats")))},
        "errors": ("404",),
    },
    "lag": {
        "summary": "Count the messages that were published behind an id.",
        "parameters": [
            {**query("after", "The id of a message, 40 hex digits.", MESSAGE_ID), "required": True}
        ],
        "responses": {"200": ok("How many.", (JSON, of("Lag")))},
        "errors": ("400", "404"),
    },
    "cursors": {
        "summary": "List a topic's named cursors, each with its lag, in the order of their names.",
        "parameters": [
            query("after", "Only cursors behind this name: `next` of the page before.", STRING),
            query(
                "limit",
                "Cursors.",
                {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_MAX},
            ),
        ],
        "responses": {"200": ok("A page.", (JSON, of("Cursors")))},
        "errors": ("400", "404"),
    },
    "show_cursor": {
        "summary": "Show a named cursor and its lag.",
        "responses": {"200": ok("The cursor.", (JSON, of("CursorLag")))},
        "errors": ("400", "404"),
    },
    "put_cursor": {
        "summary": "Move a named cursor, or create it, if it is at the version that is expected.",
        "requestBody": body((JSON, of("CursorSent"))),
        "responses": {"200": ok("It is there.", (JSON, of("Cursor")))},
        "errors": ("400", "404", "409"),
    },
    "delete_cursor": {
        "summary": "Delete a named cursor.",
        "responses": {"200": ok("It is not there.", (JSON, of("CursorDeleted")))},
        "errors": ("400", "404"),
    },
    "range": {
        "summary": "Show where a topic begins and ends, and bound and divide a range of it.",
        "parameters": [
            query("after", "The range begins behind this id. Absent: with the oldest.", MESSAGE_ID),
            query("through", "It ends with this id. Absent: with the newest.", MESSAGE_ID),
            query("messages", "It has at most so many messages.", INTEGER),
            query("bytes", "It has at most about so many bytes of payloads.", INTEGER),
            query("parts", "In so many parts, or fewer: 1 to 100 (1).", INTEGER),
        ],
        "responses": {"200": ok("The range.", (JSON, of("Range")))},
        "errors": ("400", "404"),
    },
    "arrow": {
        "summary": "Read all messages of a range, as an Arrow IPC stream.",
        "parameters": _RANGE_QUERY,
        "responses": {"200": _ARROW},
        "errors": ("404", "501"),
    },
    "arrow_as": {
        "summary": "Read the messages of a range that a transaction may consume.",
        "parameters": _RANGE_QUERY,
        "requestBody": body((JSON, of("Snapshot"))),
        "responses": {"200": _ARROW},
        "errors": ("404", "501"),
    },
    "events": {
        "summary": "Follow a topic as server-sent events.",
        "parameters": [
            query("from", f"{_PLACE}; an id is exclusive. Or `now`. Absent: the oldest.", STRING),
            header("Last-Event-ID", "Resume behind this message; wins over `from`.", STRING),
        ],
        "responses": {
            "200": ok(
                "Events whose data is an Event; before them, without one, the id to resume behind.",
                (EVENTS, STRING),
            )
        },
        "errors": ("404",),
    },
    "leader": {
        "summary": "Ask which node leads a topic.",
        "responses": {
            "200": ok(
                "That node. Without a cluster it has no number; without an epoch no node has claimed "
                "the topic.",
                (JSON, of("Leader")),
            )
        },
        "errors": ("404",),
    },
    **TRANSACTION_OPERATIONS,
    **BLOCKER_OPERATIONS,
    "cluster": {
        "summary": "Show all nodes of the cluster; each is asked.",
        "parameters": [_TOPICS_TOO],
        "responses": {"200": ok("As far as they answer.", (JSON, of("ClusterStatus")))},
        "errors": ("404",),
    },
    "cluster_node": {
        "summary": "Show what this node says of itself.",
        "parameters": [_TOPICS_TOO],
        "responses": {"200": ok("Asks no other node.", (JSON, of("ClusterNode")))},
        "errors": ("404",),
    },
    "drain": {
        "summary": "Let a node lead nothing, until it is undrained.",
        "responses": {"200": ok("Its topics move.", (JSON, of("Drained")))},
        "errors": ("404",),
    },
    "undrain": {
        "summary": "Let a node lead again.",
        "responses": {"200": ok("Topics move to it.", (JSON, of("Drained")))},
        "errors": ("404",),
    },
    "pins": {
        "summary": "List the topics that are pinned to a node.",
        "responses": {"200": ok("All pins.", (JSON, of("Pins")))},
        "errors": ("404",),
    },
    "pin": {
        "summary": "Pin a topic: that node leads it for as long as it lives.",
        "requestBody": body((JSON, of("PinSent"))),
        "responses": {"200": ok("The topic moves.", (JSON, of("Pinned")))},
        "errors": ("404",),
    },
    "unpin": {
        "summary": "Let any node lead a topic again.",
        "responses": {"200": ok("No pin is left.", (JSON, of("Pinned")))},
        "errors": ("404",),
    },
    "ping": {
        "summary": "Ask whether anybody is there.",
        "responses": {"200": ok("Yes.", ("text/plain", STRING))},
    },
    "service_status": {
        "summary": "Ask for the status of a service.",
        "responses": {"200": ok("It runs.", (JSON, of("ServiceStatus")))},
    },
    "healthz": {
        "summary": "Ask whether the process lives.",
        "responses": {"200": ok("It lives.", (JSON, of("Health")))},
    },
    "readyz": {
        "summary": "Ask whether requests may be sent here.",
        "responses": {"200": ok("They may.", (JSON, of("Ready")))},
    },
    "metrics": {
        "summary": "Show all counts for Prometheus.",
        "responses": {"200": ok("Text format.", (CONTENT_TYPE, STRING))},
    },
    "openapi": {
        "summary": "Show this document.",
        "responses": {"200": ok("OpenAPI 3.1.", (JSON, {"type": "object"}))},
    },
}


@functools.cache
def document() -> bytes:
    """Return the document as JSON."""
    return orjson.dumps(make_document())


def make_document() -> dict[str, Any]:
    """Return the document as a value."""
    names = {shape.name for shape in SHAPES}
    assert names == set(OPERATIONS), f"routes without or without a route: {names ^ set(OPERATIONS)}"
    paths: dict[str, Spec] = {}
    for shape in SHAPES:
        paths.setdefault(shape.template, {})[shape.method.lower()] = _operation(shape)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Broker", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**SCHEMAS, **PLAIN_SCHEMAS, **TRANSACTION_SCHEMAS, **BLOCKER_SCHEMAS},
            "responses": RESPONSES,
        },
    }


def _operation(shape: Shape) -> Spec:
    described = dict(OPERATIONS[shape.name])
    parameters = described.get("parameters", ())
    named = {each["name"] for each in parameters if each["in"] == "query"}
    assert named == set(shape.query), f"{shape.name}: {named ^ set(shape.query)}"
    errors = {*_ALWAYS, *described.pop("errors", ())}
    responses = dict(described["responses"])
    for status in sorted(errors):
        responses[status] = {"$ref": f"#/components/responses/{status}"}
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": _NAMES[name]}
        for name in _PARAMETER.findall(shape.template)
    ]
    timed = []
    if shape.template.startswith((TOPIC, TRANSACTIONS)):
        timed = [_TIMEOUT]
        done = responses["200"]
        responses["200"] = {**done, "headers": {**done["headers"], **_LEADER}}
    return {
        **described,
        "operationId": shape.name,
        "parameters": [*in_path, *parameters, *timed],
        "responses": responses,
    }
