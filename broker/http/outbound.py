"""One outbound HTTP/1.1 connection, of a client or of a node that forwards.

Publishing sends many small requests on one connection. A general HTTP client spends 400 µs of a core on each request.
This one spends 60 µs. It may send the next request before the last one is answered (pipelining), so both sides work at
the same time. It has no proxies, redirects, cookies or compression.

The caller reads an answer whole (``exchange``) or while it arrives (``stream``). The module ``answer`` says what a
missing answer means.

A server can't make this side hold much memory, or wait longer than its time-out. These are the bounds::

    the head                                                      64 KiB
    interim answers before it                                     16
    bytes outside head and body: trailers, chunk extensions       64 KiB in a row; it is checked after each read
    the body of an answer that is read whole                      ``reply_bytes_max``
    the body of a streamed answer                                 a buffer; the rest stays in the socket

An answer beyond a bound, bytes that are not HTTP, a coding that was not requested, or an answer without a request
end the connection.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Mapping
from copy import copy
from typing import Final, Protocol, cast

import httptools
from typing_extensions import override

from broker.http.answer import Address, HttpAnswer, NoAnswer, NotSent
from broker.http.tls_layer import TlsRefused

HEAD_BYTES_MAX: Final = 64 * 1024
"""The largest head of an answer. Also the largest run of bytes without a head or a body: between head and body,
between two pieces of the body, or behind it."""
INTERIM_MAX: Final = 16
"""How many interim answers (like status 100) may come before an answer."""
REPLY_BYTES_MAX: Final = 256 * 1024 * 1024
"""The largest body of an answer that is read whole."""
STREAM_BUFFER_BYTES: Final = 256 * 1024
"""How many bytes of a streamed answer are taken from the socket before the reader asks for them."""
SMALL_BYTES_MAX: Final = 64 * 1024
"""A body of at most this size is copied behind its head, so that both are one write."""


class Ask(Protocol):
    """One request. ``path`` includes the query."""

    @property
    def method(self) -> str:
        """GET, PUT, ..."""

    @property
    def path(self) -> str:
        """The raw path and query, without the address's prefix."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The request's own headers."""

    @property
    def body(self) -> bytes:
        """The whole body."""


class OutboundConnection(asyncio.Protocol):
    """A connection, its requests in flight, and the part of the next answer that was read.

    Attributes:
        url: the server's address.
        idle_since: when the last answer came, by the loop's clock.
        answered: True if the server has sent at least one whole answer on it.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        reply_bytes_max: int = REPLY_BYTES_MAX,
    ) -> None:
        """Send ``headers`` with every request. Read no answer whole that is larger than ``reply_bytes_max``.

        Raises:
            ValueError: the URL or a header is not valid.
        """
        self.url = url
        self.address = address = Address.of(url)
        self.idle_since = 0.0
        self.answered = False
        self._loop = asyncio.get_running_loop()
        self._prefix = address.prefix
        self._common = header_lines({"Host": address.authority, **headers})
        self._waiting: deque[asyncio.Future[HttpAnswer] | Streamed] = deque()
        self._transport: asyncio.Transport | None = None
        self._closing = False
        self._poll: select.poll | None = None
        self._reply_bytes_max = reply_bytes_max
        self._reader = httptools.HttpResponseParser(self)
        self._reply_headers: dict[str, str] = {}
        self._reply_body: bytes | bytearray = b""
        self._status = 0
        self._interim = 0
        self._in_body = False
        self._ends_at_close = False
        # True if the last read ended a head or had bytes of a body; and how many bytes in a row did neither.
        self._has_progress = False
        self._idle_bytes = 0
        self._head_bytes = 0
        """An upper bound on the bytes of the head that is being read."""

    @property
    def usable(self) -> bool:
        """True if a request may be sent on this connection."""
        return self._transport is not None and not self._closing

    def is_fresh(self, idle_s_max: float) -> bool:
        """Return whether a request may be sent on this connection, which has none in flight.

        True if it was idle for at most ``idle_s_max``, and its socket has no unread bytes. Unread bytes can be the
        server's end of the connection, or its last answer.
        """
        if not self.usable or self.idle_since < self._loop.time() - idle_s_max:
            return False
        if self._poll is None and self._transport is not None and hasattr(select, "poll"):
            self._poll = select.poll()
            self._poll.register(self._transport.get_extra_info("socket"), select.POLLIN)
        return self._poll is None or not self._poll.poll(0)

    @property
    def requests_in_flight(self) -> int:
        """The number of requests that wait for their answers."""
        return len(self._waiting)

    async def exchange(self, request: Ask, timeout_s: float) -> HttpAnswer:
        """Send one request and return its whole answer, with any status.

        Raises:
            NotSent, NoAnswer: see these classes.
        """
        answer: asyncio.Future[HttpAnswer] = self._loop.create_future()
        self._send(request, answer)
        timer = self._loop.call_later(timeout_s, self.give_up, f"no answer in {timeout_s:g} s")
        try:
            return await answer
        finally:
            timer.cancel()
            if answer.cancelled():
                # Answers belong to requests by their order, so none may be skipped.
                self.give_up("a request was cancelled")
            del (
                answer
            )  # The error's traceback keeps this frame, and must not lead back to the error.

    async def stream(self, request: Ask, timeout_s: float) -> Streamed:
        """Send one request and return its answer once its head has arrived.

        The caller must not send another request before that answer has ended.

        Raises:
            NotSent, NoAnswer: see these classes.
        """
        streamed = Streamed(self, self._loop)
        self._send(request, streamed)
        timer = self._loop.call_later(timeout_s, self.give_up, f"no answer in {timeout_s:g} s")
        try:
            await streamed.began
        except asyncio.CancelledError:
            self.give_up("a request was cancelled")
            raise
        except BaseException:
            del streamed  # As in ``exchange``.
            raise
        finally:
            timer.cancel()
        return streamed

    def close(self, reason: str = "the connection was closed on this side") -> None:
        """Close the connection. Requests in flight fail with NoAnswer and this reason."""
        self.give_up(reason)

    def pause(self) -> None:
        """Stop reading from the socket for now."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again after ``pause``."""
        if self._transport is not None:
            self._transport.resume_reading()

    def head(self, request: Ask) -> bytes:
        """Return a request's head without its Content-Length."""
        first = f"{request.method} {self._prefix}{request.path} HTTP/1.1\r\n"
        return _encode(first) + self._common + header_lines(request.headers)

    def _send(self, request: Ask, waiting: asyncio.Future[HttpAnswer] | Streamed) -> None:
        if self._transport is None or self._closing:
            raise NotSent("the connection is closed")
        # Build the head first: if it can't be encoded, no request may be left waiting for an answer.
        head = self.head(request) + b"Content-Length: %d\r\n\r\n" % len(request.body)
        self._waiting.append(waiting)
        if len(request.body) <= SMALL_BYTES_MAX:
            self._transport.write(head + request.body)
        else:
            self._transport.write(head)
            self._transport.write(request.body)

    def give_up(self, reason: object) -> None:
        """Close the connection because of an error. Requests in flight fail with NoAnswer and this reason."""
        self._end(NoAnswer(str(reason)))

    def _end(self, error: NoAnswer | NotSent) -> None:
        self._closing = True
        if self._loop.is_closed():
            return  # Its futures have no waiters any more, and its socket is closed with its transport.
        waiting, self._waiting = self._waiting, deque()
        for answer in waiting:
            if isinstance(answer, Streamed):
                answer.fail(error)
            elif not answer.done():
                answer.set_exception(type(error)(*error.args))
        if self._transport is not None:
            self._transport.abort()

    # --- Called by the loop -----------------------------------------------------------------------

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.idle_since = self._loop.time()

    @override
    def data_received(self, data: bytes) -> None:
        if not self._waiting:
            # If these bytes were kept, they would look like the answer to the next request.
            self.give_up("the server sent an answer without a request")
            return
        self._has_progress = False
        self._head_bytes = self._idle_bytes + len(data)
        try:
            self._reader.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self.give_up(error.__context__ or error)
        except httptools.HttpParserUpgrade:
            self.give_up("the server switched to another protocol")
        except httptools.HttpParserError as error:
            self.give_up(f"the answer is not HTTP ({error})")
        self._idle_bytes = 0 if self._has_progress else self._head_bytes
        if self._idle_bytes > HEAD_BYTES_MAX:
            self.give_up(f"the answer has {HEAD_BYTES_MAX} bytes in a row outside head and body")

    @override
    def eof_received(self) -> None:
        if self._ends_at_close and self._waiting:
            self.on_message_complete()
        self.give_up("the server closed the connection")

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if isinstance(exc, TlsRefused) and not self.answered:
            # With TLS 1.3 a server checks the client's certificate after the client has sent its first request.
            self._end(NotSent(f"the server refused the TLS handshake: {exc}"))
        self.give_up(exc or "the server closed the connection")

    # --- Called by the parser ---------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Refuse an answer that no request waits for."""
        if not self._waiting:
            raise NoAnswer("the server sent an answer without a request")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep one header of the answer. Ignore the fields of a trailer."""
        if self._in_body:
            return
        self._reply_headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Check the head. Begin a streamed answer, unless this is an interim answer."""
        self._has_progress = True
        self._status = status = self._reader.get_status_code()
        headers = self._reply_headers
        if self._head_bytes > HEAD_BYTES_MAX and _bytes_of(headers) > HEAD_BYTES_MAX:
            raise NoAnswer(f"the head of the answer has more than {HEAD_BYTES_MAX} bytes")
        if status < 200:
            self._interim += 1
            if self._interim > INTERIM_MAX:
                raise NoAnswer(f"more than {INTERIM_MAX} interim answers came instead of one")
            return
        self._in_body = True
        coding, length = headers.get("transfer-encoding"), headers.get("content-length")
        if coding is not None and coding.lower() != "chunked":
            raise NoAnswer(f"the answer has a coding that was not requested ({coding:.80})")
        self._ends_at_close = coding is None and length is None and status not in {204, 304}
        if isinstance(streamed := self._waiting[0], Streamed):
            streamed.begin(status, headers)
        elif length is not None:
            self._check_length(int(length))

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the answer's body."""
        self._has_progress = True
        if isinstance(streamed := self._waiting[0], Streamed):
            streamed.feed(body)
        elif not self._reply_body:
            self._check_length(len(body))
            self._reply_body = body
        else:
            self._check_length(len(self._reply_body) + len(body))
            if isinstance(self._reply_body, bytes):
                self._reply_body = bytearray(self._reply_body)
            self._reply_body += body  # One buffer: as a list, each small piece would be an object.

    def _check_length(self, size: int) -> None:
        if size > self._reply_bytes_max:
            raise NoAnswer(f"the answer has more than {self._reply_bytes_max} bytes")

    def on_message_complete(self) -> None:
        """Give the answer to the oldest request, unless it is an interim answer."""
        self._has_progress = True
        headers, self._reply_headers = self._reply_headers, {}
        if self._status < 200:
            return
        body, self._reply_body = self._reply_body, b""
        self._in_body = self._ends_at_close = False
        self._interim = 0
        whole = body if isinstance(body, bytes) else bytes(body)
        reply = HttpAnswer(self._status, headers, whole, self.url)
        self.got(reply)
        answer = self._waiting.popleft()
        if isinstance(answer, Streamed):
            answer.end()
        elif not answer.done():
            answer.set_result(reply)
        if not self._reader.should_keep_alive():
            # The server does not process the requests behind one whose answer closes the connection.
            self._end(NotSent("the server closes the connection"))

    def got(self, reply: HttpAnswer) -> None:
        """Note that an answer came. The ``body`` of a streamed answer is empty here."""
        self.answered = True
        self.idle_since = self._loop.time()


