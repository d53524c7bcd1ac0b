"""The table of routes: all operations of this interface, each with its handler."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from broker.api.access import Action
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
from broker.api.polls import COMMITTED, Polling
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
from broker.topics.overdue import answered_in_time, in_time
from broker.topics.topics import Topics
from broker.transactions.prune import Pruning
from broker.transactions.service import Transactions
from broker.wire import jsontext
from broker.wire.topics import TTL

SMALL_BYTES_MAX: Final = 1024 * 1024
"""The largest body without messages and without a snapshot."""
SNAPSHOT_BYTES_MAX: Final = 16 * 1024 * 1024
"""The largest body with a snapshot: a million pointers take 8 MB. JSON has a smaller bound (wire/jsontext.py)."""

CURSOR_BYTES_MAX: Final = 16 * 1024
"""The largest body of a cursor: 1 KiB of data, each byte written as an escape."""


class Shape(NamedTuple):
    """A route without its handler.

    ``query``: the parameters that it takes. It refuses any other. ``body_bytes_max``: see ``Route``.
    """

    name: str
    method: str
    template: str
    action: Action
    query: tuple[str, ...] = ()
    body_bytes_max: int | None = SMALL_BYTES_MAX


_NAMESPACES = "/v1/namespaces"
_TOPICS = f"{_NAMESPACES}/{{namespace}}/topics"
TOPIC = f"{_TOPICS}/{{topic}}"
_MESSAGES = f"{TOPIC}/messages"
_CURSOR = f"{TOPIC}/cursors/{{cursor}}"
_CLUSTER = "/v1/cluster"
TRANSACTIONS = "/v1/transactions"
_TRANSACTION = f"{TRANSACTIONS}/{{transaction}}"
_PRUNE = f"{TRANSACTIONS}/prune"
_PIN = f"{_CLUSTER}/pins/{{namespace}}/{{topic}}"
_PAGE = ("from", "to", "limit", "order", "payload")

SHAPES = (
    # The nine endpoints of the original.
    Shape("create_topic", "PUT", TOPIC, Action.ADMIN),
    Shape("update_topic", "PUT", f"{TOPIC}/properties", Action.ADMIN),
    Shape("show_topic", "GET", TOPIC, Action.ADMIN),
    Shape("list_topics", "GET", _TOPICS, Action.ADMIN),
    Shape("delete_topic", "DELETE", TOPIC, Action.ADMIN),
    Shape("publish", "POST", f"{TOPIC}/publish", Action.PUBLISH, ("ttl",), None),
    Shape("store", "POST", f"{TOPIC}/store", Action.PUBLISH, ("ttl",), None),
    Shape("rollback", "POST", f"{TOPIC}/rollback", Action.PUBLISH),
    Shape("poll", "POST", f"{TOPIC}/poll", Action.CONSUME, ("wait", COMMITTED), SNAPSHOT_BYTES_MAX),
    # More about topics.
    Shape("namespaces", "GET", _NAMESPACES, Action.ADMIN),
    Shape("browse", "GET", _MESSAGES, Action.BROWSE, _PAGE),
    Shape("browse_as", "POST", _MESSAGES, Action.BROWSE, _PAGE, SNAPSHOT_BYTES_MAX),
    Shape("purge", "POST", f"{TOPIC}/purge", Action.ADMIN, ("before",)),
    Shape("stats", "GET", f"{TOPIC}/stats", Action.BROWSE),
    Shape("lag", "GET", f"{TOPIC}/lag", Action.BROWSE, ("after",)),
    Shape(
        "range",
        "GET",
        f"{TOPIC}/range",
        Action.BROWSE,
        ("after", "through", "messages", "bytes", "parts"),
    ),
    Shape("begin_stage", "POST", f"{TOPIC}/stages", Action.PUBLISH),
    Shape("publish_stages", "POST", f"{TOPIC}/stages/publish", Action.PUBLISH, ("ttl",)),
    Shape(
        "store_staged", "POST", f"{TOPIC}/stages/{{stage}}/store", Action.PUBLISH, ("ttl",), None
    ),
    Shape("arrow", "GET", f"{TOPIC}/arrow", Action.CONSUME, ("after", "through")),
    Shape(
        "arrow_as",
        "POST",
        f"{TOPIC}/arrow",
        Action.CONSUME,
        ("after", "through"),
        SNAPSHOT_BYTES_MAX,
    ),
    Shape("events", "GET", f"{TOPIC}/events", Action.CONSUME, ("from", COMMITTED)),
    Shape("leader", "GET", f"{TOPIC}/leader", Action.BROWSE),
    Shape(
        "blockers",
        "POST",
        f"{TOPIC}/blockers",
        Action.BROWSE,
        ("transaction", "from", "limit"),
        SNAPSHOT_BYTES_MAX,
    ),
    Shape("cursors", "GET", f"{TOPIC}/cursors", Action.BROWSE, ("after", "limit")),
    Shape("show_cursor", "GET", _CURSOR, Action.CONSUME),
    Shape("put_cursor", "PUT", _CURSOR, Action.CONSUME, (), CURSOR_BYTES_MAX),
    Shape("delete_cursor", "DELETE", _CURSOR, Action.CONSUME),
    # Transactions.
    Shape("start_transaction", "POST", TRANSACTIONS, Action.TRANSACTIONS),
    Shape("list_transactions", "GET", TRANSACTIONS, Action.TRANSACTIONS, ("limit",)),
    Shape("transactions_snapshot", "GET", f"{TRANSACTIONS}/snapshot", Action.TRANSACTIONS),
    Shape(
        "truncate_transactions",
        "POST",
        f"{TRANSACTIONS}/truncate",
        Action.TRANSACTIONS,
        (),
        jsontext.BYTES_MAX,
    ),
    Shape("prune_plan", "GET", _PRUNE, Action.TRANSACTIONS, ("through",)),
    Shape("prune_transactions", "POST", _PRUNE, Action.TRANSACTIONS, ("through",)),
    Shape("reset_transactions", "POST", f"{TRANSACTIONS}/reset", Action.ADMIN),
    Shape("show_transaction", "GET", _TRANSACTION, Action.TRANSACTIONS),
    Shape(
        "can_commit_transaction",
        "POST",
        f"{_TRANSACTION}/can-commit",
        Action.TRANSACTIONS,
        (),
        jsontext.BYTES_MAX,
    ),
    Shape("commit_transaction", "POST", f"{_TRANSACTION}/commit", Action.TRANSACTIONS),
    Shape("abort_transaction", "POST", f"{_TRANSACTION}/abort", Action.TRANSACTIONS),
    Shape("invalidate_transaction", "POST", f"{_TRANSACTION}/invalidate", Action.TRANSACTIONS),
    Shape("checkpoint_transaction", "POST", f"{_TRANSACTION}/checkpoint", Action.TRANSACTIONS),
    # The cluster.
    Shape("cluster", "GET", _CLUSTER, Action.CLUSTER, ("topics",)),
    Shape("cluster_node", "GET", f"{_CLUSTER}/node", Action.CLUSTER, ("topics",)),
    Shape("drain", "POST", f"{_CLUSTER}/nodes/{{node}}/drain", Action.CLUSTER),
    Shape("undrain", "POST", f"{_CLUSTER}/nodes/{{node}}/undrain", Action.CLUSTER),
    Shape("pins", "GET", f"{_CLUSTER}/pins", Action.CLUSTER),
    Shape("pin", "PUT", _PIN, Action.CLUSTER),
    Shape("unpin", "DELETE", _PIN, Action.CLUSTER),
    # The node itself.
    Shape("ping", "GET", "/ping", Action.CLUSTER),
    Shape("service_status", "GET", "/v3/system/services/{service}/status", Action.CLUSTER),
    Shape("healthz", "GET", "/healthz", Action.CLUSTER),
    Shape("readyz", "GET", "/readyz", Action.CLUSTER),
    Shape("metrics", "GET", "/metrics", Action.CLUSTER),
    Shape("openapi", "GET", "/openapi.json", Action.CLUSTER),
)


_READS: Final = {shape.name for shape in SHAPES if shape.method == "GET"} | {
    "browse_as",
    "arrow_as",
    "blockers",
}
_TIMED_INSIDE: Final = {"events", "poll", "publish", "publish_stages", "store", "store_staged"}
_ROLES: Final = {_NAMESPACES: Role.TOPICS, TRANSACTIONS: Role.TRANSACTIONS}
"""The role that serves the routes under a path. Every node serves all other routes."""


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
    refuse = _refusing(config.server.role)
    for shape in SHAPES:
        if _role_of(shape) not in (Role.ALL, config.server.role) and config.server.role != Role.ALL:
            handlers[shape.name] = refuse
    return [
        Route(*shape[:4], handlers[shape.name], shape.query, shape.body_bytes_max)
        for shape in SHAPES
    ]


def _role_of(shape: Shape) -> Role:
    """Return the role that serves a route. ALL means that every node serves it."""
    if shape.template == _PRUNE:
        return Role.TOPICS  # Pruning needs the topics' records: they tell which messages are left.
    roles = (role for prefix, role in _ROLES.items() if shape.template.startswith(prefix))
    return next(roles, Role.ALL)


def _refusing(role: Role) -> Handler:
    """Return a handler that refuses each request: a node of this role does not serve it."""

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
        handlers = {name: routed.bind(name, handler) for name, handler in handlers.items()}
    return {**handlers, "purge": admin.pinned(handlers["purge"])}


def _in_time(clock: Clock, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
    """Return handlers that answer at their request's deadline, wherever they wait, but for those of ``_TIMED_INSIDE``."""

    def bounded(name: str, handler: Handler) -> Handler:
        if name in _TIMED_INSIDE:
            return handler
        bound = in_time if name in _READS else answered_in_time

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
    if routed is None:
        return handlers
    return {name: routed.bind(name, handler) for name, handler in handlers.items()}


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
