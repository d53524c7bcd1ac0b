"""Turn a call of the client into requests: send them, check the answers, retry."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial
from types import TracebackType
from typing import Final, TypeVar

from broker.client import outcomes
from broker.client.blocked_polls import BLOCKED_BY, BlockedPolls
from broker.client.client_request import ClientRequest, Reply
from broker.client.retrier import Retrier
from broker.client.room import Room
from broker.client.transport import OpenedStream, StreamedReply, Transport
from broker.errors import BodyTooLarge, UnavailableError
from broker.http.outbound import REPLY_BYTES_MAX
from broker.model import Message, PublishRequest
from broker.shield import bare
from broker.wire import messages

T = TypeVar("T")

ERROR_BYTES_MAX: Final = 1 << 20
"""How much of an unsuccessful answer is read."""


class Calls:
    """Sends requests over a transport. Every method raises the BrokerError that an answer stands for."""

    def __init__(self, transport: Transport, retrier: Retrier, room: Room) -> None:
        self._transport = transport
        self._retrier = retrier
        self._room = room
        self._blocked = BlockedPolls()

    async def write_messages(
        self, wanted: PublishRequest, make: Callable[[PublishRequest], ClientRequest]
    ) -> Reply:
        """Send messages as a request of their own, which ``make`` returns, as soon as there is room for them."""
        ends = self._retrier.ends()
        size = sum(map(len, wanted.payloads)) + sum(map(len, wanted.attributes))
        async with self._room.reserved(len(wanted.payloads), size, ends):
            return await self.write(make(wanted), ends)

    async def write(self, request: ClientRequest, ends: float | None = None) -> Reply:
        """Send a write, with retries where they are safe, until the time ``ends`` of the loop (see ``Retrier``)."""

        async def attempt(left_s: float) -> Reply:
            return outcomes.checked(request, await self._transport.send(request, left_s))

        return await self._retrier.run(request, attempt, ends=ends)

    async def ask(self, request: ClientRequest, read: Callable[[Reply], T]) -> T:
        """Send a read or a write, with retries where they are safe, and return what ``read`` finds in its answer.

        An answer in which ``read`` raises an error is not by a broker; see ``outcomes``.
        """
        ends = self._retrier.ends()

        async def attempt(left_s: float) -> T:
            if request.reading:
                async with Within(request, ends), self.stream(request, left_s) as reply:
                    whole = Reply(
                        reply.status, reply.headers, await _whole(reply.chunks), reply.url
                    )
            else:
                whole = outcomes.checked(request, await self._transport.send(request, left_s))
            return outcomes.understood(request, whole, read)

        return await self._retrier.run(request, attempt, ends=ends)

    async def poll(self, request: ClientRequest, wait_s: float) -> list[Message]:
        """Send a poll that may wait, with retries where they are safe."""
        ends = self._retrier.ends()

        async def attempt(left_s: float) -> list[Message]:
            limit = Within(request, ends + wait_s)
            async with limit, self.stream(request, wait_s + left_s) as reply:
                return [message async for page in pages(request, reply) for message in page]

        return await self._retrier.run(request, attempt, ends=ends, waits_s=wait_s)

    def stream(
        self, request: ClientRequest, timeout_s: float
    ) -> AbstractAsyncContextManager[StreamedReply]:
        """Send a read once, and yield its answer as a stream."""
        return OpenedStream(partial(self._stream, request, timeout_s))

    async def _stream(
        self, request: ClientRequest, timeout_s: float
    ) -> tuple[StreamedReply, Callable[..., Awaitable[object]]]:
        now_s = self._retrier.loop().time
        stream = self._transport.stream(request, timeout_s)
        reply = await stream.__aenter__()
        try:
            await self._check(request, reply, now_s() + timeout_s)
        except BaseException:
            await stream.__aexit__(*sys.exc_info())
            raise
        if request.topic is not None and request.path.partition("?")[0].endswith("/poll"):
            self._blocked.note(request.topic, reply.headers.get(BLOCKED_BY), now_s())
        return reply, stream.__aexit__

    async def _check(self, request: ClientRequest, reply: StreamedReply, ends: float) -> None:
        """Read and raise the error of an unsuccessful reply."""
        if not outcomes.is_success(reply.status):
            async with Within(request, ends):
                body = await _whole(reply.chunks, ERROR_BYTES_MAX)
            raise outcomes.error_of(request, Reply(reply.status, reply.headers, body, reply.url))


class Within:
    """Bound a block: an answer may arrive byte by byte for ever. ``ends`` is by the loop's clock. Raises Unavailable.

    From Python 3.12 on, the frame of a generator keeps its caller's, which in contextlib has a name for the block's error:
    a cycle. The time-out knows its task, so it is let go of before an error passes.
    """

    def __init__(self, request: ClientRequest, ends: float) -> None:
        """Keep the request, and the time at which the block is given up."""
        self._request = request
        self._timeouts = [asyncio.timeout_at(None if math.isinf(ends) else ends)]

    async def __aenter__(self) -> None:
        """Begin the block."""
        await self._timeouts[0].__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the block. Raises Unavailable: its time is over."""
        try:
            await self._timeouts.pop().__aexit__(kind, raised, traceback)
        except TimeoutError as error:
            raise outcomes.no_answer(self._request, "its end did not come in time") from bare(error)
        finally:
            del raised, traceback


async def each_within(
    request: ClientRequest, items: AsyncGenerator[T], ends: Callable[[], float]
) -> AsyncGenerator[T]:
    """Yield the items of an answer. Raises Unavailable if the next one does not come until ``ends``."""
    async with aclosing(items):
        while True:
            async with Within(request, ends()):
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
            yield item


async def pages(request: ClientRequest, reply: StreamedReply) -> AsyncGenerator[list[Message]]:
    """Yield the messages of a poll as they arrive. Raises Unavailable if it was cut off, or is not by a broker."""
    decoder = messages.decoder(reply.headers.get("content-type", messages.CONTENT_TYPE))
    if decoder is None:
        raise outcomes.foreign(request, reply)
    waiting = 0
    async for chunk in reply.chunks:
        found = decoded(request, reply, partial(decoder.feed, chunk))
        waiting = 0 if found else waiting + len(chunk)
        if waiting > REPLY_BYTES_MAX:
            raise outcomes.foreign(request, reply)
        if found:
            yield found
    decoded(request, reply, decoder.finish)


def decoded(request: ClientRequest, reply: StreamedReply, decode: Callable[[], T]) -> T:
    """Return the result of a step of a decoder. Raises Unavailable."""
    try:
        return decode()
    except UnavailableError:
        raise  # It was cut off.
    except Exception as error:
        raise outcomes.foreign(request, reply) from error


async def _whole(chunks: AsyncIterator[bytes], bytes_max: int | None = None) -> bytes:
    """Return an answer's body, of which only ``bytes_max`` bytes are wanted. Raises BodyTooLarge."""
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if bytes_max is not None and len(body) > bytes_max:
            break
        if len(body) > REPLY_BYTES_MAX:
            raise BodyTooLarge(
                f"The answer has more than {REPLY_BYTES_MAX:,} bytes. Ask for less at once."
            )
    return bytes(body[:bytes_max])
