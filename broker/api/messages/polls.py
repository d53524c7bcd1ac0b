"""Polls: read messages as a consumer, at the topic's leader, or else in storage. A waiting poll follows the leader.

A poll waits at the leader, whose commits wake it. While it waits, leadership may move::

    wait at the leader ──messages──▶ answer
        ▲     ├─ 421, or Broker-Moved: it drains, or another leads ──┐
        │     └─ no answer: cut, silent, refused                     │
        │               ▼                                            ▼
        │        storage here, a second at most            wait for the remaining time
        └──────────────┴──────────────────◀──────────────────────────┘

No message is lost or repeated by a move: a poll that ends early is empty, and the next poll asks from the same place.

To ask another node, this node needs the poll's body. A poll that waits here keeps a small body. It drops a large
body, and then ends early if leadership moves.

A reply is a stream of whole Avro blocks with a zero at the end. If the zero is missing, the consumer knows that the
answer was cut off. In this way the node reports a failure after the status line.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from broker.api import asked
from broker.api.asked import body_type, in_generation
from broker.api.messages import plainjson
from broker.api.messages.message_list import ItemForm, JsonList
from broker.api.router import NodeParts, TopicHandlers
from broker.errors import (
    BadRequest,
    BrokerError,
    NotLeader,
    Overloaded,
    TopicNotFound,
    TopicRecreated,
    Unavailable,
    UnavailableError,
)
from broker.http.budget import BudgetKind, Usage
from broker.http.reply import Answer, ChunkedReply, Headers, Piece, Reply
from broker.http.request import Request
from broker.model import Message, Poll, ShownMessage, Snapshot
from broker.moments import span_s
from broker.operations.media_types import AVRO, AVRO_JSON, JSON, MESSAGES
from broker.operations.operation import RepeatEffect
from broker.operations.parameters import BLOCKED_BY_HEADER, COMMITTED, WAIT
from broker.places import GENERATION_HEADER
from broker.routing import nodeheaders
from broker.routing.decisions import MOVED, Call, Relayed
from broker.routing.forwarder import READING_S
from broker.routing.nodeheaders import Repeat
from broker.shield import unless_abandoned
from broker.topics.overdue import in_time
from broker.topics.pages import PollPage
from broker.topics.streams import Form, PollStream
from broker.topics.waiting_polls import counted
from broker.wire import avro, avrojson, messages
from broker.wire.varint import END

AGAIN_S: Final = 0.02
"""The pause before this node repeats a poll that ended early."""
ANYWHERE_S: Final = 1.0
"""How long a poll waits on storage before this node looks for a leader again."""
KEPT_BODY_BYTES_MAX: Final = 4 * 1024
"""The largest body that a poll keeps while it waits here. 10,000 such bodies take 40 MB, which the budget counts."""
WHOLE_BYTES_MAX = 16 * 1024
"""A reply of at most so many bytes is joined and sent at once. Joining a larger one costs more than a stream: for
each copy, the process gets memory from the system and gives it back.
"""

_POLLS: Final = {
    AVRO: avro.decode_poll,
    AVRO_JSON: avrojson.decode_poll,
    JSON: plainjson.decode_poll,
}
_AVRO_JSON: Final = ItemForm(avrojson.encode_items, avrojson.item_in_pieces)


class PollRequest(NamedTuple):
    """A poll, decoded from a request. ``committed``: read with a snapshot of the moment when the poll is answered."""

    kind: str
    poll: Poll
    wait_s: float
    whole: bool = False
    """True if the client wants messages with their attributes (wire.messages)."""
    committed: bool = False


class EventPage(Protocol):
    """The page that a poll found for an event stream."""

    def messages(self) -> AsyncIterator[Sequence[ShownMessage]]:
        """Yield the messages."""


class _Polled(NamedTuple):
    """An answer. ``is_final`` is false if it is useful to ask again while time is left."""

    answer: Answer
    is_final: bool


class Polling(TopicHandlers):
    """The handler of polls."""

    def __init__(self, parts: NodeParts) -> None:
        """Keep the parts of the node."""
        super().__init__(parts)
        self._routed = parts.routed
        self._routing = parts.routed.routing
        self._wait_max_s = parts.config.limits.wait_max_s

    async def poll(self, request: Request) -> Answer:
        """Answer messages, at once or as soon as this consumer may see some."""
        asked = await self.asked(request)
        if nodeheaders.are_there(request.headers):
            return await self._received(request, asked)
        return await self._routed_poll(request, asked)

    async def asked(self, request: Request) -> PollRequest:
        """Decode a request's poll. Raises BadRequest, BodyTooLarge."""
        kind = body_type(request.headers, _POLLS)
        whole = request.headers.get("Accept") == MESSAGES
        wait_s, committed = self._wait_s(request), committed_in(request)
        poll = await asked.read(request, _POLLS[kind])
        if poll.generation is None and request.generation is not None:
            poll = replace(poll, generation=request.generation)
        if committed and poll.snapshot is not None:
            raise BadRequest("committed: give it, or a snapshot in the body, but not both.")
        return PollRequest(kind, poll, wait_s, whole, committed)

    async def within(self, request: Request, poll: Poll, wait_s: float) -> EventPage | None:
        """Poll for the request of an event stream.

        Raises:
            TopicNotFound, TopicRecreated: the topic was deleted.
            BrokerError: neither the leader nor storage answers.
        """
        asked = PollRequest(AVRO, poll, wait_s, whole=True, committed=committed_in(request))
        if self._routing.place(request.topic).here:
            here = copy(request)
            here.deadline = None  # A stream has none.
            # The page's memory is that of storage or of the cache: no copy.
            with suppress(NotLeader):
                return await self.read(here, asked, wait_s)
        headers = {"Content-Type": AVRO, "Accept": MESSAGES}
        if poll.generation is not None:
            headers[GENERATION_HEADER] = str(poll.generation)
        body = avro.encode_poll(poll)
        path = request.path.removesuffix("/").removesuffix("/events") + "/poll"
        asking = Request(
            "POST",
            path,
            "",
            headers,
            body,
            id=request.id,
            names=request.names,
            principal=request.principal,
            abandoned=request.abandoned,
            usage=request.usage,
        )
        answer = await self._routed_poll(asking, asked)
        if answer.status != 200:
            raise _error_of(answer)
        return RoutedPage(answer, request.usage)

    async def _routed_poll(self, request: Request, asked: PollRequest) -> Answer:
        clock = self._routing.clock
        until = clock.monotonic() + asked.wait_s
        while True:
            polled = await self._once(request, asked, until)
            if polled.is_final or clock.monotonic() >= until or request.abandoned().done():
                return polled.answer
            await clock.sleep(min(AGAIN_S, asked.wait_s))

    async def _once(self, request: Request, asked: PollRequest, until: float) -> _Polled:
        """Ask the current leader once, and wait there."""
        if self._routing.place(request.topic).here:
            if self._routed.is_alone or (
                asked.wait_s > 0 and len(request.body) > KEPT_BODY_BYTES_MAX
            ):
                request.let_go_of_body()
            try:
                return await self._here(request, asked, until)
            except NotLeader:
                # The topic moved away while the poll waited.
                if not request.body:
                    return _Polled(answer_of(None, asked), is_final=True)
        waits = self._left_s(until) > 0
        call = self._call(request, asked, until)

        async def answering() -> _Polled | Relayed:
            return await self._routing.answer(
                call, lambda repeat: self._local(repeat, request, asked, until)
            )

        if waits:
            with counted(request.usage):
                answer = await unless_abandoned(answering(), request.abandoned())
        else:  # An empty answer would say that there are no messages.
            answer = await answering()
        if answer is None:
            return _Polled(answer_of(None, asked), is_final=True)
        if isinstance(answer, Relayed):
            passed = self._routed.passed_back("poll", answer)
            return _Polled(passed, is_final=not waits or not answer.has_moved)
        return answer

    def _left_s(self, until: float) -> float:
        return max(until - self._routing.clock.monotonic(), 0.0)

    def _call(self, request: Request, asked: PollRequest, until: float) -> Call:
        call = self._routed.call("poll", RepeatEffect.POLL, request)
        deadline = call.deadline
        if asked.wait_s > 0:
            # A poll may wait longer than the deadline of a publish.
            deadline = max(deadline, until + READING_S)
        # Each attempt states the remaining wait itself.
        target = f"{request.path}?{COMMITTED.name}=true" if asked.committed else request.path
        return call._replace(target=target, waits_until=until, deadline=deadline)

    async def _local(
        self, _: Repeat | None, request: Request, asked: PollRequest, until: float
    ) -> _Polled:
        """Answer on this node: the topic moved here meanwhile, or no other node answers."""
        if self._routing.place(request.topic).here:
            return await self._here(request, asked, until)
        wait_s = min(self._left_s(until), ANYWHERE_S)
        stream = await self.read(request, asked, wait_s, anywhere=True)
        is_final = stream is None or not stream.empty or stream.blocked_by is not None
        return _Polled(answer_of(stream, asked), is_final)

    async def _here(self, request: Request, asked: PollRequest, until: float) -> _Polled:
        stream = await self.read(request, asked, self._left_s(until))
        told = self._routed.told(request.topic, answer_of(stream, asked))
        return _Polled(told, is_final=True)

    async def _received(self, request: Request, asked: PollRequest) -> Answer:
        """Answer another node's poll. If the poll ends because this node drains, the answer says so."""

        async def handler(_: Request) -> Answer:
            request.let_go_of_body()
            stream = await self.read(request, asked, asked.wait_s)
            answer = answer_of(stream, asked)
            if stream is None:
                answer.headers = (*answer.headers, (MOVED, "true"))
            return answer

        return await self._routed.received(RepeatEffect.POLL, handler, request)

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
        topic, poll, usage = request.topic, asked.poll, request.usage
        async with in_time(self._topics.around.clock, deadline):
            if asked.committed:
                poll = replace(poll, snapshot=await self.snapshot(request))
            if wait_s <= 0:
                return await self._topics.poll(topic, poll, usage=usage)
            waiting = self._topics.poll(topic, poll, wait_s=wait_s, anywhere=anywhere, usage=usage)
            return await unless_abandoned(waiting, request.abandoned())

    async def snapshot(self, request: Request) -> Snapshot:
        """Return a new snapshot; the request's usage counts it. Raises BrokerError."""
        snapshot = await self._parts.service.snapshot(request.deadline)
        request.usage.give(BudgetKind.ITEMS)  # That of the stream's page before.
        request.usage.take(BudgetKind.ITEMS, len(snapshot.in_progress) + len(snapshot.invalids))
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


