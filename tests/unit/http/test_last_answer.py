"""A slow reader gets its last answer whole. The node looks at such a connection when the test says so."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.http.drain import LINGER_S, Drain
from broker.http.reply import Reply
from tests.kit import certificates
from tests.kit.certificates import TlsObject
from tests.kit.serving import TRUST_AT, Broker, eventually, topic_path
from tests.unit.http.test_delivery import serve_polls
from tests.unit.http.test_drain import is_last_words

PAYLOAD = b"x" * 60_000
"""More than both sockets take, and less than a connection may have unsent."""


@pytest.fixture(params=["tcp", "tls"])
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Broker]:
    broker = Broker()
    if request.param == "tls":
        broker.server.tls = certificates.serving(certificates.write(tmp_path))
    assert (await broker.call("PUT", topic_path("t"))).status == 200
    yield broker
    await broker.close()


class Looks:
    """An event loop whose timers the test runs."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.create_future = asyncio.get_running_loop().create_future
        self.call_soon = asyncio.get_running_loop().call_soon

    def call_later(self, seconds: float, look: Callable[..., None], *arguments: Any) -> None:
        self.due.append((seconds, lambda: look(*arguments)))

    def pass_by(self) -> None:
        """Let the time of the next timer pass, and run it."""
        self.due.pop(0)[1]()


class SlowReader:
    """A client that reads a little at a time. It has asked for ``PAYLOAD``, and the node has answered."""

    def __init__(self, broker: Broker, sock: socket.socket) -> None:
        self.broker = broker
        self.sock = sock
        self.got = b""
        self.tls: TlsObject | None = None

    @property
    def untaken(self) -> int:
        (connection,) = [*self.broker.server.open, *self.broker.server.drain.lingering]
        return connection.untaken_bytes

    async def read(self) -> bytes:
        async with asyncio.timeout(30):
            piece = await asyncio.get_running_loop().sock_recv(self.sock, 1024)
        self.got += piece if self.tls is None else self.tls.decrypted(piece)
        return piece

    async def ask(self, request: bytes) -> None:
        loop = asyncio.get_running_loop()
        context = TRUST_AT.get(self.broker.server.port)
        if context is not None:
            self.tls = TlsObject(context)
            await self.tls.shake_hands(self.sock)
            request = self.tls.encrypted(request)
        await loop.sock_sendall(self.sock, request)

    async def take_some(self) -> None:
        """Read until the node has noticed."""
        before = self.untaken
        while self.untaken > before - 1024 * LINGER_S:
            assert await self.read()

    async def take_all(self) -> bytes:
        """Read until the end, which may be a reset. Return everything."""
        try:
            while await self.read():
                pass
        except ConnectionError:
            pass
        return self.got.partition(b"\r\n\r\n")[2]


@asynccontextmanager
async def answered(broker: Broker, *headers: str) -> AsyncIterator[tuple[SlowReader, Looks]]:
    """Yield a client that has not read its answer, and the looks of the node's drain."""
    serve_polls(broker, lambda: Reply(body=PAYLOAD, content_type="text/plain"))
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    listening.bind(("127.0.0.1", 0))
    await broker.server.start("127.0.0.1", 0, listening)
    if broker.server.tls is not None:
        TRUST_AT[broker.server.port] = certificates.trusting()
    with socket.socket() as sock:
        looks = Looks()
        broker.server.drain = Drain(looks, lambda: bool(broker.server.busy))  # type: ignore[arg-type]
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", broker.server.port))
        lines = [f"POST {topic_path('t', 'poll')} HTTP/1.1", "Host: localhost", *headers]
        reader = SlowReader(broker, sock)
        await reader.ask("\r\n".join([*lines, "Content-Length: 1", "", "x"]).encode())
        await eventually(lambda: broker.server.connections and reader.untaken, lambda: "no answer")
        await eventually(lambda: not broker.server.busy, lambda: "it was not answered")
        yield reader, looks


async def test_a_slow_reader_of_a_last_answer_gets_all_of_it(broker: Broker) -> None:
    async with answered(broker, "Connection: close") as (reader, looks):
        for _ in range(3):
            await reader.take_some()
            looks.pass_by()
        assert await reader.take_all() == PAYLOAD


@pytest.mark.parametrize(
    ("agent", "end"),
    [("other", False), ("broker-client", True)],
    ids=["other", "ours"],
)
async def test_a_slow_reader_that_a_drain_finds_idle_gets_all_of_its_answer(
    broker: Broker, agent: str, end: bool
) -> None:
    async with answered(broker, f"User-Agent: {agent}") as (reader, looks):
        broker.server.begin_drain(0.0)
        await eventually(lambda: looks.due, lambda: "it was not dismissed")
        for _ in range(3):
            await reader.take_some()
            looks.pass_by()
        got = await reader.take_all()
        assert got.startswith(PAYLOAD)
        assert is_last_words(got[len(PAYLOAD) :]) if end else got == PAYLOAD


@pytest.mark.parametrize("takes_some", [False, True])
async def test_a_reader_that_stops_is_cut_at_the_next_look(
    broker: Broker, takes_some: bool
) -> None:
    async with answered(broker, "Connection: close") as (reader, looks):
        if takes_some:
            await reader.take_some()
            looks.pass_by()
        looks.pass_by()
        await eventually(lambda: not broker.server.connections, lambda: "it was not cut")
        assert len(await reader.take_all()) < len(PAYLOAD)
        assert not looks.due


async def test_a_reader_that_has_everything_and_stays_is_cut(broker: Broker) -> None:
    async with answered(broker, "Connection: close") as (reader, looks):
        assert await reader.take_all() == PAYLOAD
        while looks.due:
            looks.pass_by()
        await eventually(lambda: not broker.server.connections, lambda: "it was not cut")
