"""Server-sent events: a topic as a stream that a browser can follow.

::

    id: 0000019aa4…@2                  an id without an event: the stream begins behind it
    : default:t                        a comment: the stream has begun
    id: 0000019aa5…@2                  one event is one message; its id is the message's place: its id
    data: {"id":"…","payload":"…",     and the topic's generation. So a client that comes back with
      "key":"…","headers":{…},…}       Last-Event-ID goes on exactly behind it (the data are one line)
    : keep-alive                       a comment, sent after a time without events
    : leader http://b:8082;node=2      a comment: from now on that node should lead the topic

A browser shows no event for an id alone, but sends it back as Last-Event-ID. So a client that follows from
``now``, and loses the stream before its first event, misses no message published meanwhile. If the topic was
empty, this id is below all others. It comes before everything else, even before the comment. So a client that
reached the wrong node can take the id to the right node. If the stream sends no id, the client sees that at once.

In a cluster the head of the reply names the node that leads the topic (``Broker-Leader``). When the topic moves,
a comment names the next leader. If another node leads the topic, this node forwards the polls page by page, as
long as the stream lives. A client may ignore the leader's name.

A stream reads like a consumer without a transaction: page after page, each from the last id sent. With
``committed=true`` each page has a new snapshot; while an open transaction blocks it, the stream looks again after
a pause. It ends after a whole event, when the client goes, the node drains, or the topic is deleted. It is cut if the
node has no room for its next large page. An id of an earlier generation of the topic is refused (410).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from typing import Final

from broker.api.asked import in_generation, place_in
from broker.api.messages.message_list import ShownParts, form_of, parts_of_message
from broker.api.messages.polls import EventPage, Polling, committed_in
from broker.api.router import NodeParts, TopicHandlers
from broker.clock import Clock
from broker.errors import TopicNotFound, TopicRecreated
from broker.http.budget import BudgetKind
from broker.http.reply import Answer, ChunkedReply, Headers
from broker.http.request import Request
from broker.model import (
    LOG_KEY_MAX,
    MESSAGE_ID_BYTES,
    MessageId,
    Poll,
    ShownMessage,
    TopicId,
    log_key_before,
)
from broker.operations.media_types import EVENTS
from broker.operations.parameters import LEADER_HEADER
from broker.places import Place
from broker.routing.decisions import LeaderSeen
from broker.shield import unless_abandoned
from broker.topics.blockers import BlockersQuery
from broker.topics.browse import BrowseQuery
from broker.wire.avrojson import PART_BYTES

NOW: Final = "now"
KEEP_ALIVE_S = 15.0
BLOCKED_PAUSE_S: Final = 0.1
"""The pause before a stream looks again whether an open transaction has ended."""
PAGE_MESSAGES = 500
CHUNK_BYTES = 64 * 1024
BEFORE_ALL: MessageId = bytes(MESSAGE_ID_BYTES)
"""An id below the ids of all messages. No message has it."""
_KEEP_ALIVE = b": keep-alive\n\n"


class Events(TopicHandlers):
    """The handler of event streams."""

    def __init__(
        self, parts: NodeParts, polls: Polling, *, keep_alive_s: float = KEEP_ALIVE_S
    ) -> None:
        """Keep the parts of the node, the handler of polls, and the longest time without a byte on a stream."""
        super().__init__(parts)
        self._poll = polls.within
        self._snapshot = polls.snapshot
        self._leader = parts.routed.should_lead
        self._clock = parts.topics.around.clock
        self._keep_alive_s = keep_alive_s

    async def events(self, request: Request) -> Answer:
        """Answer a stream of events that goes on until the client, the node or a deletion ends it."""
        committed_in(request)
        last = request.headers.get("Last-Event-ID")
        start = None if last else request.query.get("from")
        place: MessageId | int | None = None
        if last:
            place = request.id_at(Place.of(last))
        elif start != NOW:
            place = place_in(request, "from")
        generation = (await self._topics.get(request.topic, request.generation)).generation
        if start == NOW:
            place = await self._newest(request, generation)
        poll = Poll(place, isinstance(place, int), PAGE_MESSAGES, generation=generation)
        leader = self._leader(request.topic)
        chunks = self._chunks(request, poll, leader)
        told: Headers = () if leader is None else ((LEADER_HEADER, leader.format()),)
        headers = (("Cache-Control", "no-store"), *in_generation(generation), *told)
        return ChunkedReply(chunks, EVENTS, headers, compressible=False)

    async def _newest(self, request: Request, generation: int) -> MessageId:
        """Return the last id that a reader may have seen by now: with ``committed``, that before an open transaction."""
        query = BrowseQuery(None, None, 1, descending=True, generation=generation)
        newest = await self._topics.browse(request.topic, query)
        last = newest.entries[0].id if newest.entries else BEFORE_ALL
        snapshot = await self._snapshot(request) if committed_in(request) else None
        if snapshot is None or not snapshot.in_progress:
            return last
        wanted = BlockersQuery(snapshot, limit=1, generation=generation)
        found = (await self._topics.blockers(request.topic, wanted, request.usage)).blockers
        for kind in (BudgetKind.ROWS, BudgetKind.REPLY_BYTES):
            request.usage.give(kind)  # The search has ended; the stream may last for days.
        return min([last, *(log_key_before(each.first) + LOG_KEY_MAX for each in found)])

    async def _page(self, request: Request, poll: Poll) -> EventPage | None:
        """Return the next page. None: the client has gone, or the topic was deleted."""
        try:
            return await self._poll(request, poll, self._keep_alive_s)
        except (TopicNotFound, TopicRecreated):
            return None

    async def _chunks(
        self, request: Request, poll: Poll, leader: LeaderSeen | None
    ) -> AsyncGenerator[bytes, None]:
        abandoned = request.abandoned()
        comments = _Comments(leader, self._clock, self._keep_alive_s)
        yield _opening(request.topic, poll)
        while not abandoned.done():
            page = await self._page(request, poll)
            if page is None:
                return
            before = poll
            async for messages in page.messages():
                async for chunk, is_whole in _event_chunks(messages, poll.generation):
                    yield chunk
                    if is_whole and abandoned.done():
                        return
                if messages:
                    poll = replace(poll, start=messages[-1].id, inclusive=False)
            silent = poll is before
            comment = comments.next(self._leader(request.topic), silent=silent)
            if comment and not abandoned.done():
                yield comment
            elif (
                silent
            ):  # The poll did not wait: an open transaction blocks it, or leadership moved.
                await unless_abandoned(self._clock.sleep(BLOCKED_PAUSE_S), abandoned)


def _opening(topic: TopicId, poll: Poll) -> bytes:
    """Return the first bytes of a stream: the id behind which it begins, if it begins at an id, and a comment."""
    told = ""
    if isinstance(poll.start, bytes):
        told = f"id: {Place(poll.start, poll.generation)}\n\n"
    return f"{told}: {topic}\n\n".encode("ascii")


class _Comments:
    """The comments of one stream: they name a new leader, or show that the stream lives."""

    def __init__(self, leader: LeaderSeen | None, clock: Clock, keep_alive_s: float) -> None:
        self._leader = leader
        self._clock = clock
        self._keep_alive_s = keep_alive_s
        self._said_s = clock.monotonic()

    def next(self, leader: LeaderSeen | None, *, silent: bool) -> bytes:
        """Return the comment behind a page, or nothing. The page was empty if ``silent``."""
        now, former = self._clock.monotonic(), self._leader
        comment = b""
        if leader is not None:
            self._leader = leader
            if former is None or former.url != leader.url:
                comment = f": leader {leader.format()}\n\n".encode()
        if silent and not comment and now - self._said_s >= self._keep_alive_s:
            comment = _KEEP_ALIVE
        if comment or not silent:
            self._said_s = now
        return comment


async def _event_chunks(
    messages: Sequence[ShownMessage], generation: int | None
) -> AsyncIterator[tuple[bytes, bool]]:
    """Yield chunks, each with True if an event ends there.

    Small events are joined up to about CHUNK_BYTES. A large event is split into parts.
    """
    chunk = bytearray()
    for message in messages:
        is_large = len(message.payload) > PART_BYTES
        if chunk and (is_large or len(chunk) >= CHUNK_BYTES):
            yield bytes(chunk), True
            chunk.clear()
        if is_large:
            yield _event_head(message, generation), False
            async for piece in _EVENT.apart(message):
                yield piece, False
            yield b"\n\n", True
        else:
            chunk += _event_head(message, generation)
            chunk += _EVENT.together([message]) + b"\n\n"
    if chunk:
        yield bytes(chunk), True


def _event_head(message: ShownMessage, generation: int | None) -> bytes:
    return b"id: %b\ndata: " % str(Place(message.id, generation)).encode("ascii")


def _event(message: ShownMessage) -> ShownParts:
    return parts_of_message({"id": message.id.hex(), "timestamp_ms": message.timestamp_ms}, message)


_EVENT: Final = form_of(_event)
