"""The shapes of single values, and of the values that requests and replies share."""

from __future__ import annotations

from typing import Annotated, Final, Literal, NotRequired

from typing_extensions import TypedDict

from broker.operations.shapes import Rule

TTL_MAX_S: Final = (1 << 31) - 1


def decimals_up_to(most: int) -> str:
    """Return a pattern for the whole numbers from 1 to ``most``. ``most`` must have at least two digits."""
    digits = str(most)
    ways = [f"[1-9][0-9]{{0,{len(digits) - 2}}}", digits]
    for place, digit in enumerate(digits):
        least, below = (0 if place else 1), int(digit) - 1
        if least <= below:
            # The digits of ``most`` up to here, then a smaller digit, then any digits.
            rest = len(digits) - place - 1
            ways.append(f"{digits[:place]}[{least}-{below}][0-9]{{{rest}}}")
    return f"^({'|'.join(ways)})$"


# --- Texts ----------------------------------------------------------------------------------------

IdText = Annotated[str, Rule(pattern="^[0-9a-f]{40}$", says="a message id of 40 hex digits")]
IdPlaceText = Annotated[str, Rule(pattern="^[0-9a-fA-F]{40}(@[0-9]{1,10})?$")]
"""A message id, and perhaps the generation of the topic to which it belongs."""
CursorName = Annotated[str, Rule(pattern="^[a-zA-Z0-9_.-]{1,128}$")]
PrincipalName = Annotated[str, Rule(pattern="^(?!group:)[a-zA-Z0-9_.@:/|+-]{1,128}$")]
Grantee = Annotated[
    str,
    Rule(
        pattern="^(group:)?[a-zA-Z0-9_.@:/|+-]{1,128}$",
        description="A principal, or `group:` and the name of a group.",
    ),
]
TopicPattern = Annotated[
    str,
    Rule(
        pattern=r"^(\*|[a-zA-Z0-9_]+/(\*|[a-zA-Z0-9_-]+))$",
        description="`*`, `NAMESPACE/*` or `NAMESPACE/TOPIC`. Absent: `*`.",
    ),
]
TopicName = Annotated[str, Rule(pattern="^[a-zA-Z0-9_]+/[a-zA-Z0-9_-]+$")]
StageText = Annotated[
    str,
    Rule(
        pattern=decimals_up_to((1 << 63) - 1), says="the number that the broker gave, as a string"
    ),
]
Moment = Annotated[str, Rule(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]
Base64 = Annotated[str, Rule(contentEncoding="base64", says="a string")]
CodePoints = Annotated[
    str,
    Rule(
        pattern="^[\\u0000-\\u00ff]*$",
        description="Bytes, each as the code point of its value.",
    ),
]

# --- Numbers --------------------------------------------------------------------------------------

Positive = Annotated[int, Rule(minimum=1)]
Int32Positive = Annotated[int, Rule(minimum=1, maximum=(1 << 31) - 1)]
Int64 = Annotated[int, Rule(minimum=-(1 << 63), maximum=(1 << 63) - 1)]
Long = Annotated[str, Rule(pattern="^-?(0|[1-9][0-9]{0,18})$")]
"""A number of 64 bits, as a text: many readers of JSON keep a number as a double."""
LongSent = Annotated[Long | Int64, Rule(says="a whole number of 64 bits, best as a string")]
Instance = Annotated[int, Rule(minimum=0, maximum=255)]
TtlSent = (
    Annotated[int, Rule(minimum=1, maximum=TTL_MAX_S)]
    | Annotated[str, Rule(pattern=decimals_up_to(TTL_MAX_S) + "|^[1-9][0-9]{0,3}[smhd]$")]
)

# --- Bytes ----------------------------------------------------------------------------------------


InBase64 = TypedDict("InBase64", {"base64": str})


ShownBytes = Annotated[
    str | InBase64, Rule(description="Bytes: as text if they are UTF-8, else in base64.")
]
Encoding = Annotated[str, Rule(enum=["text", "base64"])]

# --- Snapshots ------------------------------------------------------------------------------------


class SnapshotParts(TypedDict):
    """The parts of a snapshot, by name."""

    transaction_id: LongSent
    read_pointer: LongSent
    write_pointer: NotRequired[LongSent]
    first_short_in_progress: NotRequired[LongSent]
    invalids: NotRequired[list[LongSent]]
    in_progress: NotRequired[list[LongSent]]
    checkpoint_pointers: NotRequired[list[LongSent]]
    long: NotRequired[bool]
    visibility: NotRequired[Literal["SNAPSHOT", "SNAPSHOT_EXCLUDE_CURRENT", "SNAPSHOT_ALL"]]


SnapshotSent = Annotated[
    Annotated[str, Rule(description="A TTransaction, in hex or base64.")] | SnapshotParts,
    Rule(says="hex, base64 or an object"),
]
TransactionType = Annotated[str, Rule(enum=["short", "long"], says="short or long")]
