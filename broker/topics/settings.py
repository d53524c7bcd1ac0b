"""Define the settings of topics, and the values that pass between the modules of this package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from broker.config.sections import Config
from broker.model import LOG_KEY_MIN, LogKey, PublishRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """Bounds and times."""

    transaction_life_max_s: int = 90_000
    """The greatest age of a write pointer at a publish or store under it."""
    stage_life_s: int = 3600
    """The greatest age of a stage at a store into it, or at its publish."""
    cursors_max: int = 100
    """The most named cursors of one topic."""
    request_deadline_s: float = 30.0
    """The time limit of a request without a deadline of its own."""
    id_lead_ms_max: int = 1000
    clock_skew_ms_max: int = 2000
    """The largest allowed difference between the clocks of this node and of the storage."""
    batch_bytes_max: int = 8 * 1024 * 1024
    batch_messages_max: int = 20_000
    queued_requests_max: int = 10_000
    """The most queued publishes of one log."""
    queued_bytes_max: int = 256 * 1024 * 1024
    """The most bytes of all publishes of the node that are queued or being committed. A caller has 3/4 of both bounds."""
    idempotency_window_ms: int = 600_000
    idempotency_keys_max: int = 100_000
    """The most keys that one topic keeps in memory."""
    idempotency_keys_bytes_max: int = 256 * 1024 * 1024
    """The memory for the keys of all topics of the node."""
    payload_logs_open_max: int = 1000
    """The most payload logs of a node that are kept open for writing."""
    poll_messages_max: int | None = None
    page_messages_max: int = 5000
    page_bytes_max: int = 4 * 1024 * 1024
    cache_bytes_max: int = 128 * 1024 * 1024
    topics_in_use_max: int = 20_000
    """Above this number of topics in memory, a node hands off and forgets idle ones."""
    topic_records_cached_max: int = 100_000
    sweep_margin_ms: int = 60_000
    sweep_rows_max: int = 1000

    @classmethod
    def of(cls, config: Config) -> TopicSettings:
        """Return the settings in a configuration."""
        limits, topics, sweep = config.limits, config.topics, config.sweep
        return cls(
            transaction_life_max_s=topics.transaction_life_max_s,
            stage_life_s=topics.stage_life_s,
            cursors_max=topics.cursors_max,
            request_deadline_s=config.server.request_deadline_s,
            id_lead_ms_max=topics.id_lead_ms_max,
            clock_skew_ms_max=config.cluster.clock_skew_ms_max,
            queued_requests_max=limits.queued_requests_max,
            queued_bytes_max=limits.queued_bytes_max,
            idempotency_window_ms=int(topics.idempotency_window_s * 1000),
            idempotency_keys_max=limits.idempotency_keys_max,
            idempotency_keys_bytes_max=limits.idempotency_keys_bytes_max,
            poll_messages_max=limits.poll_messages_max,
            cache_bytes_max=topics.cache_bytes_max,
            sweep_margin_ms=int(sweep.sweep_margin_s * 1000),
            sweep_rows_max=sweep.sweep_rows_max,
        )


class Producer(NamedTuple):
    """A producer's id, and a number that rises from one of its publishes to the next."""

    id: str
    number: int


class PublishOptions(NamedTuple):
    """The options of a publish.

    ``ttl_s``: the lifetime of these messages, if it is shorter than the topic's. ``key``: the
    idempotency key. ``deadline``: the monotonic time after which the request is refused.
    ``is_fresh``: the key was made for this request, which is sent for the first time; so storage can't have the
    key, and need not be read. ``epoch``: write only under this epoch; under another one this node is not the leader
    that the sender means. ``producer``: the producer, and its number for this request; a number at or below its last
    one stores nothing. ``generation``: write only to this generation of the topic. ``caller``: the name under which
    budgets count the sender; empty within the process.
    """

    ttl_s: int | None = None
    key: str | None = None
    deadline: float | None = None
    is_fresh: bool = False
    epoch: int | None = None
    producer: Producer | None = None
    generation: int | None = None
    caller: str = ""


NO_OPTIONS = PublishOptions()


class RequestLifetimes(NamedTuple):
    """The lifetimes of a request's messages: of all, or of each. None means the topic's ttl."""

    all_ms: int | None
    each_ms: Sequence[int | None] = ()


def lifetimes_of(request: PublishRequest, options: PublishOptions) -> RequestLifetimes:
    """Return the lifetimes of a request's messages. A message without one of its own has the request's."""
    all_ms = None if options.ttl_s is None else options.ttl_s * 1000
    return RequestLifetimes(
        all_ms, [all_ms if ttl_s is None else ttl_s * 1000 for ttl_s in request.ttls_s]
    )


class PublishedIds(NamedTuple):
    """The log keys of one publish, both ends included.

    The keys are LOG_KEY_MIN if they are not known any more. ``replayed``: the key, the producer's number or the
    stages had this answer already. ``messages``: their number, including those of references; None if not known.
    ``generation`` is that of the topic; 0 until the leader has filled it in.
    """

    first: LogKey
    last: LogKey
    pointer: int | None = None
    replayed: bool = False
    messages: int | None = None
    generation: int = 0

    @property
    def is_known(self) -> bool:
        """Return whether the keys of the messages are known."""
        return self.first != LOG_KEY_MIN
