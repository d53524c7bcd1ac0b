"""How requests reach the broker: writes on connections of our own, reading through aiohttp.

``Transport`` is the port; a simulation passes its own. ``HttpTransport`` is the real one: a pool of
``Connection`` for writes (one request at a time on each), and a session of aiohttp for answers that
are long, slow or endless, which it reads piece by piece.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple, Protocol

import aiohttp
from yarl import URL

from broker.client import outcomes
from broker.client.connection import Address, Connection, open_connection
from broker.client.protocol import Reply, Request
from broker.client.values import Settings


class StreamedReply(NamedTuple):
    """An answer of which the body is still to come; ``chunks`` ends cleanly only at its end."""

    status: int
    headers: dict[str, str]
    chunks: AsyncIterator[bytes]


class Transport(Protocol):
    """What carries requests. Every method raises Unavailable or OutcomeUnknown, nothing else."""

    async def send(self, request: Request, timeout_s: float) -> Reply:
        """Send a write and return the whole answer."""

    def stream(
        self, request: Request, timeout_s: float
    ) -> AbstractAsyncContextManager[StreamedReply]:
        """Send a read; ``timeout_s`` bounds each silence, not the whole."""

    async def connect(self) -> Connection:
        """Open a connection for somebody's own use."""

    async def close(self) -> None:
        """Close everything; requests under way end as unanswered."""


class HttpTransport:
    """Carries requests over HTTP/1.1. To be made, used and closed in one event loop."""

    def __init__(self, settings: Settings, tls: ssl.SSLContext | None = None) -> None:
        self._settings = settings
        self._address = Address.of(settings.url)
        self._headers = {"User-Agent": "broker-client", **dict(settings.headers)}
        self._tls = tls
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._slots = asyncio.Semaphore(settings.connections_max)
        self._session: aiohttp.ClientSession | None = None
        self._base = settings.url.rstrip("/")

    async def connect(self) -> Connection:
        """Open a connection for somebody's own use."""
        timeout_s = self._settings.connect_timeout_s
        return await open_connection(self._address, self._headers, timeout_s, self._tls)

    async def send(self, request: Request, timeout_s: float) -> Reply:
        """Send a write on an idle connection, or on a new one."""
        async with self._slots:
            connection = self._take_idle() or await self.connect()
            self._busy.add(connection)
            try:
                return await connection.send(request, timeout_s)
            finally:
                self._busy.discard(connection)
                if connection.usable:
                    self._idle.append(connection)

    def _take_idle(self) -> Connection | None:
        """Return the connection used last, if it is still good; close those idle for too long."""
        oldest = asyncio.get_running_loop().time() - self._settings.idle_s_max
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.idle_since >= oldest:
                return connection
            connection.close()
        return None

    @asynccontextmanager
    async def stream(self, request: Request, timeout_s: float) -> AsyncGenerator[StreamedReply]:
        """Send a read and give its answer piece by piece."""
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._settings.connect_timeout_s, sock_read=timeout_s
        )
        with _read_errors(request):
            response = await self._reading().request(
                request.method,
                URL(f"{self._base}{request.path}", encoded=True),
                headers=request.headers,
                data=request.body or None,
                timeout=timeout,
                allow_redirects=False,
            )
        try:
            headers = {name.lower(): value for name, value in response.headers.items()}
            yield StreamedReply(response.status, headers, _chunks(response, request))
        finally:
            response.close()  # No effect on the connection of an answer that was read to its end.

    def _reading(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=self._settings.connections_max,
                    keepalive_timeout=self._settings.idle_s_max,
                    ssl=self._tls or True,
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"Accept-Encoding": "identity", **self._headers},
                skip_auto_headers=("Content-Type",),
            )
        return self._session

    async def close(self) -> None:
        """Close everything; requests under way end as unanswered."""
        for connection in [*self._idle, *self._busy]:
            connection.close()
        self._idle.clear()
        if self._session is not None:
            await self._session.close()
            self._session = None


async def _chunks(response: aiohttp.ClientResponse, request: Request) -> AsyncIterator[bytes]:
    with _read_errors(request):
        try:
            async for chunk in response.content.iter_any():
                yield chunk
        except RuntimeError as error:  # What aiohttp says when the session was closed meanwhile.
            raise outcomes.no_answer(request, error) from error


@contextlib.contextmanager
def _read_errors(request: Request) -> Generator[None]:
    """Translate aiohttp's errors at the border."""
    try:
        yield
    except aiohttp.ClientConnectorError as error:
        raise outcomes.never_sent(error.os_error) from error
    except aiohttp.ConnectionTimeoutError as error:
        raise outcomes.never_sent(error) from error
    except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
        raise outcomes.no_answer(request, str(error) or type(error).__name__) from error
