"""How requests reach the broker: writes on connections of our own, reading through aiohttp.

``Transport`` is the port; a simulation passes its own. ``HttpTransport`` is the real one: for each node
a pool of ``Connection`` for writes (one request at a time on each), and a session of aiohttp for answers
that are long, slow or endless, which it reads piece by piece. Which node a request goes to is up to
``Nodes``; one that can't be reached is passed over for the next, within the same attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, NamedTuple, Protocol, TypeVar

import aiohttp
from yarl import URL

from broker.client import outcomes
from broker.client.connection import Connection, note_reply
from broker.client.leaders import Nodes
from broker.client.protocol import Reply, Request
from broker.client.values import Settings
from broker.errors import Unavailable
from broker.http import asking
from broker.http.address import Address
from broker.http.answer import NotSent
from broker.http.asking import header_lines
from broker.model import TopicId

T = TypeVar("T")

OTHERS_CONNECT_S_MAX: Final = 3.0
OTHERS_CONNECT_SHARE: Final = 0.25
"""How long an attempt to connect may take while there is another node to try: in seconds, and as a part
of the deadline, so that half of it, which is all that some attempts have, is enough for two nodes."""


DEADLINE_S: Final = Settings().deadline_s
REQUEST_TIMEOUT_S_MAX: Final = 300.0
"""How long a broker lets a request wait at most."""


class StreamedReply(NamedTuple):
    """An answer of which the body is still to come; ``chunks`` ends cleanly only at its end.

    ``forwarded`` tells that another node leads the topic, so that a long answer takes a detour. ``moved``
    is given what the answer itself says of who leads from now on (as ``Broker-Leader`` does) and tells
    whether that node is to be asked instead.
    """

    status: int
    headers: dict[str, str]
    chunks: AsyncIterator[bytes]
    forwarded: bool = False
    moved: Callable[[str], bool] = lambda _: False

    @property
    def closing(self) -> bool:
        """Whether the server closes the connection after it, as one does that is about to stop."""
        return self.headers.get("connection", "").lower() == "close"


class Transport(Protocol):
    """What carries requests. Every method raises Unavailable or OutcomeUnknown, nothing else."""

    async def send(self, request: Request, timeout_s: float) -> Reply:
        """Send a write and return the whole answer; ``timeout_s`` is for all that this takes."""

    def stream(
        self, request: Request, timeout_s: float
    ) -> AbstractAsyncContextManager[StreamedReply]:
        """Send a read; ``timeout_s`` is until its answer begins, and then for each silence."""

    async def connect(self, topic: TopicId | None) -> Connection:
        """Open a connection for somebody's own use, to the node to ask about a topic."""

    async def close(self) -> None:
        """Close everything; requests under way end as unanswered."""


