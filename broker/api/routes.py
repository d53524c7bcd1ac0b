"""The routes of a node: each operation of the table with its handler, and around it what the table says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import orjson

from broker import __version__, logs
from broker.access.access_records import AccessRecords
from broker.access.meter import PUBLISHES, Meter
from broker.access.quotas import QuotaKind
from broker.access.stored_bytes import StoredBytes
from broker.api.access_handlers import AccessHandlers
from broker.api.cluster import ClusterHandlers, ClusterView
from broker.api.messages.arrow import BulkReading
from broker.api.messages.browse import Browsing
from broker.api.messages.events import Events
from broker.api.messages.polls import Polling
from broker.api.messages.publish import Publishing
from broker.api.openapi import document
from broker.api.quota_handlers import QuotaHandlers
from broker.api.routed import OwnService, Routed
from broker.api.router import Handler, NodeParts, Route
from broker.api.topics_admin import CursorHandlers, TopicsAdmin, pinned
from broker.api.transactions import BlockersApi, PruningApi, call_of, service_handlers
from broker.clock import Clock
from broker.config.sections import Config, Role
from broker.errors import NotFound, Unavailable, UnavailableError
from broker.http.reply import Answer, Reply, json_reply
from broker.http.request import Request
from broker.metrics import CONTENT_TYPE
from broker.model import Snapshot
from broker.operations import replies
from broker.operations.media_types import JSON, PLAIN
from broker.operations.operation import Action, DeclaredOperation
from broker.operations.replies import Product
from broker.operations.table import BY_NAME, OPERATIONS
from broker.routing import nodeheaders
from broker.routing.decisions import LOOK_AGAIN
from broker.topics.overdue import answered_in_time, in_time
from broker.topics.settlement import bound_of
from broker.topics.topics import Topics
from broker.transactions.hidden_messages import Unhiding
from broker.transactions.service import Transactions
from broker.transactions.service_calls import AskedService

_OF_TOPICS: Final = (
    *(TopicsAdmin, Publishing, Browsing, BulkReading, CursorHandlers, BlockersApi, PruningApi),
)

log = logs.get_logger()


def make_routes(  # noqa: PLR0913 - The parts of a node, each by its name.
    topics: Topics,
    config: Config,
    cluster: ClusterView,
    routed: Routed,
    transactions: Transactions,
    *,
    not_ready: Callable[[], str | None],
    service: AskedService | None = None,
    access: AccessRecords,
    meter: Meter | None = None,
) -> list[Route]:
    """Return all routes, bound to their handlers.

    Args:
        topics: the service of topics.
        config: the node's configuration.
        cluster: the node's view of its cluster.
        routed: binds the handlers to leaders.
        transactions: the transaction service of this node.
        not_ready: returns why the node takes no requests now; None if it takes them.
        service: the transaction service that this node's own parts ask; None: the one behind these routes.
        access: the records of access.
        meter: charges the topics' quotas; None: there are none.
    """
    own = OwnService(transactions, routed)
    is_own = config.server.role == Role.ALL and config.transactions.transactions_url is None
    check_pointer = transactions.check_in_progress if is_own else any_pointer
    parts = NodeParts(topics, config, routed, service or own, check_pointer, meter)
    polls = Polling(parts)
    handlers = handlers_of(
        *(kind(parts) for kind in _OF_TOPICS),
        *(routed, polls, Events(parts, polls), Health(parts, not_ready), QuotaHandlers(access)),
        AccessHandlers(access),
        ClusterHandlers(cluster, topics.registry),
    )
    handlers |= service_handlers(transactions, meter)
    unhiding = unhiding_of(own, config, topics)
    return [Route(each, _bound(each, handlers[each.name], parts, unhiding)) for each in OPERATIONS]


def handlers_of(*parts: object) -> dict[str, Handler]:
    """Return the handlers in these objects: their methods that have the names of operations."""
    return {
        name: getattr(part, name) for part in parts for name in BY_NAME if hasattr(type(part), name)
    }


async def any_pointer(pointer: int, deadline: float | None) -> None:
    """Allow any write pointer: another service gave it, which this node does not serve."""
    del pointer, deadline


def _bound(
    operation: DeclaredOperation, handler: Handler, parts: NodeParts, unhiding: Unhiding
) -> Handler:
    """Return a handler with all that the table says around it."""
    role = parts.config.server.role
    if role != Role.ALL and operation.role not in ("", role):
        return _refusal(role)
    if not operation.has_own_deadline:
        handler = _in_time(parts.topics.around.clock, operation, handler)
    if parts.meter is not None and operation.action in PUBLISHES:
        handler = _metered(parts.meter, StoredBytes(parts.topics), operation, handler)
    handler = parts.routed.bound(operation, handler)
    if operation.name == "purge":
        handler = pinned(parts.topics, handler)
    if operation.unhides:
        handler = _checked(operation, handler, unhiding)
    return _noted(operation, handler) if operation.notes else handler


def _metered(
    meter: Meter, stored: StoredBytes, operation: DeclaredOperation, handler: Handler
) -> Handler:
    """Return the handler of a publish that charges the topic first. It runs on the leader."""

    async def metered(request: Request) -> Answer:
        bounds = meter.begin_led(request)
        most = bounds.get(QuotaKind.STORED_BYTES)
        if most is not None and operation.action is Action.PUBLISH:
            await stored.take(request.topic, len(request.body), most, request.usage)
        size = len(request.body)
        try:
            return await handler(request)
        except UnavailableError as error:
            if error.code in LOOK_AGAIN:  # It is sent again, to this node or to another one.
                meter.not_led(request.topic, size)
            raise

    return metered


def _refusal(role: Role) -> Handler:
    """Return the handler of the operations that a node of this role does not serve."""

    async def refuse(_: Request) -> Answer:
        raise NotFound(
            f"This node serves only {role} (server.role = {role}). Ask a node of another role."
        )

    return refuse


def _in_time(clock: Clock, operation: DeclaredOperation, handler: Handler) -> Handler:
    """Return a handler that answers at its request's deadline, wherever it waits."""
    bound = in_time if operation.effect.is_reading else answered_in_time

    async def in_bounds(request: Request) -> Answer:
        async with bound(clock, request.deadline):
            return await handler(request)

    return in_bounds


