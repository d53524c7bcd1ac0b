"""The socket side of the interface: aiohttp's low-level server around request and reply values.

For one request: find its route by the path, read its body, hand a Request to ``Dispatch``, send the
answer. No middleware, no application object: this is the path of every published message.

Draining, in this order: whoever waits is answered, what is idle is closed, requests of which a byte was
read get their answer with ``Connection: close``, new connections too; the listener is closed; what was
accepted until then is answered.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
import socket
from contextlib import suppress
from email.utils import formatdate

from aiohttp import web

from broker import logs
from broker.api.connection import REQUEST_ID, Listener
from broker.api.dispatch import Dispatch
from broker.api.exchange import SENT, SENT_LAST, Exchange
from broker.api.incoming import BodyReader
from broker.api.origins import Origins
from broker.api.outgoing import Outgoing, send_at_once
from broker.api.parting import PATIENCE_S, stop_accepting
from broker.api.replies import Answer, Reply
from broker.api.request import Request
from broker.clock import Clock
from broker.config import Config
from broker.errors import BrokerError
from broker.routing.deadlines import REQUEST_TIMEOUT, parse_timeout_s

BACKLOG = 1024
SLOW_HEADS_EVERY_S = 1.0
LULL_S = 0.25
"""How long clients have to hear of a drain, and to go elsewhere, before nobody can connect any more."""
HANDLERS_END_S = 0.5
"""How long handlers whose clients were cut may take to end before they are cancelled."""
_GIVEN_ID = re.compile(r"[!-~]{1,128}")

log = logs.get_logger()


class Shell:
    """Serves a Dispatch on a TCP port."""

    def __init__(self, dispatch: Dispatch, config: Config, clock: Clock) -> None:
        """Keep what is to be served; nothing listens before ``start``."""
        self._dispatch = dispatch
        self._config = config
        self._clock = clock
        self._bodies = BodyReader(config)
        self._ids = itertools.count(1)
        self._id_prefix = secrets.token_hex(4)
        self._deadline_s = config.server.request_deadline_s
        # What is sent again under a key must find its first answer, however long that took.
        self._timeout_s_max = config.topics.idempotency_window_s / 2
        self._stall_s = config.server.reply_stall_s
        self._origins = Origins.of(config, socket.gethostname())
        self._date_of_s = 0
        self._date = ""
        self._loop: asyncio.AbstractEventLoop
        self._listener: Listener | None = None
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int, listening: socket.socket | None = None) -> None:
        """Listen, on a socket that does so already or a new one. Port 0 takes a free one.

        Raises:
            OSError: the address can't be had.
        """
        self._loop = asyncio.get_running_loop()
        self._listener = Listener(self._serve, self._config.server, self._new_id)
        if listening is None:
            server = await self._loop.create_server(self._listener, host, port, backlog=BACKLOG)
        else:
            server = await self._loop.create_server(self._listener, sock=listening, backlog=BACKLOG)
        self._server = server
        self._sweeper = asyncio.create_task(self._cut_slow_heads(self._listener))

    @property
    def port(self) -> int:
        """The port that is listened on."""
        assert self._server is not None, "not started"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._listener.open) if self._listener is not None else 0

    @property
    def busy(self) -> int:
        """How many requests are under way."""
        return self._listener.busy if self._listener is not None else 0

    @property
    def unread_heads(self) -> int:
        """How many connections have sent a part of a request's head."""
        return len(self._listener.heads) if self._listener is not None else 0

    @property
    def body_bytes(self) -> int:
        """Bytes of bodies that are held for requests under way."""
        return self._bodies.budget.held

    def begin_drain(self, patience_s: float = PATIENCE_S) -> None:
        """Answer those who wait, end what is idle, and let every further reply be its last.

        Other people's idle connections have ``patience_s`` for a last request (see ``parting``).
        """
        if self._listener is not None and not self._listener.draining:
            self._listener.begin_drain(patience_s)

    async def quiet(self) -> None:
        """Return once no request is under way or has begun to arrive."""
        if self._listener is not None:
            await self._listener.wait_quiet()

    async def close(self, within_s: float | None = None) -> None:
        """Drain, close the listener, and wait for quiet at most ``within_s``; None: as configured."""
        listener, server = self._listener, self._server
        if listener is None or server is None:
            return
        self.begin_drain(0.0)
        try:
            async with asyncio.timeout(
                self._config.server.drain_s if within_s is None else within_s
            ):
                with suppress(TimeoutError):
                    async with asyncio.timeout(LULL_S):
                        await listener.wait_quiet()
                await stop_accepting(server, listener)
                await listener.wait_quiet()
        except TimeoutError:
            log.warning("drain ended before all was answered", requests=listener.busy)
        server.close()
        for connection in list(listener.open):
            connection.force_close()
        await listener.shutdown(HANDLERS_END_S)
        await server.wait_closed()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._listener = self._server = None

    async def _cut_slow_heads(self, listener: Listener) -> None:
        while True:
            await asyncio.sleep(SLOW_HEADS_EVERY_S)
            listener.cut_slow_heads()

    # One request.

    def _new_id(self) -> str:
        return f"{self._id_prefix}-{next(self._ids)}"

    async def _serve(self, exchange: Exchange) -> web.StreamResponse:
        connection = exchange.connection
        listener = connection.listener
        listener.request_began(connection)
        stays_open = False
        try:
            identifier = exchange.headers.get(REQUEST_ID)
            if identifier is None or not _GIVEN_ID.fullmatch(identifier):
                identifier = self._new_id()
            answer = await self._answer(exchange, identifier)
            if isinstance(answer, Reply):
                stays_open = exchange.keep_alive and not answer.close
            else:
                stays_open = exchange.keep_alive and exchange.takes_chunks
            if listener.draining or not exchange.content.is_eof():
                stays_open = False
            tail = self._tail(exchange, identifier, stays_open)
            if not isinstance(answer, Reply) or not send_at_once(exchange, answer, tail):
                out = Outgoing(exchange, tail, self._stall_s)
                if not await self._send(out, exchange, answer, identifier):
                    stays_open = False
                    return SENT_LAST
            if stays_open:
                return SENT
            if exchange.content.is_eof():  # Else aiohttp reads on for a while, and closes it then.
                connection.say_goodbye()
            return SENT_LAST
        finally:
            listener.request_ended(connection, stays_open=stays_open)

    async def _answer(self, exchange: Exchange, identifier: str) -> Answer:
        headers = exchange.headers
        path, query_string = _target(exchange)
        try:
            self._origins.check(headers)
            if self._origins.is_preflight(exchange.method, headers):
                return self._dispatch.preflight(path)
            found = self._dispatch.router.find(exchange.method, path)
            timeout = headers.get(REQUEST_TIMEOUT)
            timeout_s = self._deadline_s
            if timeout is not None:
                timeout_s = min(parse_timeout_s(timeout), self._timeout_s_max)
            body = self._bodies.ready(exchange.content, headers)
            if body is None:
                self._say_continue(exchange)
                body = await self._bodies.read(exchange.content, headers)
        except BrokerError as error:
            return self._dispatch.refuse(error, path, headers, identifier)
        request = Request(
            exchange.method,
            path,
            query_string,
            headers,
            body,
            identifier=identifier,
            names=found.names,
            deadline=self._clock.monotonic() + timeout_s,
            source=exchange.connection,
            abandoned=exchange.connection.abandoned,
        )
        try:
            return await self._dispatch.answer(found, request)
        finally:
            self._bodies.budget.held -= len(body)

    async def _send(
        self, out: Outgoing, exchange: Exchange, answer: Answer, identifier: str
    ) -> bool:
        """Send what takes more than one write; return whether all of it was sent."""
        try:
            await out.send(answer)
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001 - The maker of a stream may raise anything.
            reply = self._dispatch.failure(error, exchange.headers, identifier)
            # Once the status is out, the missing end tells the reader that this is not all.
            if not out.began:
                await out.send(reply)
            return False
        return True

    def _tail(self, exchange: Exchange, identifier: str, stays_open: bool) -> bytes:
        """Return the end of a reply's head: what differs from request to request."""
        now_s = int(self._loop.time())
        if now_s != self._date_of_s:
            self._date_of_s = now_s
            self._date = f"Date: {formatdate(self._clock.now_ms() / 1000, usegmt=True)}\r\n"
        if not stays_open:
            connection = "Connection: close\r\n\r\n"
        elif exchange.takes_chunks:
            connection = "\r\n"
        else:
            connection = "Connection: keep-alive\r\n\r\n"
        pages = self._origins.lines(exchange.headers)
        return f"{REQUEST_ID}: {identifier}\r\n{self._date}{pages}{connection}".encode("ascii")

    @staticmethod
    def _say_continue(exchange: Exchange) -> None:
        """Tell a client that waits for it that its body may come."""
        transport = exchange.connection.transport
        expected = exchange.headers.get("Expect", "").lower()
        if expected == "100-continue" and transport is not None:
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def _target(exchange: Exchange) -> tuple[str, str]:
    """Return a request's raw path and its raw query; a proxy's form of them is understood."""
    target = exchange.path
    if target[:1] != "/":
        target = exchange.message.url.raw_path_qs
    path, _, query_string = target.partition("?")
    return path, query_string
