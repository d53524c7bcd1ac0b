"""Serve one request: make a ``Request`` from aiohttp's request, and bytes from the answer.

This is the path of every published message, so it uses no middleware and no application object of aiohttp. aiohttp
sends a small reply by itself. All other replies are sent here (see ``reply``), before the connection counts as idle.

A request is admitted before its body is read: the operation is found, its sender may ask for it, and its budget has
room.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
from collections.abc import Awaitable, Mapping
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from aiohttp import HttpVersion10, HttpVersion11, hdrs, web
from typing_extensions import override

from broker.clock import Clock
from broker.config.sections import Config
from broker.errors import BadRequest, BrokerError, Overloaded, QuotaExceeded, Unavailable
from broker.http.body import BodyReader
from broker.http.budget import Cut, Quota
from broker.http.inbound import Connection
from broker.http.reply import Answer, Headers, Reply, response_of, send
from broker.http.request import PathNames, Request
from broker.principal import ANYONE, CallerPending, Principal, Remote
from broker.shield import bare

if TYPE_CHECKING:
    from broker.http.server import Server

REQUEST_ID: Final = "X-Request-Id"
OUR_CLIENT: Final = "broker-client"
"""The beginning of the ``User-Agent`` of this project's client."""
OVER_QUOTA_S: Final = 0.25
"""How long the refusal of a request over a quota waits. A client that follows ``Retry-After`` loses nothing. One that does not
would spend the node's time on refusals: beside 16 such connections, another principal's publishes took 4 times as long."""
_GIVEN_ID = re.compile(r"[!-~]{1,128}")
_EVERY_REPLY = (("X-Content-Type-Options", "nosniff"), (hdrs.SERVER, "tms-broker"))


class Admitted(NamedTuple):
    """A request whose body may be read: the application's route for it, and its time limit.

    A limit that the sender gave counts from the head on, any other one from the whole body on. ``quota`` is the principal's,
    if it sent the request itself.
    """

    found: Any
    names: PathNames
    timeout_s: float
    body_bytes_max: int | None = None
    is_asked: bool = False
    principal: Principal = ANYONE
    quota: Quota | None = None


