"""Connections to the other nodes: kept open, a few for each, one request at a time on each.

A node answers the requests of one connection one after the other, so requests that shall be stored
together must come on several. Waiting polls have a pool of their own: they hold a connection for as long
as they wait, and must not keep publishes from theirs.

``Peers`` is the port: a simulation passes its own, which delays, cuts and kills.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Protocol

from broker.http.address import Address
from broker.http.answer import NoAnswer, NotSent, Reply, Streamed
from broker.http.asking import Ask, Connection, open_connection

CONNECTIONS_MAX: Final = 128
"""To one node, for requests that are answered soon."""
STREAMS_MAX: Final = 4096
"""To one node, for polls."""
CONNECT_S: Final = 1.0
IDLE_S_MAX: Final = 15.0
"""Below the time after which a node closes idle connections."""


class Relay(Protocol):
    """An answer that is passed on as it comes."""

    @property
    def status(self) -> int:
        """The status."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, names in lower case."""

    @property
    def ended(self) -> bool:
        """Whether all of it has arrived."""

    async def chunk(self, silence_s: float | None = None) -> bytes:
        """Return what has arrived; no bytes are the end. Raises NoAnswer if it was cut."""

    def close(self) -> None:
        """Read no further. Must be called, also after the end."""


class Peers(Protocol):
    """The way to other nodes, each known by its URL."""

    async def exchange(self, url: str, ask: Ask, timeout_s: float) -> Reply:
        """Send a request and return the whole answer. Raises NotSent, NoAnswer."""

    async def stream(self, url: str, ask: Ask, timeout_s: float) -> Relay:
        """Send a request and return its answer once it has begun. Raises NotSent, NoAnswer."""

    async def close(self) -> None:
        """Close everything; requests under way end as unanswered."""


class _Pool:
    """Connections to one node."""

    def __init__(self, address: Address, connections_max: int, idle_s_max: float) -> None:
        self._address = address
        self._idle_s_max = idle_s_max
        self._places = asyncio.Semaphore(connections_max)
        self._idle: list[Connection] = []
        self._busy: dict[Connection, None] = {}

    async def take(self, timeout_s: float) -> Connection:
        """Return a connection that nobody uses. Raises NotSent."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._places.acquire()
        except TimeoutError:
            raise NotSent(f"too many requests to {self._address.authority} are under way") from None
        try:
            connection = self._take_idle() or await self._open(timeout_s)
        except BaseException:
            self._places.release()
            raise
        self._busy[connection] = None
        return connection

    def give_back(self, connection: Connection) -> None:
        """Let others use a connection; one that still waits for an answer is closed."""
        self._busy.pop(connection, None)
        self._places.release()
        if connection.requests_in_flight:
            connection.close()
        if connection.usable:
            self._idle.append(connection)

    async def _open(self, timeout_s: float) -> Connection:
        address = self._address
        return await open_connection(
            address, lambda: Connection(address, {}), min(timeout_s, CONNECT_S)
        )

    def _take_idle(self) -> Connection | None:
        """Return the connection used last, if it is still good; close those idle for too long."""
        oldest = asyncio.get_running_loop().time() - self._idle_s_max
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.idle_since >= oldest:
                return connection
            connection.close()
        return None

    def close(self) -> None:
        """Close all."""
        for connection in [*self._idle, *self._busy]:
            connection.close()
        self._idle.clear()


class _Relay:
    """A streamed answer that gives its connection back."""

    def __init__(self, streamed: Streamed, pool: _Pool, connection: Connection) -> None:
        self._streamed = streamed
        self._pool = pool
        self._connection: Connection | None = connection
        self.status = streamed.status
        self.headers = streamed.headers

    @property
    def ended(self) -> bool:
        return self._streamed.ended

    async def chunk(self, silence_s: float | None = None) -> bytes:
        return await self._streamed.chunk(silence_s)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._streamed.close()
            self._pool.give_back(connection)


class HttpPeers:
    """The other nodes over TCP. To be made, used and closed in one event loop."""

    def __init__(
        self, *, reached_at: Mapping[str, str] | None = None, idle_s_max: float = IDLE_S_MAX
    ) -> None:
        """Connect to nobody yet; ``reached_at`` says where a node is, if not at its own URL."""
        self._reached_at = reached_at or {}
        self._idle_s_max = idle_s_max
        self._soon: dict[str, _Pool] = {}
        self._streams: dict[str, _Pool] = {}

    async def exchange(self, url: str, ask: Ask, timeout_s: float) -> Reply:
        """Send a request and return the whole answer. Raises NotSent, NoAnswer."""
        pool = self._pool(self._soon, url, CONNECTIONS_MAX)
        deadline = asyncio.get_running_loop().time() + timeout_s
        connection = await pool.take(timeout_s)
        try:
            left_s = max(deadline - asyncio.get_running_loop().time(), 0.001)
            return await connection.exchange(ask, left_s)
        finally:
            pool.give_back(connection)

    async def stream(self, url: str, ask: Ask, timeout_s: float) -> Relay:
        """Send a request and return its answer once it has begun. Raises NotSent, NoAnswer."""
        pool = self._pool(self._streams, url, STREAMS_MAX)
        deadline = asyncio.get_running_loop().time() + timeout_s
        # Polls that hold all connections may wait for a minute yet; storage answers sooner.
        connection = await pool.take(min(timeout_s, CONNECT_S))
        try:
            left_s = max(deadline - asyncio.get_running_loop().time(), 0.001)
            streamed = await connection.stream(ask, left_s)
        except BaseException:
            pool.give_back(connection)
            raise
        return _Relay(streamed, pool, connection)

    def _pool(self, pools: dict[str, _Pool], url: str, connections_max: int) -> _Pool:
        pool = pools.get(url)
        if pool is None:
            address = Address.of(self._reached_at.get(url, url))
            pool = pools[url] = _Pool(address, connections_max, self._idle_s_max)
        return pool

    async def close(self) -> None:
        """Close everything; requests under way end as unanswered."""
        for pools in (self._soon, self._streams):
            while pools:
                pools.popitem()[1].close()


async def whole(relay: Relay, silence_s: float) -> Reply:
    """Read an answer to its end. Raises NoAnswer."""
    try:
        chunks: list[bytes] = []
        while chunk := await relay.chunk(silence_s):
            chunks.append(chunk)
        return Reply(relay.status, relay.headers, b"".join(chunks))
    finally:
        relay.close()


__all__ = ["HttpPeers", "NoAnswer", "NotSent", "Peers", "Relay", "Reply", "whole"]
