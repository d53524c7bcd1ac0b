"""Open connections, and keep them in a pool between requests. In a pool each connection has one request at a time.

A request waits for one of ``connections_max`` places. Then it takes an idle connection to its server, or a new one is
opened. The pool keeps at most as many idle connections as there are places.
"""

from __future__ import annotations

import asyncio
import ssl
from functools import cache
from typing import Generic, TypeVar

from broker.http.answer import NotSent
from broker.http.certificates import client_context
from broker.http.outbound import OutboundConnection
from broker.http.tls_layer import TlsLayer
from broker.shield import bare

AnyConnection = TypeVar("AnyConnection", bound=OutboundConnection)


class Pool(Generic[AnyConnection]):
    """Connections to one or several servers. Use it in one event loop."""

    def __init__(self, connections_max: int, idle_s_max: float) -> None:
        """Begin without connections. A connection that was idle for ``idle_s_max`` is not used again."""
        self._places = asyncio.Semaphore(connections_max)
        self._connections_max = connections_max
        self._idle_s_max = idle_s_max
        self._idle: list[AnyConnection] = []
        self._busy: dict[AnyConnection, None] = {}

    async def enter(self, timeout_s: float) -> bool:
        """Wait for a place. Return whether there was one in time."""
        if not self._places.locked():
            return await self._places.acquire()
        try:
            async with asyncio.timeout(timeout_s):
                return await self._places.acquire()
        except TimeoutError:
            return False

    def leave(self) -> None:
        """Give a place back."""
        self._places.release()

    def take(self, url: str) -> AnyConnection | None:
        """Return the idle connection to ``url`` that was used last. If it returns None, ``add`` one.

        The caller must have a place.
        """
        for at in reversed(range(len(self._idle))):
            if self._idle[at].url == url:
                connection = self._idle.pop(at)
                if connection.is_fresh(self._idle_s_max):
                    self._busy[connection] = None
                    return connection
                connection.close()
        self._close_old()
        return None

    def add(self, connection: AnyConnection) -> AnyConnection:
        """Take a new connection into the pool, and return it. The caller must have a place."""
        self._busy[connection] = None
        return connection

    def put_back(self, connection: AnyConnection) -> None:
        """End the use of a connection and keep it. If it still waits for an answer, close it."""
        self._busy.pop(connection, None)
        if connection.requests_in_flight:
            connection.close()
        if connection.usable:
            self._idle.append(connection)
            if len(self._idle) > self._connections_max:
                self._idle.pop(0).close()

    def retire(self) -> None:
        """Close the idle connections now, and each other one at the end of its use."""
        self._connections_max = 0
        while self._idle:
            self._idle.pop().close()

    def _close_old(self) -> None:
        """Close connections that were idle for too long. They are the first ones in the list."""
        oldest = asyncio.get_running_loop().time() - self._idle_s_max
        while self._idle and not (self._idle[0].usable and self._idle[0].idle_since >= oldest):
            self._idle.pop(0).close()

    def close(self, reason: str) -> None:
        """Close all connections. Requests in flight fail with NoAnswer and this reason."""
        for connection in [*self._idle, *self._busy]:
            connection.close(reason)
        self._idle.clear()


async def open_connection(
    connection: AnyConnection,
    timeout_s: float,
    tls: ssl.SSLContext | None = None,
    name: str | None = None,
) -> AnyConnection:
    """Connect to the server and return the connection. Raises NotSent.

    ``name`` is the name that the server's certificate must have; None: the host of its URL.
    """
    loop, address = asyncio.get_running_loop(), connection.address
    try:
        async with asyncio.timeout(timeout_s):
            if address.tls:
                layer = TlsLayer(
                    connection, tls or _default_tls(), server_hostname=name or address.host
                )
                await loop.create_connection(lambda: layer, address.host, address.port)
                try:
                    await layer.opened
                except BaseException:
                    connection.close()
                    raise
            else:
                await loop.create_connection(lambda: connection, address.host, address.port)
    except UnicodeError as error:  # Of a name that no machine can have.
        raise NotSent(str(error)) from error
    except (OSError, TimeoutError) as error:
        raise NotSent(str(error) or f"no connection in {timeout_s:g} s") from bare(error)
    return connection


@cache
def _default_tls() -> ssl.SSLContext:
    """Return a context that trusts the machine's certificates. Loading them takes about 20 ms."""
    return client_context()
