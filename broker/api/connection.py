"""One client's connection, and the listener that knows them all: what aiohttp's server lacks for us.

aiohttp parses and frames; this adds bounds over *all* connections, and what draining needs to know::

    idle ---first byte---> head ---last byte of the head---> busy ---reply sent---> idle
      |                      |                                 |
      ended by a drain       answered, or cut after a          answered
      (see parting)          deadline or a bound

Heads that never end are bounded for each connection by the parser, and for all together here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, cast

from aiohttp import web
from typing_extensions import override

from broker import logs
from broker.api.exchange import SENT_LAST, Exchange, Sent
from broker.api.parting import OUR_CLIENT, Parting, half_close, has_arrived
from broker.api.replies import error_reply
from broker.config import ServerConfig
from broker.errors import BadRequest, BrokerError, Overloaded

HEAD_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of unfinished request heads, over all connections."""
WRITE_BUFFER_BYTES = 64 * 1024
NEWCOMERS_S = 0.1
"""How long at least someone who connects during a drain may take to ask: it is what they came for."""
REQUEST_ID = "X-Request-Id"

log = logs.get_logger()


class InPlace:
    """An event loop as a connection uses it once it has its task: what it would start, it awaits."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wrap the loop."""
        self.create_future = loop.create_future
        self.time = loop.time
        self.call_at = loop.call_at

    @staticmethod
    def create_task(coroutine: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
        """Return it as it is: whoever made it awaits it at once."""
        return coroutine


class Connection(web.RequestHandler):
    """One connection. ``busy`` from the end of a request's head until its reply is sent."""

    __slots__ = (
        "__weakref__",
        "begun",
        "body_paused",
        "busy",
        "dismissed",
        "gone",
        "head_bytes",
        "headers",
        "listener",
        "parted",
    )

    def __init__(self, listener: Listener, **kwargs: Any) -> None:
        """Belong to a listener; the rest is aiohttp's."""
        super().__init__(listener, **kwargs)
        self.listener = listener
        self.begun = False
        """Whether a request was taken from those that were read; ``busy`` comes a turn later."""
        self.busy = False
        self.body_paused = False
        self.gone: asyncio.Future[None] | None = None
        self.head_bytes = 0
        self.headers: Mapping[str, str] = {}
        """Those of the last request."""
        self.dismissed = False
        self.parted: asyncio.Transport | None = None
        """The way to a client that was sent the end, which aiohttp would close at once."""

    @property
    def in_use(self) -> bool:
        """Whether a request is under way, or has begun to arrive."""
        return self.busy or self.head_bytes > 0

    @property
    def has_read_ahead(self) -> bool:
        """Whether a request was read while the one before it was under way, and is not answered."""
        return self.begun or bool(self._messages)

    @property
    def has_unread(self) -> bool:
        """Whether something lies in the socket that the loop has not come to yet."""
        return self.transport is not None and has_arrived(self.transport)

    @property
    def knows_last_words(self) -> bool:
        """Whether the client takes an answer to nothing for what it is."""
        return self.headers.get("User-Agent", "").startswith(OUR_CLIENT)

    def dismiss(self, words: bytes) -> None:
        """Send the last words and the end, and read nothing more."""
        self.dismissed = True
        if self.transport is not None and not half_close(self.transport, words):
            self.force_close()

    def say_goodbye(self) -> None:
        """Send the end after the last answer, and look at nothing that still comes."""
        transport = self.transport
        if transport is not None and half_close(transport):
            self.dismissed = True
            self.parted, self.transport = transport, None
            self.listener.parting.linger(self)

    @override
    def force_close(self) -> None:
        super().force_close()
        if self.parted is not None:
            self.parted.close()
            self.parted = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not self.listener.admit(self):
            cast("asyncio.Transport", transport).write(self.listener.refusal())
            transport.close()
            return
        super().connection_made(transport)
        self._loop = cast("Any", self.listener.in_place)
        cast("asyncio.Transport", transport).set_write_buffer_limits(WRITE_BUFFER_BYTES)

    # To aiohttp a request's reply is still to be made ready, sent and logged when its handler returns, and
    # each handler is a task of its own. Ours has sent it, and runs in the connection's task: a tenth of
    # the cost of a small request.

    @override
    async def _handle_request(
        self, request: Any, start_time: float | None, request_handler: Callable[[Any], Any]
    ) -> tuple[web.StreamResponse, bool]:
        self._request_in_progress = True
        self._current_request = request
        try:
            reply = await request_handler(request)
            if self._upgraded:  # Asked for and declined: what came behind it is still to be parsed.
                return await self.finish_response(request, reply, start_time)
            return reply, False
        finally:
            self._current_request = None
            self._request_in_progress = False
            if self._handler_waiter is not None:
                self._handler_waiter.set_result(None)

    @override
    def data_received(self, data: bytes) -> None:
        # No bytes come when the parser is asked to go on with what it has.
        if (
            data
            and not self.busy
            and (self.dismissed or not self.listener.head_grew(self, len(data)))
        ):
            return
        super().data_received(data)

    # Reading a body resumes the transport every time, also if nothing had paused it, and each time the
    # parser is run over no bytes. That is a tenth of the cost of a small request.

    @override
    def pause_reading(self) -> None:
        self.body_paused = True
        super().pause_reading()

    @override
    def resume_reading(self, *args: Any, **kwargs: Any) -> None:
        if self.body_paused:
            self.body_paused = False
            super().resume_reading(*args, **kwargs)

    @override
    def connection_lost(self, exc: BaseException | None) -> None:
        self.listener.left(self)
        self.abandon()
        super().connection_lost(exc)

    def abandoned(self) -> asyncio.Future[None]:
        """Return a future that is done once the client is gone or the node drains."""
        if self.gone is None:
            self.gone = asyncio.get_running_loop().create_future()
            if self.transport is None or self.listener.draining:
                self.gone.set_result(None)
        return self.gone

    def abandon(self) -> None:
        """Tell whoever waits on behalf of this client that there is no use in it."""
        if self.gone is not None and not self.gone.done():
            self.gone.set_result(None)

    @override
    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what could not be parsed, and end the connection."""
        return self.listener.answer_unparsed(self, message or repr(exc))


class Listener(web.Server):
    """All connections of a node, and what they use together."""

    def __init__(
        self,
        handler: Callable[[Exchange], Awaitable[web.StreamResponse]],
        config: ServerConfig,
        new_id: Callable[[], str],
    ) -> None:
        """Serve with ``handler``; ``new_id`` names what is answered here. Only in the event loop."""
        # To aiohttp's types an Exchange is no request; that it is enough of one, the tests show.
        super().__init__(cast("Any", handler), request_factory=cast("Any", Exchange))
        self._options: dict[str, Any] = {
            "access_log": None,
            "auto_decompress": False,
            "keepalive_timeout": config.keep_alive_s,
            "max_line_size": config.request_line_bytes_max,
            "max_field_size": config.header_bytes_max,
            "max_headers": config.headers_max,
        }
        self._event_loop = asyncio.get_running_loop()
        self.in_place = InPlace(self._event_loop)
        self._connections_max = config.connections_max
        self._head_deadline_s = config.header_deadline_s
        self.draining = False
        self.open: dict[Connection, None] = {}
        self.heads: dict[Connection, float] = {}
        """Connections with an unfinished head, oldest first, and when it began."""
        self.busy = 0
        self.head_bytes = 0
        self._quiet: asyncio.Future[None] = self._event_loop.create_future()
        self.refused = 0
        self._new_id = new_id
        self.parting = Parting(self._event_loop, self._check_quiet)
        self._patience_s = 0.0

    @override
    def __call__(self) -> Connection:
        return Connection(self, loop=self._event_loop, **self._options)

    def admit(self, connection: Connection) -> bool:
        """Count a new connection, unless there are too many."""
        if len(self.open) >= self._connections_max:
            self.refused += 1
            return False
        self.open[connection] = None
        if self.draining:
            self.parting.part(connection, max(self._patience_s, NEWCOMERS_S))
        return True

    def refusal(self) -> bytes:
        """Return what a connection is told that there is no room for."""
        return self._last_words(Overloaded("This node has as many connections as it may have."))

    def left(self, connection: Connection) -> None:
        """Forget a connection."""
        self.open.pop(connection, None)
        self.parting.gone(connection)
        self._head_ended(connection)
        self._check_quiet()

    def head_grew(self, connection: Connection, size: int) -> bool:
        """Count bytes of a head; False, and the connection is cut, if all together are too many."""
        if not connection.head_bytes:
            self.heads[connection] = self._event_loop.time()
        connection.head_bytes += size
        self.head_bytes += size
        if self.head_bytes <= HEAD_BYTES_MAX:
            return True
        log.warning("connection cut", reason="too many bytes of unfinished request heads")
        self.left(connection)
        connection.force_close()
        return False

    def _head_ended(self, connection: Connection) -> None:
        if connection.head_bytes:
            self.head_bytes -= connection.head_bytes
            connection.head_bytes = 0
            del self.heads[connection]

    def request_began(self, connection: Connection) -> None:
        """Note that a whole head was read: from here on it is a request that gets an answer."""
        self._head_ended(connection)
        connection.busy = True
        self.busy += 1

    def request_ended(self, connection: Connection, *, stays_open: bool) -> None:
        """Note that the reply was sent, or can't be."""
        connection.busy = connection.begun = False
        self.busy -= 1
        if self.draining:
            if stays_open and connection in self.open:
                # Its long answer began before the drain, and has said nothing of it.
                self.parting.part(connection, self._patience_s)
            self._check_quiet()

    async def wait_quiet(self) -> None:
        """Return once no request is under way or has begun to arrive, and idle clients have gone."""
        while self._loud:
            if self._quiet.done():
                self._quiet = self._event_loop.create_future()
            await asyncio.wait((self._quiet,))

    @property
    def _loud(self) -> bool:
        return bool(self.busy or self.heads or self.parting.connections)

    def _check_quiet(self) -> None:
        if self.draining and not self._loud and not self._quiet.done():
            self._quiet.set_result(None)

    def cut_slow_heads(self) -> None:
        """Cut connections whose request's head takes too long."""
        oldest = self._event_loop.time() - self._head_deadline_s
        for connection, began in list(self.heads.items()):
            if began > oldest:
                return
            if not connection.busy:
                connection.force_close()

    def begin_drain(self, patience_s: float) -> None:
        """End what is idle, other people's after a while, and tell those who wait to answer now."""
        self.draining = True
        self._patience_s = patience_s
        for connection in list(self.open):
            connection.abandon()
            if not connection.in_use:
                self.parting.part(connection, patience_s)

    def answer_unparsed(self, connection: Connection, message: str) -> Sent:
        """Answer what is no HTTP, as far as the client can still be told."""
        words = self._last_words(BadRequest(f"This is no HTTP request: {message[:200]!a}"))
        self._head_ended(connection)
        transport = connection.transport
        if transport is not None and not transport.is_closing():
            transport.write(words)
        return SENT_LAST

    def _last_words(self, error: BrokerError) -> bytes:
        """Return a whole answer after which the connection ends, for what is not yet a request."""
        identifier = self._new_id()
        log.debug("connection refused", request_id=identifier, code=error.code, error=error.message)
        reply = error_reply(error, {})
        tail = f"{REQUEST_ID}: {identifier}\r\nConnection: close\r\n\r\n"
        return reply.head + tail.encode("ascii") + reply.body
