"""The table of operations: each operation of the interface is declared once, here.

From an entry come its route, the refusal of parameters that it does not take, the largest body, the right that a
caller needs, the way to the topic's leader and what a repetition may do there, and its part of the OpenAPI document.
The handler of the same name answers it (``api.routes``). Its bodies are declared in ``sent`` and ``replies``.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from broker.operations import replies, sent
from broker.operations.media_types import (
    ARROW,
    AVRO,
    AVRO_JSON,
    EVENTS,
    JSON,
    MESSAGES,
    METRICS,
    OCTETS,
    TEPHRA_SNAPSHOT,
    TEXT,
    THRIFT,
)
from broker.operations.operation import (
    JSON_TEXT_BYTES_MAX,
    Action,
    Answerer,
    Contents,
    DeclaredOperation,
    RepeatEffect,
)
from broker.operations.parameters import (
    BEFORE,
    BLOCKED,
    BLOCKED_BY,
    COMMITTED,
    CURSOR_PAGE,
    DECISION,
    EVENTS_FROM,
    GRANT,
    KEY,
    LAG_AFTER,
    PAGE,
    PRODUCER,
    PUBLISHED,
    RANGE,
    REPLAYED,
    ROWS,
    THROUGH,
    TOPICS_TOO,
    TRANSACTION_LIMIT,
    TTL,
    WAIT,
)
from broker.operations.shapes import Shape

SNAPSHOT_BYTES_MAX: Final = 16 * 1024 * 1024
"""The largest body with a snapshot: a million pointers take 8 MB. JSON has a smaller bound."""
CURSOR_BYTES_MAX: Final = 16 * 1024
"""The largest body of a cursor: 1 KiB of data, each byte written as an escape."""
_READ, _LED_READ, _POLL, _KEYED, _IDEMPOTENT, _ONCE = RepeatEffect
_LEADER, _ANY, _NODE = Answerer

# --- Paths ----------------------------------------------------------------------------------------

NAMESPACES: Final = "/v1/namespaces"
TOPICS: Final = f"{NAMESPACES}/{{namespace}}/topics"
TOPIC: Final = f"{TOPICS}/{{topic}}"
TRANSACTIONS: Final = "/v1/transactions"
ACCESS: Final = "/v1/access"
_MESSAGES = f"{TOPIC}/messages"
_CURSOR = f"{TOPIC}/cursors/{{cursor}}"
_CLUSTER = "/v1/cluster"
_TRANSACTION = f"{TRANSACTIONS}/{{transaction}}"
_PRUNE = f"{TRANSACTIONS}/prune"
_PIN = f"{_CLUSTER}/pins/{{namespace}}/{{topic}}"

# --- Bodies ---------------------------------------------------------------------------------------


def _json(shape: Shape) -> Contents:
    return ((JSON, shape),)


_SENT: Contents = (
    (AVRO, bytes),
    (MESSAGES, bytes),
    (JSON, sent.PublishRequest),
    (AVRO_JSON, sent.AvroPublishRequest),
)
_RAW: Contents = ((TEXT, str), (OCTETS, bytes))
_SNAPSHOT = _json(sent.Snapshot)
_BATCHES = "Batches with the columns `id`, `value`, `key` and `headers`. A stream without the end-of-stream marker was cut off."
_TRANSACTION_GIVEN: Contents = (*_json(replies.Transaction), (THRIFT, bytes))
_WRITE_ERRORS = ("404", "409", "422", "507")

# --- The operations -------------------------------------------------------------------------------

_describe = partial(DeclaredOperation, action=Action.DESCRIBE, role="topics", effect=_READ)
_settings = partial(
    DeclaredOperation, action=Action.SETTINGS, role="topics", effect=_ONCE, by=_LEADER
)
_delete = partial(DeclaredOperation, action=Action.DELETE, role="topics", by=_LEADER)
_publish = partial(DeclaredOperation, action=Action.PUBLISH, role="topics", by=_LEADER)
_consume = partial(DeclaredOperation, action=Action.CONSUME, role="topics", errors=("404",))
_browse = partial(DeclaredOperation, action=Action.BROWSE, role="topics", effect=_READ)
_transaction = partial(
    DeclaredOperation,
    action=Action.TRANSACTIONS,
    role="transactions",
    by=_LEADER,
    has_own_deadline=True,
)
_cluster = partial(
    DeclaredOperation, action=Action.CLUSTER_CHANGE, effect=_IDEMPOTENT, by=_ANY, errors=("404",)
)
_look = partial(
    DeclaredOperation,
    method="GET",
    action=Action.CLUSTER_VIEW,
    effect=_READ,
    by=_ANY,
    errors=("404",),
)
_cursor = partial(DeclaredOperation, action=Action.CURSORS, role="topics", by=_ANY, errors=("404",))
_access = partial(DeclaredOperation, action=Action.ACCESS, by=_ANY)
_node = partial(
    DeclaredOperation,
    method="GET",
    action=Action.HEALTH,
    effect=_READ,
    by=_NODE,
    has_own_deadline=True,
)

# fmt: off
OPERATIONS: Final = (
    # The nine endpoints of the original.
    _settings("create_topic", "PUT", TOPIC, summary="Create a topic.",
        takes=_json(sent.PropertiesSent), needs_body=False, errors=("409",), keeps_body=True),
    _settings("update_topic", "PUT", f"{TOPIC}/properties",
        summary="Replace all properties of a topic.", takes=_json(sent.PropertiesSent), needs_body=False,
        errors=("404",), keeps_body=True),
    _describe("show_topic", "GET", TOPIC, by=_LEADER, summary="Show a topic's properties.",
        told="All properties, as strings.", gives=_json(replies.Properties), errors=("404",)),
    _describe("list_topics", "GET", TOPICS, by=_ANY, summary="List the topics of a namespace.",
        told="Their names, sorted by bytes.", gives=_json(replies.Names)),
    _delete("delete_topic", "DELETE", TOPIC, effect=_ONCE, summary="Delete a topic.", errors=("404",)),
    _publish("publish", "POST", f"{TOPIC}/publish", effect=_KEYED,
        summary="Publish messages, or the reference to the messages that a transaction stored.",
        parameters=(KEY, *PRODUCER, TTL), takes=(*_SENT, *_RAW),
        told="Published. An Avro body is empty without a transaction; in a transaction it is the body of the rollback.",
        gives=(*_json(replies.Published), (AVRO, bytes), (AVRO_JSON, replies.AvroPublishResponse)), reply_headers=PUBLISHED,
        errors=_WRITE_ERRORS, body_bytes_max=None, has_own_deadline=True),
    _publish("store", "POST", f"{TOPIC}/store", effect=_KEYED,
        summary="Store messages of a transaction, to be published by reference.", parameters=(KEY, TTL), takes=_SENT,
        told="Stored.", reply_headers=REPLAYED, errors=_WRITE_ERRORS, body_bytes_max=None, has_own_deadline=True),
    _publish("rollback", "POST", f"{TOPIC}/rollback", action=Action.ROLLBACK, effect=_IDEMPOTENT,
        summary="Roll a transactional publish back.",
        takes=((AVRO, bytes), *_json(sent.RollbackRequest), (AVRO_JSON, replies.AvroPublishResponse)),
        told="Rolled back. Also the answer if there was nothing to roll back.", errors=("404", "422", "507")),
    _consume("poll", "POST", f"{TOPIC}/poll", effect=_POLL, by=_LEADER, summary="Read messages as a consumer.",
        parameters=(WAIT, COMMITTED),
        takes=((AVRO, bytes), *_json(sent.PollRequest), (AVRO_JSON, sent.AvroConsumeRequest)),
        told="Messages, chunk by chunk. An Avro array without a zero block at its end was cut off. "
        f"With `Accept: {MESSAGES}`, the messages have their keys and headers.",
        gives=((AVRO, bytes), (MESSAGES, bytes), *_json(replies.Polled), (AVRO_JSON, replies.AvroConsumeResponse)),
        reply_headers=BLOCKED_BY, body_bytes_max=SNAPSHOT_BYTES_MAX, has_own_deadline=True),
    # More about topics.
    _describe("namespaces", "GET", NAMESPACES, by=_ANY, summary="List the namespaces that have topics.",
        told="Their names, sorted.", gives=_json(replies.Names)),
    _browse("browse", "GET", _MESSAGES, by=_LEADER, summary="Look at messages without consuming.", parameters=PAGE,
        told="A page.", gives=_json(replies.BrowsePage), errors=("404",)),
    _browse("browse_as", "POST", _MESSAGES, by=_LEADER,
        summary="Look at messages, and see which of them a transaction could consume.", parameters=PAGE,
        takes=_SNAPSHOT, told="A page.", gives=_json(replies.BrowsePageAs), errors=("404",),
        body_bytes_max=SNAPSHOT_BYTES_MAX),
    _delete("purge", "POST", f"{TOPIC}/purge", effect=_IDEMPOTENT,
        summary="Remove all messages published before a moment. This can't be undone.", parameters=(BEFORE,),
        told="From now on no node shows them.", gives=_json(replies.Purged), errors=("404", "507")),
    _browse("stats", "GET", f"{TOPIC}/stats", by=_LEADER, summary="Show figures about a topic's contents.",
        told="The figures. Estimates are marked.", gives=_json(replies.Stats), errors=("404",)),
    _browse("lag", "GET", f"{TOPIC}/lag", by=_LEADER, summary="Count the messages that were published behind an id.",
        parameters=(LAG_AFTER,), told="The number of messages.", gives=_json(replies.Lag), errors=("404",)),
    _browse("range", "GET", f"{TOPIC}/range", by=_LEADER,
        summary="Show where a topic begins and ends. Bound a range of it, and divide the range into parts.",
        parameters=RANGE, told="The range.", gives=_json(replies.Range), errors=("404",)),
    _publish("begin_stage", "POST", f"{TOPIC}/stages", effect=_IDEMPOTENT,
        summary="Begin a stage: one writer stores messages in it, and a later publish shows them.",
        told="The stage's number and end of life.", gives=_json(replies.Stage), errors=("404", "507")),
    _publish("publish_stages", "POST", f"{TOPIC}/stages/publish", effect=_IDEMPOTENT,
        summary="Publish stages atomically, in the order of the list.", parameters=(*PRODUCER, TTL),
        takes=_json(sent.StagesSent), told="Published.", gives=(*_json(replies.Published), (AVRO, bytes)),
        reply_headers=PUBLISHED, errors=_WRITE_ERRORS, has_own_deadline=True),
    _publish("store_staged", "POST", f"{TOPIC}/stages/{{stage}}/store", effect=_KEYED,
        summary="Store messages in a stage.", parameters=(KEY, TTL), takes=(*_SENT, *_RAW), told="Stored.",
        reply_headers=REPLAYED, errors=_WRITE_ERRORS, body_bytes_max=None, has_own_deadline=True),
    _consume("arrow", "GET", f"{TOPIC}/arrow", effect=_READ, by=_ANY,
        summary="Read all messages of a range, as an Arrow IPC stream.", parameters=ROWS, told=_BATCHES,
        gives=((ARROW, bytes),), reply_headers=BLOCKED_BY, errors=("404", "501")),
    _consume("arrow_as", "POST", f"{TOPIC}/arrow", effect=_READ, by=_ANY,
        summary="Read the messages of a range that a transaction may consume.", parameters=ROWS, takes=_SNAPSHOT,
        told=_BATCHES, gives=((ARROW, bytes),), reply_headers=BLOCKED_BY, errors=("404", "501"),
        body_bytes_max=SNAPSHOT_BYTES_MAX),
    _consume("events", "GET", f"{TOPIC}/events", effect=_POLL, by=_ANY,
        summary="Follow a topic as server-sent events.",
        parameters=EVENTS_FROM,
        told="Events; the data of each is an Event. Before the first event comes an id alone, to resume behind.",
        gives=((EVENTS, str),), has_own_deadline=True),
    _describe("leader", "GET", f"{TOPIC}/leader", by=_LEADER, summary="Ask which node leads a topic.",
        told="That node; null while no node may lead. The epoch is null until a node has claimed the topic.",
        gives=_json(replies.Leader), errors=("404",)),
    _browse("blockers", "POST", f"{TOPIC}/blockers", by=_LEADER,
        summary="Show which transactions hold a consumer back, the first one first.",
        parameters=BLOCKED,
        takes=(*_SNAPSHOT, (THRIFT, bytes)), needs_body=False, told="If the list is empty, no transaction blocks.",
        gives=_json(replies.Blockers), errors=("404",), body_bytes_max=SNAPSHOT_BYTES_MAX),
    _cursor("cursors", "GET", f"{TOPIC}/cursors", effect=_READ,
        summary="List a topic's named cursors, each with its lag, in the order of their names.",
        parameters=CURSOR_PAGE,
        told="A page.", gives=_json(replies.Cursors), errors=("404",)),
    _cursor("show_cursor", "GET", _CURSOR, effect=_READ, summary="Show a named cursor and its lag.",
        told="The cursor.", gives=_json(replies.CursorLag)),
    _cursor("put_cursor", "PUT", _CURSOR, effect=_ONCE,
        summary="Move or create a named cursor, if its version is the expected one.", takes=_json(sent.CursorSent),
        told="The new cursor.", gives=_json(replies.Cursor), errors=("404", "409"), body_bytes_max=CURSOR_BYTES_MAX),
    _cursor("delete_cursor", "DELETE", _CURSOR, effect=_IDEMPOTENT, summary="Delete a named cursor.",
        told="The cursor does not exist any more.", gives=_json(replies.CursorDeleted)),
    # Transactions.
    _transaction("start_transaction", "POST", TRANSACTIONS, effect=_ONCE, summary="Begin a transaction.",
        takes=_json(sent.TransactionSent), needs_body=False, told="The transaction.", gives=_TRANSACTION_GIVEN,
        errors=("409", "507")),
    _transaction("list_transactions", "GET", TRANSACTIONS, action=Action.TRANSACTIONS_ALL, effect=_LED_READ,
        summary="List the transactions in progress, the oldest first.", parameters=(TRANSACTION_LIMIT,),
        told="The transactions, and the counts of all.", gives=_json(replies.TransactionList)),
    _transaction("transactions_snapshot", "GET", f"{TRANSACTIONS}/snapshot", effect=_LED_READ,
        summary="Show a snapshot as of now, without beginning a transaction; or the whole state in Tephra's snapshot format.",
        told="The snapshot.", gives=(*_TRANSACTION_GIVEN, (TEPHRA_SNAPSHOT, bytes))),
    _transaction("truncate_transactions", "POST", f"{TRANSACTIONS}/truncate", action=Action.TRANSACTIONS_RESET, effect=_IDEMPOTENT,
        summary="Remove pointers from the invalid list. No topic may have messages of them any more.",
        takes=_json(sent.TruncateSent), told="How many of them were invalid.", gives=_json(replies.Truncated), errors=("507",),
        body_bytes_max=JSON_TEXT_BYTES_MAX, unhides="truncation"),
    _transaction("prune_plan", "GET", _PRUNE, action=Action.TRANSACTIONS_RESET, effect=_READ, by=_ANY, role="topics",
        summary="Show how many invalid transactions the service may forget, and why not more.", parameters=(THROUGH,),
        told="The plan. Nothing was changed.", gives=_json(replies.PrunePlan), has_own_deadline=False),
    _transaction("prune_transactions", "POST", _PRUNE, action=Action.TRANSACTIONS_RESET, effect=_IDEMPOTENT, by=_ANY, role="topics",
        summary="Let the service forget the invalid transactions that have no messages left in any topic.",
        parameters=(THROUGH,), told="The forgotten transactions.", gives=_json(replies.Pruned), errors=("507",),
        has_own_deadline=False, notes="removed"),
    _transaction("reset_transactions", "POST", f"{TRANSACTIONS}/reset", action=Action.TRANSACTIONS_RESET, effect=_IDEMPOTENT,
        summary="Forget all transactions, also those in progress. The service is then as new.",
        told="How many transactions in progress and invalid pointers no longer hide messages.", gives=_json(replies.Reset),
        errors=("507",), unhides="reset"),
    _transaction("show_transaction", "GET", _TRANSACTION, effect=_LED_READ, summary="Show a transaction.",
        told="The transaction.", gives=_json(replies.TransactionShown), errors=("404",)),
    _transaction("can_commit_transaction", "POST", f"{_TRANSACTION}/can-commit", effect=_IDEMPOTENT,
        summary="Send the keys that a transaction changed, and learn whether it conflicts.",
        takes=_json(sent.ChangesSent), gives=_json(replies.Nothing), errors=("409", "507"),
        body_bytes_max=JSON_TEXT_BYTES_MAX),
    _transaction("commit_transaction", "POST", f"{_TRANSACTION}/commit", effect=_ONCE,
        summary="Commit a transaction: its writes become visible.", takes=_json(sent.CommitSent), needs_body=False,
        gives=_json(replies.Nothing), errors=("409", "507")),
    _transaction("abort_transaction", "POST", f"{_TRANSACTION}/abort", effect=_IDEMPOTENT,
        summary="Abort a transaction whose client has undone its writes. A long transaction becomes invalid.",
        gives=_json(replies.Nothing), errors=("507",)),
    _transaction("invalidate_transaction", "POST", f"{_TRANSACTION}/invalidate", effect=_IDEMPOTENT,
        summary="Make a transaction invalid: its writes are never seen.",
        told="True if the transaction was in progress.", gives=_json(replies.Invalidated), errors=("507",),
        notes="invalidated"),
    _transaction("checkpoint_transaction", "POST", f"{_TRANSACTION}/checkpoint", effect=_ONCE,
        summary="Give a transaction a further write pointer.", told="The transaction.", gives=_TRANSACTION_GIVEN,
        errors=("409", "507")),
    # The cluster.
    _look("cluster", template=_CLUSTER,
        summary="Show all nodes of the cluster. This node asks each of them.", parameters=(TOPICS_TOO,),
        told="The views of the nodes that answer.", gives=_json(replies.ClusterStatus)),
    _look("cluster_node", template=f"{_CLUSTER}/node", by=_NODE,
        summary="Show this node's view of itself. It asks no other node.", parameters=(TOPICS_TOO,), told="The view.",
        gives=_json(replies.ClusterNode)),
    _cluster("drain", "POST", f"{_CLUSTER}/nodes/{{node}}/drain",
        summary="Drain a node: it leads no topic until it is undrained.", told="Its topics will move.",
        gives=_json(replies.Drained)),
    _cluster("undrain", "POST", f"{_CLUSTER}/nodes/{{node}}/undrain",
        summary="Undrain a node: it may lead topics again.", told="Topics will move to it.", gives=_json(replies.Drained)),
    _look("pins", template=f"{_CLUSTER}/pins", summary="List the topics that are pinned to a node.",
        told="All pins.", gives=_json(replies.Pins)),
    _cluster("pin", "PUT", _PIN,
        summary="Pin a topic to a node: the node leads it as long as the node lives.", takes=_json(sent.PinSent),
        told="The topic will move.", gives=_json(replies.Pinned)),
    _cluster("unpin", "DELETE", _PIN, summary="Let any node lead a topic again.",
        told="The topic has no pin.", gives=_json(replies.Pinned)),
    # Access.
    _access("create_token", "POST", f"{ACCESS}/tokens", effect=_ONCE, summary="Make a token for a principal.",
        takes=_json(sent.TokenSent), told="The token, which no other answer shows.", gives=_json(replies.TokenMade)),
    _access("tokens", "GET", f"{ACCESS}/tokens", effect=_READ, summary="List all tokens, without their secrets.",
        told="The tokens.", gives=_json(replies.TokenList)),
    _access("revoke_token", "DELETE", f"{ACCESS}/tokens/{{token}}", effect=_ONCE, summary="Revoke a token.",
        told="Within two seconds no node takes it.", gives=_json(replies.TokenRevoked), errors=("404",)),
    _access("grant", "POST", f"{ACCESS}/grants", effect=_IDEMPOTENT, summary="Grant a role or an action.",
        takes=_json(sent.GrantSent), told="It counts within two seconds on every node.", gives=_json(replies.GrantChanged)),
    _access("grants", "GET", f"{ACCESS}/grants", effect=_READ, summary="List all grants.", told="The grants, sorted.",
        gives=_json(replies.GrantList)),
    _access("revoke_grant", "DELETE", f"{ACCESS}/grants", effect=_IDEMPOTENT, summary="Revoke a grant.", parameters=GRANT,
        told="Within two seconds no node has it.", gives=_json(replies.GrantChanged)),
    _access("decide", "GET", f"{ACCESS}/decision", effect=_READ, summary="Show whether a principal may do an action, and why.",
        parameters=DECISION, told="The grant that allows it; null: it is denied.", gives=_json(replies.Decision)),
    _access("quotas", "GET", f"{ACCESS}/quotas", effect=_READ, summary="List the quotas of principals and of topics.",
        told="All limits that are set, by name.", gives=_json(replies.QuotaList)),
    _access("put_quota", "PUT", f"{ACCESS}/quotas/{{who}}", effect=_IDEMPOTENT,
        summary="Replace the limits of a principal, of `*`, or of `topic:NAMESPACE/TOPIC`.", takes=_json(sent.QuotaSent),
        told="They count within two seconds on every node.", gives=_json(replies.QuotaChanged)),
    _access("delete_quota", "DELETE", f"{ACCESS}/quotas/{{who}}", effect=_IDEMPOTENT, summary="Remove the limits of a name.",
        told="The name has no limits of its own.", gives=_json(replies.QuotaChanged)),
    # The node itself.
    _node("ping", template="/ping", summary="Ask whether the node answers.", told="It does.",
        gives=((TEXT, str),), is_for_probes=True),
    _node("service_status", template="/v3/system/services/{service}/status",
        summary="Ask for the status of a service.", told="It runs.", gives=_json(replies.ServiceStatus),
        is_for_probes=True),
    _node("healthz", template="/healthz", summary="Ask whether the process lives.", told="It lives.",
        gives=_json(replies.Health), is_for_probes=True),
    _node("readyz", template="/readyz", summary="Ask whether this node takes requests.", told="It does.",
        gives=_json(replies.Ready), is_for_probes=True),
    _node("metrics", action=Action.METRICS, template="/metrics", summary="Show all metrics for Prometheus.",
        told="The metrics, in the text format.", gives=((METRICS, str),), is_for_probes=True),
    _node("product", template="/", summary="Ask which product this is, and where its interface is described.",
        told="Its name and version.", gives=_json(replies.Product)),
    _node("openapi", template="/openapi.json", summary="Show this document.", told="OpenAPI 3.1.",
        gives=_json(dict[str, object])),
)
# fmt: on
BY_NAME: Final = {operation.name: operation for operation in OPERATIONS}
