"""The routes of a node: each operation of the table with its handler."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from broker.api.blockers import BlockersApi
from broker.api.browse import Browsing
from broker.api.bulk import BulkReading
from broker.api.caller_guard import guarded, unhiding_of
from broker.api.cluster import ClusterView, ClusterViewHandlers
from broker.api.cursors import CursorHandlers
from broker.api.events import Events, PollNext
from broker.api.health import Health
from broker.api.leadership import Leadership
from broker.api.own_service import AnyService, OwnService
from broker.api.placement import Placing
from broker.api.polls import Polling
from broker.api.prune import PruningApi
from broker.api.publish import CheckPointer, Publishing, any_pointer
from broker.api.routed import Routed
from broker.api.routed_polls import RoutedPolls
from broker.api.router import Handler, Route
from broker.api.stages import Staging
from broker.api.stats import Stats
from broker.api.topics_admin import TopicsAdmin
from broker.api.transactions import TransactionsApi
from broker.clock import Clock
from broker.config.sections import Config, Role
from broker.errors import NotFound
from broker.http.reply import Answer
from broker.http.request import Request
from broker.operations.operation import DeclaredOperation
from broker.operations.table import BY_NAME, OPERATIONS
from broker.topics.overdue import answered_in_time, in_time
from broker.topics.topics import Topics
from broker.transactions.prune import Pruning
from broker.transactions.service import Transactions
from broker.wire.topics import TTL

_TIMED_INSIDE: Final = {"events", "poll", "publish", "publish_stages", "store", "store_staged"}
"""Operations whose handlers end at the deadline of a request by themselves."""


def make_routes(  # noqa: PLR0913 - The parts of a node, each by its name.
    topics: Topics,
    config: Config,
    health: Health,
    cluster: ClusterView | None = None,
    *,
    routed: Routed | None = None,
    transactions: Transactions | None = None,
    service: AnyService | None = None,
) -> list[Route]:
    """Return all routes, bound to their handlers.

    Args:
        topics: the service of topics.
        config: the node's configuration.
        health: the handlers about the node itself.
        cluster: the node's view of its cluster; None on a standalone node.
        routed: binds the handlers to leaders; None on a standalone node, where no handler is wrapped.
        transactions: the transaction service of this node; None: one with the default bounds.
        service: the transaction service that this node's own parts ask; None: the one behind these routes.
    """
    transactions = transactions or Transactions(topics.leaders)
    of_transactions = _transaction_handlers(transactions, routed)
    own = service if isinstance(service, OwnService) else OwnService(topics.around.clock)
    own.bind(of_transactions)
    asked = service or own
    unhiding = unhiding_of(own, config, topics)
    handlers = {
        **_topic_handlers(
            topics, config, asked, routed, _pointer_check(config, transactions, routed)
        ),
        **guarded(
            {**of_transactions, **_pruning_handlers(topics, asked)},
            unhiding,
            in_cluster=routed is not None,
        ),
        **_cluster_handlers(topics, cluster),
        **_node_handlers(health),
    }
    return [
        Route(each, _of_role(each, config.server.role, handlers[each.name])) for each in OPERATIONS
    ]


def _of_role(operation: DeclaredOperation, role: Role, handler: Handler) -> Handler:
    """Return the handler, or one that refuses each request if a node of this role does not serve the operation."""
    if role == Role.ALL or operation.role in ("", role):
        return handler

    async def refuse(_: Request) -> Answer:
        raise NotFound(
            f"This node serves only {role} (server.role = {role}). Ask a node of another role."
        )

    return refuse


def _pointer_check(
    config: Config, transactions: Transactions, routed: Routed | None
) -> CheckPointer:
    """Return the check of write pointers. A node that does not serve the transactions itself allows any pointer."""
    if config.server.role != Role.ALL or config.transactions.transactions_url is not None:
        return any_pointer
    return partial(transactions.check_in_progress, alone=routed is None)


def _topic_handlers(
    topics: Topics,
    config: Config,
    service: AnyService,
    routed: Routed | None,
    check_pointer: CheckPointer,
) -> dict[str, Handler]:
    limits = config.limits
    defaults = {
        TTL: str(config.topics.topic_ttl_default_s),
        **config.topics.topic_properties_default,
    }
    admin = TopicsAdmin(topics, properties_default=defaults)
    most = limits.messages_per_request_max
    publishing = Publishing(topics, messages_max=most, check_pointer=check_pointer)
    staging = Staging(topics, messages_max=most, check_pointer=check_pointer)
    bulk = BulkReading(topics)
    browsing = Browsing(topics, messages_max=limits.browse_messages_max)
    polling = Polling(topics, service, wait_max_s=limits.wait_max_s)
    poll: Handler = polling.poll
    poll_next: PollNext = polling.within
    leadership = Leadership(topics)
    if routed is not None:
        polls = RoutedPolls(routed, polling)
        poll, poll_next = polls.poll, polls.within
        leadership = Leadership(topics, me=routed.routing.me, place=routed.routing.place)
    cursors = CursorHandlers(topics)
    handlers: dict[str, Handler] = {
        "create_topic": admin.create,
        "update_topic": admin.update,
        "show_topic": admin.show,
        "list_topics": admin.list,
        "namespaces": admin.namespaces,
        "delete_topic": admin.delete,
        "purge": admin.purge,
        "publish": publishing.publish,
        "store": publishing.store,
        "rollback": publishing.rollback,
        "poll": poll,
        "browse": browsing.browse,
        "browse_as": browsing.browse_with_snapshot,
        "stats": Stats(topics).stats,
        "lag": Stats(topics).lag,
        "range": Stats(topics).range,
        "begin_stage": staging.begin,
        "publish_stages": staging.publish,
        "store_staged": staging.store,
        "arrow": bulk.arrow,
        "arrow_as": bulk.arrow_with_snapshot,
        "events": Events(topics, poll_next).stream,
        "leader": leadership.leader,
        "blockers": BlockersApi(topics, service, topics.around.clock).blockers,
        "cursors": cursors.list,
        "show_cursor": cursors.show,
        "put_cursor": cursors.put,
        "delete_cursor": cursors.delete,
    }
    handlers = _in_time(topics.around.clock, handlers)
    if routed is not None:
        handlers = routed.bound(handlers)
    return {**handlers, "purge": admin.pinned(handlers["purge"])}


def _in_time(clock: Clock, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
    """Return handlers that answer at their request's deadline, wherever they wait, but for those of ``_TIMED_INSIDE``."""

    def bounded(name: str, handler: Handler) -> Handler:
        if name in _TIMED_INSIDE:
            return handler
        bound = in_time if BY_NAME[name].effect.is_reading else answered_in_time

        async def in_bounds(request: Request) -> Answer:
            async with bound(clock, request.deadline):
                return await handler(request)

        return in_bounds

    return {name: bounded(name, handler) for name, handler in handlers.items()}


