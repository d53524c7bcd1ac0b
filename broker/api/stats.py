"""Handlers that tell about a topic's contents without reading the messages: stats, lag, range."""

from __future__ import annotations

from collections.abc import Mapping

from broker.api.times import rfc3339
from broker.errors import BadRequest
from broker.http.reply import Answer, json_reply
from broker.http.request import Request, whole_number
from broker.model import (
    ROW_ID_BYTES,
    ROW_ID_MIN,
    MessageId,
    RowId,
    message_id_from_hex,
    timestamp_of,
)
from broker.topics.ranges import AMOUNT_MAX, PARTS_MAX, RangeQuery
from broker.topics.topics import Topics


class Stats:
    """The handlers of a topic's figures."""

    def __init__(self, topics: Topics) -> None:
        """Keep the service."""
        self._topics = topics

    async def stats(self, request: Request) -> Answer:
        """Answer the figures of a topic's contents."""
        stats = await self._topics.stats(request.topic)
        return json_reply(
            {
                "namespace": stats.topic.namespace,
                "topic": stats.topic.topic,
                "generation": stats.generation,
                "published": stats.published,
                "messages": {"value": stats.messages, "estimate": not stats.messages_exact},
                "bytes": {"value": stats.bytes, "estimate": not stats.bytes_exact},
                "first": _end(stats.first),
                "last": _end(stats.last),
                "rates": {
                    "publish_per_s": stats.publish_per_s,
                    "poll_per_s": stats.poll_per_s,
                },
                "open_payload_logs": stats.open_payload_logs,
                "ids_ahead_ms": stats.ids_ahead_ms,
            }
        )

    async def lag(self, request: Request) -> Answer:
        """Answer how many messages were published behind an id."""
        after = request.query.get("after")
        if after is None:
            raise BadRequest("after: give the id of a message; the messages behind it are counted.")
        count = await self._topics.lag(request.topic, message_id_from_hex(after))
        return json_reply({"after": after.lower(), "messages": count})

    async def range(self, request: Request) -> Answer:
        """Answer where a topic begins and ends, and the bounds and parts of a range of it."""
        query = request.query
        wanted = RangeQuery(
            _row(query, "after"),
            _row(query, "through"),
            whole_number(query, "messages", least=1, most=AMOUNT_MAX, default=AMOUNT_MAX),
            whole_number(query, "bytes", least=1, most=AMOUNT_MAX, default=AMOUNT_MAX),
            whole_number(query, "parts", least=1, most=PARTS_MAX, default=1),
        )
        found = await self._topics.range(request.topic, wanted)
        return json_reply(
            {
                "earliest": _id(found.earliest),
                "latest": _id(found.latest),
                "after": _id(found.after),
                "through": _id(found.through),
                "messages": found.messages,
                "bytes": found.bytes,
                "lost": found.lost,
                "ends": [_id(end) for end in found.ends],
            }
        )


def _row(query: Mapping[str, str], name: str) -> RowId | None:
    text = query.get(name)
    return None if text is None else message_id_from_hex(text)[:ROW_ID_BYTES]


def _id(row: RowId) -> str:
    return (row + ROW_ID_MIN).hex()


def _end(identifier: MessageId | None) -> dict[str, str] | None:
    if identifier is None:
        return None
    return {"id": identifier.hex(), "time": rfc3339(timestamp_of(identifier))}
