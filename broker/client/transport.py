"""How requests reach the broker, over connections that stay open.

``Transport`` is the port; a simulation passes its own. ``HttpTransport`` is the real one. It has two pools of
``ClientConnection``. One is for writes. The other is for answers that are long, slow or endless, which the client
reads as streams. So a poll that waits never blocks a write. ``NodeDirectory`` chooses the node for a request. If the
node can't be reached, the same attempt goes on with the next node.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from typing_extensions import override

from broker.client import outcomes, protocol
from broker.client.client_request import ClientRequest, Reply, request_for
from broker.client.connection import ClientConnection
from broker.client.credentials import Credentials, MemberTrust, listed_members, proves_members
from broker.client.node_directory import NodeDirectory
from broker.client.values import Settings
from broker.errors import BrokerError, Unavailable
from broker.http.answer import NotSent
from broker.http.certificates import client_context
from broker.http.outbound import Streamed
from broker.http.pool import Pool, open_connection
from broker.model import TopicId
from broker.operations.parameters import TIMEOUT
from broker.shield import bare

T = TypeVar("T")

OTHERS_CONNECT_S_MAX: Final = 3.0
OTHERS_CONNECT_SHARE: Final = 0.25
"""While there is another node to try, an attempt to connect ends after so many seconds, or after this share of the
deadline. Some attempts of a call may take only half of the deadline; with this share they still reach two nodes."""

DEADLINE_S: Final = Settings().deadline_s

LOOK_S_MAX: Final = 1.0
"""How long a node may take to name a topic's leader."""
OWN_VIEW_S: Final = "0.2"
"""For so long that node may ask the leader. A frozen leader does not answer; then the node tells what it knows."""
LEADER_BYTES_MAX: Final = 64 * 1024

CLOSED: Final = "the client was closed"
NO_CONNECTION: Final = "no connection was available in time"


class StreamedReply(NamedTuple):
    """An answer whose body still arrives. ``chunks`` ends without an error only at the end of the body.

    ``forwarded`` is True if another node leads the topic, so that the answer takes an extra hop. A stream may name
    a new leader, in the form of ``Broker-Leader``: ``moved`` records it, and returns whether to ask that node
    instead.
    """

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]
    forwarded: bool = False
    moved: Callable[[str], bool] = lambda _: False
    url: str = ""
    """The address that was asked."""

    @property
    def closing(self) -> bool:
        """True if the server closes the connection after it, as a node does that is about to stop."""
        return self.headers.get("connection", "").lower() == "close"


class OpenedStream(AbstractAsyncContextManager[StreamedReply]):
    """A context of an answer. ``enter`` returns the answer, and the function that leaves the context.

    Iterators use it in place of a generator with ``asynccontextmanager``. An iterator may be left open; at the end of a
    loop asyncio closes all generators in any order, and such a context does not bear to be closed before its iterator.
    """

    def __init__(
        self, enter: Callable[[], Awaitable[tuple[StreamedReply, Callable[..., Awaitable[Any]]]]]
    ) -> None:
        self._enter = enter

    @override
    async def __aenter__(self) -> StreamedReply:
        reply, self._leave = await self._enter()
        return reply

    @override
    async def __aexit__(self, *details: object) -> None:
        await self._leave(*details)


class Transport(Protocol):
    """Sends requests. Every method raises only Unavailable or OutcomeUnknown."""

    async def send(self, request: ClientRequest, timeout_s: float) -> Reply:
        """Send a write and return the whole answer, within ``timeout_s``."""

    def stream(
        self, request: ClientRequest, timeout_s: float
    ) -> AbstractAsyncContextManager[StreamedReply]:
        """Send a read. ``timeout_s`` bounds the wait for the beginning of the answer, and then each silence."""

    async def connect(self, topic: TopicId | None) -> ClientConnection:
        """Open a connection outside of the pools, to the node to ask about a topic. The caller closes it."""

    async def close(self) -> None:
        """Close all connections; requests in flight end as unanswered."""


def trusting(ca_file: str, certificate_file: str = "", key_file: str = "") -> ssl.SSLContext:
    """Return a TLS context of these files; an empty name stands for none. Raises ValueError, which names a bad file."""
    return client_context(ca_file, certificate_file, key_file)


