"""The listener and all its connections: their shared budgets, and their end.

aiohttp's low-level ``web.Server`` makes a ``Connection`` for each client, and calls ``Exchange.serve`` for each request.

A drain has these steps (see ``drain``):

1. Requests that wait are answered, and idle connections are closed.
2. A request of which a byte was read gets its answer with ``Connection: close``, also on new connections.
3. The listener is closed.
4. Requests on the connections accepted until then are answered.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final, cast

from aiohttp import web
from typing_extensions import override

from broker import logs
from broker.clock import Clock
from broker.config.sections import Config
from broker.errors import BrokerError, CannotListen, Overloaded
from broker.http.body import BodyReader
from broker.http.budget import DEFAULTS, Bounds, BudgetKind, Budgets
from broker.http.drain import PATIENCE_S, Drain, stop_accepting
from broker.http.exchange import Application, Exchange
from broker.http.inbound import Connection
from broker.http.reply import Reply
from broker.http.tls_layer import TlsLayer

BACKLOG: Final = 1024
TICK_S = 1.0
SPREAD: Final = 1000
LULL_S: Final = 0.25
"""How long clients have to notice a drain, and to go to another node, before the listener closes."""
HANDLERS_END_S: Final = 0.5
"""How long a handler may go on after its client was cut, before it is cancelled."""
NEWCOMERS_S: Final = 0.1
"""The least time that a client has for its request if it connects during a drain."""
HEADS_CUT_AT_ONCE: Final = 500
"""The most connections that are cut in one iteration of the loop: more would block it for too long."""
UNREAD_BYTES_MAX: Final = 128 * 1024
"""aiohttp stops reading a socket when so many bytes of a body are unread."""

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

log = logs.get_logger()


class _Protocols(web.Server):
    """aiohttp's server. The listener calls it for each new client."""

    def __init__(self, server: Server, handler: Handler, options: Mapping[str, Any]) -> None:
        """Keep the options of aiohttp's protocol."""
        super().__init__(handler)
        self._server = server
        self._options = options

    @override
    def __call__(self) -> Connection:
        return cast("Connection", self._server.over_tls(self._connection()))

    def _connection(self) -> Connection:
        keep_alive_s = self._server.keep_alive_s
        if keep_alive_s:
            # Connections that began together must not end in one iteration of the loop.
            keep_alive_s += self._server.spread_s()
        loop = asyncio.get_running_loop()
        return Connection(
            self._server, self, loop=loop, keepalive_timeout=keep_alive_s, **self._options
        )


