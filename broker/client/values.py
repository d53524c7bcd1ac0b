"""The values that the client takes and gives, beside those of ``broker.model``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, get_args

from broker.client.node_directory import Leader
from broker.model import NO_HEADERS, MessageId, TopicId

TopicName = str | TopicId | tuple[str, str]
"""How callers name a topic: ``"namespace/topic"``, ``"topic"`` in the client's own namespace, or
a pair."""

Payload = bytes | str
"""What callers publish: bytes, or text, which travels as UTF-8."""


class NewMessage(NamedTuple):
    """A message to be published that is more than its payload.

    ``key`` and ``headers`` travel beside the payload and come back with it; text travels as UTF-8. ``ttl_s`` is how
    many seconds this message lives, if shorter than the topic's.
    """

    payload: Payload
    key: Payload | None = None
    headers: Mapping[str, Payload] = NO_HEADERS
    ttl_s: int | None = None


Publishable = Payload | NewMessage
"""One message to be published."""

Producer = tuple[str, int]
"""A producer's id, 1 to 255 visible ASCII characters, and the number that it gives to one publish, at least 0."""

Start = MessageId | str | int | datetime | None
"""Where reading starts: a message id (20 bytes, or its 40 hex digits), a moment (a datetime with a time zone, or ms
since 1970), or None for the oldest message."""


class Published(NamedTuple):
    """The acknowledgement of one publish: the message is stored and synced.

    ``rollback`` is what undoes a transactional publish, as the broker sent it, else None.
    ``replayed`` tells that the broker had acknowledged the same idempotency key, producer's number or stages
    before, and stored nothing now. ``leader`` is
    the node that acknowledged, with its epoch; None by a broker that stands alone.

    ``first_id`` and ``last_id`` are the ids of the first and the last message that were published, ``count`` is how
    many; of stages and stored messages the ids are those of the rows that refer to them, as ``browse`` shows them.
    A message that travelled with those of other calls has an id of its own here. What is not known is None: the
    ids and the count of a producer's number below its last one, and by brokers that do not tell.
    """

    rollback: bytes | None = None
    replayed: bool = False
    leader: Leader | None = None
    first_id: MessageId | None = None
    last_id: MessageId | None = None
    count: int | None = None  # type: ignore[assignment]  # A tuple's own method has this name.


class TopicRange(NamedTuple):
    """A range ``(after, through]`` of a topic: how many messages and bytes it has, and where its parts end.

    Behind ``earliest`` lies all that can be read; behind ``latest`` comes what is published from now on. ``lost``
    is how many messages behind ``after`` have expired, at least. ``size`` is about how many bytes payloads have.
    """

    earliest: MessageId
    latest: MessageId
    after: MessageId
    through: MessageId
    messages: int
    size: int
    lost: int
    ends: list[MessageId]


class TopicInfo(NamedTuple):
    """A topic as the broker describes it; ``properties`` are the strings as they are stored."""

    id: TopicId
    generation: int
    ttl_s: int
    properties: Mapping[str, str]


class Browsed(NamedTuple):
    """A message as browsing shows it.

    ``payload`` is None for a reference row, and the first KiB only if ``truncated``. ``consumable``
    is known only if a snapshot was given. ``key`` and ``headers`` are what its publisher gave beside the payload.
    """

    id: MessageId
    timestamp_ms: int
    size: int
    expires_at: str | None
    kind: Literal["inline", "stored", "reference"]
    tx_state: Literal["none", "published", "rolled_back"]
    write_pointer: int | None
    payload: bytes | None
    truncated: bool
    consumable: bool | None
    key: bytes | None = None
    headers: Mapping[str, bytes] = NO_HEADERS


class BrowsePage(NamedTuple):
    """Some messages, and where the page after them is to be had.

    ``next`` is its ``start``, or, in descending order, its ``stop``; None: there is no more.
    """

    messages: Sequence[Browsed]
    next: MessageId | None


OnFull = Literal["wait", "drop", "raise"]
"""What ``publish_later`` does when its queue is full."""


def check_on_full(choice: OnFull) -> OnFull:
    """Return what to do with a message for which there is no room; ValueError if it is no such word."""
    if choice not in _ON_FULL:
        raise ValueError(f"on_full is one of {', '.join(_ON_FULL)}, not {choice!r}.")
    return choice


