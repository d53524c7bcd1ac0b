"""The figures of a broker's nodes and topics at a moment, the busiest topics first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from broker.client import Client, admin
from broker.errors import BrokerError, NotFound, TopicNotFound, Unavailable
from broker.model import TopicId

AT_ONCE: Final = 8
ASKED_MAX: Final = 500


class TopicRow(NamedTuple):
    """A topic's figures, or a ``problem`` instead; ``is_estimate`` is about messages and bytes."""

    topic: str
    publish_per_s: float = 0.0
    poll_per_s: float = 0.0
    messages: int | None = None
    bytes: int | None = None
    is_estimate: bool = False
    last: str | None = None
    problem: str | None = None


class NodeRow(NamedTuple):
    """A node: its number in a cluster, and the figures that it reports, or a ``problem``."""

    url: str
    state: str
    node: int | None = None
    topics_led: int | None = None
    uptime_s: float | None = None
    problem: str | None = None


class ClusterSnapshot(NamedTuple):
    """Nodes, and topics, the busiest first; ``topics_there`` is the number of all topics."""

    nodes: Sequence[NodeRow]
    topics: Sequence[TopicRow]
    topics_there: int
    topics_asked: int

    def as_json(self) -> dict[str, Any]:
        """Return the snapshot as JSON."""
        return {
            "nodes": [node._asdict() for node in self.nodes],
            "topics": [topic._asdict() for topic in self.topics],
            "topics_there": self.topics_there,
            "topics_asked": self.topics_asked,
        }


async def take(client: Client, namespace: str | None, rows_max: int) -> ClusterSnapshot:
    """Take a snapshot of a broker, with all namespaces or one.

    A topic or node that does not answer gets a row with its problem; the other rows are not affected. At most
    ``ASKED_MAX`` topics are asked for their figures, ``AT_ONCE`` at a time. So the cost is bounded, however many topics
    the broker has.

    Raises:
        BrokerError: the topics can't be listed.
    """
    nodes, topics = await asyncio.gather(_nodes(client), _names(client, namespace))
    asked = topics[:ASKED_MAX]
    limit = asyncio.Semaphore(AT_ONCE)
    found = await asyncio.gather(*(_topic(client, topic, limit) for topic in asked))
    rows = sorted((row for row in found if row is not None), key=busiest_first)
    return ClusterSnapshot(nodes, rows[:rows_max], len(topics), len(asked))


def busiest_first(row: TopicRow) -> tuple[bool, float, float, int, str]:
    """Return the sort key of topics: those with a problem first, then by rates and number of messages."""
    return (
        row.problem is None,
        -row.publish_per_s,
        -row.poll_per_s,
        -(row.messages or 0),
        row.topic,
    )


async def _names(client: Client, namespace: str | None) -> list[TopicId]:
    namespaces = [namespace] if namespace is not None else await client.namespaces()
    return [TopicId(one, name) for one in namespaces for name in await client.topics(one)]


async def _topic(client: Client, topic: TopicId, limit: asyncio.Semaphore) -> TopicRow | None:
    """Return a topic's figures; None if it was deleted meanwhile."""
    name = "/".join(topic)
    try:
        async with limit:
            stats = await client.stats(topic)
    except TopicNotFound:
        return None
    except BrokerError as error:
        return TopicRow(name, problem=f"{error.code}: {error.message}")
    rates, messages, size = stats["rates"], stats["messages"], stats["bytes"]
    return TopicRow(
        name,
        rates["publish_per_s"],
        rates["poll_per_s"],
        messages["value"],
        size["value"],
        messages["estimate"] or size["estimate"],
        None if stats["last"] is None else stats["last"]["time"],
    )


async def _nodes(client: Client) -> list[NodeRow]:
    try:
        status = await client.ask(admin.status())
    except NotFound:  # A standalone node has no view of a cluster.
        return [NodeRow(url, "serving") for url in client.settings.urls]
    except Unavailable as error:
        return [NodeRow(url, "silent", problem=error.message) for url in client.settings.urls]
    return [_node(row) for row in status["nodes"]]


def _node(row: dict[str, Any]) -> NodeRow:
    view = row["view"] or {}
    return NodeRow(
        row["url"],
        row["state"],
        row["node"],
        view.get("topics_led"),
        view.get("uptime_s"),
        row["problem"],
    )
