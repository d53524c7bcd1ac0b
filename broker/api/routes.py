"""The table of routes: everything that this interface can be asked, and who answers it."""

from __future__ import annotations

from typing import NamedTuple

from broker.api.access import Action
from broker.api.browsing import Browsing
from broker.api.events import Events
from broker.api.health import Health
from broker.api.polling import Polling
from broker.api.publishing import Publishing
from broker.api.router import Handler, Route
from broker.api.stats import Stats
from broker.api.topics_admin import TopicsAdmin
from broker.config import Config
from broker.topics.service import Topics
from broker.wire.topics import TTL


class Shape(NamedTuple):
    """A route without its handler."""

    name: str
    method: str
    template: str
    action: Action


_TOPICS = "/v1/namespaces/{namespace}/topics"
_TOPIC = f"{_TOPICS}/{{topic}}"
_MESSAGES = f"{_TOPIC}/messages"

SHAPES = (
    # The nine endpoints of the original.
    Shape("create_topic", "PUT", _TOPIC, Action.ADMIN),
    Shape("update_topic", "PUT", f"{_TOPIC}/properties", Action.ADMIN),
    Shape("show_topic", "GET", _TOPIC, Action.ADMIN),
    Shape("list_topics", "GET", _TOPICS, Action.ADMIN),
    Shape("delete_topic", "DELETE", _TOPIC, Action.ADMIN),
    Shape("publish", "POST", f"{_TOPIC}/publish", Action.PUBLISH),
    Shape("store", "POST", f"{_TOPIC}/store", Action.PUBLISH),
    Shape("rollback", "POST", f"{_TOPIC}/rollback", Action.PUBLISH),
    Shape("poll", "POST", f"{_TOPIC}/poll", Action.CONSUME),
    # Beside them.
    Shape("browse", "GET", _MESSAGES, Action.BROWSE),
    Shape("browse_as", "POST", _MESSAGES, Action.BROWSE),
    Shape("stats", "GET", f"{_TOPIC}/stats", Action.BROWSE),
    Shape("events", "GET", f"{_TOPIC}/events", Action.CONSUME),
    # The node itself.
    Shape("ping", "GET", "/ping", Action.CLUSTER),
    Shape("service_status", "GET", "/v3/system/services/{service}/status", Action.CLUSTER),
    Shape("healthz", "GET", "/healthz", Action.CLUSTER),
    Shape("readyz", "GET", "/readyz", Action.CLUSTER),
    Shape("metrics", "GET", "/metrics", Action.CLUSTER),
    Shape("openapi", "GET", "/openapi.json", Action.CLUSTER),
)


def make_routes(topics: Topics, config: Config, health: Health) -> list[Route]:
    """Return all routes, bound to what answers them."""
    handlers = {**_topic_handlers(topics, config), **_node_handlers(health)}
    return [Route(*shape, handler=handlers[shape.name]) for shape in SHAPES]


def _topic_handlers(topics: Topics, config: Config) -> dict[str, Handler]:
    limits = config.limits
    defaults = {
        TTL: str(config.topics.topic_ttl_default_s),
        **config.topics.topic_properties_default,
    }
    admin = TopicsAdmin(topics, properties_default=defaults)
    publishing = Publishing(topics, messages_max=limits.messages_per_request_max)
    browsing = Browsing(topics, messages_max=limits.browse_messages_max)
    return {
        "create_topic": admin.create,
        "update_topic": admin.update,
        "show_topic": admin.show,
        "list_topics": admin.list,
        "delete_topic": admin.delete,
        "publish": publishing.publish,
        "store": publishing.store,
        "rollback": publishing.rollback,
        "poll": Polling(topics, wait_max_s=limits.wait_max_s).poll,
        "browse": browsing.browse,
        "browse_as": browsing.browse_with_snapshot,
        "stats": Stats(topics).stats,
        "events": Events(topics).stream,
    }


def _node_handlers(health: Health) -> dict[str, Handler]:
    return {
        "ping": health.ping,
        "service_status": health.service_status,
        "healthz": health.healthz,
        "readyz": health.readyz,
        "metrics": health.metrics,
        "openapi": health.openapi,
    }
