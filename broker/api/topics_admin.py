"""Handlers that create, update, purge, show, list and delete topics, tell about their contents, and keep named cursors."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Final

from broker.access.quotas import QuotaKind
from broker.api import asked
from broker.api.asked import end_of, id_in, parse_place, shown_id
from broker.api.router import Handler, TopicHandlers
from broker.errors import BadRequest
from broker.http.reply import EMPTY, Answer, ChunkedReply, Piece, Reply, json_reply
from broker.http.request import Request
from broker.model import (
    LOG_KEY_BYTES,
    LogKey,
    Topic,
    check_cursor,
)
from broker.moments import rfc3339
from broker.operations import replies
from broker.operations.media_types import JSON
from broker.operations.parameters import CURSOR_LIMIT, RANGE_BYTES, RANGE_MESSAGES, RANGE_PARTS
from broker.operations.replies import (
    Count,
    Cursor,
    CursorDeleted,
    CursorLag,
    Cursors,
    Lag,
    Purged,
    Range,
    Rates,
    Unread,
)
from broker.operations.sent import CursorSent
from broker.operations.table import CURSOR_BYTES_MAX
from broker.places import Place
from broker.topics.cursors import StoredCursor, shown
from broker.topics.ranges import RangeQuery
from broker.topics.topics import Topics
from broker.wire.topics import TTL, decode_properties, encode_names, encode_properties

NOW = "now"
NAMES_AT_ONCE: Final = 1000
"""A longer list of names is sent while it is being read from storage."""


class TopicsAdmin(TopicHandlers):
    """The handlers of topics themselves, and of figures about their contents."""

    async def create_topic(self, request: Request) -> Answer:
        """Create a topic that does not exist."""
        properties = self._properties(request)
        await self._check_topics(request)
        await self._topics.create(
            request.topic, properties, request.deadline, owner=request.principal.name
        )
        return EMPTY

    async def update_topic(self, request: Request) -> Answer:
        """Replace all properties of a topic."""
        properties = self._properties(request)
        await self._topics.update(
            request.topic, properties, request.deadline, generation=request.generation
        )
        return EMPTY

    async def purge(self, request: Request) -> Answer:
        """Remove all messages published before a moment."""
        topic = await self._topics.purge(
            request.topic,
            _moment(request.query.get("before")),
            request.deadline,
            generation=request.generation,
        )
        before = rfc3339(topic.purged_ms)
        return json_reply(Purged(purged_before=before, purged_ms=topic.purged_ms))

    async def show_topic(self, request: Request) -> Answer:
        """Answer a topic's properties as a flat object; each value is a string."""
        topic = await self._topics.get(request.topic, request.generation)
        return Reply(200, encode_properties(topic), JSON)

    async def list_topics(self, request: Request) -> Answer:
        """Answer the names of a namespace's topics. An unknown namespace has none."""
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
        names = await self._topics.namespaces()
        if len(names) <= NAMES_AT_ONCE:
            return json_reply(names)
        return ChunkedReply(_listing(names[:NAMES_AT_ONCE], _pages(names)), JSON)

    async def delete_topic(self, request: Request) -> Answer:
        """Delete a topic. Its messages are gone at once."""
        await self._topics.delete(request.topic, request.generation, request.deadline)
        return EMPTY

    async def stats(self, request: Request) -> Answer:
        """Answer the figures of a topic's contents."""
        stats = await self._topics.stats(request.topic, request.generation, request.usage)
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

    def _properties(self, request: Request) -> dict[str, str]:
        config = self._parts.config.topics
        defaults = {TTL: str(config.topic_ttl_default_s), **config.topic_properties_default}
        properties = decode_properties(request.body, defaults, request.topic)
        size = sum(len(name.encode()) + len(value.encode()) for name, value in properties.items())
        self._check_quota(request, QuotaKind.PROPERTY_BYTES, size)
        return properties

    async def _check_topics(self, request: Request) -> None:
        """Raise QuotaExceeded if the caller may have no further topic, and this one does not exist."""
        meter, owner = self._parts.meter, request.principal
        if meter is None or QuotaKind.TOPICS not in meter.bounds(owner)[0]:
            return
        record = await self._topics.registry.read(request.topic)
        if record is None or record.deleted:
            count = await self._topics.registry.count_of(owner.name)
            meter.check(owner, QuotaKind.TOPICS, count + 1)


