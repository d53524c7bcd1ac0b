"""A broker over memory and its clients in one virtual loop, without a socket, for tests of subscribers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from broker.client import Client, Subscriber
from broker.client.client_request import ClientRequest, Reply
from broker.client.transport import StreamedReply
from broker.errors import OutcomeUnknown, Unavailable
from broker.testing.virtual_time import VirtualClock, pass_time
from tests.kit.serving import Broker, topic_path

TOPIC = "default/t"
LETTERS = "default/t-dead-letters"
Fault = Callable[[ClientRequest], str | None]
"""Returns the fault of a request: "before" (the request is lost), "after" (its answer is lost), or None."""


class DirectTransport:
    """Gives each request to a broker in this process. ``fault`` injects faults; ``dead`` loses every request."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.requests: list[ClientRequest] = []
        self.fault: Fault = lambda _: None
        self.dead = False

    async def _answered(self, request: ClientRequest) -> Reply:
        self.requests.append(request)
        await pass_time(0.001)
        if self.dead:
            await asyncio.get_running_loop().create_future()
        wrong = self.fault(request)
        if wrong == "before":
            raise Unavailable("cut before")
        told = await self.broker.ask(
            request.method, request.path, request.body, dict(request.headers)
        )
        if wrong == "after":
            raise (Unavailable if request.reading else OutcomeUnknown)("cut after")
        headers = {name.lower(): value for name, value in told.headers.items()}
        return Reply(told.status, headers, told.body)

    async def send(self, request: ClientRequest, timeout_s: float) -> Reply:
        return await self._answered(request)

    @asynccontextmanager
    async def stream(
        self, request: ClientRequest, timeout_s: float
    ) -> AsyncGenerator[StreamedReply]:
        reply = await self._answered(request)
        yield StreamedReply(reply.status, reply.headers, _one(reply.body))

    async def connect(self, topic: Any) -> Any:
        raise AssertionError("no test of subscribers needs a publisher")

    async def close(self) -> None:
        pass


async def _one(body: bytes) -> AsyncIterator[bytes]:
    if body:
        yield body


class World:
    """A broker and its clients. ``client()`` makes a client with its own transport."""

    def __init__(self) -> None:
        loop: Any = asyncio.get_running_loop()
        self.clock = VirtualClock(loop)
        self.broker = Broker(clock=self.clock)
        self.transports: list[DirectTransport] = []
        self.clients: list[Client] = []

    def client(self) -> Client:
        """Return a client; its transport is the last of ``transports``."""
        transport = DirectTransport(self.broker)
        client = Client(transport=transport, coalesce=False)
        self.transports.append(transport)
        self.clients.append(client)
        return client

    async def create(self, topic: str = "t") -> None:
        """Create a topic."""
        assert (await self.broker.call("PUT", topic_path(topic))).status == 200

    async def close(self) -> None:
        """Close the clients and the broker."""
        for client in self.clients:
            await client.close(flush_s=0)
        await self.broker.close()


class Handled:
    """An async handler that records its messages, and fails for each payload that ``fails`` accepts."""

    def __init__(self, fails: Callable[[bytes], bool] = lambda _: False) -> None:
        self.payloads: list[bytes] = []
        self.calls: list[list[bytes]] = []
        self.fails = fails
        self._more = asyncio.Event()

    async def __call__(self, given: Any, *_: Any) -> None:
        payloads = [each.payload for each in (given if isinstance(given, list) else [given])]
        self.calls.append(payloads)
        if any(self.fails(payload) for payload in payloads):
            raise ValueError(f"can't handle {payloads}")
        self.payloads += payloads
        self._more.set()

    async def until(self, count: int) -> None:
        """Wait until ``count`` messages are handled."""
        async with asyncio.timeout(600):
            while len(self.payloads) < count:
                self._more.clear()
                await self._more.wait()


@asynccontextmanager
async def running(subscriber: Subscriber) -> AsyncIterator[asyncio.Task[None]]:
    """Run a subscriber, and stop it at the end."""
    task = asyncio.create_task(subscriber.run())
    yield task
    subscriber.stop()
    async with asyncio.timeout(600):
        await task


async def crash(world: World, task: asyncio.Task[None], client: int = -1) -> None:
    """Let a subscriber's process die: it and its requests have no further effect."""
    world.transports[client].dead = True
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


async def place_of(world: World, name: str = "mailer") -> bytes | None:
    return (await world.clients[0].cursors.get(TOPIC, name)).after
