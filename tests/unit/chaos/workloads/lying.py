"""A lying broker: a real one, with a transport that changes requests and answers.

Each lie is a defect that a broker may have. The test that uses it names the violation.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from broker.client import Client
from broker.client.client_request import ClientRequest, Reply
from broker.client.connection import ClientConnection
from broker.client.transport import StreamedReply, Transport
from broker.clock import Clock
from broker.errors import BadRequest
from broker.model import NO_HEADERS, Message, TopicId
from broker.testing.simulation.client import PlacedTransport
from broker.wire import attributes, avro, messages
from broker.wire.varint import END
from tests.kit.poll_replies import items
from tests.kit.request_bodies import read_poll
from tests.kit.seeds.seeded_cluster import SeededCluster

Send = Callable[[ClientRequest], Awaitable[Reply]]


def action(request: ClientRequest) -> str:
    """Return the action of a request: ``publish``, ``poll``, or else the method."""
    last = request.path.partition("?")[0].rpartition("/")[2]
    known = {"publish", "store", "rollback", "poll", "messages", "events", "properties"}
    return last if last in known else request.method


@dataclass
class Lies:
    """The lie, for every ``every``th request of the kind ``of``."""

    of: str = ""
    every: int = 3
    write: Callable[[Send, ClientRequest], Awaitable[Reply]] | None = None
    """Does a write in a wrong way."""
    ask: Callable[[ClientRequest], ClientRequest] | None = None
    """Changes the request of a read."""
    page: Callable[[list[Message]], list[Message]] | None = None
    """Changes the messages of a poll."""
    delay_s: float = 0.0
    """Writes are answered at once, and done after this delay."""
    told: int = 0
    late: list[asyncio.Task[Reply]] = field(default_factory=list)

    @property
    def of_writes(self) -> bool:
        """Return True if the lie is about writes."""
        return self.write is not None or self.delay_s > 0

    def apply(self, request: ClientRequest) -> bool:
        """Return True if this request gets the lie."""
        if action(request) != self.of:
            return False
        self.told += 1
        return self.told % self.every == 0


class LyingTransport:
    """A client's transport, with lies."""

    def __init__(self, inner: Transport, lies: Lies, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock
        self._lies = lies

    async def send(self, request: ClientRequest, timeout_s: float) -> Reply:
        """Send a write, or lie about it."""

        async def send(changed: ClientRequest) -> Reply:
            return await self._inner.send(changed, timeout_s)

        if not self._lies.of_writes or not self._lies.apply(request):
            return await send(request)
        if self._lies.write is not None:
            return await self._lies.write(send, request)
        self._lies.late.append(asyncio.create_task(self._later(send, request)))
        return Reply(200, {}, b"")

    async def _later(self, send: Send, request: ClientRequest) -> Reply:
        await self._clock.sleep(self._lies.delay_s)
        return await send(request)

    @asynccontextmanager
    async def stream(
        self, request: ClientRequest, timeout_s: float
    ) -> AsyncIterator[StreamedReply]:
        """Send a read; change its request or its answer if it gets a lie."""
        is_lie = not self._lies.of_writes and self._lies.apply(request)
        if is_lie and self._lies.ask is not None:
            request = self._lies.ask(request)
        async with self._inner.stream(request, timeout_s) as reply:
            if is_lie and self._lies.page is not None and reply.status == 200:
                # The client asks for keys and headers, so the answer has this format.
                assert reply.headers["content-type"] == messages.CONTENT_TYPE
                yield reply._replace(chunks=_changed(reply.chunks, self._lies.page))
            else:
                yield reply

    async def connect(self, topic: TopicId | None) -> ClientConnection:
        """Open a connection without lies."""
        return await self._inner.connect(topic)

    async def close(self) -> None:
        """Close everything."""
        await self._inner.close()


async def _changed(
    chunks: AsyncIterator[bytes], change: Callable[[list[Message]], list[Message]]
) -> AsyncIterator[bytes]:
    decoder = messages.PagesDecoder()
    found = [message async for chunk in chunks for message in decoder.feed(chunk)]
    decoder.finish()
    kept = change(found)
    if kept:
        rows = items(kept)
        encoded = [attributes.encode(each.key, each.headers) for each in kept]
        beside = [(place, each) for place, each in enumerate(encoded) if each]
        yield b"".join(messages.page(len(kept), [rows], beside))
    yield END


class LyingCluster(SeededCluster):
    """A simulated cluster with lying transports; clients do not coalesce requests."""

    lies = Lies()

    @override
    def client(self, process: str, *, node: str | None = None, **settings: Any) -> Client:
        honest = super().client(process, node=node, **{**settings, "coalesce": False})
        inner = PlacedTransport(honest.settings, self.network, process, self.repeater)
        return Client(
            settings=honest.settings, transport=LyingTransport(inner, self.lies, self.clock)
        )


# Lies about writes.


async def not_done(send: Send, request: ClientRequest) -> Reply:
    """Answer that the write was done, and do nothing."""
    del send, request
    return Reply(200, {}, b"")


async def done_twice(send: Send, request: ClientRequest) -> Reply:
    """Do the write twice."""
    await send(request)
    return await send(request)


async def refused_and_done(send: Send, request: ClientRequest) -> Reply:
    """Do the write, and answer that it was refused."""
    await send(request)
    return Reply(400, {"broker-error": "bad_request", "broker-outcome": "refused"}, b"")


async def done_anyway(send: Send, request: ClientRequest) -> Reply:
    """Answer that the write was done, also if the broker refuses it with 409."""
    reply = await send(request)
    return Reply(200, reply.headers, b"") if reply.status == 409 else reply


def half_of_it(messages_max: int) -> Callable[[Send, ClientRequest], Awaitable[Reply]]:
    """Return a lie that leaves out the last message of a request."""

    async def write(send: Send, request: ClientRequest) -> Reply:
        is_whole = request.headers["Content-Type"] == messages.CONTENT_TYPE
        form = messages if is_whole else avro
        asked = form.decode_publish_request(request.body, messages_max=messages_max)
        count = max(len(asked.payloads) - 1, 1)
        kept = asked._replace(payloads=asked.payloads[:count], attributes=asked.attributes[:count])
        return await send(request._replace(body=form.encode_publish_request(kept)))

    return write


# Lies about reads.


def refused_read(request: ClientRequest) -> ClientRequest:
    """Refuse the read."""
    del request
    raise BadRequest("refused")


def without_a_middle(page: list[Message]) -> list[Message]:
    """Leave the second message out."""
    return page[:1] + page[2:]


def backward(page: list[Message]) -> list[Message]:
    """Return the newest message first."""
    return page[::-1]


def without_attributes(page: list[Message]) -> list[Message]:
    """Leave keys and headers out."""
    return [message._replace(key=None, headers=NO_HEADERS) for message in page]


def with_attributes_of_the_first(page: list[Message]) -> list[Message]:
    """Give every message the key and the headers of the first."""
    return [message._replace(key=page[0].key, headers=page[0].headers) for message in page]


def without_snapshot(request: ClientRequest) -> ClientRequest:
    """Drop the snapshot of a poll."""
    poll = read_poll(avro, request.body)
    bare = type(poll)(poll.start, poll.inclusive, poll.limit, None)
    return request._replace(body=avro.encode_poll(bare))
