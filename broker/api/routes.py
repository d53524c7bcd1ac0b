"""The table of routes: everything that this interface can be asked."""

from __future__ import annotations

from broker.api.access import Action
from broker.api.browsing import Browsing
from broker.api.events import Events
from broker.api.health import Health
from broker.api.polling import Polling
from broker.api.publishing import Publishing
from broker.api.router import Route
from broker.api.stats import Stats
from broker.api.topics_admin import TopicsAdmin
from broker.config import Config
from broker.topics.service import Topics
from broker.wire.topics import TTL

NAMESPACE = "/v1/namespaces/{namespace}"
TOPICS = f"{NAMESPACE}/topics"
TOPIC = f"{TOPICS}/{{topic}}"


def make_routes(topics: Topics, config: Config, health: Health) -> list[Route]:
    """Return all routes, bound to the service that answers them."""
    return [*_original_routes(topics, config), *_own_routes(topics, config), *_node_routes(health)]


def _original_routes(topics: Topics, config: Config) -> list[Route]:
    """Return the nine endpoints of the original."""
    defaults = {
        TTL: str(config.topics.topic_ttl_default_s),
        **config.topics.topic_properties_default,
    }
    admin = TopicsAdmin(topics, properties_default=defaults)
    publishing = Publishing(topics, messages_max=config.limits.messages_per_request_max)
    polling = Polling(topics, wait_max_s=config.limits.wait_max_s)
    return [
        Route("create_topic", "PUT", TOPIC, Action.ADMIN, admin.create),
        Route("update_topic", "PUT", f"{TOPIC}/properties", Action.ADMIN, admin.update),
        Route("show_topic", "GET", TOPIC, Action.ADMIN, admin.show),
        Route("list_topics", "GET", TOPICS, Action.ADMIN, admin.list),
        Route("delete_topic", "DELETE", TOPIC, Action.ADMIN, admin.delete),
        Route("publish", "POST", f"{TOPIC}/publish", Action.PUBLISH, publishing.publish),
        Route("store", "POST", f"{TOPIC}/store", Action.PUBLISH, publishing.store),
        Route("rollback", "POST", f"{TOPIC}/rollback", Action.PUBLISH, publishing.rollback),
        Route("poll", "POST", f"{TOPIC}/poll", Action.CONSUME, polling.poll),
    ]


def _own_routes(topics: Topics, config: Config) -> list[Route]:
    """Return what stands beside them."""
    browsing = Browsing(topics, messages_max=config.limits.browse_messages_max)
    events = Events(topics)
    stats = Stats(topics)
    messages = f"{TOPIC}/messages"
    return [
        Route("browse", "GET", messages, Action.BROWSE, browsing.browse),
        Route("browse_as", "POST", messages, Action.BROWSE, browsing.browse_with_snapshot),
        Route("stats", "GET", f"{TOPIC}/stats", Action.BROWSE, stats.stats),
        Route("events", "GET", f"{TOPIC}/events", Action.CONSUME, events.stream),
    ]


def _node_routes(health: Health) -> list[Route]:
    """Return what is asked about the node itself."""
    status = "/v3/system/services/{service}/status"
    return [
        Route("ping", "GET", "/ping", Action.CLUSTER, health.ping),
        Route("service_status", "GET", status, Action.CLUSTER, health.service_status),
        Route("healthz", "GET", "/healthz", Action.CLUSTER, health.healthz),
        Route("readyz", "GET", "/readyz", Action.CLUSTER, health.readyz),
        Route("metrics", "GET", "/metrics", Action.CLUSTER, health.metrics),
        Route("openapi", "GET", "/openapi.json", Action.CLUSTER, health.openapi),
    ]
