"""Create, update, show, list and delete topics."""

from __future__ import annotations

from collections.abc import Mapping

from broker.api.replies import EMPTY, JSON, Answer, Reply, json_reply
from broker.api.request import Request
from broker.topics.service import Topics
from broker.wire.topics import decode_properties, encode_names, encode_properties


class TopicsAdmin:
    """The handlers of topics themselves."""

    def __init__(self, topics: Topics, *, properties_default: Mapping[str, str]) -> None:
        """Keep the service, and the properties that a request need not give."""
        self._topics = topics
        self._properties_default = properties_default

    async def create(self, request: Request) -> Answer:
        """Make a topic that does not exist."""
        properties = decode_properties(request.body, self._properties_default, request.topic)
        await self._topics.create(request.topic, properties)
        return EMPTY

    async def update(self, request: Request) -> Answer:
        """Replace all properties of a topic."""
        properties = decode_properties(request.body, self._properties_default, request.topic)
        await self._topics.update(request.topic, properties, request.deadline)
        return EMPTY

    async def show(self, request: Request) -> Answer:
        """Answer a topic's properties, flat, every value a string."""
        topic = await self._topics.get(request.topic)
        return Reply(200, encode_properties(topic), JSON)

    async def list(self, request: Request) -> Answer:
        """Answer the names of a namespace's topics; an unknown namespace has none."""
        names = await self._topics.list(request.names.namespace)
        return Reply(200, encode_names(names), JSON)

    async def namespaces(self, request: Request) -> Answer:
        """Answer the names of the namespaces that have topics."""
        del request
        return json_reply(await self._topics.namespaces())

    async def delete(self, request: Request) -> Answer:
        """Delete a topic; its messages are gone at once."""
        await self._topics.delete(request.topic)
        return EMPTY
