"""The routes of a node: each operation of the table with its handler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import orjson

from broker import logs
from broker.api.blockers import BlockersApi
from broker.api.browse import Browsing
from broker.api.bulk import BulkReading
from broker.api.cluster import ClusterView, ClusterViewHandlers
from broker.api.cursors import CursorHandlers
from broker.api.events import Events
from broker.api.health import Health
from broker.api.own_service import OwnService
from broker.api.placement import Placing
from broker.api.polls import Polling
from broker.api.publish import CheckPointer, Publishing, Staging, any_pointer
from broker.api.routed import Routed
from broker.api.router import Handler, Route
from broker.api.topics_admin import Stats, TopicsAdmin, pinned
from broker.api.transactions import PruningApi, call_of, service_handlers
from broker.clock import Clock
from broker.config.sections import Config, Role
from broker.errors import NotFound
from broker.http.reply import Answer, Reply
from broker.http.request import Request
from broker.model import Snapshot
from broker.operations.operation import DeclaredOperation
from broker.operations.table import BY_NAME, OPERATIONS
from broker.routing import nodeheaders
from broker.topics.overdue import answered_in_time, in_time
from broker.topics.settlement import bound_of
from broker.topics.topics import Topics
from broker.transactions.hidden_messages import Unhiding
from broker.transactions.prune import Pruning
from broker.transactions.service import Transactions
from broker.transactions.service_calls import AskedService
from broker.wire.topics import TTL

TRUNCATE: Final = "truncate_transactions"
_UNHIDING: Final = {"reset_transactions": "reset", TRUNCATE: "truncation"}
_NOTED: Final = {"invalidate_transaction": "invalidated", "prune_transactions": "removed"}
"""Operations that are logged if this field of their answer says that they changed anything."""

_TIMED_INSIDE: Final = {"events", "poll", "publish", "publish_stages", "store", "store_staged"}
"""Operations whose handlers end at the deadline of a request by themselves, as those of transactions do."""

log = logs.get_logger()


def make_routes(  # noqa: PLR0913 - The parts of a node, each by its name.
    topics: Topics,
    config: Config,
    health: Health,
    cluster: ClusterView,
    routed: Routed,
    *,
    transactions: Transactions | None = None,
    service: AskedService | None = None,
) -> list[Route]:
    """Return all routes, bound to their handlers.

    Args:
        topics: the service of topics.
        config: the node's configuration.
        health: the handlers about the node itself.
        cluster: the node's view of its cluster.
        routed: binds the handlers to leaders.
        transactions: the transaction service of this node; None: one with the default bounds.
        service: the transaction service that this node's own parts ask; None: the one behind these routes.
    """
    transactions = transactions or Transactions(topics.leaders)
    own = OwnService(transactions, routed)
    asked = service or own
    handlers = handlers_of(
        *_of_topics(topics, config, asked, routed, _pointer_check(config, transactions)),
        PruningApi(_pruning(topics, asked)),
        ClusterViewHandlers(cluster),
        Placing(cluster, topics.registry),
        health,
    )
    handlers |= service_handlers(transactions)
    handlers = {
        name: _in_time(topics.around.clock, BY_NAME[name], handler)
        for name, handler in handlers.items()
    }
    handlers = routed.bound(handlers)
    handlers["purge"] = pinned(topics, handlers["purge"])
    handlers = guarded(handlers, unhiding_of(own, config, topics))
    return [
        Route(each, _of_role(each, config.server.role, handlers[each.name])) for each in OPERATIONS
    ]


def handlers_of(*parts: object) -> dict[str, Handler]:
    """Return the handlers in these objects: their methods that have the names of operations."""
    return {
        name: getattr(part, name) for part in parts for name in BY_NAME if hasattr(type(part), name)
    }


def _of_role(operation: DeclaredOperation, role: Role, handler: Handler) -> Handler:
    """Return the handler, or one that refuses each request if a node of this role does not serve the operation."""
    if role == Role.ALL or operation.role in ("", role):
        return handler

    async def refuse(_: Request) -> Answer:
        raise NotFound(
            f"This node serves only {role} (server.role = {role}). Ask a node of another role."
        )

    return refuse


def _pointer_check(config: Config, transactions: Transactions) -> CheckPointer:
    """Return the check of write pointers. A node that does not serve the transactions itself allows any pointer."""
    if config.server.role != Role.ALL or config.transactions.transactions_url is not None:
        return any_pointer
    return transactions.check_in_progress


def _of_topics(
    topics: Topics,
    config: Config,
    service: AskedService,
    routed: Routed,
    check_pointer: CheckPointer,
) -> Iterator[object]:
    limits = config.limits
    defaults = {
        TTL: str(config.topics.topic_ttl_default_s),
        **config.topics.topic_properties_default,
    }
    yield TopicsAdmin(topics, properties_default=defaults)
    most = limits.messages_per_request_max
    yield Publishing(topics, messages_max=most, check_pointer=check_pointer)
    yield Staging(topics, messages_max=most, check_pointer=check_pointer)
    yield Browsing(topics, messages_max=limits.browse_messages_max)
    yield BulkReading(topics)
    yield Stats(topics)
    yield BlockersApi(topics, service, topics.around.clock)
    yield CursorHandlers(topics)
    polls = Polling(topics, routed, service, wait_max_s=limits.wait_max_s)
    yield from (routed, polls, Events(topics, polls.within, polls.snapshot, routed.should_lead))


def _pruning(topics: Topics, service: AskedService) -> Pruning:
    settings = topics.around.settings
    return Pruning(
        topics.registry,
        service,
        topics.around.clock,
        life_ms=settings.transaction_life_max_s * 1000,
        margin_ms=settings.sweep_margin_ms,
    )


def _in_time(clock: Clock, operation: DeclaredOperation, handler: Handler) -> Handler:
    """Return a handler that answers at its request's deadline, wherever it waits."""
    if operation.name in _TIMED_INSIDE or operation.role == "transactions":
        return handler
    bound = in_time if operation.effect.is_reading else answered_in_time

    async def in_bounds(request: Request) -> Answer:
        async with bound(clock, request.deadline):
            return await handler(request)

    return in_bounds


