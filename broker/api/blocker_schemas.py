"""The schemas and operations of blockers and pruning, for the OpenAPI document."""

from __future__ import annotations

from typing import Final

from broker.api.blockers import LIMIT_DEFAULT, LIMIT_MAX
from broker.api.json_schemas import (
    BOOLEAN,
    BYTES,
    INTEGER,
    LONG,
    MESSAGE_ID,
    MOMENT,
    NUMBER,
    STRING,
    Spec,
    array,
    nullable,
    of,
    record,
)
from broker.api.specs import body, ok, query
from broker.http.reply import JSON
from broker.wire.transaction import THRIFT

_STATE: Final[Spec] = {"enum": ["in_progress", "committing", "invalid", "unknown", None]}
_BLOCKER: Final[Spec] = record(
    transaction=LONG,
    write_pointer=LONG,
    first=record(id=MESSAGE_ID, time=MOMENT, timestamp_ms=INTEGER),
    since_s=NUMBER,
    messages=INTEGER,
    waiting=INTEGER,
    state={
        **_STATE,
        "description": "The transaction's state in the service. null: the service does not answer. unknown: the "
        "transaction has ended, or another service gave its number.",
    },
    type=nullable(STRING),
    client=nullable(STRING),
    started_at=nullable(MOMENT),
    expires_at=nullable(MOMENT),
    advice=STRING,
)
_PLAN: Final[dict[str, Spec]] = {
    "invalid": INTEGER,
    "prunable": INTEGER,
    "oldest_prunable": nullable(LONG),
    "newest_prunable": nullable(LONG),
    "oldest_left": nullable(LONG),
    "reason": nullable(STRING),
    "settled_at": nullable(MOMENT),
    "in_progress": nullable(LONG),
    "unpassed": nullable(
        record(
            namespace=STRING,
            topic=STRING,
            generation=INTEGER,
            passed_below=LONG,
            page=MESSAGE_ID,
            page_time=nullable(MOMENT),
        )
    ),
}

_THROUGH: Final = query(
    "through",
    "Prune no transaction above this write pointer.",
    {"type": "integer", "minimum": 0, "maximum": (1 << 63) - 1},
)

BLOCKER_SCHEMAS: Final[dict[str, Spec]] = {
    "Blockers": record(
        snapshot_of={"enum": ["request", "transaction", "now"]},
        read_pointer=LONG,
        blockers=array(_BLOCKER),
        complete=BOOLEAN,
        service_problem=nullable(STRING),
    ),
    "PrunePlan": record(**_PLAN),
    "Pruned": record(**_PLAN, removed=INTEGER),
}

BLOCKER_OPERATIONS: Final[dict[str, Spec]] = {
    "blockers": {
        "summary": "Show which transactions hold a consumer back, the first one first.",
        "parameters": [
            query(
                "transaction",
                "The transaction of the service in which the consumer reads. Absent, and no body: "
                "the consumer reads with a snapshot of now.",
                {"type": "integer", "minimum": 0, "maximum": (1 << 63) - 1},
            ),
            query(
                "from", "The consumer's place: an id, ms, or a moment. Absent: the oldest.", STRING
            ),
            query(
                "limit",
                "How many transactions to look for.",
                {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT},
            ),
        ],
        "requestBody": body((JSON, of("Snapshot")), (THRIFT, BYTES), required=False),
        "responses": {
            "200": ok("If the list is empty, no transaction blocks.", (JSON, of("Blockers")))
        },
        "errors": ("404",),
    },
    "prune_plan": {
        "summary": "Show how many invalid transactions the service may forget, and why not more.",
        "parameters": [_THROUGH],
        "responses": {"200": ok("The plan. Nothing was changed.", (JSON, of("PrunePlan")))},
    },
    "prune_transactions": {
        "summary": "Let the service forget the invalid transactions that have no messages left in any topic.",
        "parameters": [_THROUGH],
        "responses": {"200": ok("The forgotten transactions.", (JSON, of("Pruned")))},
        "errors": ("507",),
    },
}
