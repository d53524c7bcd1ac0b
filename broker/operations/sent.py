"""The JSON bodies of requests, each declared once (``shapes``). The table tells what each of them is."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from typing_extensions import TypedDict

from broker.operations.operation import RIGHTS
from broker.operations.scalars import (
    TTL_MAX_S,
    Base64,
    CodePoints,
    Grantee,
    IdPlaceText,
    IdText,
    Instance,
    Int32Positive,
    Int64,
    LongSent,
    PrincipalName,
    ShownBytes,
    SnapshotSent,
    StageText,
    TopicPattern,
    TransactionType,
    TtlSent,
)
from broker.operations.shapes import Rule, ShapeName

# --- Topics ---------------------------------------------------------------------------------------

_Ttl = Annotated[TtlSent, Rule(description="How long messages live: seconds, or `1d`.")]


class _Properties(TypedDict):
    ttl: NotRequired[_Ttl]
    transactions: NotRequired[Literal["optional", "required", "refused"]]


PropertiesSent = Annotated[
    _Properties,
    ShapeName("PropertiesSent"),
    Rule(
        description="All properties. A missing property gets its default.",
        additionalProperties={"type": ["string", "number", "boolean"]},
    ),
]

# --- Access ---------------------------------------------------------------------------------------


QuotaLimits = Annotated[
    dict[str, int | None],
    Rule(
        description="Limits by kind, each a whole number from 1. Null: no limit, although a less exact name has one.",
    ),
]
QuotaSent = TypedDict("QuotaSent", {"limits": QuotaLimits})


class TokenSent(TypedDict):
    principal: PrincipalName
    expires_s: NotRequired[
        Annotated[int, Rule(minimum=1, maximum=TTL_MAX_S, description="Its life. Absent: no end.")]
    ]


class GrantSent(TypedDict):
    who: Grantee
    what: Annotated[
        str, Rule(enum=RIGHTS, description="A role or an action.", says="a role or an action")
    ]
    pattern: NotRequired[TopicPattern]


# --- Messages -------------------------------------------------------------------------------------


BytesSent = TypedDict("BytesSent", {"base64": Base64})
_JsonSent = TypedDict("_JsonSent", {"json": object})


JsonSent = Annotated[
    _JsonSent,
    Rule(description="Any JSON value. The message is its compact text in UTF-8."),
]


class MessageSent(TypedDict):
    value: ShownBytes | JsonSent
    key: NotRequired[ShownBytes | None]
    headers: NotRequired[dict[str, ShownBytes] | None]
    ttl: NotRequired[TtlSent | None]


NewMessage = str | BytesSent | JsonSent | MessageSent


class MessagesSent(TypedDict):
    messages: list[NewMessage]
    write_pointer: NotRequired[LongSent | None]


PublishRequest = Annotated[
    MessagesSent | list[NewMessage] | NewMessage, ShapeName("PublishRequest")
]


class RollbackRequest(TypedDict):
    write_pointer: Annotated[
        LongSent,
        Rule(says="that of a publish in a transaction, whose answer is the body of its rollback"),
    ]
    first_id: IdText
    last_id: IdText
    count: NotRequired[int | None]
    replayed: NotRequired[bool]


_Time = Annotated[str, Rule(format="date-time")]
_Ms = Annotated[int, Rule(minimum=0, maximum=(1 << 63) - 1)]


class PollRequest(TypedDict):
    start: NotRequired[
        Annotated[
            IdText | _Time | _Ms | None,
            Rule(
                says="a message id (40 hex digits), a moment such as 2026-11-20T12:34:56.789Z, ms since 1970, or null"
            ),
        ]
    ]
    inclusive: NotRequired[bool]
    limit: NotRequired[Int32Positive | None]
    snapshot: NotRequired[SnapshotSent | None]


Snapshot = TypedDict("Snapshot", {"snapshot": SnapshotSent})


class CursorSent(TypedDict):
    after: IdPlaceText | None
    expected: str | None
    data: NotRequired[
        Annotated[
            str,
            Rule(
                maxLength=1024,
                description="Text of the reader's own, at most 1,024 bytes of UTF-8.",
            ),
        ]
    ]


STAGES_MAX = 5_000
"""The largest number of stages in one publish."""


class StagesSent(TypedDict):
    stages: Annotated[
        list[StageText],
        Rule(
            minItems=1,
            maxItems=STAGES_MAX,
            uniqueItems=True,
            says=f"a list of 1 to {STAGES_MAX} stages",
        ),
    ]
    write_pointer: NotRequired[LongSent | None]


# --- Transactions ---------------------------------------------------------------------------------


class TransactionSent(TypedDict):
    type: NotRequired[TransactionType]
    timeout_s: NotRequired[
        Annotated[float, Rule(exclusiveMinimum=0, says="a number of seconds")] | None
    ]
    client: NotRequired[str]
    name: NotRequired[
        Annotated[str, Rule(minLength=1, says="valid Unicode text that is not empty")]
    ]
    epoch: NotRequired[LongSent | None]


class ChangesSent(TypedDict):
    changes: Annotated[list[Base64], Rule(says="a list of keys, each in base64")]


CommitSent = TypedDict("CommitSent", {"write_pointer": NotRequired[LongSent | None]})


class TruncatedIds(TypedDict):
    ids: Annotated[list[LongSent], Rule(says="a list of transaction ids")]


TruncatedBefore = TypedDict("TruncatedBefore", {"before_ms": LongSent})


TruncateSent = Annotated[TruncatedIds | TruncatedBefore, ShapeName("TruncateSent")]

# --- The cluster ----------------------------------------------------------------------------------


class PinSent(TypedDict):
    node: Annotated[
        Instance | str,
        Rule(description="A live node's instance id or URL.", says="a node's instance id or URL"),
    ]


# --- Avro's JSON encoding -------------------------------------------------------------------------


_LongBranch = TypedDict("_LongBranch", {"long": Int64})
_LimitBranch = TypedDict("_LimitBranch", {"int": Int32Positive})
_BytesBranch = TypedDict("_BytesBranch", {"bytes": CodePoints})


class AvroPublishRequest(TypedDict):
    transactionWritePointer: NotRequired[_LongBranch | Int64 | None]
    messages: list[CodePoints]


class AvroConsumeRequest(TypedDict):
    startFrom: NotRequired[_BytesBranch | _LongBranch | CodePoints | Int64 | None]
    inclusive: NotRequired[bool]
    limit: NotRequired[_LimitBranch | Int32Positive | None]
    transaction: NotRequired[_BytesBranch | CodePoints | None]
