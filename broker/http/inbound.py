"""One client's connection: our protocol in front of aiohttp's, which receives one whole head at a time.

::

    socket ──bytes──▶ Connection ──one head──▶ aiohttp's protocol ──▶ handler (see exchange)
       ▲              bounds, framing ──body──────────────────────────▶   │
       └──────────────────────────── the reply ───────────────────────────┘

The connection passes a head to aiohttp only when the head is whole and within its bounds. It passes the bytes behind a
request only after that request is answered. Until then it holds and counts these bytes, and stops reading the socket
when they are many. For aiohttp a request has no body: the handler reads the body from this connection, and the socket
is not read while too much of the body is unread. aiohttp writes to a ``Side``, not to the socket. It writes only to
report that it can't read a request.

A connection is *idle*, has a begun *head*, or is *busy* with a request until its reply is sent::

    idle ──first byte──▶ head ──last byte of the head──▶ busy ──reply sent──▶ idle
      │                    │                               │
      closed by a drain,   refused, or cut after a         answered, also if the client
      or after a while     deadline                        has shut down its side
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from typing_extensions import override

from broker.errors import BadRequest, BrokerError, Overloaded
from broker.http.budget import Account, BudgetKind, Cut, Hold
from broker.http.content import Content
from broker.http.drain import half_close, has_arrived, unacknowledged_bytes
from broker.http.framing import Chunks, blank_bytes, head_of
from broker.http.side import Side

if TYPE_CHECKING:
    from broker.http.reply import Piece
    from broker.http.server import Server

WRITE_BUFFER_BYTES: Final = 64 * 1024
HELD_BYTES_MAX: Final = 64 * 1024
"""When so many bytes wait behind a request, the socket is not read until that request is answered."""
COUNTED_BYTES_MIN: Final = 1024
"""Smaller heads are not counted: they belong to the fixed cost of a connection."""
UNREAD_LINGER_S: Final = 10.0
"""How long a client may go on sending a refused body before its connection is cut."""


class Connection(asyncio.Protocol):
    """One connection. The loop uses it, aiohttp through its ``Side``, and ``Exchange``."""

    __slots__ = (
        "__weakref__",
        "_at",
        "_counted",
        "_error",
        "_gone",
        "_half_closed",
        "_held",
        "_idle_since",
        "_inner",
        "_is_paused",
        "_left",
        "_server",
        "_timer",
        "_writable",
        "account",
        "begun",
        "body",
        "busy",
        "caller",
        "dismissed",
        "hold",
        "is_new",
        "is_ours",
        "minor",
        "transport",
    )

    def __init__(self, server: Server) -> None:
        """Make a connection of this server."""
        self._server = server
        self.transport: asyncio.Transport | None = None
        """The transport to the client; None once the client is gone."""
        self.account: Account
        self.hold: Hold
        """The budget that the current request holds."""
        self._inner: asyncio.Protocol | None = None
        """aiohttp's protocol, from the first request on."""
        self._held = b""
        self._at = 0
        """The place in ``_held`` behind the bytes that aiohttp has received."""
        self.body: bytes | Content = b""
        """The body of the current request: whole, or arriving."""
        self._left: int | Chunks = 0
        """The rest of that body, which has not arrived: a number of bytes, or chunks."""
        self._counted = 0
        self._error: BrokerError | None = None
        """The reason why the bytes behind the current request are ignored."""
        self.busy = False
        self.begun = False
        """True if the handler has the current request."""
        self.minor = 1
        """The minor version of the last request: HTTP/1.``minor``."""
        self.is_new = True
        """True until the first request reaches a handler."""
        self.caller = ""
        """The address of the client."""
        self.is_ours = False
        """True if the client is this project's client."""
        self.dismissed = False
        """True if the end was sent to the client: bytes that still arrive are read and dropped."""
        self._half_closed = False
        self._gone: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._is_paused = False
        self._idle_since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def in_use(self) -> bool:
        """True if a request is being served, or has begun to arrive."""
        return self.busy or len(self._held) > self._at

    @property
    def has_unread(self) -> bool:
        """True if the socket has bytes that the loop has not read yet."""
        return self.transport is not None and has_arrived(self.transport)

    @property
    def body_is_here(self) -> bool:
        """True if the whole request has arrived."""
        return not self._left

    # --- Called by the loop -------------------------------------------------------------------------

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.caller = str(peer[0]) if peer else ""
        self.account = self._server.budgets.account(self.caller, self._cut)
        self.hold = Hold(self.account)
        refusal = self._server.admit(self)
        if refusal is not None:
            self.transport.write(self._server.last_words(refusal))
            self.transport.close()
            return
        self.transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        self._idle_since = self._server.next_tick
        self._timer = self._server.call_later(self._server.keep_alive_s, self._look_if_idle)

    @override
    def data_received(self, data: bytes) -> None:
        if self.dismissed:
            return
        if not self.busy:
            if self._held:
                data, self._held, self._at = self._held[self._at :] + data, b"", 0
            self._begin(data, 0)
            return
        at = 0
        if self._left and isinstance(self.body, Content):
            try:
                at = self._take_body(self.body, data, 0)
            except BadRequest as error:
                self.refuse(error)
                return
            if at == len(data):
                return
        self._hold(self._held[self._at :] + data[at:] if self._held else data[at:])

    @override
    def eof_received(self) -> bool:
        """Handle the end of the client's data. Return True if the client may still get an answer."""
        self._half_closed = True
        if self.dismissed or not self.busy or self._left:
            return False
        # A client that has gone looks the same. So end a request that waits for new messages.
        self.abandon()
        return True

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._held, self._at = b"", 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.account.close()
        self.abandon()
        self.resume_writing()
        self._lose(exc or ConnectionResetError("The client is gone."))
        if self.busy and not self.begun:
            self.busy = False
            self._server.request_ended(self)
        self._server.left(self)

    @override
    def pause_writing(self) -> None:
        self._writable = self._server.create_future()

    @override
    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    def _lose(self, error: Exception) -> None:
        """Tell the reader of the body and aiohttp that the client is gone."""
        if isinstance(self.body, Content):
            self.body.fail(error)
        # Break the cycle: the two objects must not keep each other alive.
        inner, self._inner = self._inner, None
        if inner is not None:
            inner.connection_lost(error)

    # --- From bytes to requests ---------------------------------------------------------------------

    def _begin(self, data: bytes, at: int) -> None:
        """Pass the head at this place of ``data`` to aiohttp. Hold the bytes behind its request."""
        try:
            head = head_of(data, at)
            if head is None:
                self._hold(data[at:])
                if self._held:
                    self._server.head_grew(self)
                else:
                    self._server.head_ended(self)
                return
            length, begin = head.length, head.end
            if length is not None and begin + length <= len(data):
                end = begin + length
                self.body = data[begin:end] if length else b""
            else:
                end = self._begin_body(length, data, begin)
            size = begin - head.begin
            if end < len(data):
                self._held, self._at = data, end
                self._count(size + len(data) - end)
            else:
                self._held, self._at = b"", 0
                if size >= COUNTED_BYTES_MIN or self._counted:
                    self._count(size)
        except BrokerError as error:
            self.refuse(error)
            return
        except Cut:
            return
        self.minor = head.minor
        self.busy = True
        server = self._server
        server.busy += 1
        if server.heads:
            server.heads.pop(self, None)
        if self._inner is None:
            self._inner = self._server.make_inner()
            self._inner.connection_made(Side(self))
        self._inner.data_received(head.without_body(data))

    def _begin_body(self, length: int | None, data: bytes, at: int) -> int:
        """Start a body that has not arrived whole, and take its first bytes. Return the place behind them."""
        self._left = Chunks() if length is None else length
        self.body = Content(length, self._set_reading)
        return self._take_body(self.body, data, at)

    def _take_body(self, body: Content, data: bytes, at: int) -> int:
        """Take the bytes of the current body, and return the place behind them. Raises BadRequest."""
        left = self._left
        if isinstance(left, int):
            end = min(at + left, len(data))
            self._left = left = left - (end - at)
            body.add(data[at:end] if at or end < len(data) else data)
            if not left:
                body.end()
        else:
            found: list[bytes] = []
            end = left.take(data, at, found)
            body.add(b"".join(found))
            if left.ended:
                self._left = 0
                body.end()
        if body.is_full:
            self._set_reading()
        return end

    def _hold(self, data: bytes) -> None:
        """Keep bytes that can't be passed on yet: a part of a head, or bytes behind the current request."""
        if not self.busy and len(data) <= 4 and blank_bytes(data) == len(data):
            data = b""  # Blank lines between requests.
        try:
            self._count(len(data))
        except (BrokerError, Cut) as error:
            if not self.busy:
                self.refuse(error if isinstance(error, BrokerError) else None)
                return
            # Answer the current request, but not the requests behind it.
            self._error = error if isinstance(error, BrokerError) else None
            data = b""
        self._held, self._at = data, 0
        self._set_reading()

    def _count(self, size: int) -> None:
        """Count the held bytes: heads, and the bytes behind them. Raises the errors of ``Account.take``."""
        more = size - self._counted
        if more > 0:
            self.account.take(BudgetKind.HEAD_BYTES, more)
        else:
            self.account.give(BudgetKind.HEAD_BYTES, -more)
        self._counted = size

    # --- From requests to replies: for Exchange -----------------------------------------------------

    @property
    def writing_paused(self) -> bool:
        """True if the client has not read most of the written bytes."""
        return self._writable is not None

    def write(self, *parts: Piece) -> None:
        """Send bytes to the client. Raises ConnectionError if it is gone."""
        transport = self.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("The client is gone.")
        # Don't join the parts: that would copy a large part, and keep it twice while the client reads slowly.
        # And don't call ``writelines``: asyncio of Python 3.12.0 to 3.13.1 does not pause its writer (CVE-2024-12254).
        for part in parts:
            transport.write(part)

    async def drained(self, wait_s: float) -> bool:
        """Wait until the client has read most of the written bytes. Return False if it did not in this time.

        Raises:
            ConnectionError: the client is gone.
        """
        writable = self._writable
        if writable is None:
            return True
        done, _ = await asyncio.wait((writable,), timeout=wait_s)
        if self.transport is None:
            raise ConnectionResetError("The client is gone.")
        return bool(done)

    @property
    def unsent_bytes(self) -> int:
        """The number of written bytes that the socket has not taken."""
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    @property
    def untaken_bytes(self) -> int:
        """The number of written bytes that the client has not taken: also those in the socket."""
        if self.transport is None:
            return 0
        return self.unsent_bytes + unacknowledged_bytes(self.transport)

    def answered(self, *, stays_open: bool) -> None:
        """Note that the reply is sent. Start the next request, or end the connection."""
        self.busy = self.begun = False
        transport = self.transport
        if transport is None or self.dismissed:
            return
        if not stays_open or self._error is not None:
            if self._error is not None and stays_open:
                transport.write(self._server.last_words(self._error))
            self.say_goodbye()
            return
        self._idle_since = self._server.next_tick
        self.body = b""
        if self._held:
            self._begin(self._held, self._at)
            self._set_reading()
        elif self._counted:
            self._count(0)
        if self._half_closed and not self.busy:
            transport.close()

    def abandoned(self) -> asyncio.Future[None]:
        """Return a future that is done once the client is gone or the node drains."""
        if self._gone is None:
            self._gone = self._server.create_future()
            if self._is_abandoned:
                self._gone.set_result(None)
        return self._gone

    @property
    def _is_abandoned(self) -> bool:
        return self.transport is None or self._half_closed or self._server.draining

    def abandon(self) -> None:
        """End the waiting of this client's requests: the client is gone, or the node drains."""
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    # --- The end --------------------------------------------------------------------------------------

    def refuse(self, error: BrokerError | None) -> None:
        """Refuse a request or a body that can't be read, and end the connection."""
        transport = self.transport
        if transport is None or self.dismissed:
            return
        if error is not None and not transport.is_closing():
            transport.write(self._server.last_words(error))
        was_under_way, self.busy = self.busy and not self.begun, self.busy and self.begun
        self.say_goodbye()
        self._lose(ConnectionResetError("The request can't be read."))
        if was_under_way:
            self._server.request_ended(self)

    def say_goodbye(self) -> None:
        """Shut down the sending side after the last answer. Ignore all bytes that still arrive."""
        transport = self.transport
        if transport is None:
            return
        self.dismissed = True
        left, self._left = self._left, 0
        self._held, self._at = b"", 0
        self._count(0)
        self._server.head_ended(self)
        if half_close(transport):
            self._set_reading()
            self._server.drain.linger(self, UNREAD_LINGER_S if left else None)
        else:
            transport.close()

    def dismiss(self, words: bytes) -> None:
        """Send a last answer and shut down the sending side. Ignore all bytes that still arrive."""
        self.dismissed = True
        if self.transport is not None and not half_close(self.transport, words):
            self.transport.close()

    def force_close(self) -> None:
        """Cut the connection at once."""
        if self.transport is not None:
            self.transport.abort()

    def _cut(self, kind: BudgetKind) -> None:
        """Cut this connection, because it holds the most of a resource that ran out."""
        self._server.connection_cut(self, kind)
        if self.busy and not isinstance(self.body, Content):
            self.force_close()
        else:  # No handler has the request yet, so the client can still get a refusal.
            self.refuse(Overloaded(f"This node has too much to do ({kind}). Try again."))

    def _look_if_idle(self) -> None:
        ends = self._idle_since + self._server.keep_alive_s
        left_s = self._server.keep_alive_s if self.in_use else ends - self._server.time()
        if left_s > 0:
            later_s = left_s + self._server.spread_s()
            self._timer = self._server.call_later(later_s, self._look_if_idle)
        elif self.transport is not None and not self.dismissed:
            self.transport.close()

    # --- For aiohttp --------------------------------------------------------------------------------

    def inner_said(self, data: bytes) -> None:
        """Take an answer that aiohttp writes by itself: it can't read a request. Refuse the request."""
        text = bytes(data).partition(b"\r\n\r\n")[2].decode("utf-8", "replace")
        if not self.begun:
            self.refuse(BadRequest(f"This is not an HTTP request: {text[:200]!a}"))

    def inner_closed(self) -> None:
        """Close the connection: aiohttp has finished with it."""
        if self.transport is not None and not self.dismissed:
            self.transport.close()

    def _set_reading(self) -> None:
        full = self.busy and len(self._held) - self._at >= HELD_BYTES_MAX
        full = (
            full
            or self._error is not None
            or (isinstance(self.body, Content) and self.body.is_full)
        )
        pauses = full and not self.dismissed
        if pauses == self._is_paused or self.transport is None or self.transport.is_closing():
            return
        self._is_paused = pauses
        if pauses:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()