# --- The guard of other callers' transactions ------------------------------------------------------


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


def guarded(handlers: Mapping[str, Handler], unhiding: Unhiding) -> dict[str, Handler]:
    """Return the handlers, with a check before those that show hidden messages, and a log line after those of ``_NOTED``.

    A request with the headers of a node was checked and logged by that node; the handler verifies them.
    """

    def own(request: Request) -> bool:
        return not nodeheaders.are_there(request.headers)

    def checked(name: str, handler: Handler) -> Handler:
        async def check(request: Request) -> Answer:
            if own(request):
                is_asked = name == TRUNCATE and unhiding.asks_for_ids
                sent = (await call_of(name, request)).sent if is_asked else {}
                await unhiding.check(
                    _UNHIDING[name],
                    request.caller,
                    request.id,
                    ids=sent.get("ids", ()),
                    deadline=request.deadline,
                )
            return await handler(request)

        return check

    def noted(name: str, handler: Handler) -> Handler:
        async def note(request: Request) -> Answer:
            answer = await handler(request)
            if own(request) and isinstance(answer, Reply) and answer.status == 200:
                field = _NOTED[name]
                changed = orjson.loads(answer.body)[field]
                if changed and request.usage.may_log():
                    log.info(
                        "transactions ended by a caller",
                        operation=name,
                        path=request.path,
                        caller=request.caller,
                        request_id=request.id,
                        **{field: changed},
                    )
            return answer

        return note

    return {
        name: checked(name, handler)
        if name in _UNHIDING
        else noted(name, handler)
        if name in _NOTED
        else handler
        for name, handler in handlers.items()
    }
