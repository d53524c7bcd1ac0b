"""The schemas of transactions, of blockers and of pruning, for the OpenAPI document."""

from __future__ import annotations

from typing import Final

from broker.api.json_schemas import (
    LONG,
    LONG_SENT,
    MOMENT,
    SNAPSHOT,
    array,
    nullable,
    partly,
    record,
)
from broker.operations.operation import BOOLEAN, INTEGER, MESSAGE_ID, NUMBER, STRING, Schema

_NUMBERS = ("transaction_id", "read_pointer", "write_pointer", "first_short_in_progress")
_LISTS = ("invalids", "in_progress", "checkpoint_pointers")
_PARTS: Final[dict[str, Schema]] = {
    **SNAPSHOT["anyOf"][1]["properties"],
    **dict.fromkeys(_NUMBERS, LONG),
    **dict.fromkeys(_LISTS, array(LONG)),
}
_POINTER: Final[Schema] = LONG_SENT
_TYPE: Final[Schema] = {"enum": ["short", "long"]}
_TRANSACTION = record(
    id=LONG,
    type=_TYPE,
    started_ms=INTEGER,
    expires_ms=INTEGER,
    client=STRING,
    name=STRING,
    checkpoints=array(LONG),
)


_STATE: Final[Schema] = {"enum": ["in_progress", "committing", "invalid", "unknown", None]}
_BLOCKER: Final[Schema] = record(
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
_PLAN: Final[dict[str, Schema]] = {
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


TRANSACTION_SCHEMAS: Final[dict[str, Schema]] = {
    "Transaction": {
        **record(**_PARTS),
        "description": "The snapshot of a transaction. A snapshot without a transaction has the id 0.",
    },
    "TransactionSent": partly(
        type=_TYPE,
        timeout_s=nullable({"type": "number", "exclusiveMinimum": 0}),
        client=STRING,
        name={"type": "string", "minLength": 1},
        epoch=nullable(_POINTER),
    ),
    "ChangesSent": record(changes=array({"type": "string", "contentEncoding": "base64"})),
    "CommitSent": partly(write_pointer=nullable(_POINTER)),
    "TruncateSent": {"anyOf": [record(ids=array(_POINTER)), record(before_ms=_POINTER)]},
    "Truncated": record(removed=INTEGER),
    "Reset": record(in_progress=INTEGER, invalid=INTEGER),
    "Invalidated": record(invalidated=BOOLEAN),
    "Nothing": record(),
    "TransactionList": record(
        in_progress=array(_TRANSACTION),
        in_progress_count=INTEGER,
        committing=INTEGER,
        committed=INTEGER,
        invalid=INTEGER,
        read_pointer=LONG,
        write_pointer=LONG,
        leader=nullable(INTEGER),
        epoch=nullable(INTEGER),
    ),
    "TransactionShown": partly(
        "id",
        "state",
        **{"id": LONG, "state": {"enum": ["in_progress", "committing", "invalid"]}}
        | _TRANSACTION["properties"],
        changes=INTEGER,
    ),
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
