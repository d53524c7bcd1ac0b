"""The values that all parts use: topics, ids, messages, snapshots.

A message stands in its log under a log key. Consumers see a message id, which is made of two log keys. Both are plain
bytes, and their order as unsigned bytes is the topic's order::

    log key     int64 timestamp ms | uint16 seq                                10 bytes, one message of one log
    message id  key in the message log | key in the payload log                20 bytes, what consumers see

The second half of a message id is zero if the payload lies in the message log itself. Ids stay raw bytes everywhere
for two reasons: Python compares, slices and joins bytes very fast, and a number would lose the fixed width that
makes ids sort. ``seq`` is unsigned.
"""

from __future__ import annotations

import enum
import re
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final, NamedTuple, cast

from typing_extensions import override

from broker.errors import BadName, BadRequest

LogKey = bytes
"""10 bytes: timestamp in ms, int64 big-endian; seq, uint16 big-endian."""
MessageId = bytes
"""20 bytes: the message's key in the message log, then its key in the payload log (zero if inline)."""

LOG_KEY_BYTES = 10
MESSAGE_ID_BYTES = 20
SEQ_MAX = 0xFFFF
TIMESTAMP_MAX_MS = (1 << 63) - 1
LOG_KEY_MIN: LogKey = bytes(LOG_KEY_BYTES)
LOG_KEY_MAX: LogKey = struct.pack(">qH", TIMESTAMP_MAX_MS, SEQ_MAX)
POINTER_MAX = (1 << 63) - 1
POINTERS_PER_MS = 1_000_000
"""A write pointer divided by this is the time when its transaction began, in ms."""

_LOG_KEY = struct.Struct(">qH")
_NAMESPACE = re.compile(r"[a-zA-Z0-9_]+")
_TOPIC = re.compile(r"[a-zA-Z0-9_-]+")
_KEY = re.compile(r"[!-~]{1,255}")
_CURSOR = re.compile(r"[a-zA-Z0-9_.-]{1,128}")


class TopicId(NamedTuple):
    """The name of a topic. ``str()`` gives ``namespace:topic``, as in error texts."""

    namespace: str
    topic: str

    @override
    def __str__(self) -> str:
        """Give ``namespace:topic``."""
        return f"{self.namespace}:{self.topic}"

    @property
    def entity(self) -> str:
        """The longer form, ``topic:namespace.topic``, as in other error texts of the original."""
        return f"topic:{self.namespace}.{self.topic}"


def check_namespace(namespace: str) -> str:
    """Return ``namespace`` if it is a valid name, else raise BadName."""
    if not _NAMESPACE.fullmatch(namespace):
        raise BadName(
            f"Invalid namespace ID: {namespace}. Should only contain alphanumeric characters or _."
        )
    return namespace


def check_topic(namespace: str, topic: str) -> TopicId:
    """Return the topic's id if both names are valid, else raise BadName."""
    check_namespace(namespace)
    if not _TOPIC.fullmatch(topic):
        raise BadName(
            f"Invalid topic ID: {topic}. Should only contain alphanumeric characters and _ or -."
        )
    return TopicId(namespace, topic)


def check_cursor(name: str) -> str:
    """Return ``name`` if it can be the name of a cursor, else raise BadName."""
    if not _CURSOR.fullmatch(name):
        raise BadName(
            f"A cursor's name has 1 to 128 letters, digits, _, - and . only, unlike {name!r:.200}."
        )
    return name


def check_producer(producer: str) -> str:
    """Return ``producer`` if it can be a producer's id, else raise BadRequest."""
    if not _KEY.fullmatch(producer):
        raise BadRequest("Producer-Id must be 1 to 255 visible ASCII characters.")
    return producer


def check_key(key: str) -> str:
    """Return ``key`` if it can be an idempotency key, else raise BadRequest."""
    if not _KEY.fullmatch(key):
        raise BadRequest("Idempotency-Key must be 1 to 255 visible ASCII characters.")
    return key


def log_key(timestamp_ms: int, seq: int) -> LogKey:
    """Pack a log key. Raises struct.error if a part is out of range."""
    return _LOG_KEY.pack(timestamp_ms, seq)


def unpack_log_key(key: LogKey) -> tuple[int, int]:
    """Return (timestamp in ms, seq) of a log key."""
    timestamp_ms, seq = _LOG_KEY.unpack(key)
    return timestamp_ms, seq


