"""Create, update, purge, show, list and delete topics."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Final

from broker.api.router import Handler
from broker.api.times import parse_place, rfc3339
from broker.errors import BadRequest
from broker.http.reply import EMPTY, JSON, Answer, ChunkedReply, Piece, Reply, json_reply
from broker.http.request import Request
from broker.topics.topics import Topics
from broker.wire.topics import decode_properties, encode_names, encode_properties

NOW = "now"
NAMES_AT_ONCE: Final = 1000
"""A longer list of names is sent while it is read."""


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

    async def purge(self, request: Request) -> Answer:
        """Let nothing be read any more that was published before a moment."""
        topic = await self._topics.purge(
            request.topic, _moment(request.query.get("before")), request.deadline
        )
        before = rfc3339(topic.purged_ms)
        return json_reply({"purged_before": before, "purged_ms": topic.purged_ms})

    def pinned(self, purge: Handler) -> Handler:
        """Return ``purge`` for requests whose ``now`` becomes the moment at which they came to their first node.

        A request whose caller has gone may be carried out late. It must not remove what is published by then.
        """

        async def at_arrival(request: Request) -> Answer:
            if request.query.get("before") == NOW:
                # Ids run ahead of the clock by so much.
                around = self._topics.around
                last_ms = around.clock.now_ms() + around.settings.id_lead_ms_max
                request.ask(f"before={last_ms + 1}")
            return await purge(request)

        return at_arrival

    async def show(self, request: Request) -> Answer:
        """Answer a topic's properties, flat, every value a string."""
        topic = await self._topics.get(request.topic)
        return Reply(200, encode_properties(topic), JSON)

    async def list(self, request: Request) -> Answer:
        """Answer the names of a namespace's topics; an unknown namespace has none."""
        names: list[str] = []
        pages = self._topics.names(request.names.namespace)
        async for page in pages:
            names += page
            if len(names) > NAMES_AT_ONCE:
                return ChunkedReply(_listing(names, pages), JSON)
        return Reply(200, encode_names(names), JSON)

    async def namespaces(self, request: Request) -> Answer:
        """Answer the names of the namespaces that have topics."""
        del request
        return json_reply(await self._topics.namespaces())

    async def delete(self, request: Request) -> Answer:
        """Delete a topic; its messages are gone at once."""
        await self._topics.delete(request.topic)
        return EMPTY


async def _listing(
    names: list[str], pages: AsyncGenerator[list[str], None]
) -> AsyncGenerator[Piece, None]:
    """Yield a list of names, which come in the order of the list; ``names`` are the first of them."""
    yield encode_names(names)[:-1]
    async with aclosing(pages):
        async for page in pages:
            if page:
                yield b"," + encode_names(page)[1:-1]
    yield b"]"


def _moment(text: str | None) -> int:
    """Return the ms that a purge names. Raises BadRequest."""
    place = None if text is None else parse_place("before", text)
    if not isinstance(place, int):
        raise BadRequest(
            "before: name a moment, such as 2026-11-20T12:34:56.789Z or ms since 1970, or `now` for all "
            "that is stored."
        )
    return place
