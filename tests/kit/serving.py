"""A broker's interface in this process, over memory: called with values or over HTTP.

Every answer is checked against the OpenAPI document before a test gets it.
"""

from __future__ import annotations

import asyncio
import io
import secrets
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Self

from aiohttp import ClientSession, TCPConnector
from multidict import CIMultiDict
from yarl import URL

from broker.access.access_records import AccessRecords
from broker.access.gate import AccessGate
from broker.access.meter import Meter
from broker.api.cluster import ClusterView
from broker.api.dispatch import Dispatch
from broker.api.routed import Routed, epoch_of
from broker.api.router import Router
from broker.api.routes import make_routes
from broker.clock import Clock, SystemClock
from broker.config.sections import Config
from broker.coordination.ports import NodeInfo
from broker.errors import BrokerError
from broker.http.reply import Answer, Reply
from broker.http.request import Request
from broker.http.server import Server
from broker.metrics import Metrics
from broker.node.transactions import settings_of
from broker.routing.forwarder import Forwarder
from broker.routing.nodeheaders import PROTOCOL, Sender
from broker.routing.peer_requests import Receiving
from broker.routing.peers import HttpPeers
from broker.routing.routing import Routing
from broker.storage.log import Logs
from broker.storage.memory.table import MemoryTable
from broker.storage.records import Records, RecordStore
from broker.topics.settings import TopicSettings
from broker.topics.surroundings import Surroundings
from broker.topics.topics import Topics
from broker.transactions.service import Transactions
from tests.kit import certificates
from tests.kit.members import FewNodes
from tests.kit.openapi import Answered, Checker

REQUEST_ID = "X-Request-Id"
NAMESPACE = "/v1/namespaces/default"
TRUST_AT: dict[int, ssl.SSLContext] = {}
"""The contexts for clients of the ports of this process that have TLS."""


def topic_path(topic: str, action: str = "") -> str:
    """Return the path of a topic of the namespace ``default``, or of one of its actions."""
    return f"{NAMESPACE}/topics/{topic}" + (f"/{action}" if action else "")


