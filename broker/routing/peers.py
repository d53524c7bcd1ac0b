"""Keep connections to the other nodes open: several for each node, one request at a time on each.

A node answers the requests of one connection one after the other. So requests that should share a batch must come on
several connections. Waiting polls have a pool of their own: a poll holds its connection while it waits, and must not
block publishes.

``Peers`` is the port: a simulation passes its own, which delays and cuts messages, and kills nodes.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from broker.http.answer import Address, HttpAnswer, NoAnswer, NotSent
from broker.http.outbound import REPLY_BYTES_MAX, Ask, OutboundConnection
from broker.http.pool import Pool, open_connection

CONNECTIONS_MAX: Final = 4096
"""Connections to one node for requests that should be answered soon. The forwarder bounds the use of these."""
STREAMS_MAX: Final = 4096
"""Connections to one node for polls."""
JOIN_BYTES_MAX: Final = 4 * 1024 * 1024
"""The event loop joins an answer of up to this size, which takes a millisecond; a thread joins a larger one."""
BLOCK_PIECES: Final = 64
BLOCK_BYTES: Final = 64 * 1024
"""``BLOCK_PIECES`` pieces of an answer are joined early if they have fewer bytes than this."""
CONNECT_S: Final = 1.0
IDLE_S_MAX: Final = 15.0
"""This is less than the time after which a node closes idle connections."""


class RelayedAnswer(Protocol):
    """An answer that is streamed while it arrives."""

    @property
    def status(self) -> int:
        """Return the status."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Return the headers, with names in lower case."""

    @property
    def ended(self) -> bool:
        """Return whether the whole answer has arrived."""

    async def chunk(self, silence_s: float | None = None) -> bytes:
        """Return the next bytes; an empty result is the end. Raises NoAnswer if the connection was cut."""

    def close(self) -> None:
        """Stop reading. The caller must call this, also after the end."""


class Peers(Protocol):
    """Sends requests to other nodes, each known by its URL."""

    async def exchange(self, url: str, ask: Ask, timeout_s: float) -> HttpAnswer:
        """Send a request and return the whole answer. Raises NotSent, NoAnswer."""

    async def stream(self, url: str, ask: Ask, timeout_s: float) -> RelayedAnswer:
        """Send a request and return its answer once it has begun. Raises NotSent, NoAnswer."""

    async def close(self) -> None:
        """Close everything; requests in flight end as unanswered."""


class RelayedStream:
    """A streamed answer. It calls ``closed`` once, when its reader has closed it."""

    def __init__(self, answer: RelayedAnswer, closed: Callable[[], None]) -> None:
        """Pass this answer on."""
        self._answer = answer
        self._closed: Callable[[], None] | None = closed
        self.status = answer.status
        self.headers = answer.headers
        self.chunk = answer.chunk

    @property
    def ended(self) -> bool:
        """True if the whole answer has arrived."""
        return self._answer.ended

    def close(self) -> None:
        """Stop reading."""
        closed, self._closed = self._closed, None
        if closed is not None:
            self._answer.close()
            closed()


