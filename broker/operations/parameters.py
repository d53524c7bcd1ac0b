"""The parameters of requests, and the headers of requests and replies: each is declared once."""

from __future__ import annotations

from typing import Final

from broker.model import POINTER_MAX
from broker.operations.operation import (
    RIGHTS,
    Action,
    Parameter,
    SpanParameter,
    WordParameter,
    choice,
    header,
    whole,
)
from broker.operations.scalars import (
    Grantee,
    IdPlaceText,
    IdText,
    Positive,
    StageText,
    TopicName,
    TopicPattern,
    TtlSent,
)
from broker.operations.shapes import INTEGER, STRING, Schema, schema_of
from broker.places import GENERATION_HEADER

AMOUNT_MAX: Final = 1 << 62
"""More messages, or bytes, than any log has."""
PARTS_MAX: Final = 100
"""The most parts of a range. Each part may end inside a page, which must be read then."""
TOPICS_NAMED_MAX: Final = 2_000
REQUEST_TIMEOUT_S_MAX: Final = 300.0
"""The longest time for which a broker lets a request wait."""
# --- Parameters of the query ----------------------------------------------------------------------

_PLACE = "A message id (40 hex digits, or digits@generation), milliseconds since 1970, or a moment of RFC 3339"
TTL: Final = SpanParameter(
    "ttl",
    "How long these messages live, in seconds or with a unit (`1d`); at most the topic's `ttl`.",
    schema_of(TtlSent),
)
WAIT: Final = Parameter(
    "wait",
    "Seconds to wait for a message.",
    {"type": "number", "minimum": 0, "maximum": "wait_max_s"},
)
COMMITTED: Final = WordParameter(
    "committed",
    "`true`: only committed messages, by a new snapshot of the broker's transaction service.",
    {"type": "string", "enum": ["true", "false"], "default": "false"},
)
BROWSE_LIMIT: Final = whole(
    "limit", "The largest number of messages.", 1, "browse_messages_max", 100
)
ORDER: Final = choice("order", "Ascending or descending, by message id.", "asc", "desc")
PAYLOAD: Final = choice(
    "payload", "Show the first 1024 bytes of each payload, or all bytes.", "preview", "full"
)
PAGE: Final = (
    Parameter("from", f"{_PLACE}; inclusive.", STRING),
    Parameter("to", f"{_PLACE}; exclusive.", STRING),
    BROWSE_LIMIT,
    ORDER,
    PAYLOAD,
)
BEFORE: Final = Parameter(
    "before",
    "Milliseconds since 1970 or a moment of RFC 3339, not in the future; or `now`, for all stored messages. A moment "
    "earlier than that of the last purge changes nothing.",
    STRING,
    required=True,
)
LAG_AFTER: Final = Parameter(
    "after", "The id of a message, 40 hex digits.", schema_of(IdPlaceText), required=True
)
RANGE_MESSAGES: Final = whole(
    "messages", "The range has at most so many messages.", 1, AMOUNT_MAX, AMOUNT_MAX, shown=False
)
RANGE_BYTES: Final = whole(
    "bytes",
    "The range has at most about so many bytes of payloads.",
    1,
    AMOUNT_MAX,
    AMOUNT_MAX,
    shown=False,
)
RANGE_PARTS: Final = whole("parts", "Divide the range into at most so many parts.", 1, PARTS_MAX, 1)
RANGE: Final = (
    Parameter(
        "after",
        "The range begins behind this id. Absent: with the oldest message.",
        schema_of(IdPlaceText),
    ),
    Parameter(
        "through",
        "The range ends with this id. Absent: with the newest message.",
        schema_of(IdPlaceText),
    ),
    RANGE_MESSAGES,
    RANGE_BYTES,
    RANGE_PARTS,
)
ROWS: Final = (
    Parameter(
        "after",
        "The range begins behind this id. It is the id of a message of a reference, or of the row of any other message. "
        "Absent: the range begins with the oldest message.",
        schema_of(IdPlaceText),
    ),
    Parameter(
        "through",
        "The range ends with the row of this id, which must exist.",
        schema_of(IdPlaceText),
        required=True,
    ),
)
CURSOR_LIMIT: Final = whole("limit", "The largest number of cursors.", 1, 100, 100)
CURSOR_PAGE: Final = (
    Parameter("after", "List only cursors behind this name: `next` of the last page.", STRING),
    CURSOR_LIMIT,
)
EVENTS_FROM: Final = (
    Parameter("from", f"{_PLACE}; an id is exclusive. Or `now`. Absent: the oldest.", STRING),
    COMMITTED,
    header("Last-Event-ID", "Resume behind this message. It overrides `from`.", STRING),
)
_WHO: Final = Parameter(
    "who", "A principal, or `group:` and the name of a group.", schema_of(Grantee), required=True
)
GRANT: Final = (
    _WHO,
    Parameter("what", "A role or an action.", {"type": "string", "enum": RIGHTS}, required=True),
    Parameter(
        "pattern", "`*`, `NAMESPACE/*` or `NAMESPACE/TOPIC`. Absent: `*`.", schema_of(TopicPattern)
    ),
    Parameter("force", "`true`: revoke it although no administrator is left.", {"type": "boolean"}),
)
DECISION: Final = (
    _WHO,
    Parameter("action", "An action.", {"type": "string", "enum": [*Action]}, required=True),
    Parameter(
        "topic", "`NAMESPACE/TOPIC`. Absent: the action is about no topic.", schema_of(TopicName)
    ),
)
TRANSACTION_LIMIT: Final = whole("limit", "How many transactions to list.", 0, 10_000, 100)
BLOCKER_LIMIT: Final = whole("limit", "How many transactions to look for.", 1, 100, 10)
BLOCKED: Final = (
    Parameter(
        "transaction",
        "The transaction of the service in which the consumer reads. Absent, and no body: the consumer reads "
        "with a snapshot of now.",
        {"type": "integer", "minimum": 0, "maximum": POINTER_MAX},
    ),
    Parameter("from", "The consumer's place: an id, ms, or a moment. Absent: the oldest.", STRING),
    BLOCKER_LIMIT,
)
THROUGH: Final = whole(
    "through",
    "Prune no transaction above this write pointer.",
    0,
    POINTER_MAX,
    POINTER_MAX,
    shown=False,
)
TOPICS_TOO: Final = Parameter(
    "topics",
    f"Which led topics to name: none (no), the first {TOPICS_NAMED_MAX} by name (yes), or this one topic, if the node "
    "leads it.",
    {"anyOf": [{"enum": ["no", "yes"]}, schema_of(TopicName)], "default": "no"},
)

