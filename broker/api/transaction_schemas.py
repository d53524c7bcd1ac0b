"""Transactions in the OpenAPI document: their values and operations."""

from __future__ import annotations

from typing import Final

from broker.api.json_schemas import (
    BOOLEAN,
    BYTES,
    INT64,
    INTEGER,
    SNAPSHOT,
    STRING,
    Spec,
    array,
    nullable,
    of,
    record,
)
from broker.api.specs import body, ok, query
from broker.api.transactions import LISTED_DEFAULT, LISTED_MAX, TEPHRA_SNAPSHOT, THRIFT
from broker.http.reply import JSON

_PARTS: Final[Spec] = SNAPSHOT["anyOf"][1]
_POINTER: Final[Spec] = {**INT64, "minimum": 0}
_TYPE: Final[Spec] = {"enum": ["short", "long"]}
_TRANSACTION = record(
    id=INT64,
    type=_TYPE,
    started_ms=INTEGER,
    expires_ms=INTEGER,
    client=STRING,
    checkpoints=array(INT64),
)


def _optional(**properties: Spec) -> Spec:
    return {"type": "object", "properties": properties, "additionalProperties": False}


TRANSACTION_SCHEMAS: Final[dict[str, Spec]] = {
    "Transaction": {
        **_PARTS,
        "required": list(_PARTS["properties"]),
        "description": "What a transaction may see. A snapshot of no transaction has the id 0.",
    },
    "TransactionSent": _optional(
        type=_TYPE, timeout_s=nullable({"type": "number", "exclusiveMinimum": 0}), client=STRING
    ),
    "ChangesSent": record(changes=array({"type": "string", "contentEncoding": "base64"})),
    "CommitSent": _optional(write_pointer=nullable(_POINTER)),
    "TruncateSent": {"anyOf": [record(ids=array(_POINTER)), record(before_ms=_POINTER)]},
    "Truncated": record(removed=INTEGER),
    "Invalidated": record(invalidated=BOOLEAN),
    "Nothing": record(),
    "TransactionList": record(
        in_progress=array(_TRANSACTION),
        in_progress_count=INTEGER,
        committing=INTEGER,
        committed=INTEGER,
        invalid=INTEGER,
        read_pointer=INT64,
        write_pointer=INT64,
        leader=nullable(INTEGER),
        epoch=nullable(INTEGER),
    ),
    "TransactionShown": {
        "type": "object",
        "properties": {
            "id": INT64,
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
        "errors": ("507",),
    },
    "list_transactions": {
        "summary": "List the transactions in progress, the oldest first.",
        "parameters": [
            query(
                "limit",
                "How many are listed.",
                {"type": "integer", "minimum": 0, "maximum": LISTED_MAX, "default": LISTED_DEFAULT},
            )
        ],
        "responses": {"200": ok("These, and how many there are.", (JSON, of("TransactionList")))},
    },
    "transactions_snapshot": {
        "summary": "Show what is visible now; no transaction begins. Or the whole state, as Tephra writes snapshots.",
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
        "summary": "Call pointers invalid no more, of which nothing is left in any topic.",
        "requestBody": body((JSON, of("TruncateSent"))),
        "responses": {"200": ok("How many were invalid.", (JSON, of("Truncated")))},
        "errors": ("507",),
    },
    "reset_transactions": {
        "summary": "Forget all transactions, also those in progress, as if the service were new.",
        "responses": {"200": _DONE},
        "errors": ("507",),
    },
    "show_transaction": {
        "summary": "Show what is known of a transaction.",
        "responses": {"200": ok("It.", (JSON, of("TransactionShown")))},
        "errors": ("404",),
    },
    "can_commit_transaction": {
        "summary": "Tell what a transaction changed, and hear whether it conflicts.",
        "requestBody": body((JSON, of("ChangesSent"))),
        "responses": {"200": _DONE},
        "errors": ("409", "507"),
    },
    "commit_transaction": {
        "summary": "End a transaction: what it wrote is visible.",
        "requestBody": body((JSON, of("CommitSent")), required=False),
        "responses": {"200": _DONE},
        "errors": ("409", "507"),
    },
    "abort_transaction": {
        "summary": "End a transaction that undid what it wrote; a long one is made invalid.",
        "responses": {"200": _DONE},
        "errors": ("507",),
    },
    "invalidate_transaction": {
        "summary": "Make a transaction invalid: what it wrote is never seen.",
        "responses": {"200": ok("Whether it was in progress.", (JSON, of("Invalidated")))},
        "errors": ("507",),
    },
    "checkpoint_transaction": {
        "summary": "Give a transaction a further write pointer.",
        **_ANSWERED,
        "errors": ("409", "507"),
    },
}