class Application(Protocol):
    """Answers requests. The broker serves the one in ``api.dispatch``."""

    def admit(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        remote: Remote,
        query_string: str,
    ) -> Admitted | Reply:
        """Check a request's head. Return how to serve it, or its reply. Raises BrokerError, CallerPending."""

    def timeout_s(self, headers: Mapping[str, str]) -> float:
        """Return how long a request with these headers may take. Raises BadRequest."""

    async def answer(self, found: Any, request: Request) -> Answer:
        """Answer a request. An error becomes an answer, too."""

    def refuse(
        self, error: BrokerError, path: str, headers: Mapping[str, str], request_id: str = ""
    ) -> Reply:
        """Return the reply to a request that was not admitted, or could not be read."""

    def failure(self, error: Exception, headers: Mapping[str, str], request_id: str) -> Reply:
        """Return the reply for an error of a stream."""

    def headers(self, headers: Mapping[str, str]) -> Headers:
        """Return more header lines for each reply to a request with these headers; may be empty."""


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
        self._ids = itertools.count(1)
        self._id_prefix = secrets.token_hex(4)
        self._common: Headers = ()
        self.next_second()

    def next_second(self) -> None:
        """Update the date in the heads of replies."""
        date = formatdate(self._clock.now_ms() / 1000, usegmt=True)
        self._common = ((hdrs.DATE, date), *_EVERY_REPLY)

    def new_id(self) -> str:
        """Return a new id for a request. This process gives each id only once."""
        return f"{self._id_prefix}-{next(self._ids)}"

    async def serve(self, http: web.BaseRequest) -> web.StreamResponse:
        """Answer one request. This is the handler that aiohttp calls."""
        connection = cast("Connection", http.protocol)
        identifier = http.headers.get(REQUEST_ID)
        if identifier is None or not _GIVEN_ID.fullmatch(identifier):
            identifier = self.new_id()
        stays_open = False
        response: web.StreamResponse
        try:
            answer = await self._answer(http, connection, identifier)
            if answer.status == QuotaExceeded.http_status:
                await asyncio.wait((connection.abandoned(),), timeout=OVER_QUOTA_S)
            stays_open = (
                http.keep_alive
                and not (self._server.draining or connection.dismissed)
                and connection.body_is_here
                and not (answer.close if isinstance(answer, Reply) else _is_old(http))
            )
            response = self._response(http, answer, identifier, stays_open=stays_open)
            if stays_open and isinstance(response, web.Response):
                return response  # aiohttp sends it at once: in this iteration of the loop.
            response = await self._send(http, answer, response, identifier)
            stays_open = bool(response.keep_alive)
        except ConnectionError as error:
            # The error of a client that has gone ends here. aiohttp keeps it, and would keep this frame and the reply.
            error.__traceback__ = None
            stays_open = False
            response = web.Response()
            connection.hang_up()
        except BaseException:
            stays_open = False
            connection.cut()
            raise
        finally:
            # Only now the connection is idle, so that a drain can end it.
            connection.end(stays_open=stays_open)
        if not stays_open:
            connection.linger()
        return response

    async def _answer(
        self, http: web.BaseRequest, connection: Connection, identifier: str
    ) -> Answer:
        headers, application, usage = http.headers, self._application, connection.usage
        path, query_string = _target(http)
        began = self._clock.monotonic()
        if connection.is_new:
            connection.is_new = False
            # Only now the handshake of TLS is done.
            shown = http.get_extra_info("peercert") or None
            connection.remote = connection.remote._replace(certificate=shown)
            connection.is_ours = headers.get("User-Agent", "").startswith(OUR_CLIENT)
        try:
            refusal = connection.begin(http)
            if refusal is not None:
                return refusal
            _check_framing(http)
            head = http.method, path, headers, connection.remote, query_string
            try:
                admitted = application.admit(*head)
            except CallerPending as pending:
                await fetched_in_time(pending, application.timeout_s(headers))
                admitted = application.admit(*head)
            if isinstance(admitted, Reply):
                return admitted
            if admitted.principal.name or connection.is_billed:
                connection.bill(admitted.principal, admitted.quota)
            content, bytes_max = http.content, admitted.body_bytes_max
            body = self._bodies.ready(content, headers, usage, bytes_max)
            if body is None:
                self._bodies.check_told(headers, bytes_max)
                await _tell_to_continue(http)
                reading = self._bodies.read(content, headers, usage, bytes_max)
                body = await _in_time(reading, admitted)
        except BrokerError as error:
            # aiohttp's reader of a body may keep the error. It must not keep this frame.
            return application.refuse(error.with_traceback(None), path, headers, identifier)
        except Cut as error:
            return application.refuse(Overloaded(str(error)), path, headers, identifier)
        except CallerPending:
            late = Unavailable("The credentials can't be checked now.")
            return application.refuse(late, path, headers, identifier)
        request = Request(
            "GET"
            if http.method == "HEAD"
            else http.method,  # Only the body of the reply is left out.
            path,
            query_string,
            headers,
            body,
            id=identifier,
            names=admitted.names,
            principal=admitted.principal,
            deadline=(began if admitted.is_asked else self._clock.monotonic()) + admitted.timeout_s,
            caller=connection.remote.address,
            source=connection,
            abandoned=connection.abandoned,
            usage=usage,
        )
        del body  # Only the request keeps the body, so a handler that has decoded it can free it.
        return await application.answer(admitted.found, request)

    async def _send(
        self,
        http: web.BaseRequest,
        answer: Answer,
        response: web.StreamResponse,
        identifier: str,
    ) -> web.StreamResponse:
        """Send an answer. Return what was sent: the reply to an error of the answer's maker is the last."""
        usage = cast("Connection", http.protocol).usage
        try:
            await send(http, answer, response, usage)
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001 - The maker of a stream may raise anything.
            answer = self._application.failure(error, http.headers, identifier)
        else:
            return response
        if response.prepared:
            # After the status line, the only sign of an error is the missing end of the body.
            raise ConnectionAbortedError("The reply has no end.")
        response = self._response(http, answer, identifier, stays_open=False)
        await send(http, answer, response, usage)
        return response

    def _response(
        self, http: web.BaseRequest, answer: Answer, identifier: str, *, stays_open: bool
    ) -> web.StreamResponse:
        """Return aiohttp's response for an answer, with the header lines that differ from request to request."""
        more = self._application.headers(http.headers)
        lines = [*answer.headers, (REQUEST_ID, identifier), *self._common, *more]
        if answer.content_type:
            lines.append((hdrs.CONTENT_TYPE, answer.content_type))
        if not stays_open:
            lines.append((hdrs.CONNECTION, "close"))
        response = response_of(http, answer, lines)
        if not stays_open:
            response.force_close()
        return response

    def last_words(self, connection: Connection, reply: Reply) -> web.Response:
        """Return the reply to bytes that are no request. The connection ends with it."""
        lines = [*reply.headers, (REQUEST_ID, self.new_id()), *self._common]
        if reply.content_type:
            lines.append((hdrs.CONTENT_TYPE, reply.content_type))
        lines.append((hdrs.CONNECTION, "close"))
        return LastWords(connection, status=reply.status, body=reply.body, headers=lines)