def timestamp_of(identifier: LogKey | MessageId) -> int:
    """Return the timestamp in ms with which a log key or a message id begins."""
    return int.from_bytes(identifier[:8], "big")


def log_key_before(key: LogKey) -> LogKey:
    """Return the greatest log key below ``key``; the least log key itself if there is none."""
    number = int.from_bytes(key, "big")
    return (number - 1 if number else 0).to_bytes(LOG_KEY_BYTES, "big")


def log_key_after(key: LogKey) -> LogKey:
    """Return the least log key above ``key``; the greatest log key itself if there is none."""
    return LOG_KEY_MAX if key >= LOG_KEY_MAX else _next(key)


def id_after(message_id: MessageId) -> MessageId:
    """Return the least message id above ``message_id``; the greatest one itself if there is none."""
    key, payload_key = message_id[:LOG_KEY_BYTES], message_id[LOG_KEY_BYTES:]
    if payload_key < LOG_KEY_MAX:
        return key + _next(payload_key)
    return message_id if key >= LOG_KEY_MAX else _next(key) + LOG_KEY_MIN


def _next(key: LogKey) -> LogKey:
    return (int.from_bytes(key, "big") + 1).to_bytes(LOG_KEY_BYTES, "big")


def first_log_key_at(timestamp_ms: int) -> LogKey:
    """Return the least log key of a millisecond, clamped to the range of ids."""
    return _LOG_KEY.pack(min(max(timestamp_ms, 0), TIMESTAMP_MAX_MS), 0)


def message_id_from_hex(text: str) -> MessageId:
    """Parse the 40 hex digits of a message id. Raises BadRequest."""
    try:
        identifier = bytes.fromhex(text)
    except ValueError:
        identifier = b""
    if len(text) != 2 * MESSAGE_ID_BYTES or len(identifier) != MESSAGE_ID_BYTES:
        raise BadRequest(f"A message id has {2 * MESSAGE_ID_BYTES} hex digits, not {text!r}.")
    return identifier


class _NoHeaders(Mapping[str, bytes]):
    """The headers of all messages without headers: one immutable value, which can be pickled."""

    @override
    def __getitem__(self, name: str) -> bytes:
        raise KeyError(name)

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(())

    @override
    def __len__(self) -> int:
        return 0

    @override
    def __repr__(self) -> str:
        return "{}"

    @override
    def __reduce__(self) -> str:
        return "NO_HEADERS"


NO_HEADERS: Final = _NoHeaders()


class Message(NamedTuple):
    """A message as a consumer receives it. Its publisher gave ``key`` and ``headers`` beside the payload."""

    id: MessageId
    payload: bytes
    key: bytes | None = None
    headers: Mapping[str, bytes] = NO_HEADERS

    @property
    def timestamp_ms(self) -> int:
        """The publish time, ms since 1970."""
        return timestamp_of(self.id)


class ViewedMessage(NamedTuple):
    """A large message whose payload is a view of a larger part of memory, which it keeps."""

    id: MessageId
    payload: memoryview
    key: bytes | None = None
    headers: Mapping[str, bytes] = NO_HEADERS

    @property
    def timestamp_ms(self) -> int:
        """The publish time, ms since 1970."""
        return timestamp_of(self.id)


ShownMessage = Message | ViewedMessage


class TransactionUse(enum.StrEnum):
    """The topic property ``transactions``: whether publishes may or must have a write pointer."""

    OPTIONAL = "optional"
    REQUIRED = "required"
    REFUSED = "refused"


CHAIN: Final = "chain"
"""The property that gives a topic's log a hash chain. An update never takes it away."""


class Topic(NamedTuple):
    """A topic, from its record.

    ``properties`` are the strings that the interface shows, without ``generation``. ``ttl_s`` and ``transactions``
    are parsed from them. Messages published before ``purged_ms`` are never read again.
    """

    id: TopicId
    generation: int
    properties: dict[str, str]
    ttl_s: int
    transactions: TransactionUse
    purged_ms: int = 0

    @property
    def ttl_ms(self) -> int:
        """How long a message lives from its publication, in ms."""
        return self.ttl_s * 1000

    @property
    def is_chained(self) -> bool:
        """True if the topic's log has a hash chain, or is about to begin one."""
        return CHAIN in self.properties


