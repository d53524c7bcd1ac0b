"""The way of a request from its head to an answer: admit, authorize, handle, turn errors into replies.

There is one place for this, so that no handler can be reached without being authorized and no error
leaves without a code. What nobody foresaw is *unknown*: it is logged once, with the request's id, and
answered so. What is refused is a line at the level debug, an unknown outcome a warning: whoever asks
after a request by its id finds what became of it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping

from broker import logs
from broker.api import bodies
from broker.api.access import Authorize, allow_all
from broker.api.origins import Origins, preflight_reply
from broker.api.router import RouteMatch, Router
from broker.config.sections import Config
from broker.errors import BadName, BrokerError, MethodNotAllowed, Overloaded, StorageCorrupt
from broker.http.budget import Cut
from broker.http.exchange import Admitted
from broker.http.reply import Answer, Headers, Reply, error_reply, unexpected_reply
from broker.http.request import Request, never
from broker.metrics import OK, Metrics
from broker.routing.deadlines import REQUEST_TIMEOUT, parse_timeout_s

UNKNOWN_ROUTE = "unknown"
PREFLIGHT = "preflight"
INTERNAL = BrokerError.code

log = logs.get_logger()
monotonic: Callable[[], float] = time.perf_counter
"""Measures how long answers take; nothing is decided by it."""


class Dispatch:
    """The interface without a socket: request values in, answers out."""

    def __init__(
        self,
        router: Router,
        metrics: Metrics,
        config: Config | None = None,
        *,
        authorize: Authorize = allow_all,
    ) -> None:
        """Keep the table of routes, the rules of access, and where answers are counted."""
        config = config or Config()
        self.router = router
        self._origins = Origins.of(config, socket.gethostname())
        self._deadline_s = config.server.request_deadline_s
        # What is sent again under a key must find its first answer, however long that took.
        self._timeout_s_max = config.topics.idempotency_window_s / 2
        self._metrics = metrics
        self._authorize = authorize

    def admit(self, method: str, path: str, headers: Mapping[str, str]) -> Admitted | Reply:
        """Return what is to be done for a request that comes by HTTP; or the reply to a preflight.

        Raises:
            Forbidden: a page made a browser send it, and may not.
            NotFound, MethodNotAllowed, BadName: see ``Router.find``.
            BadRequest: its Request-Timeout can't be read.
        """
        self._origins.check(headers)
        if method == "OPTIONS" and self._origins.is_preflight(method, headers):
            return self._preflight(path)
        found = self.router.find(method, path)
        timeout = headers.get(REQUEST_TIMEOUT)
        timeout_s = self._deadline_s
        if timeout is not None:
            timeout_s = min(parse_timeout_s(timeout), self._timeout_s_max)
        most = bodies.bytes_max(headers, found.route.body_bytes_max)
        return Admitted(found, found.names, timeout_s, most)

    def lines(self, headers: Mapping[str, str]) -> str:
        """Return what the head of each reply has for a page: lines with their ends, or nothing."""
        return self._origins.lines(headers)

    async def answer(self, found: RouteMatch, request: Request) -> Answer:
        """Return the handler's answer, or the reply that tells its error."""
        started = monotonic()
        route = found.route
        code = OK
        try:
            self._authorize(request.principal, route.action, request.names)
            if request.query_string:
                route.check_query(request.query)
            answer = await route.handler(request)
        except BrokerError as error:
            code = error.code
            if error.outcome == "unknown":
                self._metrics.unknown(route.name)
            return self.failure(error, request.headers, request.id)
        except Cut as error:
            refusal = Overloaded(str(error))  # Its connection has gone: no client reads this.
            code = refusal.code
            return self.failure(refusal, request.headers, request.id)
        except Exception as error:  # noqa: BLE001 - The last resort: nothing ends in silence.
            code = INTERNAL
            self._metrics.unknown(route.name)
            return self.failure(error, request.headers, request.id)
        else:
            # From here on the answer is sent, to a reader that may take its time.
            request.let_go_of_body()
            return answer
        finally:
            self._metrics.answered(route.name, code, monotonic() - started)

    @staticmethod
    def failure(error: Exception, headers: Mapping[str, str], request_id: str) -> Reply:
        """Return the reply that tells an error, and log those that nobody should get."""
        if not isinstance(error, BrokerError):
            log.error("unexpected error", request_id=request_id, exc_info=error)
            return unexpected_reply(headers, request_id)
        if isinstance(error, StorageCorrupt):
            log.error("storage corrupt", request_id=request_id, error=error.message)
        elif error.outcome == "unknown":
            log.warning("outcome unknown", request_id=request_id, **_told(error))
        else:
            log.debug("request refused", request_id=request_id, **_told(error))
        return error_reply(error, headers)

    def refuse(
        self, error: BrokerError, path: str, headers: Mapping[str, str], request_id: str = ""
    ) -> Reply:
        """Return the reply to a request that reaches no handler.

        The connection ends with it, as in the original, unless a name was all that was wrong.
        """
        self._metrics.answered(UNKNOWN_ROUTE, error.code, 0.0)
        log.debug("request refused", request_id=request_id, path=path, **_told(error))
        allow: Headers = ()
        if isinstance(error, MethodNotAllowed):
            allow = (("Allow", ", ".join(self.router.methods(path))),)
        return error_reply(error, headers, allow, close=not isinstance(error, BadName))

    def _preflight(self, path: str) -> Reply:
        """Return the answer to a browser that asks what a page may send to a path."""
        methods = self.router.methods(path)
        if not methods:
            self.router.find("OPTIONS", path)
        self._metrics.answered(PREFLIGHT, OK, 0.0)
        return preflight_reply(methods)

    async def call(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        deadline: float | None = None,
        source: object | None = None,
    ) -> Answer:
        """Answer a request that comes from this very process, as if it had come by HTTP.

        ``target`` is a raw path and query; ``headers`` must be case-insensitive.
        """
        path, _, query_string = target.partition("?")
        try:
            found = self.router.find(method, path)
        except BrokerError as error:
            return self.refuse(error, path, headers)
        request = Request(
            method,
            path,
            query_string,
            headers,
            body,
            names=found.names,
            deadline=deadline,
            source=source,
            abandoned=never,
        )
        return await self.answer(found, request)


def _told(error: BrokerError) -> dict[str, str]:
    return {"code": error.code, "error": error.message}
