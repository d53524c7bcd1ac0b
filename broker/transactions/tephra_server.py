"""The listener of Tephra's Thrift service, and all its connections: their bounds and their end.

A stopping node closes the listener and the idle connections. It answers the calls that it has read, and the calls that
have begun to arrive. Then it closes the rest. Tephra's client takes a closed connection for an error, and retries.

The number of connections is bounded, of all callers and of each one, and so is the number of calls being served: further
calls wait. If all places are taken, a new connection replaces the one that was idle longest, if that was idle for some time: clients keep pools of
connections, and may have forgotten them.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Final, cast

from broker.clock import Clock
from broker.http.budget import Budgets
from broker.http.tls_layer import TlsLayer
from broker.metrics import Metrics
from broker.transactions.service_calls import AskedService
from broker.transactions.tephra_callers import CallGuard
from broker.transactions.tephra_connection import TephraConnection
from broker.transactions.tephra_service import TephraBounds, TephraService

CONNECTIONS_MAX: Final = 4_096
CALLS_MAX: Final = 1_024
"""How many calls are served at once."""
IDLE_S_LEAST: Final = 60.0
FRAME_S: Final = 30.0
"""How long a frame may take to arrive."""
REPLY_STALL_S: Final = 60.0
LINGER_S: Final = 1.0
"""How long a connection may take to send its last answer when the node stops."""
BACKLOG: Final = 1024
READ_BYTES: Final = 8 * 1024
"""The most bytes that a connection reads in one iteration of the loop. Beside thirteen connections that send large frames,
the 99th percentile of a publish was 28 ms with asyncio's 256 KiB, and is 4 ms with this."""
BOUNDS: Final = TephraBounds()


class TephraServer:
    """Serves the transaction service on a port. Call ``start`` and ``close`` once each."""

    def __init__(
        self,
        transactions: AskedService,
        budgets: Budgets,
        metrics: Metrics,
        clock: Clock,
        bounds: TephraBounds = BOUNDS,
        guard: CallGuard | None = None,
    ) -> None:
        """Keep the parts; no ``guard``: all callers may do everything. The server does not listen before ``start``."""
        self.guard = guard
        self.service = TephraService(transactions, clock, bounds)
        self.budgets = budgets
        self.metrics = metrics
        self.frame_s = FRAME_S
        self.reply_stall_s = REPLY_STALL_S
        self.connections_max = CONNECTIONS_MAX
        self.turns = asyncio.Semaphore(CALLS_MAX)
        self.reading = asyncio.Semaphore(1)
        """Only one large frame is read at a time: the loop waits for the interpreter's lock meanwhile."""
        self.read_buffer = bytearray(READ_BYTES)
        """Every connection's bytes pass through it, and are copied at once."""
        self.port = 0
        """The port on which the server listens, once started."""
        self.tls: ssl.SSLContext | None = None
        """The context of TLS for new connections; None: they are without it. It may be replaced at any time."""
        self.draining = False
        self.open: dict[TephraConnection, None] = {}
        self._of_caller: Counter[str] = Counter()
        self.loop: asyncio.AbstractEventLoop
        self._server: asyncio.Server | None = None
        self._changed: asyncio.Future[None] | None = None

    async def start(self, host: str, port: int, listening: socket.socket | None = None) -> None:
        """Listen on a new socket, or on ``listening``, which listens already. Port 0 takes a free port.

        Raises:
            OSError: the address is not free.
        """
        self.loop = loop = asyncio.get_running_loop()
        if listening is None:
            self._server = await loop.create_server(
                self._make_connection, host, port, backlog=BACKLOG
            )
        else:
            self._server = await loop.create_server(
                self._make_connection, sock=listening, backlog=BACKLOG
            )
        self.port = self._server.sockets[0].getsockname()[1]

    def _make_connection(self) -> asyncio.BaseProtocol:
        connection = TephraConnection(self)
        if self.tls is None:
            return connection
        return TlsLayer(cast("asyncio.Protocol", connection), self.tls)

    # Called by connections.

    def admit(self, connection: TephraConnection) -> bool:
        """Count a new connection. Return False if there are too many, or the node drains."""
        if self.draining:
            return False
        # A quarter of the places is kept from any one caller.
        is_over = self._of_caller[connection.caller] >= max(1, self.connections_max * 3 // 4)
        if is_over or len(self.open) >= self.connections_max:
            idle = (
                each
                for each in self.open
                if not each.in_use and (not is_over or each.caller == connection.caller)
            )
            oldest = min(idle, key=lambda each: each.idle_since_s, default=None)
            if oldest is None or self.loop.time() - oldest.idle_since_s < IDLE_S_LEAST:
                return False
            self._forget(oldest)
            oldest.close()
        self.open[connection] = None
        self._of_caller[connection.caller] += 1
        return True

    def _forget(self, connection: TephraConnection) -> None:
        if connection in self.open:
            del self.open[connection]
            self._of_caller[connection.caller] -= 1
            if not self._of_caller[connection.caller]:
                del self._of_caller[connection.caller]

    def left(self, connection: TephraConnection) -> None:
        """Forget a connection that has ended."""
        self._forget(connection)
        self.wake_close()

    def wake_close(self) -> None:
        """Let ``close`` look again, because a call or a connection has ended."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    @property
    def _is_quiet(self) -> bool:
        return not any(connection.in_use for connection in self.open)

    # The end.

    def begin_drain(self) -> None:
        """Accept no more connections, and close those without a current or begun call."""
        if self._server is None or self.draining:
            return
        self.draining = True
        self._server.close()
        for connection in list(self.open):
            if not connection.in_use:
                connection.close()

    async def close(self, within_s: float) -> None:
        """Drain, wait at most ``within_s`` for the answers to all calls, and close the rest."""
        server = self._server
        if server is None:
            return
        self.begin_drain()
        await self._wait(lambda: self._is_quiet, within_s)
        for connection in list(self.open):
            connection.cancel()
        await self._wait(lambda: not self.open, LINGER_S)
        for connection in list(self.open):
            connection.abort("its client does not read an answer")
        self._server = None

    async def _wait(self, happens: Callable[[], bool], within_s: float) -> None:
        """Wait until ``happens`` returns true, at most ``within_s``. ``wake_close`` makes it check again."""
        until = self.loop.time() + within_s
        while not happens() and (left_s := until - self.loop.time()) > 0:
            self._changed = self.loop.create_future()
            await asyncio.wait((self._changed,), timeout=left_s)
