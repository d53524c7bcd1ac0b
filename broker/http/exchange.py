"""Serve one request: make a ``Request`` from aiohttp's request, and bytes from the answer.

This is the path of every published message, so it uses no middleware and no application object of aiohttp.
``Exchange`` writes the reply to the connection itself. It returns one of two constants to aiohttp, which say only
whether the connection stays open.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
from collections.abc import Awaitable, Mapping
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from aiohttp import web
from typing_extensions import override

from broker.clock import Clock
from broker.config.sections import Config
from broker.errors import BrokerError, Overloaded
from broker.http.body import BodyReader
from broker.http.content import Content
from broker.http.delivery import Outgoing, SlowReaderLimits, send_at_once
from broker.http.reply import Answer, Reply
from broker.http.request import PathNames, Request
from broker.shield import bare

if TYPE_CHECKING:
    from broker.http.inbound import Connection
    from broker.http.server import Server
    from broker.http.side import Side

REQUEST_ID: Final = "X-Request-Id"
OUR_CLIENT: Final = "broker-client"
"""The beginning of the ``User-Agent`` of this project's client."""
_GIVEN_ID = re.compile(r"[!-~]{1,128}")


class Admitted(NamedTuple):
    """A request whose body may be read: the application's route for it, and its time limit.

    A limit that the sender gave counts from the head on, any other one from the whole body on.
    """

    found: Any
    names: PathNames
    timeout_s: float
    body_bytes_max: int | None = None
    is_asked: bool = False


class Application(Protocol):
    """Answers requests. The broker serves the one in ``api.dispatch``."""

    def admit(self, method: str, path: str, headers: Mapping[str, str]) -> Admitted | Reply:
        """Check a request's head. Return how to serve it, or its reply. Raises BrokerError."""

    async def answer(self, found: Any, request: Request) -> Answer:
        """Answer a request. An error becomes an answer, too."""

    def refuse(
        self, error: BrokerError, path: str, headers: Mapping[str, str], request_id: str = ""
    ) -> Reply:
        """Return the reply to a request that was not admitted, or could not be read."""

    def failure(self, error: Exception, headers: Mapping[str, str], request_id: str) -> Reply:
        """Return the reply for an error of a stream."""

    def lines(self, headers: Mapping[str, str]) -> str:
        """Return more header lines for each reply to such a request, with line ends; may be empty."""


class SentResponse(web.StreamResponse):
    """Tells aiohttp that the reply was sent, and whether the connection stays open."""

    def __init__(self, *, keep_alive: bool) -> None:
        """Keep whether the connection stays open. There is one object for each of the two cases."""
        super().__init__()
        self._stays_open = keep_alive

    @property
    @override
    def keep_alive(self) -> bool:
        return self._stays_open

    @override
    async def prepare(self, request: web.BaseRequest) -> None:
        return None

    @override
    async def write_eof(self, data: bytes = b"") -> None:
        return None


SENT: Final = SentResponse(keep_alive=True)
SENT_LAST: Final = SentResponse(keep_alive=False)


