"""Quotas: how much a principal may use, and how much may be done with a topic. Pure.

Each kind of quota is declared once, in ``KINDS``. A limit belongs to one of these, by its name (``who``)::

    alice                a principal
    *                    each principal that has no limit of its own
    topic:audit/logins   a topic
    topic:audit/*        each topic of a namespace
    topic:*              each topic

For each kind the most exact name decides, so a principal can have more than all others. The limit ``None`` means that there is
none.

A rate is a token bucket. It begins full, with what one second brings (``burst``), and refills all the time. An amount passes if
the bucket holds it. An amount larger than the bucket passes if the bucket is full, and leaves a debt. So in each span of t
seconds at most ``rate * t`` and the greater of the burst and the largest amount pass. The size of a reply is known only
later: a reader may begin while it has no debt, and pays for what it got.

Each node of a cluster has its own buckets. The rate of a principal is divided by the number of nodes (``share``), so that all
nodes together let no more through.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple

from broker.errors import BadRequest, QuotaExceeded
from broker.model import TopicId, check_namespace, check_topic
from broker.principal import NODE, Principal

EVERY: Final = "*"
TOPIC: Final = "topic:"
"""The beginning of the name of a topic, or of several topics."""
BURST_S: Final = 1.0
"""A full bucket holds what so many seconds bring."""
SOON_S: Final = 1.0
"""When to try again if other requests of the same caller must end first."""
LATER_S: Final = 60.0
"""When to try again if somebody must remove something first. No client repeats a request for so long."""
LIMIT_MAX: Final = (1 << 53) - 1
"""The largest limit: every JSON parser reads it exactly."""
WHO_CHARACTERS_MAX: Final = 300
BOUNDS_KEPT_MAX: Final = 50_000
"""The most names whose limits are kept merged."""


class QuotaKind(enum.StrEnum):
    """The kinds of quota. The value is the name in records, commands and metrics."""

    PUBLISH_BYTES_S = "publish_bytes_s"
    PUBLISH_REQUESTS_S = "publish_requests_s"
    READ_BYTES_S = "read_bytes_s"
    IN_FLIGHT = "in_flight"
    WAITS = "waits"
    CONNECTIONS = "connections"
    TOPICS = "topics"
    PROPERTY_BYTES = "property_bytes"
    CURSORS = "cursors"
    STAGES = "stages"
    OPEN_TRANSACTIONS = "open_transactions"
    INVALID_POINTERS = "invalid_pointers"
    STORED_BYTES = "stored_bytes"


class KindFacts(NamedTuple):
    """What is declared of a kind.

    Attributes:
        doc: what counts.
        of_principals: a principal may have it.
        of_topics: a topic may have it.
        is_rate: it is a number in each second; else a number at one time.
        again_s: when to try again, if it is no rate.
        exactness: how exactly it is kept.
    """

    doc: str
    of_principals: bool = True
    of_topics: bool = False
    is_rate: bool = False
    again_s: float = SOON_S
    exactness: str = ""


_OF_NODE: Final = "Each node counts its own. A node of N allows all of it."
KINDS: Final[Mapping[QuotaKind, KindFacts]] = {
    QuotaKind.PUBLISH_BYTES_S: KindFacts(
        "Bytes of the bodies of publishes and stores in a second, inflated.",
        of_topics=True,
        is_rate=True,
        exactness="Exact for a topic, whose leader counts. For a principal each node of N allows one Nth.",
    ),
    QuotaKind.PUBLISH_REQUESTS_S: KindFacts(
        "Publishes, stores and rollbacks in a second.",
        of_topics=True,
        is_rate=True,
        exactness="As publish_bytes_s.",
    ),
    QuotaKind.READ_BYTES_S: KindFacts(
        "Bytes of messages read in a second, before compression.",
        of_topics=True,
        is_rate=True,
        exactness="Each node of N allows one Nth. A page is paid for after it was sent; a stream pauses.",
    ),
    QuotaKind.IN_FLIGHT: KindFacts(
        "Requests that are being read, done or answered.", exactness=_OF_NODE
    ),
    QuotaKind.WAITS: KindFacts("Long polls and event streams that wait.", exactness=_OF_NODE),
    QuotaKind.CONNECTIONS: KindFacts("Open connections.", exactness=_OF_NODE),
    QuotaKind.TOPICS: KindFacts(
        "Topics that the principal created and that exist.",
        again_s=LATER_S,
        exactness="Creations at the same moment may all pass.",
    ),
    QuotaKind.PROPERTY_BYTES: KindFacts(
        "Bytes of the properties of one topic.",
        of_topics=True,
        again_s=LATER_S,
        exactness="Exact.",
    ),
    QuotaKind.CURSORS: KindFacts(
        "Named cursors of one topic, of all callers. A principal at its limit creates no more there.",
        of_topics=True,
        again_s=LATER_S,
        exactness="Creations at the same moment may all pass.",
    ),
    QuotaKind.STAGES: KindFacts(
        "Stages of one topic that began within the life of a stage.",
        of_topics=True,
        again_s=LATER_S,
        exactness="A new leader begins at 0.",
    ),
    QuotaKind.OPEN_TRANSACTIONS: KindFacts(
        "Transactions in progress that the principal began over HTTP.",
        exactness="Begins at the same moment may all pass. The node that leads the service counts, from its claim on.",
    ),
    QuotaKind.INVALID_POINTERS: KindFacts(
        "Invalid write pointers of the principal's transactions. At the limit it begins no further transaction.",
        again_s=LATER_S,
        exactness="As open_transactions.",
    ),
    QuotaKind.STORED_BYTES: KindFacts(
        "Bytes of the payloads of the topic's messages. At the limit nothing more is published.",
        of_principals=False,
        of_topics=True,
        again_s=LATER_S,
        exactness="The estimate of the topic's figures, taken once a minute, and all bytes published since.",
    ),
}

Limits = Mapping[QuotaKind, int | None]
"""Limits by kind; None: no limit, although a less exact name has one."""
Bounds = Mapping[QuotaKind, int]
"""The limits that hold, by kind."""
NO_BOUNDS: Final[Bounds] = {}


# --- Who has which limits -------------------------------------------------------------------------


def checked_limits(who: str, limits: Mapping[str, object]) -> dict[QuotaKind, int | None]:
    """Return the limits of a name. Raises BadRequest if the name or a limit is not valid, or a kind is not for it."""
    is_topic = check_quota_name(who)
    found: dict[QuotaKind, int | None] = {}
    for name, limit in sorted(limits.items()):
        if name not in set(QuotaKind):
            raise BadRequest(
                f"There is no quota {name!a:.80}. There are {', '.join(kinds(is_topic=is_topic))}."
            )
        kind = QuotaKind(name)
        if kind not in kinds(is_topic=is_topic):
            owner = "a topic" if is_topic else "a principal"
            raise BadRequest(f"{kind} is no quota of {owner}.")
        is_number = isinstance(limit, int) and not isinstance(limit, bool)
        if limit is not None and not (is_number and 0 < limit <= LIMIT_MAX):  # type: ignore[operator]
            raise BadRequest(f"{kind} must be a whole number from 1, or null, not {limit!a:.80}.")
        found[kind] = limit  # type: ignore[assignment]
    return found


def check_quota_name(who: str) -> bool:
    """Return whether a name is of topics; else it is of principals. Raises BadRequest if it is neither."""
    if not 0 < len(who) <= WHO_CHARACTERS_MAX or not who.isprintable():
        raise BadRequest(
            f"{who!a:.80} is not the name of a principal, '*', or {TOPIC}NAMESPACE/TOPIC."
        )
    if not who.startswith(TOPIC):
        return False
    name = who.removeprefix(TOPIC)
    if name != EVERY:
        namespace, _, topic = name.partition("/")
        if topic == EVERY:
            check_namespace(namespace)
        else:
            check_topic(namespace, topic)
    return True


def name_of(topic: TopicId) -> str:
    """Return the name of a topic in quotas."""
    return f"{TOPIC}{topic.namespace}/{topic.topic}"


def kinds(*, is_topic: bool) -> list[QuotaKind]:
    """Return the kinds that a topic, or else a principal, may have."""
    return [
        kind
        for kind, facts in KINDS.items()
        if (facts.of_topics if is_topic else facts.of_principals)
    ]


class Quotas:
    """All limits, by name. It never changes."""

    def __init__(self, limits: Mapping[str, Limits] = {}) -> None:
        """Keep the limits."""
        self.limits: Mapping[str, Limits] = dict(sorted(limits.items()))
        self._bounds: dict[tuple[str, ...], Bounds] = {}

    def of_principal(self, principal: Principal) -> Bounds:
        """Return the limits that hold for a principal. The node itself has none, nor has an unknown caller."""
        if not self.limits or not principal.is_known or principal == NODE:
            return NO_BOUNDS
        return self._merged(EVERY, principal.name)

    def of_topic(self, topic: TopicId) -> Bounds:
        """Return the limits that hold for a topic."""
        if not self.limits:
            return NO_BOUNDS
        return self._merged(f"{TOPIC}{EVERY}", f"{TOPIC}{topic.namespace}/{EVERY}", name_of(topic))

    def _merged(self, *names: str) -> Bounds:
        """Return the limits of names, the most exact one last."""
        bounds = self._bounds.get(names)
        if bounds is None:
            merged: dict[QuotaKind, int | None] = {}
            for name in names:
                merged |= self.limits.get(name, {})
            bounds = {kind: limit for kind, limit in merged.items() if limit is not None}
            if len(self._bounds) >= BOUNDS_KEPT_MAX:
                self._bounds.clear()
            self._bounds[names] = bounds
        return bounds


# --- Rates ----------------------------------------------------------------------------------------


class Bucket(NamedTuple):
    """A token bucket, as of a moment. ``level`` below 0 is a debt. ``at`` is monotonic, in seconds."""

    level: float
    at: float


class BucketRate(NamedTuple):
    """The rate of a bucket, in a second, and what the bucket holds."""

    rate: float
    burst: float

    def now(self, bucket: Bucket | None, now: float) -> Bucket:
        """Return a bucket as it is now. None is a full one."""
        if bucket is None:
            return Bucket(self.burst, now)
        came = max(0.0, now - bucket.at) * self.rate
        return Bucket(min(self.burst, bucket.level + came), max(now, bucket.at))

    def wait_s(self, bucket: Bucket, amount: float) -> float:
        """Return after how many seconds an amount may pass; 0: now."""
        return max(0.0, min(amount, self.burst) - bucket.level) / self.rate


def share(limit: int, nodes: int) -> BucketRate:
    """Return the part of a rate that one of ``nodes`` nodes lets through."""
    rate = limit / max(nodes, 1)
    return BucketRate(rate, max(rate * BURST_S, 1.0))


def taken(bucket: Bucket, amount: float) -> Bucket:
    """Return a bucket without an amount; it may be in debt then."""
    return Bucket(bucket.level - amount, bucket.at)


# --- Refusals -------------------------------------------------------------------------------------


def check_count(bounds: Bounds, kind: QuotaKind, count: int, of: str) -> None:
    """Raise QuotaExceeded if ``count``, with the new one, is more than allowed. ``of`` names the principal or the topic."""
    limit = bounds.get(kind)
    if limit is not None and count > limit:
        raise exceeded(kind, limit, of, KINDS[kind].again_s)


def exceeded(kind: QuotaKind, limit: int, of: str, again_s: float) -> QuotaExceeded:
    """Return the refusal of a request."""
    each = " in a second" if KINDS[kind].is_rate else ""
    return QuotaExceeded(
        f"{of} may use at most {limit:,} of {kind}{each}.", kind=kind, retry_after_s=again_s
    )