class HttpPeers:
    """Reaches the other nodes over TCP. Create, use and close it in one event loop."""

    def __init__(
        self,
        *,
        reached_at: Mapping[str, str] | None = None,
        idle_s_max: float = IDLE_S_MAX,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        only_tls: bool = False,
    ) -> None:
        """Begin without a connection. ``reached_at`` has the address of a node that is not reached at its own URL.

        ``tls`` returns the context for nodes whose URL is https. A node's certificate must have the host of the URL
        that the node advertises, however it is reached. With ``only_tls`` other nodes are not asked.
        """
        self._reached_at = reached_at or {}
        self._tls = tls
        self._only_tls = only_tls
        self._idle_s_max = idle_s_max
        self._soon: dict[str, Pool[OutboundConnection]] = {}
        self._streams: dict[str, Pool[OutboundConnection]] = {}
        self._retired: WeakKeyDictionary[Pool[OutboundConnection], None] = WeakKeyDictionary()
        """Pools of nodes that are gone, while requests use them. In order: a simulation must repeat."""

    async def exchange(self, url: str, ask: Ask, timeout_s: float) -> HttpAnswer:
        """Send a request and return the whole answer. Raises NotSent, NoAnswer."""
        pool = self._pool(self._soon, url, CONNECTIONS_MAX)
        deadline = asyncio.get_running_loop().time() + timeout_s
        connection = await self._take(pool, url, timeout_s)
        try:
            left_s = max(deadline - asyncio.get_running_loop().time(), 0.001)
            return await connection.exchange(ask, left_s)
        finally:
            _give_back(pool, connection)

    async def stream(self, url: str, ask: Ask, timeout_s: float) -> RelayedAnswer:
        """Send a request and return its answer once it has begun. Raises NotSent, NoAnswer."""
        pool = self._pool(self._streams, url, STREAMS_MAX)
        deadline = asyncio.get_running_loop().time() + timeout_s
        # If polls hold all connections, the caller reads storage after this time instead.
        connection = await self._take(pool, url, min(timeout_s, CONNECT_S))
        try:
            left_s = max(deadline - asyncio.get_running_loop().time(), 0.001)
            streamed = await connection.stream(ask, left_s)
        except BaseException:
            _give_back(pool, connection)
            raise
        return RelayedStream(streamed, partial(_give_back, pool, connection))

    def forget_others(self, urls: Collection[str]) -> None:
        """Forget all nodes but those at ``urls``. Requests in flight to the others may still be answered."""
        for pools in (self._soon, self._streams):
            for url in sorted(pools.keys() - urls):
                pool = pools.pop(url)
                pool.retire()
                self._retired[pool] = None

    def _pool(
        self, pools: dict[str, Pool[OutboundConnection]], url: str, connections_max: int
    ) -> Pool[OutboundConnection]:
        pool = pools.get(url)
        if pool is None:
            pool = pools[url] = Pool(connections_max, self._idle_s_max)
        return pool

    async def _take(
        self, pool: Pool[OutboundConnection], url: str, timeout_s: float
    ) -> OutboundConnection:
        """Return a connection that no other request uses. Raises NotSent."""
        reached = self._reached_at.get(url, url)
        if self._only_tls and not (url.startswith("https:") and reached.startswith("https:")):
            raise NotSent(f"{url} is not https, and this node reaches others over TLS alone")
        if not await pool.enter(timeout_s):
            raise NotSent(f"too many requests to {url} are in flight")
        try:
            connection = pool.take(reached)
            if connection is None:
                opening = open_connection(
                    OutboundConnection(reached, {}),
                    min(timeout_s, CONNECT_S),
                    self._tls(),
                    name=Address.of(url).host,
                )
                connection = pool.add(await opening)
        except BaseException:
            pool.leave()
            raise
        return connection

    async def close(self) -> None:
        """Close everything; requests in flight end as unanswered."""
        for pools in (self._soon, self._streams):
            while pools:
                self._retired[pools.popitem()[1]] = None
        for pool in list(self._retired):
            pool.close("this node closed the connection")


def _give_back(pool: Pool[OutboundConnection], connection: OutboundConnection) -> None:
    pool.put_back(connection)
    pool.leave()


async def whole(relay: RelayedAnswer, silence_s: float) -> HttpAnswer:
    """Read an answer to its end. Raises NoAnswer, also if it has more than ``REPLY_BYTES_MAX``."""
    try:
        blocks: list[bytes] = []
        pieces: list[bytes] = []
        size = 0
        while chunk := await relay.chunk(silence_s):
            size += len(chunk)
            if size > REPLY_BYTES_MAX:
                raise NoAnswer(f"the answer has more than {REPLY_BYTES_MAX} bytes")
            pieces.append(chunk)
            if (
                len(pieces) == BLOCK_PIECES
            ):  # Each bytes object needs some 40 bytes beside its content.
                is_small = sum(map(len, pieces)) < BLOCK_BYTES
                blocks += [b"".join(pieces)] if is_small else pieces
                pieces.clear()
        blocks += pieces
        if size > JOIN_BYTES_MAX:  # The join would block the event loop; it releases the GIL.
            body = await asyncio.to_thread(b"".join, blocks)
        else:
            body = b"".join(blocks)
        return HttpAnswer(relay.status, relay.headers, body)
    finally:
        relay.close()