_ON_FULL: Final = get_args(OnFull)
_MAY_BE_NOTHING: Final = {"retry_delay_min_s", "retry_delay_max_s", "idle_s_max"}
_LEAST: Final[Mapping[type, float]] = {int: 1, float: 1e-6}

Stats = Mapping[str, Any]
"""What ``GET …/stats`` answers, as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a client behaves. It can be pickled, so that jobs on other machines can take it along.

    Attributes:
        url: where the broker listens; several nodes of a cluster with commas between them.
        follow_leaders: whether topics' leaders are asked directly, at the addresses that replies name.
            False stays with ``url``: for proxies and load balancers, behind which the nodes' own
            addresses can't be reached.
        namespace: the namespace of topics that are named without one.
        headers: sent with every request.
        ca_file: the certificates that https addresses are trusted by, in PEM, if not the system's.
        deadline_s: how long a call may take in all, its retries included, and what it waits for a
            connection. A poll's own wait comes on top; an answer that is arriving is read to its end.
        connect_timeout_s: how long one attempt to connect may take.
        retry_delay_min_s: the first pause before a retry; it doubles up to ``retry_delay_max_s``
            and is jittered. What the broker asks for (``Retry-After``) comes first.
        retry_delay_max_s: the longest pause before a retry.
        coalesce: whether awaited publishes of one topic travel together.
        batch_messages_max: how many messages travel in one request.
        batch_bytes_max: how many bytes of payload; one message may always travel.
        requests_in_flight_max: how many coalesced requests are under way on one connection.
        connections_per_topic: how many connections coalesced publishes of a topic share. With more
            than one, publishing is faster when many callers wait, and those that are awaited at the
            same time may be stored in another order than that of their calls.
        idempotent: whether each publish carries an idempotency key made by the client, so that it
            is retried also when its outcome is unknown. It costs the broker one small row a request.
        connections_max: connections for everything but coalesced publishes.
        idle_s_max: a connection that was idle for longer is not used again.
        later_messages_max: how many messages ``publish_later`` holds, over all topics.
        later_bytes_max: how many bytes of them.
        later_on_full: what it does then: ``"wait"``, ``"drop"`` the new one, or ``"raise"``.
        later_attempts_max: how often it tries; pauses between attempts as above.

    Raises:
        ValueError: a number is not positive (pauses and ``idle_s_max`` may be 0), or ``later_on_full``
            is none of its words.
    """

    url: str = "http://127.0.0.1:8080"
    follow_leaders: bool = True
    namespace: str = "default"
    headers: tuple[tuple[str, str], ...] = ()
    ca_file: str = ""
    deadline_s: float = 30.0
    connect_timeout_s: float = 10.0
    retry_delay_min_s: float = 0.05
    retry_delay_max_s: float = 5.0
    coalesce: bool = True
    batch_messages_max: int = 10_000
    batch_bytes_max: int = 1 << 20
    requests_in_flight_max: int = 2
    connections_per_topic: int = 1
    idempotent: bool = False
    connections_max: int = 100
    idle_s_max: float = 10.0
    later_messages_max: int = 10_000
    later_bytes_max: int = 64 << 20
    later_on_full: OnFull = "wait"
    later_attempts_max: int = 10

    def __post_init__(self) -> None:
        for part in fields(self):
            value = getattr(self, part.name)
            if not isinstance(value, int | float) or isinstance(value, bool):
                continue
            least = 0 if part.name in _MAY_BE_NOTHING else _LEAST[type(value)]
            if not least <= value < math.inf:
                raise ValueError(f"{part.name} can't be {value}.")
        check_on_full(self.later_on_full)

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses in ``url``, at least one."""
        return tuple(url.strip().rstrip("/") for url in self.url.split(","))

    def changed(self, url: str | Sequence[str] | None, options: Mapping[str, Any]) -> Settings:
        """Return these settings with others for single ones, and with other addresses if given."""
        if url is None:
            return replace(self, **options)
        return replace(self, url=url if isinstance(url, str) else ",".join(url), **options)