def header_lines(headers: Mapping[str, str]) -> bytes:
    """Return headers as sent on the wire. Raises ValueError for a header with a line break, of which it tells no value."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if not lines.count("\n") == lines.count("\r") == len(headers):
        names = [name for name, value in headers.items() if {"\r", "\n"} & {*name, *value}]
        raise ValueError(f"a line break in a header: {', '.join(map(repr, names))}")
    return _encode(lines)


def _bytes_of(headers: Mapping[str, str]) -> int:
    """Return the size of headers in bytes."""
    return sum(len(name) + len(value) + 4 for name, value in headers.items())


def _encode(text: str) -> bytes:
    """Return a part of a head as bytes. Text that came from a request becomes the same bytes again.

    Our servers decode heads as UTF-8, and escape bytes that are not UTF-8.
    """
    return text.encode("utf-8", "surrogateescape")


class Streamed:
    """An answer that is read while it arrives. ``status`` and ``headers`` are set once it has begun."""

    def __init__(self, connection: OutboundConnection, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for the answer's head from ``connection``."""
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.began: asyncio.Future[None] = loop.create_future()
        self._connection = connection
        self._loop = loop
        self._chunks: deque[bytes] = deque()
        self._bytes = 0
        self.ended = False
        """True if the whole answer has arrived, even if it is not read yet."""
        self._failed: NoAnswer | None = None
        self._wanted: asyncio.Future[None] | None = None

    async def chunk(self, silence_s: float | None = None) -> bytes:
        """Wait for the next bytes and return them. Empty bytes mean the end.

        Raises:
            NoAnswer: the answer was cut off, or no byte came for ``silence_s``.
        """
        while not self._chunks:
            if self._failed is not None:
                raise copy(self._failed)  # The traceback of the kept error would lead back here.
            if self.ended:
                return b""
            self._wanted = self._loop.create_future()
            try:
                async with asyncio.timeout(silence_s):
                    await self._wanted
            except TimeoutError:
                self._connection.give_up(f"nothing came for {silence_s:g} s")
        return self._take()

    def close(self) -> None:
        """Stop reading. If the answer has not ended, close its connection, which can't be used again."""
        if self.ended:
            self._take()
        else:
            self._connection.close()

    def _take(self) -> bytes:
        chunks, self._chunks = self._chunks, deque()
        size, self._bytes = self._bytes, 0
        if size >= STREAM_BUFFER_BYTES:
            self._connection.resume()  # It may call ``feed`` at once.
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    # Called by the connection.

    def feed(self, body: bytes) -> None:
        """Add a piece of the body."""
        self._chunks.append(body)
        self._bytes += len(body)
        if self._bytes >= STREAM_BUFFER_BYTES:
            self._connection.pause()
        self._wake()

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Set the status and the headers."""
        self.status, self.headers = status, headers
        if not self.began.done():
            self.began.set_result(None)

    def end(self) -> None:
        """Note that the whole answer has arrived."""
        self.ended = True
        self._wake()

    def fail(self, error: NoAnswer | NotSent) -> None:
        """Note that no more bytes will come, and why."""
        if not self.began.done():
            self.began.set_exception(error)
        elif not self.ended:
            self._failed = NoAnswer(*error.args)
        self._wake()

    def _wake(self) -> None:
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)
