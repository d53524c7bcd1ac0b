"""Take a request from its head to its answer: admit, authorize, handle, turn errors into replies.

This is the only way to a handler, so no request reaches one without authorization, and every error has a code.
An unexpected exception has the outcome *unknown*: it is logged once, with the request's id, and the reply says
unknown. A refusal is logged at level debug, an unknown outcome as a warning, within the budget of log lines. So an
operator who has the id of a request finds its outcome in the log.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from typing import Final

from broker import logs
from broker.access.gate import AccessGate, OpenGate
from broker.access.meter import Meter
from broker.access.quotas import QuotaKind
from broker.api import asked
from broker.api.origins import Origins, preflight_reply
from broker.api.router import RouteMatch, Router
from broker.config.sections import Config
from broker.errors import (
    BadName,
    BadRequest,
    BrokerError,
    Forbidden,
    MethodNotAllowed,
    Overloaded,
    QuotaExceeded,
    StorageCorrupt,
    TopicNotFound,
    Unauthenticated,
)
from broker.http.budget import Cut, Usage
from broker.http.exchange import Admitted
from broker.http.reply import Answer, Headers, Reply, error_reply, unexpected_reply
from broker.http.request import Request
from broker.metrics import OK, Metrics
from broker.moments import span_s
from broker.operations.operation import Answerer, DeclaredOperation
from broker.operations.parameters import REQUEST_TIMEOUT_S_MAX, TIMEOUT
from broker.principal import ANYONE, NOWHERE, Principal, Remote
from broker.routing import nodeheaders
from broker.routing.peer_requests import Receiving

UNKNOWN_ROUTE = "unknown"
PREFLIGHT = "preflight"
INTERNAL = BrokerError.code
ASKS_FOR_CREDENTIALS: Final[Headers] = (("WWW-Authenticate", 'Bearer realm="broker"'),)
_STAYS_OPEN: Final = (BadName, Forbidden, TopicNotFound, Unauthenticated)
"""The refusals after which a connection stays open, if the whole body has arrived."""

log = logs.get_logger()
monotonic: Callable[[], float] = time.perf_counter
"""Measures how long answers take, for metrics only. No decision depends on it."""


class Dispatch:
    """The interface without a socket: request values in, answers out."""

    def __init__(
        self,
        router: Router,
        metrics: Metrics,
        config: Config | None = None,
        *,
        gate: AccessGate | None = None,
        meter: Meter | None = None,
        receiving: Receiving | None = None,
    ) -> None:
        """Keep the table of routes, the metrics, the gate (None: all callers may do everything), and the meter of quotas.

        ``receiving`` checks what other nodes sign; None: this node has no others.
        """
        config = config or Config()
        self.router = router
        self._origins = Origins.of(config, socket.gethostname())
        self._deadline_s = config.server.request_deadline_s
        # A publish repeated under its idempotency key must still find the first answer. So no request may last
        # nearly as long as the window of the keys.
        self._timeout_s_max = config.topics.idempotency_window_s / 2
        self._metrics = metrics
        self._gate = gate or OpenGate()
        self._meter = meter
        self._receiving = receiving

    def admit(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        remote: Remote = NOWHERE,
        query_string: str = "",
    ) -> Admitted | Reply:
        """Return how to serve a request that came by HTTP, or the reply to a preflight.

        Raises:
            Forbidden: a browser sent it for a page whose origin is not allowed, or to another name.
            NotFound, MethodNotAllowed, BadName: see ``Router.find``.
            Unauthenticated, Forbidden, TopicNotFound, CallerPending: see ``AccessGate``.
            QuotaExceeded: the caller has used up a quota.
            BadRequest: its Request-Timeout can't be read, or its body is compressed and may not be.
        """
        self._origins.check(headers)
        if method == "OPTIONS" and self._origins.is_preflight(headers):
            return self._preflight(path)
        found = self.router.find(method, path)
        operation = found.route.operation
        if not operation.is_for_probes:
            self._origins.check_host(headers)
        principal = ANYONE
        if nodeheaders.are_there(headers):
            principal = self._of_node(method, path, query_string, headers)
            if not self._gate.is_open:
                self._gate.authorize(principal, operation.action, found.names)
        elif not self._gate.is_open:
            principal = self._gate.identify(headers, remote)
            self._gate.authorize(principal, operation.action, found.names)
        timeout_s = self.timeout_s(headers)
        if operation.keeps_body:
            asked.check_coding(headers)
        most = asked.bytes_max(headers, operation.body_bytes_max)
        quota = None
        if self._meter is not None and not _is_passed_on(operation, headers):
            quota = self._meter.admit(principal, operation, found.names, headers)
        is_asked = TIMEOUT.name in headers
        return Admitted(found, found.names, timeout_s, most, is_asked, principal, quota)

    def timeout_s(self, headers: Mapping[str, str]) -> float:
        """Return how long a request may take. Raises BadRequest."""
        timeout = headers.get(TIMEOUT.name)
        if timeout is None:
            return self._deadline_s
        return min(parse_timeout_s(timeout), self._timeout_s_max)

    def _of_node(
        self, method: str, path: str, query_string: str, headers: Mapping[str, str]
    ) -> Principal:
        """Return the caller of a request that another node signed. Raises Forbidden, NoLeader, BadRequest."""
        if self._receiving is None:
            raise Forbidden("This node has no other nodes, so it takes no headers of nodes.")
        target = f"{path}?{query_string}" if query_string else path
        return self._receiving.admit(method, target, headers).principal

    def headers(self, headers: Mapping[str, str]) -> Headers:
        """Return the header lines for the page of a browser; empty if there are none."""
        return self._origins.headers(headers)

    async def answer(self, found: RouteMatch, request: Request) -> Answer:
        """Return the handler's answer, or the reply for its error."""
        started = monotonic()
        operation = found.route.operation
        code = OK
        try:
            if request.query_string:
                operation.check_query(request.query)
            meter = self._meter
            if meter is None or _is_passed_on(operation, request.headers):
                answer = await found.route.handler(request)
            else:
                meter.begin(request, operation)
                answer = meter.billed(request, operation, await found.route.handler(request))
        except BrokerError as error:
            code = error.code
            self._count_quota(error)
            if error.outcome == "unknown":
                self._metrics.unknown.add(operation.name)
            return self.failure(error, request.headers, request.id, request.usage)
        except Cut as error:
            refusal = Overloaded(str(error))  # The connection is closed: no client reads this.
            code = refusal.code
            return self.failure(refusal, request.headers, request.id, request.usage)
        except Exception as error:  # noqa: BLE001 - Every exception becomes a reply and a log line.
            code = INTERNAL
            self._metrics.unknown.add(operation.name)
            return self.failure(error, request.headers, request.id, request.usage)
        else:
            # Sending the answer may take long if the client reads slowly, and needs no body.
            request.let_go_of_body()
            return answer
        finally:
            self._metrics.answered(operation.name, code, monotonic() - started)

    @staticmethod
    def failure(
        error: Exception, headers: Mapping[str, str], request_id: str, usage: Usage | None = None
    ) -> Reply:
        """Log an error and return the reply for it. An error that should never occur is logged at level error.

        Clients can cause unknown outcomes, by short deadlines, so ``usage`` bounds their lines for each second.
        """
        if not isinstance(error, BrokerError):
            log.error("unexpected error", request_id=request_id, exc_info=error)
            return unexpected_reply(headers, request_id)
        refused = error.outcome == "refused"
        if refused or not (usage is None or usage.may_log()):
            event = "request refused" if refused else "outcome unknown"
            log.debug(event, request_id=request_id, **_error_fields(error))
        elif isinstance(error, StorageCorrupt):
            log.error("storage corrupt", request_id=request_id, error=error.message)
        else:
            log.warning("outcome unknown", request_id=request_id, **_error_fields(error))
        return error_reply(error, headers)

    def refuse(
        self, error: BrokerError, path: str, headers: Mapping[str, str], request_id: str = ""
    ) -> Reply:
        """Return the reply to a request that reaches no handler.

        The reply closes the connection, as in the original, except for a bad name, and for a caller that may not do this.
        """
        self._metrics.answered(UNKNOWN_ROUTE, error.code, 0.0)
        self._count_quota(error)
        log.debug("request refused", request_id=request_id, path=path, **_error_fields(error))
        more: Headers = ()
        if isinstance(error, MethodNotAllowed):
            more = (("Allow", ", ".join(self.router.methods(path))),)
        elif isinstance(error, Unauthenticated):
            more = ASKS_FOR_CREDENTIALS
        return error_reply(error, headers, more, close=not _stays_open(error))

    def _count_quota(self, error: BrokerError) -> None:
        if isinstance(error, QuotaExceeded):
            self._metrics.quota_refused.add(error.kind)

    def _preflight(self, path: str) -> Reply:
        """Return the answer to a preflight: the methods that a page may send to a path."""
        methods = self.router.methods(path)
        if not methods:
            self.router.find("OPTIONS", path)
        self._metrics.answered(PREFLIGHT, OK, 0.0)
        return preflight_reply(methods)


def _stays_open(error: BrokerError) -> bool:
    """Return whether the connection of a refused request stays open. One of too many connections ends."""
    if isinstance(error, QuotaExceeded):
        return error.kind != QuotaKind.CONNECTIONS
    return isinstance(error, _STAYS_OPEN)


def _is_passed_on(operation: DeclaredOperation, headers: Mapping[str, str]) -> bool:
    """Return whether a node sent a request for a client, which that node has charged. Admission has verified its headers."""
    return operation.by is Answerer.LEADER and nodeheaders.are_there(headers)


def _error_fields(error: BrokerError) -> dict[str, str]:
    return {"code": error.code, "error": error.message}


def parse_timeout_s(text: str) -> float:
    """Return the seconds that the header ``Request-Timeout`` gives. Raises BadRequest."""
    try:
        seconds = span_s(text)
    except ValueError as error:
        raise BadRequest(f"{TIMEOUT.name}: {error}") from None
    if not 0 < seconds <= REQUEST_TIMEOUT_S_MAX:
        raise BadRequest(
            f"{TIMEOUT.name} must be seconds, more than 0 and at most "
            f"{REQUEST_TIMEOUT_S_MAX:g}, not {text!a:.80}."
        )
    return seconds