class Server:
    """Serves an Application on a TCP port."""

    def __init__(self, application: Application, config: Config, clock: Clock) -> None:
        """Keep the parts. The server does not listen before ``start``."""
        self._config = config
        self.budgets = Budgets(_bounds(config))
        self.bodies = BodyReader(config)
        self._exchange = Exchange(self, application, config, clock, self.bodies)
        self.keep_alive_s = config.server.keep_alive_s
        self.open: dict[Connection, None] = {}
        self.heads: dict[Connection, float] = {}
        """Connections with a begun head, oldest first, each with the time when the head began."""
        self._spread = 0
        self.busy = 0
        """The number of requests being served. A connection counts its request when the head is whole."""
        self.draining = False
        self._patience_s = 0.0
        self.reply_stall_s = config.server.reply_stall_s
        self._loop: asyncio.AbstractEventLoop
        self._web: _Protocols
        self._runner: web.ServerRunner
        self._site: web.SockSite
        self._listening: socket.socket | None = None
        self.drain: Drain
        self._sweeper: asyncio.Task[None] | None = None
        self.tls: ssl.SSLContext | None = None
        """The context of TLS for new connections; None: they are without it. It may be replaced at any time."""

    def over_tls(self, connection: Connection) -> asyncio.BaseProtocol:
        """Return the protocol for the socket of a new connection."""
        return connection if self.tls is None else TlsLayer(connection, self.tls)

    async def start(self, host: str, port: int, listening: socket.socket | None = None) -> None:
        """Listen on a new socket, or on ``listening``, which listens already. Port 0 takes a free port.

        Raises:
            CannotListen: the address is not free.
        """
        self._loop = loop = asyncio.get_running_loop()
        self.call_later = loop.call_later
        self.create_future = loop.create_future
        self.drain = Drain(loop, lambda: bool(self.busy or self.heads))
        server = self._config.server
        options = {
            "access_log": None,
            "auto_decompress": False,
            "lingering_time": 0.0,  # Each ``Connection`` lingers by itself.
            "max_line_size": server.request_line_bytes_max,
            "max_field_size": server.header_bytes_max,
            "max_headers": server.headers_max,
            "read_bufsize": UNREAD_BYTES_MAX // 2,
        }
        self._web = _Protocols(self, self._exchange.serve, options)
        self._runner = web.ServerRunner(self._web, shutdown_timeout=HANDLERS_END_S)
        await self._runner.setup()
        self._listening = listening or listen_at(host, port)
        self._site = web.SockSite(self._runner, self._listening, backlog=BACKLOG)
        await self._site.start()
        self._sweeper = asyncio.create_task(self._look_every_second())

    @property
    def port(self) -> int:
        """The port on which this server listens."""
        assert self._listening is not None, "not started"
        port: int = self._listening.getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self.open) + len(self.drain.lingering)

    # --- Called by connections ------------------------------------------------------------------------

    def admit(self, connection: Connection) -> BrokerError | None:
        """Count a new connection. Return an error instead if there are too many."""
        try:
            connection.account.take(BudgetKind.CONNECTIONS)
        except BrokerError:
            return Overloaded("This node has reached its limit of open connections.")
        self.open[connection] = None
        if self.draining:
            self.drain.part(connection, max(self._patience_s, NEWCOMERS_S))
        return None

    def left(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self.open.pop(connection, None)
        self.heads.pop(connection, None)
        self.drain.gone(connection)

    def head_grew(self, connection: Connection) -> None:
        """Note that a request has begun to arrive."""
        self.heads.setdefault(connection, self._loop.time())

    def head_ended(self, connection: Connection) -> None:
        """Note that a connection has no begun head any more."""
        if self.heads.pop(connection, None) is not None:
            if self.draining and not connection.dismissed:
                self.drain.part(connection, self._patience_s)
            self.drain.look()

    def request_began(self, connection: Connection) -> None:
        """Note that a handler has a request."""
        self.busy += 1
        self.heads.pop(connection, None)

    def request_ended(self, connection: Connection, *, stays_open: bool = False) -> None:
        """Note that a reply was sent, or can't be sent."""
        self.busy -= 1
        if self.draining:
            if stays_open and connection in self.open and not connection.dismissed:
                # Its answer began before the drain, without ``Connection: close``.
                self.drain.part(connection, self._patience_s)
            self.drain.look()

    def connection_cut(self, connection: Connection, kind: BudgetKind) -> None:
        """Log that a connection was cut, because it held the most of a resource that ran out."""
        if connection.account.may_log():
            log.warning("connection cut", reason=f"it held the most of {kind}")

    def last_words(self, connection: Connection, reply: Reply) -> web.StreamResponse:
        """Return a whole answer for bytes that are not a request. The connection must end after it."""
        log.debug("connection refused", status=reply.status, error=reply.body.decode())
        return self._exchange.last_words(connection, reply)

    async def _look_every_second(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._exchange.next_second()
            self.budgets.next_second()
            self._cut_slow_heads()

    def _cut_slow_heads(self) -> None:
        """Cut the connections whose request's head takes too long to arrive, oldest first."""
        oldest = self._loop.time() - self._config.server.header_deadline_s
        for connection, began in list(islice(self.heads.items(), HEADS_CUT_AT_ONCE)):
            if began <= oldest:
                connection.cut()

    def spread_s(self) -> float:
        """Return a part of a tick, each time another one: what began together must not end at once."""
        self._spread = (self._spread + 1) % SPREAD
        return TICK_S * self._spread / SPREAD

    # --- The end --------------------------------------------------------------------------------------

    def begin_drain(self, patience_s: float = PATIENCE_S) -> None:
        """Answer waiting requests, end idle connections, and close each connection with its next reply.

        Idle connections of other clients have ``patience_s`` for a last request (see ``drain``).
        """
        if self._listening is None or self.draining:
            return
        self.draining = True
        self._patience_s = patience_s
        for connection in list(self.open):
            connection.abandon()
            if not connection.in_use:
                self.drain.part(connection, patience_s)

    async def quiet(self) -> None:
        """Wait until no request is served or has begun to arrive, and all idle connections have ended."""
        if self._listening is not None:
            await self.drain.quiet()

    async def close(self, within_s: float | None = None) -> None:
        """Drain, close the listener, and wait at most ``within_s`` for all answers. None: the configured time."""
        if self._listening is None:
            return
        self.begin_drain(0.0)
        try:
            async with asyncio.timeout(
                self._config.server.drain_s if within_s is None else within_s
            ):
                with suppress(TimeoutError):
                    async with asyncio.timeout(LULL_S):
                        await self.drain.quiet()
                await stop_accepting(self._listening, self._site, self._web)
                await self.drain.quiet()
        except TimeoutError:
            log.warning("drain ended before all requests were answered", requests=self.busy)
        for connection in list(self.open):
            connection.cut()
        self.drain.cut_lingering()
        await self._runner.cleanup()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.bodies.close()
        self._listening = None


def _bounds(config: Config) -> dict[BudgetKind, Bounds]:
    """Return the bounds of the configuration."""
    limits, bodies = config.limits, DEFAULTS[BudgetKind.BODY_BYTES]
    waiting = limits.waiting_polls_max
    # A gzipped body is in memory as sent while it is being inflated, and twice while it is being joined; and any body
    # is in memory again as the messages decoded from it.
    body = 2 * max(bodies.connection // 2, limits.body_bytes_max, limits.body_inflated_bytes_max)
    return {
        BudgetKind.WAITING: DEFAULTS[BudgetKind.WAITING]._replace(
            caller=waiting - waiting // 4, node=waiting
        ),
        BudgetKind.CONNECTIONS: DEFAULTS[BudgetKind.CONNECTIONS]._replace(
            caller=config.server.connections_max, node=config.server.connections_max
        ),
        BudgetKind.IN_FLIGHT: DEFAULTS[BudgetKind.IN_FLIGHT]._replace(
            caller=config.server.connections_max, node=config.server.connections_max
        ),
        BudgetKind.BODY_BYTES: bodies._replace(
            connection=body, caller=max(bodies.caller, body), node=max(bodies.node, body)
        ),
    }


def listen_at(host: str, port: int) -> socket.socket:
    """Listen at an address. A client that connects before the node has started waits. Raises CannotListen."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    takes_ipv4 = host == "::" and socket.has_dualstack_ipv6()
    try:
        listening = socket.create_server(
            (host, port), family=family, backlog=BACKLOG, dualstack_ipv6=takes_ipv4
        )
    except OSError as error:
        raise CannotListen(error, host, port) from error
    listening.setblocking(False)
    return listening
