"""Reading without end: long polls that resume, and the stream of events.

A tail's whole state is the id of the last message that it handed out. Whatever happens, the
next poll starts after it, so that nothing is lost, repeated or reordered::

    poll after the last id, wait up to wait_s ──> messages: hand them out, keep the last id ──┐
         ^                                    ──> none, after the whole wait ─────────────────┤
         │                                    ──> none, at once: pause idle_delay_s ──────────┤
         │                                    ──> none, from a node that stops: ask another ──┤
         │                                    ──> connection lost: pause, longer each time ───┤
         └────────────────────────────────────────────────────────────────────────────────────┘

An empty answer long before the wait is over comes from a server that doesn't know waiting (the
original), which must not be asked again at once; or from one that stops and says so by closing the
connection, which need not be asked again at all.

Messages are handed out while the answer still arrives: a slow consumer slows the connection down and
keeps nothing in memory. An answer that ends without its final zero block was cut off, which is a lost
connection, never the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from broker.client import protocol
from broker.client.calls import pages
from broker.client.protocol import ClientRequest
from broker.client.retrier import Retrier
from broker.client.transport import StreamedReply
from broker.errors import BrokerError, UnavailableError
from broker.model import Message, Poll, TopicId

NOW: Final = "now"
"""Where a stream of events starts that shows new messages only."""

SILENCE_S: Final = 30.0
"""How long a stream of events may be silent before it is given up; the broker sends comments."""

_LEADER: Final = b": leader "
"""Begins the comment that names who leads from now on."""

ANSWER_S: Final = 15.0
"""How long the answer to a poll may be silent, beyond the wait that was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TailOptions:
    """How ``tail`` asks.

    Attributes:
        wait_s: how long one poll may wait for new messages (0 to 60).
        page_messages_max: how many messages one poll may return.
        idle_delay_s: the pause after an empty answer that came at once.
        follow: False ends the tail when it has caught up.
        give_up_after_s: raise when the broker could not be reached for so long; never by default.
    """

    wait_s: float = 30.0
    page_messages_max: int = 1000
    idle_delay_s: float = 0.5
    follow: bool = True
    give_up_after_s: float | None = None


class TailSource(NamedTuple):
    """Where a tail reads: its topic, how to send a read, how patient to be."""

    topic: TopicId
    stream: Callable[[ClientRequest, float], AbstractAsyncContextManager[StreamedReply]]
    retrier: Retrier


class Backoff:
    """Counts failures in a row and waits longer after each."""

    def __init__(self, retrier: Retrier, give_up_after_s: float | None) -> None:
        """Begin without a failure; ``give_up_after_s`` None is endless."""
        self._retrier = retrier
        self._give_up_after_s = give_up_after_s
        self._failures = 0
        self._since = 0.0

    def succeeded(self) -> None:
        """Forget the failures before."""
        self._failures = 0

    async def failed(self, error: BrokerError) -> None:
        """Wait before the next attempt. Raises the error if it has lasted for too long."""
        now = asyncio.get_running_loop().time()
        if not self._failures:
            self._since = now
        self._failures += 1
        lasted_s = now - self._since
        if self._give_up_after_s is not None and lasted_s >= self._give_up_after_s:
            raise error
        left_s = None if self._give_up_after_s is None else self._give_up_after_s - lasted_s
        self._retrier.tell(error, left_s)
        await self._retrier.pause(self._retrier.pause_s(error, self._failures))
        if self._retrier.closed:
            raise error


async def tail(
    source: TailSource, poll: Poll, options: TailOptions
) -> AsyncGenerator[list[Message]]:
    """Give all messages from the poll's place on, without end unless ``follow`` is False.

    They come in the pieces in which they arrive, none of them empty.

    Raises:
        RequestError: the broker refused the poll for good, such as TopicNotFound.
    """
    patience = Backoff(source.retrier, options.give_up_after_s)
    loop = asyncio.get_running_loop()
    wait_s = options.wait_s if options.follow else 0
    poll = replace(poll, limit=options.page_messages_max)
    told_to_leave = False
    while True:
        asked, empty = loop.time(), True
        request = protocol.poll(source.topic, poll, wait_s=wait_s)
        try:
            async with (
                source.stream(request, wait_s + ANSWER_S) as reply,
                aclosing(pages(reply)) as received,
            ):
                async for page in received:
                    empty = False
                    patience.succeeded()  # A slow consumer's replies may all be cut, and bring it on.
                    poll = replace(poll, start=page[-1].id, inclusive=False)
                    yield page
        except UnavailableError as error:
            await patience.failed(error)
            continue
        patience.succeeded()
        if empty and not options.follow:
            return
        # Twice in a row it is no node that stops, but a server that never keeps a connection.
        told_to_leave = empty and reply.closing and not told_to_leave
        if empty and not told_to_leave and loop.time() - asked < wait_s / 2:
            await source.retrier.pause(options.idle_delay_s)


async def events(source: TailSource, start: str | None) -> AsyncGenerator[Message]:
    """Give messages from the broker's stream of events, resumed by ``Last-Event-ID``.

    ``start`` is what the query says: the id behind which the stream begins, a time in ms, or ``now``.

    The broker says before the first message behind which id the stream begins, so that ``now`` stays the
    same moment however often the stream has to be resumed.
    """
    patience = Backoff(source.retrier, None)
    place, last = start, None
    leaving = False
    while True:
        request = protocol.events(source.topic, start=place, last_event_id=last)
        try:
            async with (
                source.stream(request, SILENCE_S) as reply,
                aclosing(_event_blocks(reply.chunks)) as blocks,
            ):
                # Where the leader can't be reached, a detour will do.
                leaving = reply.forwarded and not leaving
                if leaving and place != NOW:
                    continue
                async for identifier, data, leader in blocks:
                    if data:
                        message = protocol.event_message(data)
                        last, place = message.id.hex(), None
                        patience.succeeded()
                        yield message
                    elif identifier:
                        last, place = identifier, None
                    leaving = leaving or (leader != "" and reply.moved(leader))
                    if leaving:
                        break  # Where this stream began is known now, if the broker tells it at all.
        except UnavailableError as error:
            await patience.failed(error)
        else:
            if not leaving:
                await source.retrier.pause(source.retrier.pause_s(UnavailableError(""), 1))


async def _event_blocks(chunks: AsyncIterator[bytes]) -> AsyncGenerator[tuple[str, str, str]]:
    """Give the id and the data of what stands before each empty line, and the leader that a comment names.

    What is incomplete at the end is left out.
    """
    rest, identifier, data, leader = b"", b"", b"", b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                data = line[5:].strip()
            elif line.startswith(b"id:"):
                identifier = line[3:].strip()
            elif line.startswith(_LEADER):
                leader = line.removeprefix(_LEADER).strip()
            elif not line.strip():
                yield identifier.decode(), data.decode(), leader.decode("ascii", "replace")
                identifier, data, leader = b"", b"", b""
