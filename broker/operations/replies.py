"""The JSON bodies of replies, each declared once (``shapes``). Handlers make them, and the client checks them."""

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


class Count(TypedDict):
    """A number, and whether it is an estimate."""

    value: int
    estimate: bool


class End(TypedDict):
    """The first or the last message."""

    id: IdText
    time: Moment


class Rates(TypedDict):
    """Requests a second."""

    publish_per_s: float
    poll_per_s: float


class Stats(TypedDict):
    """Figures about a topic's contents."""

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


class Purged(TypedDict):
    """From this moment on messages are left."""

    purged_before: Moment
    purged_ms: int


class Lag(TypedDict):
    """The number of messages behind an id."""

    after: IdText
    messages: int


class Range(TypedDict):
    """The ends of a topic, and a range of it with the ends of its parts."""

    earliest: IdText
    latest: IdText
    after: IdText
    through: IdText
    messages: int
    bytes: int
    lost: int
    ends: list[IdText]
    generation: int


class Leader(TypedDict):
    """The node that leads a topic."""

    node: int | None
    url: str | None
    epoch: int | None


# --- Messages -------------------------------------------------------------------------------------


class PublishResult(TypedDict):
    """The ids and the count of a publish."""

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
    """A message as the data of an event."""

    id: IdText
    timestamp_ms: int
    encoding: Encoding
    payload: str
    key: ShownBytes | None
    headers: dict[str, ShownBytes]


class PolledMessage(Event):
    """A message as a consumer reads it."""

    time: Moment


Polled = Annotated[list[PolledMessage], ShapeName("Polled")]


class Browsed(TypedDict):
    """A message as browse shows it."""

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
    """The same, for a transaction."""

    consumable: bool


_Next = Annotated[
    IdPlaceText | None,
    Rule(
        description="Where the next page begins: send it as `from`, or with `order=desc` as `to`."
    ),
]


class BrowsePage(TypedDict):
    """A page of messages."""

    messages: list[Browsed]
    next: _Next


class BrowsePageAs(TypedDict):
    """The same, for a transaction."""

    messages: list[BrowsedAs]
    next: _Next


class Stage(TypedDict):
    """A new stage."""

    stage: StageText
    ends_at: Moment


# --- Cursors --------------------------------------------------------------------------------------


class CursorState(TypedDict):
    """A cursor of this generation of its topic."""

    name: CursorName
    after: IdText | None
    version: str
    data: str
    updated_ms: int


class Cursor(CursorState):
    """A cursor."""

    generation: int


class Unread(TypedDict):
    """The messages behind a cursor."""

    messages: int
    lost: int
    oldest: End | None


class CursorLag(Cursor):
    """A cursor with its lag."""

    lag: Unread


class Cursors(TypedDict):
    """A page of cursors."""

    cursors: list[CursorLag]
    next: CursorName | None


class CursorDeleted(TypedDict):
    """Whether there was a cursor."""

    deleted: bool


# --- Transactions ---------------------------------------------------------------------------------


class SnapshotShown(TypedDict):
    """The parts of a snapshot."""

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
    """A transaction in progress."""

    id: Long
    type: TransactionType
    started_ms: int
    expires_ms: int
    client: str
    name: str
    checkpoints: list[Long]


class TransactionList(TypedDict):
    """The state of the service."""

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
    """One transaction; only its state if it is not in progress."""

    id: Long
    state: Annotated[str, Rule(enum=["in_progress", "committing", "invalid"])]
    type: NotRequired[TransactionType]
    started_ms: NotRequired[int]
    expires_ms: NotRequired[int]
    client: NotRequired[str]
    name: NotRequired[str]
    checkpoints: NotRequired[list[Long]]
    changes: NotRequired[int]


class Nothing(TypedDict):
    """Done."""


class Invalidated(TypedDict):
    """Whether the transaction was in progress."""

    invalidated: bool


class Truncated(TypedDict):
    """How many transactions were forgotten."""

    removed: int


class Reset(TypedDict):
    """How many transactions no longer hide messages."""

    in_progress: int
    invalid: int


class Unpassed(TypedDict):
    """The topic whose sweep pruning waits for."""

    namespace: str
    topic: str
    generation: int
    passed_below: Long
    page: IdText
    page_time: Moment | None


class PrunePlan(TypedDict):
    """How many invalid transactions the service may forget, and why not more."""

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
    """The same, after it was done."""

    removed: int


class FirstMessage(End):
    """The first message that a transaction hides."""

    timestamp_ms: int


class Blocker(TypedDict):
    """A transaction that holds a consumer back."""

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
    """The transactions that hold a consumer back."""

    snapshot_of: Annotated[str, Rule(enum=["request", "transaction", "now"])]
    read_pointer: Long
    blockers: list[Blocker]
    complete: bool
    service_problem: str | None


# --- The cluster ----------------------------------------------------------------------------------

Contact = Annotated[str, Rule(enum=["connected", "suspended", "lost"])]


class LedTopic(TypedDict):
    """A topic that a node leads."""

    topic: TopicName
    epoch: int


class CoordinatorView(TypedDict):
    """A node's contact with the coordinator."""

    contact: Contact
    session: str | None


class StorageView(TypedDict):
    """A node's calls of the storage."""

    calls: int
    errors: int
    last_success: Moment | None
    last_failure: Moment | None
    last_error: str | None


class ClusterNode(TypedDict):
    """A node's view of itself."""

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
    """A node as another node sees it."""

    node: Instance
    url: str
    version: str
    protocol: int
    state: Annotated[str, Rule(enum=["serving", "drained", "stopping", "silent"])]
    drained: bool | None
    problem: str | None
    view: ClusterNode | None


class ClusterStatus(TypedDict):
    """One node's view of all nodes."""

    asked: Instance
    contact: Contact
    nodes: list[Member]
    drained: list[Instance] | None
    pins: int | None
    problem: str | None


class Drained(TypedDict):
    """Whether a node is drained, and whether the request changed that."""

    node: Instance
    url: str | None
    drained: bool
    changed: bool


class Pin(TypedDict):
    """A topic that is pinned to a node."""

    topic: TopicName
    node: Instance
    lives: bool


class Pins(TypedDict):
    """All pins."""

    pins: list[Pin]


class Pinned(TypedDict):
    """The node to which a topic is pinned, and whether the request changed that."""

    topic: TopicName
    node: Instance | None
    url: str | None
    changed: bool


# --- The node itself ------------------------------------------------------------------------------


class Health(TypedDict):
    """The process lives."""

    status: Literal["ok"]
    version: str


class Ready(TypedDict):
    """The node takes requests."""

    status: Literal["ready"]


class ServiceStatus(TypedDict):
    """As the original answers."""

    status: Literal["OK"]


class Product(TypedDict):
    """The product, and where its interface is described."""

    product: Literal["tms-broker"]
    version: str
    interface: Literal["/openapi.json"]


class Error(TypedDict):
    """An error."""

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


class _Pointer(TypedDict):
    long: Int64


class _RollbackRange(TypedDict):
    startTimestamp: Int64
    startSequenceId: int
    endTimestamp: Int64
    endSequenceId: int


class AvroPublishResponse(TypedDict):
    """The answer of a transactional publish, and the body of its rollback."""

    transactionWritePointer: _Pointer
    rollbackRange: _RollbackRange


class _AvroMessage(TypedDict):
    id: CodePoints
    payload: CodePoints


AvroConsumeResponse = Annotated[list[_AvroMessage], ShapeName("AvroConsumeResponse")]
