"""The listener and all its connections: what they may hold together, and how they end.

aiohttp's low-level ``web.Server`` makes one protocol for each connection; ours stands before it (see
``connection``), and answers are made by an ``Application`` (see ``exchange``).

Draining, in this order: whatever waits is answered, idle connections are closed, requests of which a byte was
read get their answer with ``Connection: close``, new connections too; the listener is closed; what was
accepted until then is answered (see ``drain``).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from typing import Final, cast

from aiohttp import web
from typing_extensions import override

from broker import logs
from broker.clock import Clock
from broker.config.sections import Config
from broker.errors import BrokerError, Overloaded
from broker.http.body import BodyReader
from broker.http.budget import DEFAULTS, Bounds, BudgetKind, Budgets
from broker.http.drain import PATIENCE_S, Drain, stop_accepting
from broker.http.exchange import Application, Exchange
from broker.http.inbound import Connection
from broker.http.reply import error_reply

BACKLOG: Final = 1024
TICK_S = 1.0
LULL_S: Final = 0.25
"""How long clients have to hear of a drain, and to go elsewhere, before none can connect any more."""
HANDLERS_END_S: Final = 0.5
"""How long handlers whose clients were cut may take to end before they are cancelled."""
NEWCOMERS_S: Final = 0.1
"""How long at least a client that connects during a drain may take to ask: it came for that."""
FOR_EVER_S: Final = 1e8

log = logs.get_logger()


class _Refusals(logging.Filter):
    """Drops aiohttp's lines on requests that it can't read: any stranger could fill the log with them."""

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("Error handling request")


_inner_log = logging.getLogger("broker.http")
_inner_log.addFilter(_Refusals())


class Server:
    """Serves an Application on a TCP port."""

    def __init__(self, application: Application, config: Config, clock: Clock) -> None:
        """Keep what is to be served; nothing listens before ``start``."""
        self._config = config
        self.budgets = Budgets(_bounds(config))
        self.bodies = BodyReader(config)
        self._exchange = Exchange(self, application, config, clock, self.bodies)
        self.keep_alive_s = config.server.keep_alive_s
        self.open: dict[Connection, None] = {}
        self.heads: dict[Connection, float] = {}
        """Connections with a begun head, oldest first, and when it began."""
        self.busy = 0
        """How many requests are under way: a connection counts its own when the head is whole."""
        self.draining = False
        self._patience_s = 0.0
        self._loop: asyncio.AbstractEventLoop
        self._web: web.Server
        self._drain: Drain
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int, listening: socket.socket | None = None) -> None:
        """Listen, on a socket that does so already or a new one. Port 0 takes a free one.

        Raises:
            OSError: the address can't be had.
        """
        self._loop = loop = asyncio.get_running_loop()
        self.time = loop.time
        self.next_tick = loop.time() + TICK_S
        """When this server looks at its connections again: no earlier than now, and soon."""
        self.call_later = loop.call_later
        self.create_future = loop.create_future
        self._drain = Drain(loop, lambda: bool(self.busy or self.heads))
        server = self._config.server
        self._web = web.Server(
            self._exchange.serve,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=FOR_EVER_S,  # Connections see to it before the first request, too.
            lingering_time=0.0,
            logger=_inner_log,
            max_line_size=server.request_line_bytes_max,
            max_field_size=server.header_bytes_max,
            max_headers=server.headers_max,
        )
        if listening is None:
            self._server = await loop.create_server(self._connection, host, port, backlog=BACKLOG)
        else:
            self._server = await loop.create_server(
                self._connection, sock=listening, backlog=BACKLOG
            )
        self._sweeper = asyncio.create_task(self._look_every_second())

    def _connection(self) -> Connection:
        return Connection(self)

    def make_inner(self) -> asyncio.Protocol:
        """Return aiohttp's protocol for one connection."""
        return cast("asyncio.Protocol", self._web())

    @property
    def port(self) -> int:
        """The port that is listened on."""
        assert self._server is not None, "not started"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self.open)

    @property
    def unread_heads(self) -> int:
        """How many connections have sent a part of a request's head."""
        return len(self.heads)

    # --- What connections tell ------------------------------------------------------------------------

    def admit(self, connection: Connection) -> BrokerError | None:
        """Count a new connection; or return why it can't be, if there are too many."""
        if len(self.open) >= self._config.server.connections_max:
            return Overloaded("This node has as many connections as it may have.")
        self.open[connection] = None
        if self.draining:
            self._drain.part(connection, max(self._patience_s, NEWCOMERS_S))
        return None

    def left(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self.open.pop(connection, None)
        self.heads.pop(connection, None)
        self._drain.gone(connection)

    def head_grew(self, connection: Connection) -> None:
        """Note that a request has begun to arrive."""
        self.heads.setdefault(connection, self._loop.time())

    def head_ended(self, connection: Connection) -> None:
        """Note that nothing of a request is there any more."""
        if self.heads.pop(connection, None) is not None:
            self._drain.look()

    def request_ended(self, connection: Connection, *, stays_open: bool = False) -> None:
        """Note that the reply was sent, or can't be."""
        self.busy -= 1
        if self.draining:
            if stays_open and connection in self.open:
                # Its long answer began before the drain, and has said nothing of it.
                self._drain.part(connection, self._patience_s)
            self._drain.look()

    def connection_cut(self, connection: Connection, kind: BudgetKind) -> None:
        """Tell that a connection was cut since it held the most of something that had run out."""
        if connection.account.may_log():
            log.warning("connection cut", reason=f"it held the most {kind}")

    def linger(self, connection: Connection, seconds: float | None) -> None:
        """Wait for the client of a connection that was sent its end, then cut it; None: as usual."""
        self._drain.linger(connection, seconds)

    def last_words(self, error: BrokerError) -> bytes:
        """Return a whole answer after which the connection ends, for what is not yet a request."""
        identifier = self._exchange.new_id()
        log.debug("connection refused", request_id=identifier, code=error.code, error=error.message)
        reply = error_reply(error, {})
        return reply.head + self._exchange.last_tail(identifier) + reply.body

    def cut(self) -> None:
        """Stop listening and cut every connection, whatever is under way."""
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
            self._cut_slow_heads()

    def _cut_slow_heads(self) -> None:
        """Cut connections whose request's head takes too long."""
        oldest = self._loop.time() - self._config.server.header_deadline_s
        for connection, began in list(self.heads.items()):
            if began > oldest:
                return
            connection.force_close()

    # --- The end --------------------------------------------------------------------------------------

    def begin_drain(self, patience_s: float = PATIENCE_S) -> None:
        """Answer what waits, end what is idle, and let every further reply be its connection's last.

        Other people's idle connections have ``patience_s`` for a last request (see ``drain``).
        """
        if self._server is None or self.draining:
            return
        self.draining = True
        self._patience_s = patience_s
        for connection in list(self.open):
            connection.abandon()
            if not connection.in_use:
                self._drain.part(connection, patience_s)

    async def quiet(self) -> None:
        """Return once no request is under way or has begun to arrive, and idle clients have gone."""
        if self._server is not None:
            await self._drain.quiet()

    async def close(self, within_s: float | None = None) -> None:
        """Drain, close the listener, and wait for quiet at most ``within_s``; None: as configured."""
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
                        await self._drain.quiet()
                await stop_accepting(server, self._connection)
                await self._drain.quiet()
        except TimeoutError:
            log.warning("drain ended before all was answered", requests=self.busy)
        self.cut()
        await self._web.shutdown(HANDLERS_END_S)
        await server.wait_closed()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.bodies.close()
        self._server = None


def _bounds(config: Config) -> dict[BudgetKind, Bounds]:
    """Return the bounds that the configuration sets."""
    limits, bodies = config.limits, DEFAULTS[BudgetKind.BODY_BYTES]
    # A gzipped body is held as sent while the next of it is inflated, and twice while it is joined.
    body = max(bodies.connection, limits.body_bytes_max, limits.body_inflated_bytes_max * 3 // 2)
    return {
        BudgetKind.WAITING: DEFAULTS[BudgetKind.WAITING]._replace(
            caller=limits.waiting_polls_max, node=limits.waiting_polls_max
        ),
        BudgetKind.BODY_BYTES: bodies._replace(
            connection=body, caller=max(bodies.caller, body), node=max(bodies.node, body)
        ),
    }