def pinned(topics: Topics, purge: Handler) -> Handler:
    """Return ``purge`` with ``now`` replaced by the moment at which the request reached its first node.

    A request may be executed late, after its caller has gone. It must not remove messages published by then.
    """

    async def at_arrival(request: Request) -> Answer:
        if request.query.get("before") == NOW:
            # The ids of stored messages may be ahead of the clock by so much.
            around = topics.around
            last_ms = around.clock.now_ms() + around.settings.id_lead_ms_max
            request.ask(f"before={last_ms + 1}")
        return await purge(request)

    return at_arrival


async def _listing(
    names: list[str], pages: AsyncGenerator[list[str], None]
) -> AsyncGenerator[Piece, None]:
    """Yield a JSON list in pieces: first ``names``, then the names of ``pages``, in this order."""
    yield encode_names(names)[:-1]
    async with aclosing(pages):
        async for page in pages:
            if page:
                yield b"," + encode_names(page)[1:-1]
    yield b"]"


async def _pages(names: list[str]) -> AsyncGenerator[list[str], None]:
    """Yield the names behind the first NAMES_AT_ONCE, some at a time."""
    for at in range(NAMES_AT_ONCE, len(names), NAMES_AT_ONCE):
        yield names[at : at + NAMES_AT_ONCE]


def _moment(text: str | None) -> int:
    """Return the moment of a purge, in ms. Raises BadRequest."""
    place = None if text is None else parse_place("before", text)
    if not isinstance(place, int):
        raise BadRequest(
            "before: give a moment, such as 2026-11-20T12:34:56.789Z or ms since 1970, or `now` for all "
            "stored messages."
        )
    return place


def _row(request: Request, name: str) -> LogKey | None:
    found = id_in(request, name)
    return None if found is None else found[:LOG_KEY_BYTES]


# --- Named cursors: any node answers, none forwards --------------------------------------------------

DATA_BYTES_MAX: Final = 1024


class CursorHandlers(TopicHandlers):
    """The handlers of named cursors."""

    async def cursors(self, request: Request) -> Answer:
        """Answer a page of a topic's cursors, each with its lag."""
        query = request.query
        limit = CURSOR_LIMIT.of(query)
        topic = await self._topics.get(request.topic, request.generation)
        page = await self._topics.cursors.page(topic, query.get("after", ""), limit)
        told = [await self._with_lag(topic, cursor) for cursor in page.cursors]
        return json_reply(Cursors(cursors=told, next=page.next))

    async def show_cursor(self, request: Request) -> Answer:
        """Answer one cursor with its lag."""
        name = check_cursor(request.names.cursor)
        topic = await self._topics.get(request.topic, request.generation)
        cursor = await self._topics.cursors.get(topic, name)
        return json_reply(await self._with_lag(topic, cursor))

    async def put_cursor(self, request: Request) -> Answer:
        """Move or create a cursor, if its version is the one that the request expects."""
        name = check_cursor(request.names.cursor)
        place, expected, data = _decode_put(request.body)
        after = None if place is None else request.id_at(place)
        topic = await self._topics.get(request.topic, request.generation)
        check = partial(self._check_quota, request, QuotaKind.CURSORS)
        cursor = await self._topics.cursors.put(topic, name, after, expected, data, check=check)
        return json_reply(_shown(topic, cursor))

    async def delete_cursor(self, request: Request) -> Answer:
        """Delete a cursor; answer whether there was one."""
        name = check_cursor(request.names.cursor)
        topic = await self._topics.get(request.topic, request.generation)
        return json_reply(CursorDeleted(deleted=await self._topics.cursors.delete(topic, name)))

    async def _with_lag(self, topic: Topic, cursor: StoredCursor) -> CursorLag:
        after = None if cursor.after is None else cursor.after[:LOG_KEY_BYTES]
        unread = await self._topics.unread(topic, after)
        lag = Unread(messages=unread.messages, lost=unread.lost, oldest=end_of(unread.oldest))
        return {**_shown(topic, cursor), "lag": lag}


def _shown(topic: Topic, cursor: StoredCursor) -> Cursor:
    return {**shown(cursor), "generation": topic.generation}


def _decode_put(body: bytes) -> tuple[Place | None, str | None, str]:
    """Return the new place, the expected version, and the data of a put. Raises BadRequest."""
    sent: CursorSent = asked.read_small(body, CursorSent, bytes_max=CURSOR_BYTES_MAX)
    after, data = sent["after"], sent.get("data", "")
    if len(data.encode()) > DATA_BYTES_MAX:
        raise BadRequest(f"data must be text of at most {DATA_BYTES_MAX} bytes.")
    return None if after is None else Place.of(after), sent["expected"], data