class Exchange:
    """Serves the requests of all connections of a server. Each connection has one request at a time."""

    def __init__(
        self,
        server: Server,
        application: Application,
        config: Config,
        clock: Clock,
        bodies: BodyReader,
    ) -> None:
        """Keep the parts."""
        self._server = server
        self._application = application
        self._clock = clock
        self._bodies = bodies
        self._slow = SlowReaderLimits(config.server.reply_stall_s)
        self._ids = itertools.count(1)
        self._id_prefix = secrets.token_hex(4)
        self._date = ""
        self.next_second()

    def next_second(self) -> None:
        """Update the date in the heads of replies."""
        date = formatdate(self._clock.now_ms() / 1000, usegmt=True)
        self._date = f"Date: {date}\r\nX-Content-Type-Options: nosniff\r\n"

    def new_id(self) -> str:
        """Return a new id for a request. This process gives each id only once."""
        return f"{self._id_prefix}-{next(self._ids)}"

    async def serve(self, http: web.BaseRequest) -> web.StreamResponse:
        """Answer one request. This is the handler that aiohttp calls."""
        side = cast("Side | None", http.transport)
        if side is None:
            return SENT_LAST  # The client has gone.
        connection = side.connection
        connection.begun = True
        headers = http.headers
        stays_open = False
        try:
            identifier = headers.get(REQUEST_ID)
            if identifier is None or not _GIVEN_ID.fullmatch(identifier):
                identifier = self.new_id()
            answer = await self._answer(http, connection, identifier)
            stays_open = http.keep_alive and not self._server.draining and connection.body_is_here
            if isinstance(answer, Reply):
                stays_open = stays_open and not answer.close
            else:
                stays_open = stays_open and connection.minor > 0
            tail = self._tail(connection, headers, identifier, stays_open)
            if not isinstance(answer, Reply) or not send_at_once(
                connection, answer, tail, http.method
            ):
                out = Outgoing(connection, http.method, headers, tail, connection.hold, self._slow)
                stays_open = await self._send(out, headers, answer, identifier) and stays_open
        except BaseException as error:
            stays_open = False
            if not connection.dismissed:
                connection.force_close()
            if not isinstance(error, ConnectionError):
                raise
        finally:
            if connection.hold.held:
                connection.hold.close()
            if connection.begun:
                connection.answered(stays_open=stays_open)
                # Only now the connection is idle, so that a drain can end it.
                self._server.request_ended(connection, stays_open=stays_open)
        # The error of a client that has gone ends here: aiohttp's task would keep it, with this frame and the reply.
        return SENT if stays_open else SENT_LAST

    async def _answer(
        self, http: web.BaseRequest, connection: Connection, identifier: str
    ) -> Answer:
        headers, application, hold = http.headers, self._application, connection.hold
        path, query_string = _target(http)
        began = self._clock.monotonic()
        if connection.is_new:
            connection.is_new = False
            connection.is_ours = headers.get("User-Agent", "").startswith(OUR_CLIENT)
        try:
            admitted = application.admit(http.method, path, headers)
            if isinstance(admitted, Reply):
                return admitted
            sent, bytes_max = connection.body, admitted.body_bytes_max
            body = self._bodies.ready(sent, headers, hold, bytes_max)
            if body is None:
                content = Content.whole(sent) if isinstance(sent, bytes) else sent
                self._bodies.check_told(content.told, headers, bytes_max)
                # A client of HTTP/1.0 would take it for the answer (RFC 9110, 10.1.1).
                if connection.minor and headers.get("Expect", "").lower() == "100-continue":
                    connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                reading = self._bodies.read(content, headers, hold, bytes_max)
                body = await _in_time(reading, admitted)
            connection.body = sent = b""
        except BrokerError as error:
            return application.refuse(error, path, headers, identifier)
        request = Request(
            "GET"
            if http.method == "HEAD"
            else http.method,  # Only the body of the reply is left out.
            path,
            query_string,
            headers,
            body,
            identifier=identifier,
            names=admitted.names,
            deadline=(began if admitted.is_asked else self._clock.monotonic()) + admitted.timeout_s,
            caller=connection.caller,
            source=connection,
            abandoned=connection.abandoned,
            hold=hold,
        )
        del body  # Only the request keeps the body, so a handler that has decoded it can free it.
        return await application.answer(admitted.found, request)

    async def _send(
        self, out: Outgoing, headers: Mapping[str, str], answer: Answer, identifier: str
    ) -> bool:
        """Send an answer that needs more than one write. Return whether all of it was sent."""
        try:
            await out.send(answer)
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001 - The maker of a stream may raise anything.
            reply = self._application.failure(error, headers, identifier)
            # After the status line, the only sign of an error is the missing end of the body.
            if not out.began:
                await out.send(reply)
            return False
        return True

    def _tail(
        self,
        connection: Connection,
        headers: Mapping[str, str],
        identifier: str,
        stays_open: bool,
    ) -> bytes:
        """Return the end of a reply's head: the header lines that differ from request to request."""
        if not stays_open:
            last = "Connection: close\r\n\r\n"
        elif connection.minor:
            last = "\r\n"
        else:
            last = "Connection: keep-alive\r\n\r\n"
        pages = self._application.lines(headers)
        return f"{REQUEST_ID}: {identifier}\r\n{self._date}{pages}{last}".encode("ascii")

    def last_tail(self, identifier: str) -> bytes:
        """Return the end of the head of a reply to bytes that are not a request."""
        return (
            f"{REQUEST_ID}: {identifier}\r\nX-Content-Type-Options: nosniff\r\n"
            "Connection: close\r\n\r\n"
        ).encode("ascii")


async def _in_time(reading: Awaitable[bytes], admitted: Admitted) -> bytes:
    """Return a body. Raises Overloaded if it has not arrived within the limit that the sender gave."""
    bound = asyncio.timeout(admitted.timeout_s if admitted.is_asked else None)
    try:
        async with bound:
            return await reading
    except TimeoutError as error:
        if not bound.expired():
            raise
        raise Overloaded("The deadline passed before the body had arrived.") from bare(error)


def _target(http: web.BaseRequest) -> tuple[str, str]:
    """Return a request's raw path and raw query. Also read the absolute form that proxies send."""
    target = http.raw_path
    if target[:1] != "/":
        target = http.rel_url.raw_path_qs if http.rel_url.raw_path else target
    path, _, query_string = target.partition("?")
    return path, query_string
