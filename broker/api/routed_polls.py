"""Polls: the topic's leader answers, or else storage. A waiting poll follows the leader.

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
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import nullcontext, suppress
from typing import Final, NamedTuple

from broker.api.abandonment import unless_abandoned
from broker.api.asked import BodyType
from broker.api.events import EventPage
from broker.api.polls import Polling, PollRequest, answer_of, committed_in
from broker.api.routed import Routed
from broker.errors import (
    BrokerError,
    NotLeader,
    Overloaded,
    TopicNotFound,
    TopicRecreated,
    Unavailable,
    UnavailableError,
)
from broker.http.budget import BudgetKind, Hold
from broker.http.reply import Answer, ChunkedReply, Reply
from broker.http.request import Request
from broker.model import Message, Poll
from broker.operations.media_types import AVRO, MESSAGES
from broker.operations.operation import RepeatEffect
from broker.operations.parameters import COMMITTED
from broker.places import GENERATION_HEADER
from broker.routing import nodeheaders
from broker.routing.forwarder import READING_S
from broker.routing.nodeheaders import Repeat
from broker.routing.routed_calls import MOVED, Call, Relayed
from broker.topics.waiting_polls import counted
from broker.wire import avro, messages

AGAIN_S: Final = 0.02
"""The pause before this node repeats a poll that ended early."""
ANYWHERE_S: Final = 1.0
"""How long a poll waits on storage before this node looks for a leader again."""
KEPT_BODY_BYTES_MAX: Final = 4 * 1024
"""The largest body that a poll keeps while it waits here. 10,000 such bodies take 40 MB, which the budget counts."""


class _Polled(NamedTuple):
    """An answer. ``is_final`` is false if it is useful to ask again while time is left."""

    answer: Reply | ChunkedReply
    is_final: bool


class RoutedPolls:
    """The handler of polls."""

    def __init__(self, routed: Routed, polling: Polling) -> None:
        """Keep the router, and the handler that answers polls on this node."""
        self._routed = routed
        self._routing = routed.routing
        self._polling = polling

    async def poll(self, request: Request) -> Answer:
        """Answer messages, at once or as soon as this consumer may see some."""
        asked = await self._polling.asked(request)
        if nodeheaders.are_there(request.headers):
            return await self._received(request, asked)
        return await self._routed_poll(request, asked)

    async def within(self, request: Request, poll: Poll, wait_s: float) -> EventPage | None:
        """Poll for the request of an event stream.

        Raises:
            TopicNotFound, TopicRecreated: the topic was deleted.
            BrokerError: neither the leader nor storage answers.
        """
        if self._routing.place(request.topic).here:
            # The page's memory is that of storage or of the cache: no copy.
            with suppress(NotLeader):
                return await self._polling.within(request, poll, wait_s)
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
            identifier=request.id,
            names=request.names,
            abandoned=request.abandoned,
            hold=request.hold,
        )
        asked = PollRequest(
            BodyType.AVRO, poll, wait_s, whole=True, committed=committed_in(request)
        )
        answer = await self._routed_poll(asking, asked)
        if answer.status != 200:
            raise _error_of(answer)
        return RoutedPage(answer, request.hold)

    async def _routed_poll(self, request: Request, asked: PollRequest) -> Reply | ChunkedReply:
        clock = self._routing.clock
        until = clock.monotonic() + asked.wait_s
        while True:
            polled = await self._once(request, asked, until)
            over = clock.monotonic() >= until or request.abandoned().done()
            if polled.is_final or over:
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
        answering = self._routing.answer(
            self._call(request, asked, until),
            lambda repeat: self._local(repeat, request, asked, until),
        )
        with counted(request.hold) if waits else nullcontext():
            answer = await unless_abandoned(answering, request.abandoned())
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
        stream = await self._polling.read(request, asked, wait_s, anywhere=True)
        is_final = stream is None or not stream.empty or stream.blocked_by is not None
        return _Polled(answer_of(stream, asked), is_final)

    async def _here(self, request: Request, asked: PollRequest, until: float) -> _Polled:
        stream = await self._polling.read(request, asked, self._left_s(until))
        told: Reply | ChunkedReply = self._routed.told(request.topic, answer_of(stream, asked))
        return _Polled(told, is_final=True)

    async def _received(self, request: Request, asked: PollRequest) -> Answer:
        """Answer another node's poll. If the poll ends because this node drains, the answer says so."""
        request.let_go_of_body()

        async def handler(_: Request) -> Answer:
            stream = await self._polling.read(request, asked, asked.wait_s)
            answer = answer_of(stream, asked)
            if stream is None:
                answer.headers = (*answer.headers, (MOVED, "true"))
            return answer

        return await self._routed.received(RepeatEffect.POLL, handler, request)


class RoutedPage:
    """The messages that an event stream's poll found."""

    def __init__(self, answer: Reply | ChunkedReply, hold: Hold) -> None:
        """Keep an answer to a poll, in Avro with attributes; ``hold`` is the stream's request's."""
        self._answer = answer
        self._hold = hold

    async def messages(self) -> AsyncIterator[list[Message]]:
        """Yield the messages. An answer that is cut off ends after its last whole message.

        The hold counts the bytes that were read and not yielded yet, or not taken by the reader. Raises Overloaded.
        """
        decoder, counted = messages.PagesDecoder(), 0
        if isinstance(self._answer, Reply):
            yield decoder.feed(self._answer.body)
            return
        try:
            async for chunk in self._answer.chunks:
                self._hold.take(BudgetKind.REPLY_BYTES, len(chunk))
                counted += len(chunk)
                if found := decoder.feed(bytes(chunk)):
                    yield found
                    del found
                    self._hold.give(BudgetKind.REPLY_BYTES, counted)
                    counted = 0
        except Overloaded:
            raise
        except UnavailableError:
            return
        finally:
            self._hold.give(BudgetKind.REPLY_BYTES, counted)
            await self._answer.chunks.aclose()


def _error_of(answer: Reply | ChunkedReply) -> BrokerError:
    code = dict(answer.headers).get("Broker-Error", "")
    text = answer.body.decode("utf-8", "replace") if isinstance(answer, Reply) else ""
    for gone in (TopicNotFound, TopicRecreated):
        if code == gone.code:
            return gone(text)
    return Unavailable(f"The leader refused the poll: {code} {text[:200]}")
