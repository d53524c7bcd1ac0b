"""Polls: read messages as a consumer.

A reply is a stream of whole Avro blocks with a zero at the end. If the zero is missing, the consumer knows that the
answer was cut off. In this way the node reports a failure after the status line.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from copy import copy
from dataclasses import replace
from typing import Final, NamedTuple

from broker.api import body_reader, plainjson
from broker.api.abandonment import unless_abandoned
from broker.api.asked import BodyType, body_type, in_generation
from broker.api.message_list import ItemForm, JsonList
from broker.api.own_service import AnyService
from broker.errors import BadRequest
from broker.http.budget import BudgetKind
from broker.http.reply import ChunkedReply, Headers, Piece, Reply
from broker.http.request import Request
from broker.model import Poll, ShownMessage, Snapshot
from broker.moments import span_s
from broker.operations.media_types import AVRO, AVRO_JSON, JSON, MESSAGES
from broker.operations.parameters import COMMITTED, WAIT
from broker.routing.forwarder import READING_S
from broker.slices import Slice
from broker.topics.overdue import in_time
from broker.topics.pages import PollPage
from broker.topics.streams import Form, PollStream
from broker.topics.topics import Topics
from broker.wire import avro, avrojson
from broker.wire.blocks import END

BLOCKED_BY = "Broker-Blocked-By"
WHOLE_BYTES_MAX = 16 * 1024
"""A reply of at most so many bytes is joined and sent at once. Joining a larger one costs more than a stream: for
each copy, the process gets memory from the system and gives it back.
"""

_POLLS: Final = {
    BodyType.AVRO: avro.poll_steps,
    BodyType.AVRO_JSON: avrojson.poll_steps,
    BodyType.JSON: plainjson.poll_steps,
}


_PLAIN_JSON: Final = ItemForm(plainjson.encode_items, plainjson.item_in_pieces)
_AVRO_JSON: Final = ItemForm(avrojson.encode_items, avrojson.item_in_pieces)


class PollRequest(NamedTuple):
    """A poll, decoded from a request. ``committed``: read with a snapshot of the moment when the poll is answered."""

    kind: BodyType
    poll: Poll
    wait_s: float
    whole: bool = False
    """True if the client wants messages with their attributes (wire.messages)."""
    committed: bool = False


class Polling:
    """Reads polls, and answers them on this node."""

    def __init__(self, topics: Topics, service: AnyService, *, wait_max_s: float) -> None:
        """Keep the topics, and the service that gives snapshots. ``wait_max_s`` bounds how long a poll may wait."""
        self._topics = topics
        self._service = service
        self._wait_max_s = wait_max_s

    async def asked(self, request: Request) -> PollRequest:
        """Decode a request's poll. Raises BadRequest, BodyTooLarge."""
        kind = body_type(request.headers)
        whole = request.headers.get("Accept") == MESSAGES
        wait_s, committed = self._wait_s(request), committed_in(request)
        steps = _POLLS[kind](request.body, take=body_reader.counting(request))
        poll = await body_reader.read(request, steps)
        if poll.generation is None and request.generation is not None:
            poll = replace(poll, generation=request.generation)
        if committed and poll.snapshot is not None:
            raise BadRequest("committed: give it, or a snapshot in the body, but not both.")
        return PollRequest(kind, poll, wait_s, whole, committed)

    async def within(self, request: Request, poll: Poll, wait_s: float) -> PollStream | None:
        """Poll for the request of an event stream, which has no deadline; see ``read``."""
        request = copy(request)
        request.deadline = None
        asked = PollRequest(
            BodyType.AVRO, poll, wait_s, whole=True, committed=committed_in(request)
        )
        return await self.read(request, asked, wait_s)

    async def read(
        self, request: Request, asked: PollRequest, wait_s: float, *, anywhere: bool = False
    ) -> PollStream | None:
        """Return the messages, and wait for them at most ``wait_s``. Return None if the client has gone.

        With ``anywhere``, the poll may also wait on a node that does not lead the topic.

        Raises:
            Unavailable: the request's deadline has passed, and the wait that it asked for, too.
        """
        deadline = request.deadline
        if deadline is not None and asked.wait_s:
            deadline += asked.wait_s + READING_S
        async with in_time(self._topics.around.clock, deadline):
            return await self._read(request, asked, wait_s, anywhere=anywhere)

    async def _read(
        self, request: Request, asked: PollRequest, wait_s: float, *, anywhere: bool
    ) -> PollStream | None:
        topic, poll, hold = request.topic, asked.poll, request.hold
        if asked.committed:
            poll = replace(poll, snapshot=await self._snapshot(request))
        if wait_s > 0:
            waiting = self._topics.poll(topic, poll, wait_s=wait_s, anywhere=anywhere, hold=hold)
            return await unless_abandoned(waiting, request.abandoned())
        return await self._topics.poll(topic, poll, hold=hold)

    async def _snapshot(self, request: Request) -> Snapshot:
        snapshot = await self._service.snapshot(request.deadline)
        request.hold.give(BudgetKind.ITEMS)  # That of the stream's page before.
        request.hold.take(BudgetKind.ITEMS, len(snapshot.in_progress) + len(snapshot.invalids))
        return snapshot

    def _wait_s(self, request: Request) -> float:
        if not request.query_string or (text := request.query.get(WAIT.name)) is None:
            return 0.0
        try:
            wait_s = span_s(text)
        except ValueError as error:
            raise BadRequest(f"wait: {error}") from None
        if not 0 <= wait_s <= self._wait_max_s:
            raise BadRequest(f"wait must be 0 to {self._wait_max_s:g} seconds, not {text!r:.80}.")
        return wait_s


