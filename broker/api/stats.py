"""Handlers that tell about a topic's contents without reading the messages: stats, lag, range."""

from __future__ import annotations

from broker.api.asked import end_of, id_in, shown_id
from broker.errors import BadRequest
from broker.http.reply import Answer, json_reply
from broker.http.request import Request
from broker.model import (
    ROW_ID_BYTES,
    RowId,
)
from broker.operations import replies
from broker.operations.parameters import RANGE_BYTES, RANGE_MESSAGES, RANGE_PARTS
from broker.operations.replies import Count, Lag, Range, Rates
from broker.topics.ranges import RangeQuery
from broker.topics.topics import Topics


class Stats:
    """The handlers of a topic's figures."""

    def __init__(self, topics: Topics) -> None:
        """Keep the service."""
        self._topics = topics

    async def stats(self, request: Request) -> Answer:
        """Answer the figures of a topic's contents."""
        stats = await self._topics.stats(request.topic, request.generation, request.hold)
        return json_reply(
            replies.Stats(
                namespace=stats.topic.namespace,
                topic=stats.topic.topic,
                generation=stats.generation,
                published=stats.published,
                messages=Count(value=stats.messages, estimate=not stats.messages_exact),
                bytes=Count(value=stats.bytes, estimate=not stats.bytes_exact),
                first=end_of(stats.first),
                last=end_of(stats.last),
                rates=Rates(publish_per_s=stats.publish_per_s, poll_per_s=stats.poll_per_s),
                open_payload_logs=stats.open_payload_logs,
                ids_ahead_ms=stats.ids_ahead_ms,
            )
        )

    async def lag(self, request: Request) -> Answer:
        """Answer how many messages were published behind an id."""
        after = id_in(request, "after")
        if after is None:
            raise BadRequest("after: give the id of a message; the messages behind it are counted.")
        count = await self._topics.lag(request.topic, after, request.generation)
        return json_reply(Lag(after=after.hex(), messages=count))

    async def range(self, request: Request) -> Answer:
        """Answer where a topic begins and ends, and the bounds and parts of a range of it."""
        query = request.query
        wanted = RangeQuery(
            _row(request, "after"),
            _row(request, "through"),
            RANGE_MESSAGES.of(query),
            RANGE_BYTES.of(query),
            RANGE_PARTS.of(query),
            request.generation,
        )
        found = await self._topics.range(request.topic, wanted)
        return json_reply(
            Range(
                earliest=shown_id(found.earliest),
                latest=shown_id(found.latest),
                after=shown_id(found.after),
                through=shown_id(found.through),
                messages=found.messages,
                bytes=found.bytes,
                lost=found.lost,
                ends=[shown_id(end) for end in found.ends],
                generation=found.generation,
            )
        )


def _row(request: Request, name: str) -> RowId | None:
    found = id_in(request, name)
    return None if found is None else found[:ROW_ID_BYTES]
