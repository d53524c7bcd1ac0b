"""Endless reading: long polls that resume, and the stream of events.

The only state of a tail is the id of the last message that it yielded, and the topic's generation, from the first
answer. The next poll always starts behind this id in this generation, so that nothing is lost, repeated or reordered.
If the topic was deleted and created again, the broker refuses the poll, and the tail ends with TopicRecreated::

    poll after the last id, wait up to wait_s ──> messages: yield them, keep the last id ─────┐
         ^                                    ──> none, after the whole wait ─────────────────┤
         │                                    ──> none, at once: pause idle_delay_s ──────────┤
         │                                    ──> none, from a node that stops: ask another ──┤
         │                                    ──> connection lost: pause, longer each time ───┤
         └────────────────────────────────────────────────────────────────────────────────────┘

An empty answer long before the end of the wait has one of two reasons. The server can't wait (the
original); then the tail pauses before it asks again. Or the node is about to stop, and closes the
connection; then the tail asks another node at once.

The tail yields messages while the answer still arrives. A slow consumer slows the connection down, and no
messages pile up in memory. An answer without its final zero block was cut off. The tail treats it as a lost
connection, never as the end. So it does with an answer that goes on for the wait and the client's ``deadline_s`` without a
whole message.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from broker.client import outcomes, protocol, typed_options
from broker.client.calls import decoded, each_within, pages
from broker.client.client_request import ClientRequest
from broker.client.retrier import Retrier
from broker.client.transport import StreamedReply
from broker.errors import BrokerError, UnavailableError
from broker.http.outbound import REPLY_BYTES_MAX
from broker.model import Message, Poll, TopicId

NOW: Final = "now"
"""The start of a stream of events that shows new messages only."""

SILENCE_S: Final = 30.0
"""A stream of events that is silent for so long counts as lost; a live broker sends comments."""

EVENTS: Final = "text/event-stream"

_LEADER: Final = b": leader "
"""The start of the comment that names a new leader."""

ANSWER_S: Final = 15.0
"""How long the answer to a poll may be silent, in addition to the requested wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TailOptions:
    """The options of ``tail``.

    Attributes:
        wait_s: how long one poll may wait for new messages (0 to 60).
        page_messages_max: how many messages one poll may return.
        idle_delay_s: the pause after an empty answer that came at once.
        follow: with False, the tail ends when it has read all messages.
        generation: the generation of the topic to read; by default the one that it has at the first answer.
        give_up_after_s: raise the error if there was no answer for so long, in addition to ``wait_s``; by default the
            tail never gives up.
    """

    wait_s: float = 30.0
    page_messages_max: int = 1000
    idle_delay_s: float = 0.5
    follow: bool = True
    generation: int | None = None
    give_up_after_s: float | None = None

    def __post_init__(self) -> None:
        """Raise TypeError for a value of another type."""
        typed_options.check_types(self)


class TailSource(NamedTuple):
    """The source of a tail: its topic, a function that sends a read, and the retrier."""

    topic: TopicId
    stream: Callable[[ClientRequest, float], AbstractAsyncContextManager[StreamedReply]]
    retrier: Retrier


class Backoff:
    """Counts consecutive failures, and waits longer after each."""

    def __init__(self, retrier: Retrier, give_up_after_s: float | None) -> None:
        """Begin without a failure. ``give_up_after_s`` None: never give up."""
        self._retrier = retrier
        self._give_up_after_s = give_up_after_s
        self._failures = 0
        self._now_s = asyncio.get_running_loop().time
        self._since = self._now_s()

    def succeeded(self) -> None:
        """Forget the earlier failures: the time to give up counts anew."""
        self._failures = 0
        self._since = self._now_s()

    def attempt_s(self, longest_s: float) -> float:
        """Return for how long the next attempt may wait for an answer."""
        return min(longest_s, max(0.0, self._left_s()))

    def _left_s(self) -> float:
        if self._give_up_after_s is None:
            return math.inf
        return self._since + self._give_up_after_s - self._now_s()

    def ends(self, waits_s: float = 0) -> float:
        """Return by when the next part of an answer must come, by the loop's clock.

        This is the deadline of a call that begins now, or when this gives up; ``waits_s`` is what the broker may wait.
        """
        return self._now_s() + waits_s + self.attempt_s(self._retrier.deadline_s)

    async def failed(self, error: BrokerError) -> None:
        """Wait before the next attempt. Raises the error if there is no time for one."""
        self._failures += 1
        left_s, pause_s = self._left_s(), self._retrier.pause_s(error, self._failures)
        try:
            if pause_s >= left_s:
                raise error
            self._retrier.tell(error, None if math.isinf(left_s) else left_s)
            await self._retrier.pause(pause_s)
            if self._retrier.closed:
                raise error
        finally:
            del error  # Its traceback keeps this frame.


