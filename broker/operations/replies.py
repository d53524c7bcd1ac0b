"""The JSON bodies of replies, each declared once (``shapes``). Handlers make them, and the client checks them.

The table tells what each of them is. A field that a release adds is ``NotRequired`` in that release, since its client may ask a
node of the release before.
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from typing_extensions import TypedDict

from broker.errors import registry
from broker.operations.scalars import (
    CodePoints,
    CursorName,
    Encoding,
    IdPlaceText,
    IdText,
    Instance,
    Int64,
    Long,
    Moment,
    ShownBytes,
    StageText,
    TopicName,
    TransactionType,
)
from broker.operations.shapes import STRING, Rule, ShapeName

# --- Topics ---------------------------------------------------------------------------------------

Properties = Annotated[
    dict[str, str],
    ShapeName("Properties"),
    Rule(properties={"ttl": STRING, "generation": STRING}, required=["ttl", "generation"]),
]
Names = Annotated[list[str], ShapeName("Names")]


Count = TypedDict("Count", {"value": int, "estimate": bool})
End = TypedDict("End", {"id": IdText, "time": Moment})
Rates = TypedDict("Rates", {"publish_per_s": float, "poll_per_s": float})


class Stats(TypedDict):
    namespace: str
    topic: str
    generation: int
    published: int
    messages: Count
    bytes: Count
    first: End | None
    last: End | None
    rates: Rates
    open_payload_logs: int
    ids_ahead_ms: int


Purged = TypedDict("Purged", {"purged_before": Moment, "purged_ms": int})
Lag = TypedDict("Lag", {"after": IdText, "messages": int})


class Range(TypedDict):
    earliest: IdText
    latest: IdText
    after: IdText
    through: IdText
    messages: int
    bytes: int
    lost: int
    ends: list[IdText]
    generation: int


Leader = TypedDict("Leader", {"node": int | None, "url": str | None, "epoch": int | None})


# --- Messages -------------------------------------------------------------------------------------


class PublishResult(TypedDict):
    first_id: IdText | None
    last_id: IdText | None
    count: int | None
    replayed: bool
    write_pointer: NotRequired[Long]


Published = Annotated[
    PublishResult,
    ShapeName("Published"),
    Rule(
        description="The result of a publish; values that are not known any more are null. With a write pointer, "
        "it is also the body of the rollback."
    ),
]


class Event(TypedDict):
    id: IdText
    timestamp_ms: int
    encoding: Encoding
    payload: str
    key: ShownBytes | None
    headers: dict[str, ShownBytes]


class PolledMessage(Event):
    time: Moment


Polled = Annotated[list[PolledMessage], ShapeName("Polled")]


class Browsed(TypedDict):
    id: IdText
    time: Moment
    timestamp_ms: int
    size: int
    expires_at: Moment | None
    kind: Annotated[str, Rule(enum=["inline", "stored", "reference"])]
    tx_state: Annotated[str, Rule(enum=["none", "published", "rolled_back"])]
    write_pointer: Long | None
    encoding: Encoding
    payload: str | None
    truncated: bool
    key: ShownBytes | None
    headers: dict[str, ShownBytes]


class BrowsedAs(Browsed):
    consumable: bool


_Next = Annotated[
    IdPlaceText | None,
    Rule(
        description="Where the next page begins: send it as `from`, or with `order=desc` as `to`."
    ),
]


BrowsePage = TypedDict("BrowsePage", {"messages": list[Browsed], "next": _Next})
BrowsePageAs = TypedDict("BrowsePageAs", {"messages": list[BrowsedAs], "next": _Next})
Stage = TypedDict("Stage", {"stage": StageText, "ends_at": Moment})


# --- Cursors --------------------------------------------------------------------------------------


class CursorState(TypedDict):
    name: CursorName
    after: IdText | None
    version: str
    data: str
    updated_ms: int


class Cursor(CursorState):
    generation: int


Unread = TypedDict("Unread", {"messages": int, "lost": int, "oldest": End | None})


class CursorLag(Cursor):
    lag: Unread


Cursors = TypedDict("Cursors", {"cursors": list[CursorLag], "next": CursorName | None})
CursorDeleted = TypedDict("CursorDeleted", {"deleted": bool})


# --- Transactions ---------------------------------------------------------------------------------


class SnapshotShown(TypedDict):
    transaction_id: Long
    read_pointer: Long
    write_pointer: Long
    first_short_in_progress: Long
    invalids: list[Long]
    in_progress: list[Long]
    checkpoint_pointers: list[Long]
    long: bool
    visibility: Literal["SNAPSHOT", "SNAPSHOT_EXCLUDE_CURRENT", "SNAPSHOT_ALL"]


Transaction = Annotated[
    SnapshotShown,
    ShapeName("Transaction"),
    Rule(
        description="The snapshot of a transaction. A snapshot without a transaction has the id 0."
    ),
]


class Listed(TypedDict):
    id: Long
    type: TransactionType
    started_ms: int
    expires_ms: int
    client: str
    name: str
    checkpoints: list[Long]


class TransactionList(TypedDict):
    in_progress: list[Listed]
    in_progress_count: int
    committing: int
    committed: int
    invalid: int
    read_pointer: Long
    write_pointer: Long
    leader: int | None
    epoch: int | None


class TransactionShown(TypedDict):
    id: Long
    state: Annotated[str, Rule(enum=["in_progress", "committing", "invalid"])]
    type: NotRequired[TransactionType]
    started_ms: NotRequired[int]
    expires_ms: NotRequired[int]
    client: NotRequired[str]
    name: NotRequired[str]
    checkpoints: NotRequired[list[Long]]
    changes: NotRequired[int]


Nothing = TypedDict("Nothing", {})
Invalidated = TypedDict("Invalidated", {"invalidated": bool})
Truncated = TypedDict("Truncated", {"removed": int})
Reset = TypedDict("Reset", {"in_progress": int, "invalid": int})


class Unpassed(TypedDict):
    namespace: str
    topic: str
    generation: int
    passed_below: Long
    page: IdText
    page_time: Moment | None


class PrunePlan(TypedDict):
    invalid: int
    prunable: int
    oldest_prunable: Long | None
    newest_prunable: Long | None
    oldest_left: Long | None
    reason: str | None
    settled_at: Moment | None
    in_progress: Long | None
    unpassed: Unpassed | None


class Pruned(PrunePlan):
    removed: int


class FirstMessage(End):
    timestamp_ms: int


class Blocker(TypedDict):
    transaction: Long
    write_pointer: Long
    first: FirstMessage
    since_s: float
    messages: int
    waiting: int
    state: Annotated[
        str | None,
        Rule(
            enum=["in_progress", "committing", "invalid", "unknown", None],
            description="The transaction's state in the service. null: the service does not answer. unknown: the "
            "transaction has ended, or another service gave its number.",
        ),
    ]
    type: str | None
    client: str | None
    started_at: Moment | None
    expires_at: Moment | None
    advice: str


class Blockers(TypedDict):
    snapshot_of: Annotated[str, Rule(enum=["request", "transaction", "now"])]
    read_pointer: Long
    blockers: list[Blocker]
    complete: bool
    service_problem: str | None


# --- The cluster ----------------------------------------------------------------------------------

Contact = Annotated[str, Rule(enum=["connected", "suspended", "lost"])]


LedTopic = TypedDict("LedTopic", {"topic": TopicName, "epoch": int})
CoordinatorView = TypedDict("CoordinatorView", {"contact": Contact, "session": str | None})


class StorageView(TypedDict):
    calls: int
    errors: int
    last_success: Moment | None
    last_failure: Moment | None
    last_error: str | None


class ClusterNode(TypedDict):
    node: Instance
    incarnation: str
    url: str
    version: str
    protocol: int
    draining: bool
    slots_led: int
    topics_led: int
    topics: list[LedTopic] | None
    zookeeper: CoordinatorView
    storage: StorageView
    uptime_s: float
    clock_skew_ms: int | None
    now_ms: int


class Member(TypedDict):
    node: Instance
    url: str
    version: str
    protocol: int
    state: Annotated[str, Rule(enum=["serving", "drained", "stopping", "silent"])]
    drained: bool | None
    problem: str | None
    view: ClusterNode | None


class ClusterStatus(TypedDict):
    asked: Instance
    contact: Contact
    nodes: list[Member]
    drained: list[Instance] | None
    pins: int | None
    problem: str | None


class Drained(TypedDict):
    node: Instance
    url: str | None
    drained: bool
    changed: bool


Pin = TypedDict("Pin", {"topic": TopicName, "node": Instance, "lives": bool})
Pins = TypedDict("Pins", {"pins": list[Pin]})


class Pinned(TypedDict):
    topic: TopicName
    node: Instance | None
    url: str | None
    changed: bool


# --- Access ---------------------------------------------------------------------------------------


class TokenShown(TypedDict):
    id: str
    principal: str
    created_ms: int
    expires_ms: int | None


class TokenMade(TokenShown):
    token: Annotated[str, Rule(description="The token. No other answer shows it.")]


TokenList = TypedDict("TokenList", {"tokens": list[TokenShown]})
TokenRevoked = TypedDict("TokenRevoked", {"revoked": str, "principal": str})
GrantShown = TypedDict("GrantShown", {"who": str, "what": str, "pattern": str})
GrantList = TypedDict("GrantList", {"grants": list[GrantShown]})
GrantChanged = TypedDict("GrantChanged", {"grant": GrantShown, "changed": bool})
Decision = TypedDict("Decision", {"allowed": bool, "grant": GrantShown | None})
QuotaShown = TypedDict("QuotaShown", {"who": str, "limits": dict[str, int | None]})
QuotaList = TypedDict("QuotaList", {"quotas": list[QuotaShown]})


class QuotaChanged(TypedDict):
    who: str
    limits: dict[str, int | None]
    changed: bool


# --- The node itself ------------------------------------------------------------------------------


Health = TypedDict("Health", {"status": Literal["ok"], "version": str})
Ready = TypedDict("Ready", {"status": Literal["ready"]})
ServiceStatus = TypedDict("ServiceStatus", {"status": Literal["OK"]})


class Product(TypedDict):
    product: Literal["tms-broker"]
    version: str
    interface: Literal["/openapi.json"]


class Error(TypedDict):
    code: Annotated[str, Rule(enum=sorted({error.code for error in registry()}))]
    message: str
    retriable: bool
    outcome: Annotated[str, Rule(enum=["refused", "unknown"])]
    cursor: NotRequired[
        Annotated[
            CursorState | None,
            Rule(
                description="Only in `cursor_moved`: the current cursor, or null if there is none."
            ),
        ]
    ]


# --- Avro's JSON encoding -------------------------------------------------------------------------


_Pointer = TypedDict("_Pointer", {"long": Int64})


class _RollbackRange(TypedDict):
    startTimestamp: Int64
    startSequenceId: int
    endTimestamp: Int64
    endSequenceId: int


class AvroPublishResponse(TypedDict):
    transactionWritePointer: _Pointer
    rollbackRange: _RollbackRange


_AvroMessage = TypedDict("_AvroMessage", {"id": CodePoints, "payload": CodePoints})


AvroConsumeResponse = Annotated[list[_AvroMessage], ShapeName("AvroConsumeResponse")]
