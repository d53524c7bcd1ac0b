"""What an operator may set about topics, and the values that pass between their parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from broker.model import ROW_ID_MIN, PublishRequest, RowId


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """Bounds and times. The node fills it from the configuration."""

    transaction_life_max_s: int = 90_000
    """How old a write pointer may be when something is published or stored under it."""
    stage_life_s: int = 3600
    """How old a stage may be when something is stored into it, or it is published."""
    cursors_max: int = 100
    """Named cursors of one topic."""
    request_deadline_s: float = 30.0
    """How long a request may take that names no deadline of its own."""
    id_lead_ms_max: int = 1000
    clock_skew_ms_max: int = 2000
    """How far the clocks of this node and of the storage may differ at a claim."""
    batch_bytes_max: int = 8 * 1024 * 1024
    batch_rows_max: int = 20_000
    queued_requests_max: int = 10_000
    """Publishes of one log that wait for a commit."""
    queued_bytes_max: int = 256 * 1024 * 1024
    """Bytes of all publishes of the node that wait for a commit."""
    idempotency_window_ms: int = 600_000
    idempotency_keys_max: int = 100_000
    """Keys that one topic keeps in memory."""
    payload_logs_open_max: int = 1000
    """Payload logs of one topic that are kept open for writing."""
    poll_chunk_bytes: int = 60_000
    poll_messages_max: int | None = None
    page_rows_max: int = 5000
    page_bytes_max: int = 4 * 1024 * 1024
    cache_bytes_max: int = 128 * 1024 * 1024
    topics_in_use_max: int = 20_000
    """Topics that are remembered; over that, those that were idle longest are let go."""
    topic_records_cached_max: int = 100_000
    sweep_margin_ms: int = 60_000
    sweep_rows_max: int = 1000


class Producer(NamedTuple):
    """A producer's id, and a number that rises from one of its publishes to the next."""

    id: str
    number: int


class PublishOptions(NamedTuple):
    """What a publisher may say beside its messages.

    ``ttl_s``: these messages live that long, if it is shorter than the topic's. ``key``: the
    idempotency key. ``deadline``: monotonic seconds after which the request is refused.
    ``is_fresh``: the key was made for this very request, which is sent under it for the first time:
    storage need not be asked for it. ``epoch``: written under this epoch alone; under another one
    this is not the leader that the sender means. ``producer``: who publishes, and the number that it gives to this
    request; a number at or below its last stores nothing.
    """

    ttl_s: int | None = None
    key: str | None = None
    deadline: float | None = None
    is_fresh: bool = False
    epoch: int | None = None
    producer: Producer | None = None


NO_OPTIONS = PublishOptions()


class RequestLifetimes(NamedTuple):
    """How long the messages of a request live: all of them, or each; None: as long as the topic's ttl."""

    all_ms: int | None
    each_ms: Sequence[int | None] = ()


def lifetimes_of(request: PublishRequest, options: PublishOptions) -> RequestLifetimes:
    """Return the lifetimes of a request's messages; those without one of their own have the request's."""
    all_ms = None if options.ttl_s is None else options.ttl_s * 1000
    return RequestLifetimes(
        all_ms, [all_ms if ttl_s is None else ttl_s * 1000 for ttl_s in request.ttls_s]
    )


class PublishedIds(NamedTuple):
    """The rows of one publish, both ends included.

    They are ROW_ID_MIN where they are not known any more. ``replayed``: the key, the producer's number or the
    stages had this answer already. ``messages``: how many they are, a reference's included, None if not known.
    """

    first: RowId
    last: RowId
    pointer: int | None = None
    replayed: bool = False
    messages: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether it is known where the messages lie."""
        return self.first != ROW_ID_MIN