def answer_of(stream: PollStream | None, asked: PollRequest) -> Answer:
    """Return the answer with these messages. None makes an empty answer."""
    kind, whole = asked.kind, asked.whole
    headers: Headers = ()
    if stream is not None:
        blocked = blocked_by(stream.blocked_by if stream.empty else None)
        headers = (*in_generation(stream.generation), *blocked)
    if kind == JSON:
        return ChunkedReply(_json_chunks(stream, plainjson.POLLED), JSON, headers)
    if kind == AVRO_JSON:
        return ChunkedReply(_json_chunks(stream, _AVRO_JSON), AVRO_JSON, headers)
    form, content_type = (PollPage.whole, MESSAGES) if whole else (PollPage.block, AVRO)
    if stream is None or (stream.ended and stream.first.bytes <= WHOLE_BYTES_MAX):
        # All messages are read already: send one chunk, without the cost of a stream.
        first = b"" if stream is None else b"".join(form(stream.first))
        return Reply(200, first + END, content_type, headers, chunked=True)
    return ChunkedReply(_avro_chunks(stream, form), content_type, headers)


def blocked_by(pointer: int | None) -> Headers:
    """Return the header that names the open transaction that makes a reply empty; nothing for None."""
    return () if pointer is None else ((BLOCKED_BY_HEADER, str(pointer)),)


