"""How much topics with a quota of stored bytes hold, as far as this node knows.

A topic's size is an estimate of its figures, which cost a read of storage. So this takes them once a minute at most, and only
for topics with such a quota. In between it adds what is published here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broker.access.quotas import KINDS, QuotaKind, exceeded, name_of
from broker.http.budget import Usage
from broker.model import TopicId
from broker.topics.topics import Topics

MEASURE_S: Final = 60.0
TOPICS_MAX: Final = 10_000
"""When the sizes of so many topics are kept, all are forgotten, and taken anew."""


@dataclass(slots=True)
class _Size:
    bytes: int
    taken_at: float
    since: int = 0
    """The bytes that were published since."""


class StoredBytes:
    """The sizes of topics."""

    def __init__(self, topics: Topics) -> None:
        """Know no size."""
        self._topics = topics
        self._sizes: dict[TopicId, _Size] = {}

    async def take(self, topic: TopicId, size: int, limit: int, usage: Usage) -> None:
        """Count bytes that are about to be published.

        Raises:
            QuotaExceeded: the topic holds as much as it may already.
            BrokerError: its figures can't be taken.
        """
        known = await self._known(topic, usage)
        if known.bytes + known.since >= limit:
            raise exceeded(
                QuotaKind.STORED_BYTES, limit, name_of(topic), KINDS[QuotaKind.STORED_BYTES].again_s
            )
        known.since += size

    async def _known(self, topic: TopicId, usage: Usage) -> _Size:
        now = self._topics.around.clock.monotonic()
        known = self._sizes.get(topic)
        if known is None or now - known.taken_at >= MEASURE_S:
            if len(self._sizes) >= TOPICS_MAX:
                self._sizes.clear()
            since = 0 if known is None else known.since
            stats = await self._topics.stats(topic, None, usage)
            came = 0 if known is None else known.since - since  # While the figures were taken.
            known = self._sizes[topic] = _Size(stats.bytes, now, came)
        return known