def _transaction_handlers(transactions: Transactions, routed: Routed | None) -> dict[str, Handler]:
    api = TransactionsApi(transactions)
    handlers: dict[str, Handler] = {
        "start_transaction": api.start,
        "list_transactions": api.list,
        "transactions_snapshot": api.snapshot,
        "truncate_transactions": api.truncate,
        "reset_transactions": api.reset,
        "show_transaction": api.show,
        "can_commit_transaction": api.can_commit,
        "commit_transaction": api.commit,
        "abort_transaction": api.abort,
        "invalidate_transaction": api.invalidate,
        "checkpoint_transaction": api.checkpoint,
    }
    return handlers if routed is None else routed.bound(handlers)


def _pruning_handlers(topics: Topics, service: AnyService) -> dict[str, Handler]:
    settings = topics.around.settings
    pruning = Pruning(
        topics.registry,
        service,
        topics.around.clock,
        life_ms=settings.transaction_life_max_s * 1000,
        margin_ms=settings.sweep_margin_ms,
    )
    api = PruningApi(pruning)
    handlers: dict[str, Handler] = {"prune_plan": api.plan, "prune_transactions": api.prune}
    return _in_time(topics.around.clock, handlers)


def _cluster_handlers(topics: Topics, view: ClusterView | None) -> dict[str, Handler]:
    cluster, placing = ClusterViewHandlers(view), Placing(view, topics.registry)
    handlers: dict[str, Handler] = {
        "cluster": cluster.status,
        "cluster_node": cluster.node,
        "drain": placing.drain,
        "undrain": placing.undrain,
        "pins": placing.pins,
        "pin": placing.pin,
        "unpin": placing.unpin,
    }
    return _in_time(topics.around.clock, handlers)


def _node_handlers(health: Health) -> dict[str, Handler]:
    return {
        "ping": health.ping,
        "service_status": health.service_status,
        "healthz": health.healthz,
        "readyz": health.readyz,
        "metrics": health.metrics,
        "openapi": health.openapi,
    }
