"""One HTTP/1.1 connection that writes are sent on, several at a time if the server is ours.

Publishing is many small requests on one connection. A general HTTP client spends 400 µs of a core on
each; this one spends 60, and may send the next request before the last is answered (pipelining), so
that client and broker work at the same time. What it does not do is everything else: proxies,
redirects, cookies, streaming. Reading uses aiohttp (see ``transport``).

Two questions decide what a lost connection means::

    was a byte of the request handed to the socket?     no: never sent, the request may be repeated
    did an earlier answer say ``Connection: close``?    yes: the server has not looked at what came
                                                        after that request (RFC 9112, 9.6)

Anything else that gets no answer has an unknown outcome. Pipelining starts with the second request,
after an answer showed that the server is this project's: of the original nobody knows whether it
answers in order.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple, cast
from urllib.parse import urlsplit

import httptools
from typing_extensions import override

from broker.client import outcomes
from broker.client.protocol import Reply, Request
from broker.errors import BrokerError

OURS: Final = "x-request-id"
"""The header by which an answer shows that the server is this project's."""

HEADS_KEPT_MAX: Final = 256


class Address(NamedTuple):
    """Where a broker listens, taken apart once; ``prefix`` is what stands before every path."""

    host: str
    port: int
    tls: bool
    prefix: str
    authority: str

    @classmethod
    def of(cls, url: str) -> Address:
        """Take a URL apart. Raises ValueError if it isn't an http or https one."""
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"A broker's address looks like http://host:port, not {url!r}.")
        tls = parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
        return cls(
            parts.hostname, port, tls, parts.path.rstrip("/"), parts.netloc.rpartition("@")[2]
        )


class Connection(asyncio.Protocol):
    """A connection, its requests under way, and what is read of the next answer.

    Attributes:
        ours: whether an answer showed that the server is this project's.
        idle_since: when the last answer came, by the loop's clock.
    """

    def __init__(self, address: Address, headers: Mapping[str, str]) -> None:
        self.ours = False
        self.idle_since = 0.0
        self._loop = asyncio.get_running_loop()
        self._prefix = address.prefix
        self._common = _lines({"Host": address.authority, **headers})
        self._heads: dict[tuple[str, str, tuple[tuple[str, str], ...]], bytes] = {}
        self._waiting: deque[tuple[Request, asyncio.Future[Reply]]] = deque()
        self._transport: asyncio.Transport | None = None
        self._closing = False
        self._reader = httptools.HttpResponseParser(self)
        self._reply_headers: dict[str, str] = {}
        self._reply_body: list[bytes] = []

    @property
    def usable(self) -> bool:
        """Whether a request may be sent on it."""
        return self._transport is not None and not self._closing

    @property
    def requests_in_flight(self) -> int:
        """How many requests wait for their answers."""
        return len(self._waiting)

    async def send(self, request: Request, timeout_s: float) -> Reply:
        """Send one request and return its answer, whatever its status.

        Raises:
            Unavailable: nothing of the request was sent, or the server has not looked at it.
            OutcomeUnknown: no answer came, and the request was not repeatable.
        """
        if self._transport is None or self._closing:
            raise outcomes.never_sent("the connection is closed")
        answer: asyncio.Future[Reply] = self._loop.create_future()
        self._waiting.append((request, answer))
        self._transport.write(self._head(request) + request.body)
        timer = self._loop.call_later(timeout_s, self._give_up, f"no answer in {timeout_s:g} s")
        try:
            return await answer
        finally:
            timer.cancel()
            if answer.cancelled():  # The caller has gone, and answers are told apart by order.
                self._give_up("a request was cancelled")

    def close(self) -> None:
        """Close it; requests under way end as unanswered."""
        self._give_up("the client was closed")

    def _head(self, request: Request) -> bytes:
        key = (request.method, request.path, tuple(request.headers.items()))
        head = self._heads.get(key)
        if head is None:
            first = f"{request.method} {self._prefix}{request.path} HTTP/1.1\r\n".encode("ascii")
            head = first + self._common + _lines(request.headers) + b"Content-Length: "
            if "Idempotency-Key" not in request.headers and len(self._heads) < HEADS_KEPT_MAX:
                self._heads[key] = head  # A key never comes again.
        return head + b"%d\r\n\r\n" % len(request.body)

    def _give_up(self, reason: object) -> None:
        """Close the connection and end every request on it as unanswered."""
        self._closing = True
        waiting, self._waiting = self._waiting, deque()
        for request, answer in waiting:
            if not answer.done():
                answer.set_exception(outcomes.no_answer(request, reason))
        if self._transport is not None:
            self._transport.abort()

    def _refuse_the_rest(self) -> None:
        """Close after an answer that said so: what was sent behind it was not looked at."""
        self._closing = True
        waiting, self._waiting = self._waiting, deque()
        error: BrokerError
        for _, answer in waiting:
            if not answer.done():
                error = outcomes.never_sent("the server closes the connection")
                answer.set_exception(error)
        if self._transport is not None:
            self._transport.abort()  # What is not yet sent is of no use to anyone.

    # --- What the loop calls ----------------------------------------------------------------------

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.idle_since = self._loop.time()

    @override
    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed_data(data)
        except httptools.HttpParserError as error:
            self._give_up(f"the answer is not HTTP ({error})")

    @override
    def eof_received(self) -> None:
        self._give_up("the server closed the connection")

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._give_up(exc or "the server closed the connection")

    # --- What the parser calls --------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep one header of the answer."""
        self._reply_headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the answer's body."""
        self._reply_body.append(body)

    def on_message_complete(self) -> None:
        """Hand the answer to the oldest request, unless it is only an interim one."""
        status, headers = self._reader.get_status_code(), self._reply_headers
        body = b"".join(self._reply_body)
        self._reply_headers, self._reply_body = {}, []
        if status < 200:
            return
        self.ours = self.ours or OURS in headers
        self.idle_since = self._loop.time()
        if self._waiting:
            _, answer = self._waiting.popleft()
            if not answer.done():
                answer.set_result(Reply(status, headers, body))
        if not self._reader.should_keep_alive():
            self._refuse_the_rest()


def _lines(headers: Mapping[str, str]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("latin-1")


async def open_connection(
    address: Address, headers: Mapping[str, str], timeout_s: float, tls: ssl.SSLContext | None
) -> Connection:
    """Connect. Raises Unavailable."""
    loop = asyncio.get_running_loop()
    context = (tls or ssl.create_default_context()) if address.tls else None
    try:
        async with asyncio.timeout(timeout_s):
            _, connection = await loop.create_connection(
                lambda: Connection(address, headers), address.host, address.port, ssl=context
            )
    except (OSError, TimeoutError) as error:
        reason = error if str(error) else f"no connection in {timeout_s:g} s"
        raise outcomes.never_sent(reason) from error
    return connection