def quiet_port() -> int:
    """Return a free port that no other test gets by chance: it is below those that the system hands out."""
    while True:
        port = 12_000 + secrets.randbelow(18_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


async def eventually(
    condition: Callable[[], object], state: Callable[[], object], deadline_s: float = 30.0
) -> None:
    """Return once ``condition()`` is true; after the deadline raise an error with ``state()``."""
    try:
        async with asyncio.timeout(deadline_s):
            while not condition():  # noqa: ASYNC110 - The condition has no event.
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise AssertionError(f"not within {deadline_s} s: {state()}") from None


def alone(topics: Topics, deadline_s: float) -> Routed:
    """Return the routing of a node without other nodes."""
    around = topics.around
    me = NodeInfo(0, around.owner, "http://node-0:8080", "test", PROTOCOL)
    forwarder = Forwarder(HttpPeers(), around.clock, Sender(0, around.owner), "secret")
    routing = Routing(
        around.tenure,
        forwarder,
        around.clock,
        around.metrics,
        me=me,
        leads=lambda topic: epoch_of(topics, topic) is not None,
    )
    return Routed(routing, Receiving("secret", around.clock), topics, deadline_s=deadline_s)


class Broker:
    """Topics and their interface. ``call`` needs no socket; ``server`` is not started."""

    def __init__(
        self,
        config: Config | None = None,
        *,
        clock: Clock | None = None,
        stores: tuple[Logs, RecordStore] | None = None,
        gate: AccessGate | None = None,
        meter: Meter | None = None,
        cluster: ClusterView | None = None,
    ) -> None:
        """Assemble a node alone, over memory or over ``stores``; ``cluster`` is the view that it shows."""
        self.config = config or Config()
        self.clock = clock or SystemClock()
        store, records = stores or in_memory(self.clock)
        self.metrics = Metrics("test")
        around = Surroundings(
            store,
            self.clock,
            TopicSettings.of(self.config),
            owner=secrets.token_hex(8),
            metrics=self.metrics,
        )
        self.topics = Topics(around, records)
        self.not_ready: str | None = None
        self.transactions = Transactions(self.topics.leaders, settings_of(self.config))
        view = cluster or FewNodes(records, self.clock, nodes=1).view()
        routed = alone(self.topics, self.config.server.request_deadline_s)
        routes = make_routes(
            self.topics,
            self.config,
            view,
            routed,
            self.transactions,
            not_ready=lambda: self.not_ready,
            access=AccessRecords(records, self.clock),
            meter=meter,
        )
        self.dispatch = Dispatch(Router(routes), self.metrics, self.config, gate=gate, meter=meter)
        self.server = Server(self.dispatch, self.config, self.clock)
        self.checker = Checker()

    async def call(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answered:
        """Answer a request without a socket. Raises Undocumented."""
        answered = await self.ask(method, target, body, headers)
        self.checker.check(method, target, answered)
        return answered

    async def ask(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answered:
        """Answer a request without a check of the answer, for very many requests."""
        sent = CIMultiDict(headers or {})
        answer = await self.answer(method, target, sent, body)
        told = CIMultiDict(answer.headers)
        told[REQUEST_ID] = "none"
        if answer.content_type:
            told["Content-Type"] = answer.content_type
        if isinstance(answer, Reply):
            whole = answer.body
        else:
            whole = b"".join([chunk async for chunk in answer.chunks])
        return Answered(answer.status, told, whole)

    async def answer(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        deadline: float | None = None,
    ) -> Answer:
        """Return the handler's answer to a request, for tests of streams. ``headers`` must be case-insensitive."""
        headers = CIMultiDict() if headers is None else headers
        path, _, query_string = target.partition("?")
        try:
            admitted = self.dispatch.admit(method, path, headers)
        except BrokerError as error:
            return self.dispatch.refuse(error, path, headers)
        if isinstance(admitted, Reply):
            return admitted
        request = Request(
            method,
            path,
            query_string,
            headers,
            body,
            names=admitted.names,
            principal=admitted.principal,
            deadline=deadline,
        )
        return await self.dispatch.answer(admitted.found, request)

    async def someone_waits(self) -> None:
        """Return once a poll or a stream waits for a message."""
        await eventually(lambda: self.topics.waiting_polls, lambda: "no poll waits")

    async def close(self) -> None:
        """Stop the listener, if it was started, and hand the topics' logs off."""
        await self.server.close()
        await self.transactions.close()
        await self.topics.close()


@asynccontextmanager
async def listening(broker: Broker) -> AsyncIterator[Http]:
    """Listen on a free port of loopback, and yield a client."""
    await broker.server.start("127.0.0.1", 0)
    TRUST_AT.pop(broker.server.port, None)
    if broker.server.tls is not None:
        TRUST_AT[broker.server.port] = certificates.trusting()
    async with Http(broker.server.port, broker.checker) as client:
        yield client


class Http:
    """A client for one address that checks every reply."""

    def __init__(self, port: int, checker: Checker | None = None) -> None:
        """Make a client for a port of loopback."""
        self.port = port
        self.tls = TRUST_AT.get(port)
        self.url = f"{'http' if self.tls is None else 'https'}://127.0.0.1:{port}"
        self._checker = checker or Checker()
        self._session: ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open the session; it has no limit of connections."""
        self._session = ClientSession(
            connector=TCPConnector(limit=0, ssl=self.tls or True),
            skip_auto_headers=("Content-Type", "User-Agent"),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the session."""
        await self.session.close()

    @property
    def session(self) -> ClientSession:
        """The aiohttp session, for requests that ``__call__`` can't send."""
        assert self._session is not None, "used outside of its block"
        return self._session

    async def __call__(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answered:
        """Send a request, wait for its whole answer and check it. Raises Undocumented."""
        url = URL(self.url + target, encoded=True)
        async with self.session.request(
            method, url, data=io.BytesIO(body) if body else None, headers=headers
        ) as reply:
            whole = Answered(reply.status, reply.headers, await reply.read())
        self._checker.check(method, target, whole)
        return whole


class RawHttp:
    """A connection on which a test writes any bytes, and reads replies one by one."""

    def __init__(
        self, port: int, *, receive_buffer: int | None = None, address: str = "127.0.0.1"
    ) -> None:
        """Make a connection to a port of loopback; a small ``receive_buffer`` makes a slow reader.

        ``address`` is the address of the client, any of loopback.
        """
        self._port = port
        self._address = address
        self._receive_buffer = receive_buffer
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        """Connect."""
        sock = socket.socket()
        sock.setblocking(False)
        sock.bind((self._address, 0))
        if self._receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self._port))
        limit = self._receive_buffer or 1 << 20
        tls = TRUST_AT.get(self._port)
        self._reader, self._writer = await asyncio.open_connection(
            sock=sock, limit=limit, ssl=tls, server_hostname=tls and "127.0.0.1"
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cut the connection."""
        self._writer.transport.abort()

    async def send(self, data: bytes) -> None:
        """Write bytes."""
        self._writer.write(data)
        await self._writer.drain()

    def write(self, data: bytes) -> None:
        """Write bytes, whether the other side takes them or not."""
        self._writer.write(data)

    def half_close(self) -> None:
        """Close the sending side, with TLS that of TCP alone; replies may still arrive."""
        self._writer.get_extra_info("socket").shutdown(socket.SHUT_WR)

    async def line(self) -> bytes:
        """Read a line."""
        return await self._reader.readline()

    async def rest(self) -> bytes:
        """Read until the other side closes or resets the connection."""
        try:
            return await self._reader.read()
        except ConnectionError:
            return b""

    async def reply(self, *, has_body: bool = True) -> Answered:
        """Read one reply. Raises asyncio.IncompleteReadError if it was cut."""
        status = int((await self._whole_line()).split(b" ")[1])
        headers: CIMultiDict[str] = CIMultiDict()
        while (line := await self._whole_line()) != b"\r\n":
            name, _, value = line.decode("latin-1").partition(":")
            headers.add(name, value.strip())
        return Answered(status, headers, await self._body(headers) if has_body else b"")

    async def _whole_line(self) -> bytes:
        return await self._reader.readuntil(b"\r\n")

    async def _body(self, headers: Mapping[str, str]) -> bytes:
        if "Content-Length" in headers:
            return await self._reader.readexactly(int(headers["Content-Length"]))
        if "Transfer-Encoding" not in headers:
            return await self._reader.read()
        body = bytearray()
        while size := int(await self._whole_line(), 16):
            body += await self._reader.readexactly(size)
            await self._whole_line()
        await self._whole_line()
        return bytes(body)


def in_memory(clock: Clock) -> tuple[Logs, RecordStore]:
    logs = Logs(MemoryTable(), clock)
    return logs, Records(logs.resolver)