class HttpTransport:
    """Sends requests over HTTP/1.1. Use it in one event loop at a time."""

    def __init__(
        self,
        settings: Settings,
        tls: ssl.SSLContext | None = None,
        nodes: NodeDirectory | None = None,
    ) -> None:
        self._settings = settings
        self._headers = {"User-Agent": "broker-client", **dict(settings.headers)}
        files = (settings.ca_file, settings.certificate_file, settings.key_file)
        chosen = tls is not None or bool(settings.ca_file)
        if tls is None and any(files):
            tls = trusting(*files)
        self._credentials = Credentials(settings.bearer, settings.token_file)
        trust = MemberTrust(
            settings.urls,
            listed_members(settings.trust_members),
            by_certificate=chosen and proves_members(tls),
        )
        self._nodes = nodes or NodeDirectory(
            settings.urls,
            follow=settings.follow_leaders,
            only_by_given=bool(settings.headers),
            trusts=trust.allows if settings.has_credentials else None,
        )
        self._reading_headers = {"Accept-Encoding": "identity", **self._headers}
        self._tls = tls
        self._loop: asyncio.AbstractEventLoop | None = None
        self._make_pools()
        self._closed = False

    def _make_pools(self) -> None:
        """Begin without connections: those of a loop that has ended can be neither used nor closed."""
        settings = self._settings
        self._writes: Pool[ClientConnection] = Pool(settings.connections_max, settings.idle_s_max)
        self._reads: Pool[ClientConnection] = Pool(settings.connections_max, settings.idle_s_max)
        self._opening: set[asyncio.Future[ClientConnection]] = set()

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if self._loop is not None:
                self._make_pools()
            self._loop = loop

    async def connect(self, topic: TopicId | None) -> ClientConnection:
        """Open a connection outside of the pools, to the node to ask about a topic. The caller closes it."""
        self._check_loop()
        return await self._try_nodes(topic, partial(self._open, self._headers))

    async def _open(
        self, headers: Mapping[str, str], url: str, timeout_s: float
    ) -> ClientConnection:
        self._check_open()
        settings = self._settings
        # A standalone broker never waits for a leader, and handles a request without a limit faster.
        several = self._nodes.several
        connection = ClientConnection(
            url,
            headers,
            self._nodes,
            settings.idle_s_max,
            credentials=self._credentials,
            moved=self._has_moved if several else None,
            with_limit=several or settings.deadline_s != DEADLINE_S,
        )
        opening = asyncio.ensure_future(open_connection(connection, timeout_s, self._tls))
        self._opening.add(opening)
        try:
            await opening
        except NotSent as error:
            raise outcomes.never_sent(error) from error
        except asyncio.CancelledError as error:
            connection.close()  # It may have been opened in the same iteration of the loop.
            self._check_why_cancelled(error)
            raise
        finally:
            self._opening.discard(opening)
            del opening  # The error's traceback keeps this frame.
        try:
            self._check_open()
        except Unavailable:
            connection.close()
            raise
        return connection

    def _check_open(self) -> None:
        if self._closed:
            raise outcomes.never_sent(CLOSED)

    async def _try_nodes(
        self,
        topic: TopicId | None,
        attempt: Callable[[str, float], Awaitable[T]],
        ends: float = math.inf,
    ) -> T:
        """Call ``attempt`` with the best address, and with other addresses while a node can't be reached.

        ``attempt`` also gets its time limit for connecting. At the time ``ends``, no further node is tried.
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

    async def send(self, request: ClientRequest, timeout_s: float) -> Reply:
        """Send a write on an idle connection, or on a new one."""
        self._check_loop()
        ends = _now() + timeout_s
        if not await self._writes.enter(timeout_s):
            raise outcomes.never_sent(NO_CONNECTION)
        try:
            connection = await self._take(request.topic, ends)
            try:
                return await connection.send(request, ends - _now())
            finally:
                self._writes.put_back(connection)
        finally:
            self._writes.leave()

    async def _take(self, topic: TopicId | None, ends: float) -> ClientConnection:
        """Return an idle or a new connection for a write. Raises Unavailable, also if it comes too late."""
        place = self._nodes.place(topic, _now())
        assert place is not None, "there is always a first address"
        connection = self._writes.take(place)
        if connection is not None:
            return connection
        try:
            async with asyncio.timeout_at(ends):
                return self._writes.add(await self.connect(topic))
        except TimeoutError as error:
            raise outcomes.never_sent(NO_CONNECTION) from bare(error)

    def stream(
        self, request: ClientRequest, timeout_s: float
    ) -> AbstractAsyncContextManager[StreamedReply]:
        """Send a read and yield its answer as a stream."""
        return OpenedStream(partial(self._stream, request, timeout_s))

    async def _stream(
        self, request: ClientRequest, timeout_s: float
    ) -> tuple[StreamedReply, Callable[..., Awaitable[None]]]:
        self._check_loop()
        ends = _now() + timeout_s  # One limit for all nodes that are tried until one answers.
        reads = self._reads
        if not await reads.enter(timeout_s):
            raise outcomes.never_sent(NO_CONNECTION)
        try:
            begin = partial(self._begin, request, ends)
            connection, streamed = await self._try_nodes(request.topic, begin, ends)
        except BaseException:
            reads.leave()
            raise

        async def leave(*_: object) -> None:
            streamed.close()
            reads.put_back(connection)
            reads.leave()

        return self._streamed(connection, streamed, request, timeout_s), leave

    async def _begin(
        self, request: ClientRequest, ends: float, url: str, connect_s: float
    ) -> tuple[ClientConnection, Streamed]:
        """Send a read to one node and wait until its answer begins. Raises Unavailable."""
        connection = self._reads.take(url)
        if connection is None:
            connect_s = max(0.0, min(connect_s, ends - _now()))
            opened = await self._open(self._reading_headers, url, connect_s)
            connection = self._reads.add(opened)
        try:
            return connection, await connection.read(request, max(0.0, ends - _now()))
        except BaseException:
            self._reads.put_back(connection)
            raise

    def _streamed(
        self,
        connection: ClientConnection,
        streamed: Streamed,
        request: ClientRequest,
        silence_s: float,
    ) -> StreamedReply:
        url, topic = connection.url, request.topic

        async def chunks() -> AsyncIterator[bytes]:
            while chunk := await connection.chunk(streamed, request, silence_s):
                yield chunk

        def moved(leader: str) -> bool:
            assert topic is not None, "only an answer about a topic names a leader"
            self._nodes.heard(topic, url, leader, _now())
            known = self._nodes.leader(topic)
            place = self._nodes.place(topic, _now())
            return known is not None and known.url == place != url

        forwarded = self._nodes.place(topic, _now()) != url
        return StreamedReply(
            streamed.status, streamed.headers, chunks(), forwarded, moved, connection.url
        )

    async def _has_moved(self, topic: TopicId, silent: str) -> bool:
        """Ask another node for a topic's leader. Return whether it names another one than the silent node."""
        tried = [silent]
        while (url := self._nodes.place(topic, _now(), tried)) is not None:
            tried.append(url)
            leader = await self._leader_by(url, topic)
            if leader is not None:
                if leader == silent:
                    return False
                self._nodes.heard(topic, url, leader, _now())
                return True
        return False

    async def _leader_by(self, url: str, topic: TopicId) -> str | None:
        """Return the address of the node that should lead a topic, as the node at ``url`` knows it."""
        request = request_for("leader", topic, headers={TIMEOUT.name: OWN_VIEW_S})
        if not await self._reads.enter(LOOK_S_MAX):
            return None
        try:
            ends = _now() + LOOK_S_MAX
            connection, streamed = await self._begin(request, ends, url, LOOK_S_MAX)
            try:
                body = b""
                while chunk := await connection.chunk(streamed, request, max(0.0, ends - _now())):
                    body += chunk
                    if len(body) > LEADER_BYTES_MAX:
                        return None
                reply = Reply(streamed.status, streamed.headers, body, url)
                named: object = protocol.named_leader(outcomes.checked(request, reply)).url
                return named if isinstance(named, str) else None
            finally:
                streamed.close()
                self._reads.put_back(connection)
        except (BrokerError, ValueError, TypeError, KeyError):
            return None  # It is no node, or knows no leader.
        finally:
            self._reads.leave()

    def _check_why_cancelled(self, error: asyncio.CancelledError) -> None:
        """Raise Unavailable to a call that waits for a connection, if a close cancelled its wait."""
        task = asyncio.current_task()
        if self._closed and task is not None and not task.cancelling():
            raise outcomes.never_sent(CLOSED) from error

    async def close(self) -> None:
        """Close all connections; requests in flight end as unanswered, and no request begins any more."""
        self._closed = True
        self._check_loop()
        for opening in self._opening:
            opening.cancel()
        for pool in (self._writes, self._reads):
            pool.close(CLOSED)


def _now() -> float:
    return asyncio.get_running_loop().time()