class LastWords(web.Response):
    """The reply to bytes that are no request. The connection ends with it."""

    def __init__(self, connection: Connection, **options: Any) -> None:
        """Keep the connection."""
        super().__init__(**options)
        self.force_close()
        self._connection = connection

    @override
    async def write_eof(self, data: bytes = b"") -> None:
        await super().write_eof(data)
        self._connection.linger()


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


async def fetched_in_time(pending: CallerPending, timeout_s: float) -> None:
    """Wait until the credentials can be checked. Raises Unavailable after ``timeout_s``."""
    bound = asyncio.timeout(timeout_s)
    try:
        async with bound:
            await pending.fetched()
    except TimeoutError as error:
        if not bound.expired():
            raise
        raise Unavailable("The deadline passed before the credentials were checked.") from bare(
            error
        )


def _is_old(http: web.BaseRequest) -> bool:
    return http.version != HttpVersion11


def _check_framing(http: web.BaseRequest) -> None:
    """Refuse requests that two parsers may read in two ways (RFC 9112, 6.3), as far as aiohttp's parser takes them.

    Raises:
        BadRequest: the protocol is not HTTP/1, or the body's transfer coding is not ``chunked`` alone.
    """
    if _is_old(http) and http.version != HttpVersion10:
        raise BadRequest("This is not an HTTP/1 request.")
    coding = http.headers.get(hdrs.TRANSFER_ENCODING)
    if coding is not None and (coding.lower() != "chunked" or _is_old(http)):
        raise BadRequest(
            f"Transfer-Encoding {coding[:80]!a} is not supported. Use chunked, in HTTP/1.1."
        )


async def _tell_to_continue(http: web.BaseRequest) -> None:
    """Ask for the body if the client waits for that, as aiohttp's own handler of ``Expect`` does."""
    # A client of HTTP/1.0 would take it for the answer (RFC 9110, 10.1.1).
    if not _is_old(http) and http.headers.get(hdrs.EXPECT, "").lower() == "100-continue":
        await http.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        http.writer.output_size = 0  # The answer has not begun.


def _target(http: web.BaseRequest) -> tuple[str, str]:
    """Return a request's raw path and raw query. Also read the absolute form that proxies send."""
    target = http.raw_path
    if target[:1] != "/":
        target = http.rel_url.raw_path_qs if http.rel_url.raw_path else target
    path, _, query_string = target.partition("?")
    return path, query_string