async def tail(
    source: TailSource, poll: Poll, options: TailOptions, *, committed: bool = False
) -> AsyncGenerator[list[Message]]:
    """Yield all messages from the poll's place on, without end unless ``follow`` is False.

    It yields them in the lists in which they arrive, none of them empty.

    Raises:
        RequestError: the broker refused the poll for good; for example, TopicNotFound, TopicRecreated.
    """
    backoff = Backoff(source.retrier, options.give_up_after_s)
    loop = asyncio.get_running_loop()
    wait_s = options.wait_s if options.follow else 0
    generation = options.generation if poll.generation is None else poll.generation
    poll = replace(poll, limit=options.page_messages_max, generation=generation)
    node_stops, ends = False, partial(backoff.ends, wait_s)
    while True:
        asked, empty = loop.time(), True
        request = protocol.poll(source.topic, poll, wait_s=wait_s, committed=committed)
        try:
            async with (
                source.stream(request, wait_s + backoff.attempt_s(ANSWER_S)) as reply,
                aclosing(each_within(request, pages(request, reply), ends)) as received,
            ):
                if poll.generation is None:
                    poll = replace(poll, generation=protocol.generation(reply.headers))
                async for page in received:
                    empty = False
                    poll = replace(poll, start=page[-1].id, inclusive=False)
                    yield page
                    backoff.succeeded()  # Every reply to a slow consumer may be cut off, and still bring messages.
        except UnavailableError as error:
            await backoff.failed(error)
            continue
        backoff.succeeded()
        if empty and not options.follow:
            return
        # A server that closes twice in a row is not a stopping node: it never keeps connections.
        node_stops = empty and reply.closing and not node_stops
        if empty and not node_stops and loop.time() - asked < wait_s / 2:
            await source.retrier.pause(options.idle_delay_s)


async def events(
    source: TailSource, start: str | None, *, committed: bool = False
) -> AsyncGenerator[Message]:
    """Yield messages from the broker's stream of events, and resume it by ``Last-Event-ID``.

    ``start`` is in the form of the query: the id behind which the stream begins, a time in ms, or ``now``.

    Before the first message the broker names the id behind which the stream begins. So ``now`` stays the
    same moment, however often the stream is resumed. The broker's ids of events have the topic's generation.
    """
    backoff = Backoff(source.retrier, None)
    ends = partial(backoff.ends, SILENCE_S)
    place, last = start, None
    generation: int | None = None
    leaving = False
    while True:
        request = protocol.events(
            source.topic,
            start=place,
            last_event_id=last,
            generation=generation,
            committed=committed,
        )
        try:
            async with (
                source.stream(request, SILENCE_S) as reply,
                aclosing(each_within(request, _event_blocks(request, reply), ends)) as blocks,
            ):
                generation = protocol.generation(reply.headers) or generation
                # After a forwarded reply, ask the leader itself. If that is forwarded, too, it can't be reached: read on.
                leaving = reply.forwarded and not leaving
                if leaving and place != NOW:
                    continue
                async for identifier, data, leader in blocks:
                    if data:
                        message = decoded(request, reply, partial(protocol.event_message, data))
                        last, place = identifier, None
                        backoff.succeeded()
                        yield message
                    elif identifier:
                        last, place = identifier, None
                    leaving = leaving or (leader != "" and reply.moved(leader))
                    if leaving:
                        break  # By now ``last`` has the start of this stream, if the broker names it.
        except UnavailableError as error:
            await backoff.failed(error)
        else:
            if not leaving:
                await source.retrier.pause(source.retrier.pause_s(UnavailableError(""), 1))


async def _event_blocks(
    request: ClientRequest, reply: StreamedReply
) -> AsyncGenerator[tuple[str, str, str]]:
    """Yield the id and the data before each empty line, and the leader that a comment names.

    An incomplete block at the end is dropped. Raises Unavailable if the answer is not by a broker.
    """
    kind = reply.headers.get("content-type", EVENTS)
    if not kind.startswith(EVENTS):
        raise outcomes.foreign(request, reply)
    identifier, data, leader = b"", b"", b""
    pieces: list[bytes] = []  # The incomplete last line.
    waiting = 0
    async for chunk in reply.chunks:
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join([*pieces, lines[0]])
            pieces.clear()
        pieces.append(rest)
        waiting = len(rest) if lines else waiting + len(rest)
        if waiting > REPLY_BYTES_MAX:
            raise outcomes.foreign(request, reply)
        for line in lines:
            if line.startswith(b"data:"):
                data = line[5:].strip()
            elif line.startswith(b"id:"):
                identifier = line[3:].strip()
            elif line.startswith(_LEADER):
                leader = line.removeprefix(_LEADER).strip()
            elif not line.strip():
                yield decoded(request, reply, partial(_block, identifier, data, leader))
                identifier, data, leader = b"", b"", b""


def _block(identifier: bytes, data: bytes, leader: bytes) -> tuple[str, str, str]:
    """Return the text of a block. Raises ValueError if the id can't be sent back in a header."""
    if not identifier.decode("ascii").isprintable():
        raise ValueError("the id is no text")
    return identifier.decode(), data.decode(), leader.decode("ascii", "replace")