def committed_in(request: Request) -> bool:
    """Return whether a reader asks for committed messages only. Raises BadRequest."""
    return bool(request.query_string) and COMMITTED.of(request.query) == "true"


def answer_of(stream: PollStream | None, asked: PollRequest) -> Reply | ChunkedReply:
    """Return the answer with these messages. None makes an empty answer."""
    kind, whole = asked.kind, asked.whole
    headers: Headers = ()
    if stream is not None:
        held = blocked_by(stream.blocked_by if stream.empty else None)
        headers = (*in_generation(stream.generation), *held)
    if kind is BodyType.JSON:
        return ChunkedReply(_json_chunks(stream, _PLAIN_JSON), JSON, headers)
    if kind is BodyType.AVRO_JSON:
        return ChunkedReply(_json_chunks(stream, _AVRO_JSON), AVRO_JSON, headers)
    form, content_type = (PollPage.whole, MESSAGES) if whole else (PollPage.block, AVRO)
    if stream is None or (stream.ended and stream.first.bytes <= WHOLE_BYTES_MAX):
        # All messages are read already: send one chunk, without the cost of a stream.
        first = b"" if stream is None else b"".join(form(stream.first))
        return Reply(200, first + END, content_type, headers, chunked=True)
    return ChunkedReply(_avro_chunks(stream, form), content_type, headers)


def blocked_by(pointer: int | None) -> Headers:
    """Return the header that names the open transaction that makes a reply empty; nothing for None."""
    return () if pointer is None else ((BLOCKED_BY, str(pointer)),)


async def _avro_chunks(stream: PollStream, form: Form) -> AsyncGenerator[Piece, None]:
    async for block in stream.blocks(form):
        yield block
    yield END


async def _json_chunks(
    stream: PollStream | None, form: ItemForm[ShownMessage]
) -> AsyncGenerator[Piece, None]:
    out, mine = JsonList(form), Slice()
    if stream is not None:
        async for messages in stream.messages():
            for piece in out.pieces(messages):
                if piece:
                    yield piece
                await mine.go_on()
    yield out.end()