async def _avro_chunks(stream: PollStream, form: Form) -> AsyncGenerator[Piece, None]:
    async for block in stream.blocks(form):
        yield block
    yield END


async def _json_chunks(
    stream: PollStream | None, form: ItemForm[ShownMessage]
) -> AsyncGenerator[Piece, None]:
    out = JsonList(form)
    if stream is not None:
        async for messages in stream.messages():
            async for piece in out.pieces(messages):
                yield piece
    yield out.end()


class RoutedPage:
    """The messages that an event stream's poll found."""

    def __init__(self, answer: Answer, usage: Usage) -> None:
        """Keep an answer to a poll, in Avro with attributes; ``usage`` is the stream's request's."""
        self._answer = answer
        self._usage = usage

    async def messages(self) -> AsyncIterator[list[Message]]:
        """Yield the messages. An answer that is cut off ends after its last whole message.

        The usage counts the bytes that were read and not yielded yet, or not taken by the reader. Raises Overloaded.
        """
        decoder, counted = messages.PagesDecoder(), 0
        if isinstance(self._answer, Reply):
            yield decoder.feed(self._answer.body)
            return
        try:
            async for chunk in self._answer.chunks:
                self._usage.take(BudgetKind.REPLY_BYTES, len(chunk))
                counted += len(chunk)
                if found := decoder.feed(bytes(chunk)):
                    yield found
                    del found
                    self._usage.give(BudgetKind.REPLY_BYTES, counted)
                    counted = 0
        except Overloaded:
            raise
        except UnavailableError:
            return
        finally:
            self._usage.give(BudgetKind.REPLY_BYTES, counted)
            await self._answer.chunks.aclose()


def _error_of(answer: Answer) -> BrokerError:
    code = dict(answer.headers).get("Broker-Error", "")
    text = answer.body.decode("utf-8", "replace") if isinstance(answer, Reply) else ""
    for gone in (TopicNotFound, TopicRecreated):
        if code == gone.code:
            return gone(text)
    return Unavailable(f"The leader refused the poll: {code} {text[:200]}")