# --- Headers --------------------------------------------------------------------------------------

KEY: Final = header(
    "Idempotency-Key",
    "If a client repeats a request with the same key, it has no further effect.",
    {"type": "string", "pattern": "^[!-~]{1,255}$"},
)
PRODUCER_ID: Final = "Producer-Id"
PRODUCER_NUMBER: Final = "Producer-Number"
PRODUCER: Final = (
    header(
        PRODUCER_ID,
        "The id of a producer that numbers its publishes. A publish whose number is not above the producer's last one "
        "in this topic stores nothing.",
        {"type": "string", "pattern": "^[!-~]{1,255}$"},
    ),
    header(
        PRODUCER_NUMBER,
        "Required with Producer-Id. 0 to 2^63-1, above the number before; gaps are allowed.",
        {"anyOf": [{"const": "0"}, schema_of(StageText)]},
    ),
)
TIMEOUT: Final = header(
    "Request-Timeout",
    "How many seconds the request may wait for a leader, for another node, or in the queue for storage.",
    {"type": "number", "exclusiveMinimum": 0, "maximum": REQUEST_TIMEOUT_S_MAX},
)
GENERATION: Final = header(
    GENERATION_HEADER,
    "The generation of the topic to which the places in the request, and the messages stored for it, belong. If the topic "
    "has another one, the answer is 410.",
    schema_of(Positive),
)


def _told(text: str, schema: Schema) -> Schema:
    return {"description": text, "schema": schema}


IN_GENERATION: Final = {
    GENERATION_HEADER: _told("The generation of the topic to which the messages belong.", INTEGER)
}
LEADER_HEADER: Final = "Broker-Leader"
LEADER: Final = {
    LEADER_HEADER: _told(
        "In a cluster: the URL, the number and the epoch of the node that leads the topic.",
        {"type": "string", "pattern": r"^[^;]+(;node=\d+)?(;epoch=\d+)?$"},
    )
}
REPLAYED_HEADER: Final = "Idempotency-Replayed"
REPLAYED: Final = {
    REPLAYED_HEADER: _told(
        "The request was done before. The broker knows it by its key, its producer's number or its stages.",
        {"const": "true"},
    )
}
FIRST_ID: Final = "Broker-First-Id"
LAST_ID: Final = "Broker-Last-Id"
COUNT: Final = "Broker-Count"
PUBLISHED: Final = {
    **REPLAYED,
    FIRST_ID: _told(
        "The id of the first published message, if it is known. For stages, and for messages stored in a transaction, "
        "the id of the reference.",
        schema_of(IdText),
    ),
    LAST_ID: _told("The id of the last published message, in the same way.", schema_of(IdText)),
    COUNT: _told("The number of published messages, if it is known.", INTEGER),
}
BLOCKED_BY_HEADER: Final = "Broker-Blocked-By"
BLOCKED_BY: Final = {
    BLOCKED_BY_HEADER: _told(
        "Present if the reply is empty because an open transaction holds the consumer back: the write pointer of that "
        "transaction.",
        INTEGER,
    )
}
NAME_EPOCH: Final = "Broker-Name-Epoch"
"""The header of a start under a name: the epoch of the program that owns the name. The document does not have it."""
