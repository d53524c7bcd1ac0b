"""The listener and all its connections: their shared budgets, and their end.

aiohttp's low-level ``web.Server`` makes one protocol for each connection. Our protocol stands before it (see
``inbound``). An ``Application`` makes the answers (see ``exchange``).

A drain has these steps (see ``drain``):

1. Requests that wait are answered, and idle connections are closed.
2. A request of which a byte was read gets its answer with ``Connection: close``, also on new connections.
3. The listener is closed.
4. Requests on the connections accepted until then are answered.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, cast

from aiohttp import web
from typing_extensions import override

from broker import logs
from broker.clock import Clock
from broker.config.sections import Config
from broker.errors import BrokerError, Overloaded
from broker.http.address import CannotListen
from broker.http.body import BodyReader
from broker.http.budget import DEFAULTS, Bounds, BudgetKind, Budgets
from broker.http.drain import PATIENCE_S, Drain, stop_accepting
from broker.http.exchange import Application, Exchange
from broker.http.inbound import Connection
from broker.http.reply import error_reply
from broker.long_work import soon

BACKLOG: Final = 1024
TICK_S = 1.0
SPREAD: Final = 1000
LULL_S: Final = 0.25
"""How long clients have to notice a drain, and to go to another node, before the listener closes."""
HANDLERS_END_S: Final = 0.5
"""How long a handler may go on after its client was cut, before it is cancelled."""
NEWCOMERS_S: Final = 0.1
"""The least time that a client has for its request if it connects during a drain."""
FOR_EVER_S: Final = 1e8

log = logs.get_logger()


class _Refusals(logging.Filter):
    """Drops aiohttp's log lines about requests that it can't read: any client could fill the log with them."""

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("Error handling request")


_inner_log = logging.getLogger("broker.http")
_inner_log.addFilter(_Refusals())


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
        self._loop: asyncio.AbstractEventLoop
        self._web: web.Server
        self.drain: Drain
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int, listening: socket.socket | None = None) -> None:
        """Listen on a new socket, or on ``listening``, which listens already. Port 0 takes a free port.

        Raises:
            OSError: the address is not free.
        """
        self._loop = loop = asyncio.get_running_loop()
        self.time = loop.time
        self.next_tick = loop.time() + TICK_S
        """The time of the next check of all connections. It stands for "now" where a second more does no harm."""
        self.call_later = loop.call_later
        self.create_future = loop.create_future
        self.drain = Drain(loop, lambda: bool(self.busy or self.heads))
        server = self._config.server
        self._web = web.Server(
            self._exchange.serve,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=FOR_EVER_S,  # Each ``Connection`` ends itself when it was idle for too long.
            lingering_time=0.0,
            logger=_inner_log,
            max_line_size=server.request_line_bytes_max,
            max_field_size=server.header_bytes_max,
            max_headers=server.headers_max,
        )
        if listening is None:
            self._server = await loop.create_server(
                self._make_connection, host, port, backlog=BACKLOG
            )
        else:
            self._server = await loop.create_server(
                self._make_connection, sock=listening, backlog=BACKLOG
            )
        self._sweeper = asyncio.create_task(self._look_every_second())

    def _make_connection(self) -> Connection:
        return Connection(self)

    def make_inner(self) -> asyncio.Protocol:
        """Return aiohttp's protocol for one connection."""
        return cast("asyncio.Protocol", self._web())

    @property
    def port(self) -> int:
        """The port on which this server listens."""
        assert self._server is not None, "not started"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self.open)

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

    def last_words(self, error: BrokerError) -> bytes:
        """Return a whole answer for bytes that are not a request. The connection must end after it."""
        identifier = self._exchange.new_id()
        log.debug("connection refused", request_id=identifier, code=error.code, error=error.message)
        reply = error_reply(error, {})
        return reply.head + self._exchange.last_tail(identifier) + reply.body

    def cut(self) -> None:
        """Stop listening and cut every connection, also those with requests."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.open):
            connection.force_close()

    async def _look_every_second(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.next_tick = self._loop.time() + TICK_S
            self._exchange.next_second()
            self.budgets.next_second()
            soon(self._cut_slow_heads())

    def _cut_slow_heads(self) -> Iterator[None]:
        """Cut the connections whose request's head takes too long to arrive. Each step cuts one."""
        oldest = self._loop.time() - self._config.server.header_deadline_s
        for connection, began in list(self.heads.items()):
            if began > oldest:
                return
            if connection in self.heads:
                connection.force_close()
            yield

    def spread_s(self) -> float:
        """Return a part of a tick, each time another one: what began together must not end in one turn of the loop."""
        self._spread = (self._spread + 1) % SPREAD
        return TICK_S * self._spread / SPREAD

    # --- The end --------------------------------------------------------------------------------------

    def begin_drain(self, patience_s: float = PATIENCE_S) -> None:
        """Answer waiting requests, end idle connections, and close each connection with its next reply.

        Idle connections of other clients have ``patience_s`` for a last request (see ``drain``).
        """
        if self._server is None or self.draining:
            return
        self.draining = True
        self._patience_s = patience_s
        for connection in list(self.open):
            connection.abandon()
            if not connection.in_use:
                self.drain.part(connection, patience_s)

    async def quiet(self) -> None:
        """Wait until no request is served or has begun to arrive, and all idle connections have ended."""
        if self._server is not None:
            await self.drain.quiet()

    async def close(self, within_s: float | None = None) -> None:
        """Drain, close the listener, and wait at most ``within_s`` for all answers. None: the configured time."""
        server = self._server
        if server is None:
            return
        self.begin_drain(0.0)
        try:
            async with asyncio.timeout(
                self._config.server.drain_s if within_s is None else within_s
            ):
                with suppress(TimeoutError):
                    async with asyncio.timeout(LULL_S):
                        await self.drain.quiet()
                await stop_accepting(server, self._make_connection)
                await self.drain.quiet()
        except TimeoutError:
            log.warning("drain ended before all requests were answered", requests=self.busy)
        self.cut()
        await self._web.shutdown(HANDLERS_END_S)
        await server.wait_closed()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.bodies.close()
        self._server = None


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
