"""One client's connection: aiohttp's protocol, with this node's bounds around it.

aiohttp reads requests, calls the handler for one after the other (see ``exchange``), writes the replies, and stops
reading while too many requests or too much of a body wait. This module adds what the node needs, and only through the
methods that asyncio calls on every protocol::

    connection_made     the bound on connections
    data_received       counts bytes that belong to no request yet, or wait behind one; drops bytes after the end
    eof_received        a client that has stopped sending still gets its answers
    pause_writing       the bound on slow readers
    handle_error        this project's reply to bytes that are no request

A connection is *in use* from the first byte of a request until its reply is written. After the last reply it *lingers*
(see ``drain.Lingering``), and aiohttp's protocol is freed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import StreamReader, web
from typing_extensions import override

from broker.errors import BadRequest, BodyTooLarge, BrokerError, Overloaded
from broker.http.budget import Account, BudgetKind, Cut, Quota, Usage, caller_at
from broker.http.drain import (
    LINGER_S,
    TAKEN_BYTES_A_SECOND_MIN,
    half_close,
    has_arrived,
    settled,
    untaken_bytes,
)
from broker.http.reply import Reply, error_reply, not_http
from broker.long_work import CALLER
from broker.principal import NOWHERE, Principal, Remote

if TYPE_CHECKING:
    from broker.http.server import Server

WRITE_BUFFER_BYTES: Final = 64 * 1024
HEAD_BYTES_MAX: Final = 64 * 1024
"""The longest head. Its bytes are only added up if a request came in more than so many bytes."""
BEHIND_BYTES_MAX: Final = 64 * 1024
"""When so many bytes wait behind a request, the socket is not read until that request is answered."""
COUNTED_BYTES_MIN: Final = 1024
"""Smaller heads are not counted: they belong to the fixed cost of a connection."""
READ_BYTES_MAX: Final = 256 * 1024
"""The most bytes that asyncio reads from a socket at once. A network within a process may pass on more."""
UNREAD_LINGER_S: Final = 10.0
"""How long a client may go on sending a refused body before its connection is cut."""
NO_REQUEST: Final = b"\0"
"""A byte that no request has outside its body. aiohttp answers it as it answers any bytes that it can't read."""


