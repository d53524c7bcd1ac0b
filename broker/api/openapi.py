"""Make the OpenAPI document of this interface from the table of routes.

Each route has one entry in OPERATIONS, under its name. An assertion fails when the document is made if an entry is
missing, has no route, or names a query parameter that its route does not take. So the document always agrees with the
routes. A maximum may be the name of a key of the section ``limits``: the document has the node's value.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Final

import orjson

from broker import __version__
from broker.api.arrow import ARROW
from broker.api.blocker_schemas import BLOCKER_OPERATIONS, BLOCKER_SCHEMAS
from broker.api.browse import LIMIT_DEFAULT
from broker.api.cluster import TOPICS_NAMED_MAX
from broker.api.cursors import LIMIT_MAX
from broker.api.json_schemas import (
    BYTES,
    CURSOR_NAME,
    ID_PLACE,
    INTEGER,
    MESSAGE_ID,
    POSITIVE,
    RESPONSES,
    SCHEMAS,
    STAGE,
    STRING,
    TOPIC_NAME,
    TTL_SENT,
    Spec,
    of,
)
from broker.api.plainschemas import PLAIN_SCHEMAS
from broker.api.routes import SHAPES, TOPIC, TRANSACTIONS, Shape
from broker.api.specs import body, header, ok, query
from broker.api.transaction_schemas import TRANSACTION_OPERATIONS, TRANSACTION_SCHEMAS
from broker.config.sections import LimitsConfig
from broker.http.reply import AVRO, AVRO_JSON, EVENTS, JSON, MESSAGES
from broker.metrics import CONTENT_TYPE
from broker.routing.deadlines import REQUEST_TIMEOUT_S_MAX

_LIMITS: Final = LimitsConfig()
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
    "If a client repeats a request with the same key, it has no further effect.",
    {"type": "string", "pattern": "^[!-~]{1,255}$"},
)
_TTL = query(
    "ttl",
    "How long these messages live, in seconds or with a unit (`1d`); at most the topic's `ttl`.",
    TTL_SENT,
)
_PRODUCER = [
    header(
        "Producer-Id",
        "The id of a producer that numbers its publishes. A publish whose number is not above the producer's last one "
        "in this topic stores nothing.",
        {"type": "string", "pattern": "^[!-~]{1,255}$"},
    ),
    header(
        "Producer-Number",
        "Required with Producer-Id. 0 to 2^63-1, above the number before; gaps are allowed.",
        {"anyOf": [{"const": "0"}, STAGE]},
    ),
]
_REPLAYED = {
    "Idempotency-Replayed": {
        "description": "The request was done before. The broker knows it by its key, its producer's number or its stages.",
        "schema": {"const": "true"},
    }
}
_PUBLISHED = {
    **_REPLAYED,
    "Broker-First-Id": {
        "description": "The id of the first published message, if it is known. For stages, and for messages stored in "
        "a transaction, the id of the reference.",
        "schema": MESSAGE_ID,
    },
    "Broker-Last-Id": {
        "description": "The id of the last published message, in the same way.",
        "schema": MESSAGE_ID,
    },
    "Broker-Count": {
        "description": "The number of published messages, if it is known.",
        "schema": INTEGER,
    },
}
_SENT = (
    (AVRO, BYTES),
    (MESSAGES, BYTES),
    (JSON, of("PublishRequest")),
    (AVRO_JSON, of("AvroPublishRequest")),
)
_RAW = (("text/plain", STRING), ("application/octet-stream", BYTES))
_PLACE = "A message id (40 hex digits, or digits@generation), milliseconds since 1970, or a moment of RFC 3339"
_BROWSE_QUERY = [
    query("from", f"{_PLACE}; inclusive.", STRING),
    query("to", f"{_PLACE}; exclusive.", STRING),
    query(
        "limit",
        "The largest number of messages.",
        {
            "type": "integer",
            "minimum": 1,
            "maximum": "browse_messages_max",
            "default": LIMIT_DEFAULT,
        },
    ),
    query(
        "order",
        "Ascending or descending, by message id.",
        {"enum": ["asc", "desc"], "default": "asc"},
    ),
    query(
        "payload",
        "Show the first 1024 bytes of each payload, or all bytes.",
        {"enum": ["preview", "full"], "default": "preview"},
    ),
]
_TIMEOUT = header(
    "Request-Timeout",
    "How many seconds the request may wait for a leader, for another node, or in the queue for storage.",
    {"type": "number", "exclusiveMinimum": 0, "maximum": REQUEST_TIMEOUT_S_MAX},
)
_GENERATION = header(
    "Broker-Generation",
    "The generation of the topic to which the places in the request, and the messages stored for it, belong. If the topic "
    "has another one, the answer is 410.",
    POSITIVE,
)
_IN_GENERATION = {
    "Broker-Generation": {
        "description": "The generation of the topic to which the messages belong.",
        "schema": INTEGER,
    }
}
_LEADER = {
    "Broker-Leader": {
        "description": "In a cluster: the URL, the number and the epoch of the node that leads the topic.",
        "schema": {"type": "string", "pattern": r"^[^;]+(;node=\d+)?(;epoch=\d+)?$"},
    }
}
_COMMITTED = query(
    "committed",
    "`true`: only committed messages, by a new snapshot of the broker's transaction service.",
    {"type": "string", "enum": ["true", "false"]},
)
_BLOCKED_BY = {
    "Broker-Blocked-By": {
        "description": "Present if the reply is empty because an open transaction holds the consumer back: "
        "the write pointer of that transaction.",
        "schema": INTEGER,
    }
}
_RANGE_QUERY = [
    query(
        "after",
        "The range begins behind this id. It is the id of a message of a reference, or of the row of any other message. "
        "Absent: the range begins with the oldest message.",
        ID_PLACE,
    ),
    {
        **query("through", "The range ends with the row of this id, which must exist.", ID_PLACE),
        "required": True,
    },
]
_ARROW = ok(
    "Batches with the columns `id`, `value`, `key` and `headers`. A stream without the end-of-stream marker was cut off.",
    (ARROW, BYTES),
    headers=_BLOCKED_BY,
)
_DONE = ok("Done.")
_TOPICS_TOO = query(
    "topics",
    f"Which led topics to name: none (no), the first {TOPICS_NAMED_MAX} by name (yes), or this one topic, if the node "
    "leads it.",
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
        "responses": {"200": ok("Their names, sorted by bytes.", (JSON, of("Names")))},
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
        "summary": "Publish messages, or the reference to the messages that a transaction stored.",
        "parameters": [_KEY, *_PRODUCER, _TTL],
        "requestBody": body(*_SENT, *_RAW),
        "responses": {
            "200": ok(
                "Published. An Avro body is empty without a transaction; in a transaction it is the body of the rollback.",
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
        "summary": "Begin a stage: one writer stores messages in it, and a later publish shows them.",
        "responses": {"200": ok("The stage's number and end of life.", (JSON, of("Stage")))},
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
        "summary": "Publish stages atomically, in the order of the list.",
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
        "responses": {"200": ok("Rolled back. Also the answer if there was nothing to roll back.")},
        "errors": ("404", "422", "507"),
    },
    "poll": {
        "summary": "Read messages as a consumer.",
        "parameters": [
            query(
                "wait",
                "Seconds to wait for a message.",
                {"type": "number", "minimum": 0, "maximum": "wait_max_s"},
            ),
            _COMMITTED,
        ],
        "requestBody": body(
            (AVRO, BYTES), (JSON, of("PollRequest")), (AVRO_JSON, of("AvroConsumeRequest"))
        ),
        "responses": {
            "200": ok(
                "Messages, chunk by chunk. An Avro array without a zero block at its end was cut off. "
                f"With `Accept: {MESSAGES}`, the messages have their keys and headers.",
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
        "summary": "Look at messages, and see which of them a transaction could consume.",
        "parameters": _BROWSE_QUERY,
        "requestBody": body((JSON, of("Snapshot"))),
        "responses": {"200": ok("A page.", (JSON, of("BrowsePageAs")))},
        "errors": ("404",),
    },
    "purge": {
        "summary": "Remove all messages published before a moment. This can't be undone.",
        "parameters": [
            {
                **query(
                    "before",
                    "Milliseconds since 1970 or a moment of RFC 3339, not in the future; or `now`, for all "
                    "stored messages. A moment earlier than that of the last purge changes nothing.",
                    STRING,
                ),
                "required": True,
            }
        ],
        "responses": {"200": ok("From now on no node shows them.", (JSON, of("Purged")))},
        "errors": ("404", "507"),
    },
    "stats": {
        "summary": "Show figures about a topic's contents.",
        "responses": {"200": ok("The figures. Estimates are marked.", (JSON, of("Stats")))},
        "errors": ("404",),
    },
    "lag": {
        "summary": "Count the messages that were published behind an id.",
        "parameters": [
            {**query("after", "The id of a message, 40 hex digits.", ID_PLACE), "required": True}
        ],
        "responses": {"200": ok("The number of messages.", (JSON, of("Lag")))},
        "errors": ("400", "404"),
    },
    "cursors": {
        "summary": "List a topic's named cursors, each with its lag, in the order of their names.",
        "parameters": [
            query("after", "List only cursors behind this name: `next` of the last page.", STRING),
            query(
                "limit",
                "The largest number of cursors.",
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
        "summary": "Move or create a named cursor, if its version is the expected one.",
        "requestBody": body((JSON, of("CursorSent"))),
        "responses": {"200": ok("The new cursor.", (JSON, of("Cursor")))},
        "errors": ("400", "404", "409"),
    },
    "delete_cursor": {
        "summary": "Delete a named cursor.",
        "responses": {
            "200": ok("The cursor does not exist any more.", (JSON, of("CursorDeleted")))
        },
        "errors": ("400", "404"),
    },
    "range": {
        "summary": "Show where a topic begins and ends. Bound a range of it, and divide the range into parts.",
        "parameters": [
            query(
                "after",
                "The range begins behind this id. Absent: with the oldest message.",
                ID_PLACE,
            ),
            query(
                "through",
                "The range ends with this id. Absent: with the newest message.",
                ID_PLACE,
            ),
            query("messages", "The range has at most so many messages.", INTEGER),
            query("bytes", "The range has at most about so many bytes of payloads.", INTEGER),
            query(
                "parts",
                "Divide the range into at most so many parts, 1 to 100 (default 1).",
                INTEGER,
            ),
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
            _COMMITTED,
            header("Last-Event-ID", "Resume behind this message. It overrides `from`.", STRING),
        ],
        "responses": {
            "200": ok(
                "Events; the data of each is an Event. Before the first event comes an id alone, to resume behind.",
                (EVENTS, STRING),
            )
        },
        "errors": ("404",),
    },
    "leader": {
        "summary": "Ask which node leads a topic.",
        "responses": {
            "200": ok(
                "That node. Its number is null on a standalone node. The epoch is null until a node has claimed "
                "the topic.",
                (JSON, of("Leader")),
            )
        },
        "errors": ("404",),
    },
    **TRANSACTION_OPERATIONS,
    **BLOCKER_OPERATIONS,
    "cluster": {
        "summary": "Show all nodes of the cluster. This node asks each of them.",
        "parameters": [_TOPICS_TOO],
        "responses": {
            "200": ok("The views of the nodes that answer.", (JSON, of("ClusterStatus")))
        },
        "errors": ("404",),
    },
    "cluster_node": {
        "summary": "Show this node's view of itself. It asks no other node.",
        "parameters": [_TOPICS_TOO],
        "responses": {"200": ok("The view.", (JSON, of("ClusterNode")))},
        "errors": ("404",),
    },
    "drain": {
        "summary": "Drain a node: it leads no topic until it is undrained.",
        "responses": {"200": ok("Its topics will move.", (JSON, of("Drained")))},
        "errors": ("404",),
    },
    "undrain": {
        "summary": "Undrain a node: it may lead topics again.",
        "responses": {"200": ok("Topics will move to it.", (JSON, of("Drained")))},
        "errors": ("404",),
    },
    "pins": {
        "summary": "List the topics that are pinned to a node.",
        "responses": {"200": ok("All pins.", (JSON, of("Pins")))},
        "errors": ("404",),
    },
    "pin": {
        "summary": "Pin a topic to a node: the node leads it as long as the node lives.",
        "requestBody": body((JSON, of("PinSent"))),
        "responses": {"200": ok("The topic will move.", (JSON, of("Pinned")))},
        "errors": ("404",),
    },
    "unpin": {
        "summary": "Let any node lead a topic again.",
        "responses": {"200": ok("The topic has no pin.", (JSON, of("Pinned")))},
        "errors": ("404",),
    },
    "ping": {
        "summary": "Ask whether the node answers.",
        "responses": {"200": ok("It does.", ("text/plain", STRING))},
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
        "summary": "Ask whether this node takes requests.",
        "responses": {"200": ok("It does.", (JSON, of("Ready")))},
    },
    "metrics": {
        "summary": "Show all metrics for Prometheus.",
        "responses": {"200": ok("The metrics, in the text format.", (CONTENT_TYPE, STRING))},
    },
    "openapi": {
        "summary": "Show this document.",
        "responses": {"200": ok("OpenAPI 3.1.", (JSON, {"type": "object"}))},
    },
}


@functools.cache
def document(limits: LimitsConfig = _LIMITS) -> bytes:
    """Return the document of a node with these limits, as JSON."""
    return orjson.dumps(make_document(limits))


def make_document(limits: LimitsConfig = _LIMITS) -> dict[str, Any]:
    """Return the document of a node with these limits, as a value."""
    names = {shape.name for shape in SHAPES}
    assert names == set(OPERATIONS), f"routes and operations differ: {names ^ set(OPERATIONS)}"
    paths: dict[str, Spec] = {}
    for shape in SHAPES:
        paths.setdefault(shape.template, {})[shape.method.lower()] = _operation(shape, limits)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Broker", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**SCHEMAS, **PLAIN_SCHEMAS, **TRANSACTION_SCHEMAS, **BLOCKER_SCHEMAS},
            "responses": RESPONSES,
        },
    }


def _operation(shape: Shape, limits: LimitsConfig) -> Spec:
    described = dict(OPERATIONS[shape.name])
    parameters = [_bounded(each, limits) for each in described.get("parameters", ())]
    named = {each["name"] for each in parameters if each["in"] == "query"}
    assert named == set(shape.query), f"{shape.name}: {named ^ set(shape.query)}"
    errors = {*_ALWAYS, *described.pop("errors", ())}
    responses = dict(described["responses"])
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": _NAMES[name]}
        for name in _PARAMETER.findall(shape.template)
    ]
    timed = []
    done = responses["200"]
    if shape.template.startswith((TOPIC, TRANSACTIONS)):
        timed = [_TIMEOUT]
        done = {**done, "headers": {**done["headers"], **_LEADER}}
    if shape.template.startswith(TOPIC) and shape.name != "create_topic":
        timed.append(_GENERATION)
        done = {**done, "headers": {**done["headers"], **_IN_GENERATION}}
        errors.add("410")
    responses["200"] = done
    for status in sorted(errors):
        responses[status] = {"$ref": f"#/components/responses/{status}"}
    return {
        **described,
        "operationId": shape.name,
        "parameters": [*in_path, *parameters, *timed],
        "responses": responses,
    }


def _bounded(parameter: Spec, limits: LimitsConfig) -> Spec:
    """Return a parameter with the value of the key that its maximum names, if it names one."""
    most = parameter["schema"].get("maximum")
    if not isinstance(most, str):
        return parameter
    return {**parameter, "schema": {**parameter["schema"], "maximum": getattr(limits, most)}}