def unhiding_of(own: OwnService, config: Config, topics: Topics) -> Unhiding:
    """Return the guard of the operations that show hidden messages, with the permissions of a configuration."""
    around, told = topics.around, config.transactions

    def settled_below(snapshot: Snapshot) -> int:
        settings = around.settings
        return bound_of(
            snapshot,
            now_ms=around.clock.now_ms(),
            life_ms=settings.transaction_life_max_s * 1000,
            margin_ms=settings.sweep_margin_ms,
        )

    prunes = settled_below if told.transactions_prune_allowed else None
    return Unhiding(own, allowed=told.transactions_reset_allowed, prunes=prunes)


def _is_own(request: Request) -> bool:
    """Return whether no node sent a request. That node checked and logged it; the handler verifies its headers."""
    return not nodeheaders.are_there(request.headers)


def _checked(operation: DeclaredOperation, handler: Handler, unhiding: Unhiding) -> Handler:
    """Return a handler with a check of the permission to show hidden messages."""
    name = operation.name

    async def check(request: Request) -> Answer:
        if _is_own(request):
            is_asked = unhiding.asks_for_ids and name == "truncate_transactions"
            sent = (await call_of(name, request)).sent if is_asked else {}
            await unhiding.check(
                operation.unhides,
                request.caller,
                request.id,
                ids=sent.get("ids", ()),
                deadline=request.deadline,
            )
        return await handler(request)

    return check


def _noted(operation: DeclaredOperation, handler: Handler) -> Handler:
    """Return a handler that logs what it changed of other callers."""
    field = operation.notes

    async def note(request: Request) -> Answer:
        answer = await handler(request)
        if _is_own(request) and isinstance(answer, Reply) and answer.status == 200:
            changed = orjson.loads(answer.body)[field]
            if changed and request.usage.may_log():
                log.info(
                    "transactions ended by a caller",
                    operation=operation.name,
                    path=request.path,
                    caller=request.caller,
                    request_id=request.id,
                    **{field: changed},
                )
        return answer

    return note


# --- The node itself ------------------------------------------------------------------------------

_PONG = Reply(200, b"OK.\n", PLAIN)
_READY = Reply(200, b'{"status":"ready"}', JSON)
_STATUS_OK = Reply(200, b'{"status":"OK"}', JSON)


class Health:
    """The handlers that tell about the node itself."""

    def __init__(self, parts: NodeParts, not_ready: Callable[[], str | None]) -> None:
        """Keep the sources of the answers. ``not_ready`` returns the reason, or None if the node is ready."""
        self._parts = parts
        self._not_ready = not_ready

    async def product(self, _: Request) -> Answer:
        """Answer which product this is, and where its interface is described."""
        return json_reply(
            Product(product="tms-broker", version=__version__, interface="/openapi.json")
        )

    async def ping(self, _: Request) -> Answer:
        """Answer as the original does."""
        return _PONG

    async def service_status(self, _: Request) -> Answer:
        """Answer as the original does, for any service name."""
        return _STATUS_OK

    async def healthz(self, _: Request) -> Answer:
        """Answer that the process lives."""
        return json_reply(replies.Health(status="ok", version=__version__))

    async def readyz(self, _: Request) -> Answer:
        """Answer that this node takes requests. Raises Unavailable if it does not."""
        reason = self._not_ready()
        if reason is not None:
            raise Unavailable(f"This node is not ready: {reason}")
        return _READY

    async def metrics(self, _: Request) -> Answer:
        """Answer all metrics in Prometheus' text format."""
        return Reply(200, self._parts.topics.around.metrics.render(), CONTENT_TYPE)

    async def openapi(self, _: Request) -> Answer:
        """Answer the OpenAPI document."""
        return Reply(200, document(self._parts.config.limits), JSON)