class Connection(web.RequestHandler):
    """One connection. The loop and aiohttp use it, and ``Exchange``."""

    __slots__ = (
        "__weakref__",
        "_behind",
        "_content",
        "_counted",
        "_gone",
        "_half_closed",
        "_is_paused",
        "_refusal",
        "_server",
        "_stall",
        "account",
        "busy",
        "dismissed",
        "is_billed",
        "is_new",
        "is_ours",
        "remote",
        "usage",
    )

    def __init__(self, server: Server, manager: web.Server, **options: Any) -> None:
        """Make a connection of this server. ``manager`` is aiohttp's server, ``options`` are those of its protocol."""
        super().__init__(manager, **options)
        self._server = server
        self.account: Account
        self.usage: Usage
        """The share of the budgets that the current request uses."""
        self._content: StreamReader | None = None
        """The body of the current request."""
        self.busy = False
        """True if the handler has a request."""
        self._counted = 0
        """The bytes of heads, and of requests that wait, that are counted in the account."""
        self._behind = False
        """True if bytes came behind the current request."""
        self._is_paused = False
        """True if the socket is not read, because too much waits behind the current request."""
        self.is_new = True
        """True until the first request reaches the handler."""
        self.is_billed = False  # True once a request of a principal came.
        self.remote = NOWHERE
        """The client's end."""
        self.is_ours = False
        """True if the client is this project's client."""
        self.dismissed = False
        """True if this connection ends: bytes that still arrive are read and dropped."""
        self._refusal: Reply | None = None
        """The answer to bytes that are no request, if there is a better one than that they are none."""
        self._half_closed = False
        self._gone: asyncio.Future[None] | None = None
        self._stall: asyncio.TimerHandle | None = None

    @property
    def in_use(self) -> bool:
        """True if a request is being served, or has begun to arrive."""
        return self.busy or self in self._server.heads

    @property
    def has_unread(self) -> bool:
        """True if the socket has bytes that the loop has not read yet."""
        return self.transport is not None and has_arrived(self.transport)

    @property
    def body_is_here(self) -> bool:
        """True if the whole request has arrived."""
        return self._content is None or self._content.is_eof()

    @property
    def unsent_bytes(self) -> int:
        """The number of written bytes that the socket has not taken."""
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    @property
    def untaken_bytes(self) -> int:
        """The number of written bytes that the client has not taken."""
        return untaken_bytes(self.transport) if self.transport is not None else 0

    # --- Called by the loop -------------------------------------------------------------------------

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if peer else ""
        self.remote = Remote(address)
        CALLER.set(caller_at(address))  # For the task that aiohttp makes for all requests.
        super().connection_made(transport)
        cast("asyncio.Transport", transport).set_write_buffer_limits(WRITE_BUFFER_BYTES)
        self.account = self._server.budgets.account(address, self._cut)
        self.usage = Usage(self.account)
        refusal = self._server.admit(self)
        if refusal is not None:
            self.refuse(refusal)

    @override
    def data_received(self, data: bytes) -> None:
        # aiohttp passes empty data to itself, to go on with bytes that it has.
        if not self.dismissed and (not data or not self.body_is_here or self._takes(data)):
            super().data_received(data)

    @override
    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection open for answers that the client may still get."""
        self._half_closed = True
        # A client that has gone looks the same. So end a request that waits for new messages.
        self.abandon()
        settled(self._close_if_unused)
        return True

    @override
    def connection_lost(self, exc: BaseException | None) -> None:
        self.account.close()
        self._is_over(exc)

    def _is_over(self, exc: BaseException | None = None) -> None:
        """Free what this protocol has."""
        super().connection_lost(exc)
        # aiohttp keeps requests that wait, and these lead back here: garbage that only a full collection would free.
        self._messages.clear()
        if self._stall is not None:
            self._stall.cancel()
        self.abandon()
        self._server.left(self)

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        self._look_later(self.untaken_bytes)

    @override
    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()

    def _look_later(self, untaken: int) -> None:
        stall_s = self._server.reply_stall_s
        self._stall = self._server.call_later(stall_s, self._look_at_reader, untaken)

    def _look_at_reader(self, before: int) -> None:
        """Cut the client if it read nothing or almost nothing of its reply since the last look."""
        left = self.untaken_bytes
        if before - left < self._server.reply_stall_s * TAKEN_BYTES_A_SECOND_MIN:
            self.cut()
        else:
            self._look_later(left)

    # --- Bytes that no handler has yet --------------------------------------------------------------

    def _takes(self, data: bytes) -> bool:
        """Count bytes of heads, and of requests that wait. Return False if they are refused."""
        if self.busy:
            self._behind = self._behind or not _is_blank(data)
        elif not _is_blank(data):
            self._server.head_grew(self)
        size = min(len(data), READ_BYTES_MAX)
        if size < COUNTED_BYTES_MIN and not self._counted:
            return True
        try:
            self.account.take(BudgetKind.HEAD_BYTES, size)
        except BodyTooLarge:
            self.refuse(_too_long())
            return False
        except BrokerError as error:
            self.refuse(error)
            return False
        except Cut:
            return False
        self._counted += size
        if not self.busy and self._counted > HEAD_BYTES_MAX:
            settled(self._refuse_long_head)  # Unless most of these bytes are a body.
        elif self.busy and self._counted >= BEHIND_BYTES_MAX and self.transport is not None:
            self._is_paused = True
            self.transport.pause_reading()
        return True

    def _refuse_long_head(self) -> None:
        if not self.busy and self._counted > HEAD_BYTES_MAX:
            self.refuse(_too_long())

    def _claim(self, request: web.BaseRequest) -> None:
        """Give back what was counted for a request that the handler has now. Raises BadRequest for a too long head."""
        size = len(request.raw_path) + sum(len(n) + len(v) + 4 for n, v in request.raw_headers) + 20
        self._give(size + request.content.total_bytes)
        if self._is_paused and self._counted < BEHIND_BYTES_MAX:
            self._is_paused = False
            self.resume_reading()
        if size > HEAD_BYTES_MAX:
            raise _too_long()

    def _read_on(self) -> None:
        """Read the socket again if no request waits behind the last one any more."""
        if self._is_paused and not self.busy and not self.dismissed:
            self._is_paused = False
            self._give(self._counted)
            self.resume_reading()

    def _give(self, size: int) -> None:
        size = min(size, self._counted)
        self._counted -= size
        self.account.give(BudgetKind.HEAD_BYTES, size)

    # --- From requests to replies: for Exchange -----------------------------------------------------

    def begin(self, request: web.BaseRequest) -> Reply | None:
        """Note that the handler has a request. Return its reply if it is refused already.

        Raises:
            BadRequest: its head is too long.
        """
        self._content = request.content
        self.busy = True
        self._server.request_began(self)
        if self._counted:
            self._claim(request)
        self._behind = self._is_paused
        if self._half_closed:
            settled(self._close_if_unused)
        return self._refusal

    def bill(self, principal: Principal, quota: Quota | None) -> None:
        """Count what the present request uses for its principal. Raises QuotaExceeded."""
        self.is_billed = True
        try:
            self.account.bill(principal.name, quota)
        finally:
            CALLER.set(self.account.caller)
        if quota is not None:
            self.usage.take(BudgetKind.IN_FLIGHT)

    def end(self, *, stays_open: bool) -> None:
        """Note that the reply is written, or can't be written."""
        if self.usage.used:
            self.usage.close()
        self.busy = False
        self._content = None
        if self._behind and stays_open:
            self._server.head_grew(self)
        elif self._counted:
            self._give(self._counted)
        self._server.request_ended(self, stays_open=stays_open)
        if self._half_closed:
            settled(self._close_if_unused)
        elif self._is_paused:
            settled(self._read_on)

    def abandoned(self) -> asyncio.Future[None]:
        """Return a future that is done once the client is gone or the node drains."""
        if self._gone is None:
            self._gone = self._server.create_future()
            if self.transport is None or self._half_closed or self._server.draining:
                self._gone.set_result(None)
        return self._gone

    def abandon(self) -> None:
        """End the waiting of this client's requests: the client is gone, or the node drains."""
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    # --- The end --------------------------------------------------------------------------------------

    def refuse(self, answer: BrokerError | Reply) -> None:
        """Answer although no whole request came, and end the connection. Drop all bytes that still arrive."""
        if not self.dismissed:
            self.dismissed = True
            self._refusal = (
                answer if isinstance(answer, Reply) else error_reply(answer, {}, close=True)
            )
            settled(self._speak)

    def _speak(self) -> None:
        """Let aiohttp answer what it has of a request. If the handler has one now, the handler answers."""
        if not self.busy and self.transport is not None:
            super().data_received(NO_REQUEST)

    @override
    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the reply to bytes that are no request."""
        if exc is not None:
            exc.__traceback__ = None  # It leads to this connection, which keeps the error.
        if status != BadRequest.http_status:
            return super().handle_error(request, status, exc, message)
        told = self._refusal or not_http(message or "")
        return self._server.last_words(self, told)

    def linger(self) -> None:
        """Send the end after the last reply, and leave the connection to a ``Lingering``."""
        if self.transport is None:
            return
        transport = self.transport
        seconds = LINGER_S if self.body_is_here else UNREAD_LINGER_S
        if self._half_closed or not half_close(transport):
            transport.close()
        self.dismissed = True
        self._give(self._counted)
        self._server.drain.linger(transport, self.account, seconds)
        self.transport = None
        self._is_over()

    def hang_up(self) -> None:
        """Close the connection when its client has the bytes that are written. No more can be written."""
        if self.transport is not None:
            self.transport.close()

    def cut(self) -> None:
        """Cut the connection at once."""
        if self.transport is not None:
            self.transport.abort()

    def _cut(self, kind: BudgetKind) -> None:
        """Cut this connection, because it holds the most of a resource that ran out."""
        self._server.connection_cut(self, kind)
        refusal = Overloaded(f"This node has too much to do ({kind}). Try again.")
        if not self.busy:
            self.refuse(refusal)
        elif self._content is not None and not self._content.is_eof():
            self._content.set_exception(refusal)  # The handler reads the body, and answers.
        else:
            self.cut()

    def _close_if_unused(self) -> None:
        """Close the connection of a client that has stopped sending, unless it gets an answer."""
        waits = self._messages or (self.busy and self.body_is_here)
        if self.transport is not None and not waits:
            self.transport.close()


def _too_long() -> BadRequest:
    return BadRequest(f"The head of a request may have at most {HEAD_BYTES_MAX:,} bytes.")


def _is_blank(data: bytes) -> bool:
    """Return whether there are only line ends: some clients send them between requests."""
    return data[:1] in b"\r\n" and not data.strip(b"\r\n")
