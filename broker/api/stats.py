"""What there is to say about a topic's contents without reading them."""

from __future__ import annotations

from broker.api.replies import Answer, json_reply
from broker.api.request import Request
from broker.api.times import rfc3339
from broker.errors import BadRequest
from broker.model import MessageId, message_id_from_hex, timestamp_of
from broker.topics.service import Topics


class Stats:
    """The handler of a topic's figures."""

    def __init__(self, topics: Topics) -> None:
        """Keep the service."""
        self._topics = topics

    async def stats(self, request: Request) -> Answer:
        """Answer what is known of a topic's contents without reading them."""
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
            raise BadRequest("after: name the id behind which messages are counted.")
        count = await self._topics.lag(request.topic, message_id_from_hex(after))
        return json_reply({"after": after.lower(), "messages": count})


def _end(identifier: MessageId | None) -> dict[str, str] | None:
    if identifier is None:
        return None
    return {"id": identifier.hex(), "time": rfc3339(timestamp_of(identifier))}