class PublishRequest(NamedTuple):
    """A publish or a store. ``pointer`` is the transaction's write pointer, or None.

    ``stages``: the numbers of the stages to publish, in this order, instead of payloads. ``attributes``: key and
    headers of each payload, encoded (wire.attributes), or no bytes; empty if no payload has any. ``ttls_s``: the
    lifetime of each payload in seconds, or None for the request's; empty if no payload has its own.
    """

    pointer: int | None
    payloads: Sequence[bytes]
    stages: Sequence[int] = ()
    attributes: Sequence[bytes] = ()
    ttls_s: Sequence[int | None] = ()


class RollbackRange(NamedTuple):
    """The log keys of one transactional publish, both ends included."""

    pointer: int
    first: LogKey
    last: LogKey


@dataclass(slots=True, kw_only=True, eq=False)
class Snapshot:
    """The messages that a transaction may see (Tephra's Transaction).

    All parts are given by name; ``write_pointer`` is the transaction's id if not given. Lists are sorted here; arrays must
    be ascending already (wire/transaction.py). For a consumer a pointer is *visible*, *skipped*
    (invalid), or *blocking*: its transaction can still commit. A scan ends at a blocking pointer, as the order of
    messages is more important than latency.
    """

    class Visibility(enum.IntEnum):
        """Which of its own writes a transaction sees."""

        SNAPSHOT = 1
        SNAPSHOT_EXCLUDE_CURRENT = 2
        SNAPSHOT_ALL = 3

    transaction_id: int
    read_pointer: int
    write_pointer: int = cast("int", None)
    invalids: Sequence[int] = ()
    in_progress: Sequence[int] = ()
    first_short_in_progress: int = POINTER_MAX
    long: bool = False
    checkpoint_pointers: Sequence[int] = ()
    visibility: Visibility = Visibility.SNAPSHOT

    def __post_init__(self) -> None:
        """Sort the lists."""
        if cast("object", self.write_pointer) is None:
            self.write_pointer = self.transaction_id
        self.invalids = _ascending(self.invalids)
        self.in_progress = _ascending(self.in_progress)
        self.checkpoint_pointers = _ascending(self.checkpoint_pointers)

    @override
    def __eq__(self, other: object) -> bool:
        """Compare all parts."""
        if not isinstance(other, Snapshot):
            return NotImplemented
        return all(_part(self, each.name) == _part(other, each.name) for each in fields(self))

    __hash__ = None  # type: ignore[assignment]  # It has mutable lists, so it can't be a key.

    def is_invalid(self, pointer: int) -> bool:
        """True if the pointer's transaction is known to be invalid."""
        return _contains(self.invalids, pointer)

    def is_own(self, pointer: int) -> bool:
        """True if the pointer belongs to this transaction."""
        return pointer in (self.write_pointer, self.transaction_id) or _contains(
            self.checkpoint_pointers, pointer
        )

    def is_visible(self, pointer: int) -> bool:
        """True if this transaction may see messages written under ``pointer`` (positive)."""
        if (
            pointer <= self.read_pointer
            and not _contains(self.in_progress, pointer)
            and not _contains(self.invalids, pointer)
        ):
            return True
        if not self.is_own(pointer):
            return False
        excluded = self.visibility is Snapshot.Visibility.SNAPSHOT_EXCLUDE_CURRENT
        return not (excluded and pointer == self.write_pointer)


def _ascending(pointers: Sequence[int]) -> Sequence[int]:
    return pointers if isinstance(pointers, array) else sorted(pointers)


def _part(snapshot: Snapshot, name: str) -> object:
    """Return a part; an array as a list."""
    part = getattr(snapshot, name)
    return list(part) if isinstance(part, array) else part


def _contains(pointers: Sequence[int], pointer: int) -> bool:
    index = bisect_left(pointers, pointer)
    return index < len(pointers) and pointers[index] == pointer


@dataclass(frozen=True, slots=True)
class Poll:
    """A consumer's request.

    ``start`` is a message id (longer ones are cut to 20 bytes), a time in ms, or None for the oldest message.
    ``inclusive`` counts only if ``start`` is an id. ``limit`` None means no limit. ``generation``: the generation
    of the topic in which ``start`` is a place; None: any.
    """

    start: MessageId | int | None = None
    inclusive: bool = True
    limit: int | None = None
    snapshot: Snapshot | None = None
    generation: int | None = None
