"""The schemas and operations of transactions, for the OpenAPI document."""

from __future__ import annotations

from typing import Final

from broker.api.json_schemas import (
    BOOLEAN,
    BYTES,
    INTEGER,
    LONG,
    LONG_SENT,
    SNAPSHOT,
    STRING,
    Spec,
    array,
    nullable,
    of,
    record,
)
from broker.api.specs import body, ok, query
from broker.api.transactions import LISTED_DEFAULT, LISTED_MAX, TEPHRA_SNAPSHOT
from broker.http.reply import JSON
from broker.wire.transaction import THRIFT

_NUMBERS = ("transaction_id", "read_pointer", "write_pointer", "first_short_in_progress")
_LISTS = ("invalids", "in_progress", "checkpoint_pointers")
_PARTS: Final[dict[str, Spec]] = {
    **SNAPSHOT["anyOf"][1]["properties"],
    **dict.fromkeys(_NUMBERS, LONG),
    **dict.fromkeys(_LISTS, array(LONG)),
}
_POINTER: Final[Spec] = LONG_SENT
_TYPE: Final[Spec] = {"enum": ["short", "long"]}
_TRANSACTION = record(
    id=LONG,
    type=_TYPE,
    started_ms=INTEGER,
    expires_ms=INTEGER,
    client=STRING,
    name=STRING,
    checkpoints=array(LONG),
)


def _optional(**properties: Spec) -> Spec:
    return {"type": "object", "properties": properties, "additionalProperties": False}


TRANSACTION_SCHEMAS: Final[dict[str, Spec]] = {
    "Transaction": {
        **record(**_PARTS),
        "description": "The snapshot of a transaction. A snapshot without a transaction has the id 0.",
    },
    "TransactionSent": _optional(
        type=_TYPE,
        timeout_s=nullable({"type": "number", "exclusiveMinimum": 0}),
        client=STRING,
        name={"type": "string", "minLength": 1},
        epoch=nullable(_POINTER),
    ),
    "ChangesSent": record(changes=array({"type": "string", "contentEncoding": "base64"})),
    "CommitSent": _optional(write_pointer=nullable(_POINTER)),
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
    "TransactionShown": {
        "type": "object",
        "properties": {
            "id": LONG,
            "state": {"enum": ["in_progress", "committing", "invalid"]},
            **_TRANSACTION["properties"],
            "changes": INTEGER,
        },
        "required": ["id", "state"],
        "additionalProperties": False,
    },
}
_ANSWERED = {
    "responses": {"200": ok("The transaction.", (JSON, of("Transaction")), (THRIFT, BYTES))}
}
_DONE = ok("Done.", (JSON, of("Nothing")))

TRANSACTION_OPERATIONS: Final[dict[str, Spec]] = {
    "start_transaction": {
        "summary": "Begin a transaction.",
        "requestBody": body((JSON, of("TransactionSent")), required=False),
        **_ANSWERED,
        "errors": ("409", "507"),
    },
    "list_transactions": {
        "summary": "List the transactions in progress, the oldest first.",
        "parameters": [
            query(
                "limit",
                "How many transactions to list.",
                {"type": "integer", "minimum": 0, "maximum": LISTED_MAX, "default": LISTED_DEFAULT},
            )
        ],
        "responses": {
            "200": ok("The transactions, and the counts of all.", (JSON, of("TransactionList")))
        },
    },
    "transactions_snapshot": {
        "summary": "Show a snapshot as of now, without beginning a transaction; or the whole state in Tephra's snapshot format.",
        "responses": {
            "200": ok(
                "The snapshot.",
                (JSON, of("Transaction")),
                (THRIFT, BYTES),
                (TEPHRA_SNAPSHOT, BYTES),
            )
        },
    },
    "truncate_transactions": {
        "summary": "Remove pointers from the invalid list. No topic may have messages of them any more.",
        "requestBody": body((JSON, of("TruncateSent"))),
        "responses": {"200": ok("How many of them were invalid.", (JSON, of("Truncated")))},
        "errors": ("507",),
    },
    "reset_transactions": {
        "summary": "Forget all transactions, also those in progress. The service is then as new.",
        "responses": {
            "200": ok(
                "How many transactions in progress and invalid pointers no longer hide messages.",
                (JSON, of("Reset")),
            )
        },
        "errors": ("507",),
    },
    "show_transaction": {
        "summary": "Show a transaction.",
        "responses": {"200": ok("The transaction.", (JSON, of("TransactionShown")))},
        "errors": ("404",),
    },
    "can_commit_transaction": {
        "summary": "Send the keys that a transaction changed, and learn whether it conflicts.",
        "requestBody": body((JSON, of("ChangesSent"))),
        "responses": {"200": _DONE},
        "errors": ("409", "507"),
    },
    "commit_transaction": {
        "summary": "Commit a transaction: its writes become visible.",
        "requestBody": body((JSON, of("CommitSent")), required=False),
        "responses": {"200": _DONE},
        "errors": ("409", "507"),
    },
    "abort_transaction": {
        "summary": "Abort a transaction whose client has undone its writes. A long transaction becomes invalid.",
        "responses": {"200": _DONE},
        "errors": ("507",),
    },
    "invalidate_transaction": {
        "summary": "Make a transaction invalid: its writes are never seen.",
        "responses": {
            "200": ok("True if the transaction was in progress.", (JSON, of("Invalidated")))
        },
        "errors": ("507",),
    },
    "checkpoint_transaction": {
        "summary": "Give a transaction a further write pointer.",
        **_ANSWERED,
        "errors": ("409", "507"),
    },
}