class HttpTransport:
    """Carries requests over HTTP/1.1. To be made, used and closed in one event loop.

    Raises:
        ValueError: an address of the settings isn't one, or a header is none.
    """

    def __init__(
        self,
        settings: Settings,
        tls: ssl.SSLContext | None = None,
        nodes: Nodes | None = None,
    ) -> None:
        for url in settings.urls:
            Address.of(url)
        self._settings = settings
        self._nodes = nodes or Nodes(settings.urls, follow=settings.follow_leaders)
        self._headers = {"User-Agent": "broker-client", **dict(settings.headers)}
        header_lines(self._headers)
        if tls is None and settings.ca_file:
            tls = ssl.create_default_context(cafile=settings.ca_file)
        self._tls = tls
        self._idle: list[Connection] = []
        self._busy: dict[Connection, None] = {}
        self._slots = asyncio.Semaphore(settings.connections_max)
        self._session: aiohttp.ClientSession | None = None
        self._answers: set[aiohttp.ClientResponse] = set()
        """Those that are being read."""
        self._opening: set[asyncio.Future[Connection]] = set()
        self._closed = False

    async def connect(self, topic: TopicId | None) -> Connection:
        """Open a connection for somebody's own use, to the node to ask about a topic."""
        return await self._anywhere(topic, self._open)

    async def _open(self, url: str, timeout_s: float) -> Connection:
        self._check_open()
        headers = {**self._headers, **self._patience()}
        nodes, idle_s_max = self._nodes, self._settings.idle_s_max
        opening = asyncio.ensure_future(
            asking.open_connection(
                Address.of(url),
                lambda: Connection(url, headers, nodes, idle_s_max),
                timeout_s,
                self._tls,
            )
        )
        self._opening.add(opening)
        try:
            connection = await opening
        except NotSent as error:
            raise outcomes.never_sent(error) from error
        except asyncio.CancelledError as error:
            self._check_why_cancelled(error)
            raise
        finally:
            self._opening.discard(opening)
        try:
            self._check_open()
        except Unavailable:
            connection.close()
            raise
        return connection

    def _check_open(self) -> None:
        if self._closed:
            raise outcomes.never_sent("the client was closed")

    def _patience(self) -> dict[str, str]:
        """Return the header that lets a node refuse what it can't do, before this side gives up.

        Without it a publish that waits for a leader for too long would end unknown. A broker that
        stands alone has nothing to wait for, and does less for a request without it.
        """
        deadline_s = self._settings.deadline_s
        if deadline_s == DEADLINE_S and not self._nodes.several:
            return {}
        return {"Request-Timeout": f"{min(REQUEST_TIMEOUT_S_MAX, 0.9 * deadline_s):g}"}

    async def _anywhere(
        self,
        topic: TopicId | None,
        attempt: Callable[[str, float], Awaitable[T]],
        ends: float = math.inf,
    ) -> T:
        """Call ``attempt`` with the best address, then with others while it can't be reached.

        It is given how long it may connect. When the time is ``ends``, no other node is tried.
        """
        tried: list[str] = []
        url = self._nodes.place(topic, _now())
        timeout_s = self._settings.connect_timeout_s
        share_s = OTHERS_CONNECT_SHARE * self._settings.deadline_s
        others_s = min(timeout_s, OTHERS_CONNECT_S_MAX, share_s)
        while True:
            assert url is not None, "there is always a first address"
            tried.append(url)
            following = self._nodes.place(topic, _now(), tried)
            last = following is None
            try:
                return await attempt(url, timeout_s if last else others_s)
            except Unavailable:
                self._nodes.lost(url, _now())
                if last or _now() >= ends:
                    raise
            url = following

    async def send(self, request: Request, timeout_s: float) -> Reply:
        """Send a write on an idle connection, or on a new one."""
        ends = _now() + timeout_s
        connection = await self._take(request.topic, ends)
        self._busy[connection] = None
        try:
            return await connection.send(request, ends - _now())
        finally:
            self._busy.pop(connection, None)
            if connection.usable:
                self._idle.append(connection)
            self._slots.release()

    async def _take(self, topic: TopicId | None, ends: float) -> Connection:
        """Take a slot, and a connection for it, idle or new. Raises Unavailable, also if it is late."""
        try:
            async with asyncio.timeout_at(ends):
                await self._slots.acquire()
                try:
                    return self._take_idle(topic) or await self.connect(topic)
                except BaseException:
                    self._slots.release()
                    raise
        except TimeoutError as error:
            raise outcomes.never_sent("no connection was to be had in time") from error

    def _take_idle(self, topic: TopicId | None) -> Connection | None:
        """Return the connection to the right node used last; close those idle for too long."""
        place = self._nodes.place(topic, _now())
        for connection in reversed(self._idle):
            if connection.url == place:
                self._idle.remove(connection)
                if connection.good_for(topic):
                    return connection
                connection.close()
        self._close_idle()
        return None

    def _close_idle(self) -> None:
        oldest = _now() - self._settings.idle_s_max
        kept: list[Connection] = []
        for connection in self._idle:
            if connection.usable and connection.idle_since >= oldest:
                kept.append(connection)
            else:
                connection.close()
        self._idle = kept

    @asynccontextmanager
    async def stream(self, request: Request, timeout_s: float) -> AsyncGenerator[StreamedReply]:
        """Send a read and give its answer piece by piece."""
        ends = _now() + timeout_s  # For all nodes together that are asked until one answers.

        async def begin(url: str, connect_s: float) -> tuple[str, aiohttp.ClientResponse]:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_s, sock_read=timeout_s)
            with _read_errors(request):
                async with asyncio.timeout_at(ends):
                    return url, await self._begin(url, request, timeout)

        url, response = await self._anywhere(request.topic, begin, ends)
        self._answers.add(response)
        try:
            headers = {name.lower(): value for name, value in response.headers.items()}
            note_reply(self._nodes, url, request, response.status, headers)
            chunks = self._chunks(url, response, request)
            forwarded = self._nodes.place(request.topic, _now()) != url

            def moved(leader: str) -> bool:
                assert request.topic is not None, "led is a topic"
                self._nodes.heard(request.topic, url, leader, _now())
                known = self._nodes.leader(request.topic)
                place = self._nodes.place(request.topic, _now())
                return known is not None and known.url == place != url

            yield StreamedReply(response.status, headers, chunks, forwarded, moved)
        finally:
            self._answers.discard(response)
            response.close()  # No effect on the connection of an answer that was read to its end.

    async def _begin(
        self, url: str, request: Request, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        try:
            return await self._reading().request(
                request.method,
                URL(f"{url}{request.path}", encoded=True),
                headers=request.headers,
                data=request.body or None,
                timeout=timeout,
                allow_redirects=False,
            )
        except asyncio.CancelledError as error:
            self._check_why_cancelled(error)
            raise

    def _check_why_cancelled(self, error: asyncio.CancelledError) -> None:
        """Raise what a close means to those who wait for a connection, if it was a close."""
        task = asyncio.current_task()
        if self._closed and task is not None and not task.cancelling():
            raise outcomes.never_sent("the client was closed") from error

    async def _chunks(
        self, url: str, response: aiohttp.ClientResponse, request: Request
    ) -> AsyncIterator[bytes]:
        with _read_errors(request):
            try:
                async for chunk in response.content.iter_any():
                    yield chunk
            except (
                RuntimeError
            ) as error:  # What aiohttp says when the session was closed meanwhile.
                raise outcomes.no_answer(request, error) from error
            except (aiohttp.ClientError, TimeoutError, ConnectionError):
                self._nodes.lost(url, _now())
                raise

    def _reading(self) -> aiohttp.ClientSession:
        self._check_open()
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
        """Close everything; requests under way end as unanswered, and none begins any more."""
        self._closed = True
        for opening in self._opening:
            opening.cancel()
        for connection in [*self._idle, *self._busy]:
            connection.close()
        self._idle.clear()
        for answer in self._answers:
            # Closing the session wakes nobody who reads. What has arrived whole is read to its end.
            if not answer.content.is_eof():
                answer.content.set_exception(aiohttp.ClientConnectionError("the client was closed"))
        if self._session is not None:
            await self._session.close()
            self._session = None


def _now() -> float:
    return asyncio.get_running_loop().time()


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
