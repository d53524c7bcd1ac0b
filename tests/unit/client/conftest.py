"""A transport with scripted answers, and a broker of raw bytes on a real socket."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from broker.client import Client
from broker.client.client_request import ClientRequest, Reply
from broker.client.transport import StreamedReply
from broker.errors import OutcomeUnknown
from broker.model import TopicId
from broker.testing.virtual_time import VirtualLoop
from broker.wire import avro
from tests.unit.client.subscribing import World

VIRTUAL = (
    "test_subscriber",
    "test_retrier",
    "test_transactions.",
    "test_topic_publisher.",
    "test_later.",
    "test_bulk.",
    "test_room.",
    "test_tail.",
    "test_deadlines.",
    "test_foreign_answers.",
)


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], Any]]:
    """Run the tests of subscribers and those that wait for a retry in virtual time, and all others in real time."""
    if item.path.name.startswith(VIRTUAL):
        return {"virtual": VirtualLoop}
    return {"asyncio": asyncio.new_event_loop}


OK = Reply(200, {"x-request-id": "1"}, b"")


class ScriptedTransport:
    """Gives each request to ``answer`` and keeps it; the default answer is an empty 200.

    ``answer`` returns a Reply, an exception to raise, or a list of chunks and exceptions to stream.
    """

    def __init__(self) -> None:
        self.requests: list[ClientRequest] = []
        self.answer: Callable[[ClientRequest], Any] = lambda request: OK
        self.gate: asyncio.Event | None = None
        self.opened: list[ScriptedConnection] = []
        self.ours = True
        self._arrived = asyncio.Event()

    @property
    def connections(self) -> int:
        return len(self.opened)

    async def arrived(self, count: int = 1) -> None:
        """Wait until ``count`` requests have arrived."""
        async with asyncio.timeout(5):
            while len(self.requests) < count:
                self._arrived.clear()
                await self._arrived.wait()

    async def send(self, request: ClientRequest, timeout_s: float) -> Reply:
        self.requests.append(request)
        self._arrived.set()
        if self.gate is not None:
            await self.gate.wait()
        answer = self.answer(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @asynccontextmanager
    async def stream(
        self, request: ClientRequest, timeout_s: float
    ) -> AsyncGenerator[StreamedReply]:
        self.requests.append(request)
        answer = self.answer(request)
        if isinstance(answer, Exception):
            raise answer
        status, headers = 200, {}
        if isinstance(answer, Reply):
            status, headers, answer = answer.status, dict(answer.headers), [answer.body]
        async with aclosing(chunks_of(answer)) as chunks:
            yield StreamedReply(status, headers, chunks)

    async def connect(self, topic: TopicId | None) -> "ScriptedConnection":
        self.opened.append(ScriptedConnection(self))
        return self.opened[-1]

    async def close(self) -> None:
        pass

    def payloads(self, index: int = -1) -> list[bytes]:
        """Return the messages of a sent publish."""
        body = self.requests[index].body
        return list(avro.decode_publish_request(body, messages_max=10**6).payloads)


async def chunks_of(parts: list[Any]) -> AsyncGenerator[bytes]:
    for part in parts:
        if isinstance(part, Exception):
            raise part
        yield part


class ScriptedConnection:
    def __init__(self, transport: ScriptedTransport) -> None:
        self.usable, self.ours = True, transport.ours
        self.requests_in_flight, self.idle_since = 0, float("inf")
        self._transport = transport
        self._closed = asyncio.get_running_loop().create_future()

    def good_for(self, topic: TopicId | None) -> bool:
        return self.usable

    async def send(self, request: ClientRequest, timeout_s: float) -> Reply:
        sending = asyncio.ensure_future(self._transport.send(request, timeout_s))
        await asyncio.wait({sending, self._closed}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            return sending.result()
        sending.cancel()
        raise OutcomeUnknown("the connection was closed on this side")

    def close(self) -> None:
        self.usable = False
        if not self._closed.done():
            self._closed.set_result(None)


@pytest.fixture
def transport() -> ScriptedTransport:
    return ScriptedTransport()


@pytest.fixture
def make_client(transport: ScriptedTransport) -> Callable[..., Client]:
    """Return a maker of clients over ``transport`` that retry almost at once."""

    def make(**options: Any) -> Client:
        quick = {"retry_delay_min_s": 0.0005, "retry_delay_max_s": 0.001, "deadline_s": 0.5}
        return Client(transport=transport, **{**quick, **options})

    return make


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Return a broker with one topic, and its clients, for tests of subscribers."""
    made = World()
    await made.create()
    yield made
    await made.close()


class RawBroker:
    """Listens on a real socket, and answers each request with the next of ``answers``.

    An answer is bytes to write, or a coroutine function that returns them. An answer in a tuple of one closes
    the connection afterwards. None closes it at once.
    """

    def __init__(self) -> None:
        self.answers: deque[Any] = deque()
        self.requests: list[bytes] = []
        self.connections = 0
        """The number of all connections so far; ``open`` is the number of those that are open now."""
        self.open = 0
        self.server: asyncio.Server | None = None
        self.changed = asyncio.Condition()

    @property
    def url(self) -> str:
        assert self.server is not None
        return f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await self.note(head + await reader.readexactly(length))
                answer = self.answers.popleft() if self.answers else HTTP_OK
                if answer is None:
                    return
                last = isinstance(answer, tuple)
                (answer,) = answer if last else (answer,)
                writer.write(await answer() if callable(answer) else answer)
                await writer.drain()
                if last:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()
            async with self.changed:
                self.open -= 1
                self.changed.notify_all()

    async def note(self, request: bytes) -> None:
        async with self.changed:
            self.requests.append(request)
            self.changed.notify_all()

    async def wait_for(self, count: int) -> None:
        """Wait until so many requests have arrived."""
        async with self.changed, asyncio.timeout(10):
            await self.changed.wait_for(lambda: len(self.requests) >= count)

    async def wait_until_left(self) -> None:
        """Wait until a client has connected, and all clients have closed their connections."""
        async with self.changed, asyncio.timeout(10):
            await self.changed.wait_for(lambda: self.connections and not self.open)


HTTP_OK = b"HTTP/1.1 200 OK\r\nX-Request-Id: 1\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture
async def raw_broker() -> AsyncIterator[RawBroker]:
    broker = RawBroker()
    broker.server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    yield broker
    broker.server.close()
    await broker.server.wait_closed()
