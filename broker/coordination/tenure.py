"""Define tenure: the other parts of a node ask it whether this node may claim a topic's log.

A tenure is only advice: it keeps a node from claiming a topic that another one should lead. The head of the log's last
page decides which node's writes count. Without other nodes, everything may be claimed at any time.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from broker.coordination.ports import NodeInfo
from broker.errors import NotLeader
from broker.model import TopicId
from broker.storage.last_page import TailReading


class TopicPlacement(NamedTuple):
    """The node that should lead a topic. ``node`` is None if no live node may lead it."""

    here: bool
    node: NodeInfo | None


HERE = TopicPlacement(here=True, node=None)


def not_leader(topic: TopicId, place: TopicPlacement, epoch: int | None = None) -> NotLeader:
    """Return the error that sends a request to the node that should lead its topic."""
    node = place.node
    if node is None:
        return NotLeader(f"No node leads topic '{topic}' just now.")
    return NotLeader(
        f"Topic '{topic}' is led by node {node.instance} at {node.url}.",
        node=node.instance,
        url=node.url,
        epoch=epoch,
    )


class Tenure(Protocol):
    """The right to claim topics. Implementations: a node's leases (cluster_tenure.py); ``Everything``, for an offline sweep."""

    def place(self, topic: TopicId) -> TopicPlacement:
        """Return the node that should lead a topic, as far as this node knows. It sends no request."""

    async def permit(self, topic: TopicId, deadline: float) -> TailReading | None:
        """Return once this node may claim the topic, with its reading of the log's tail; None if it read nothing.

        It waits for the lease while another node still has it. After ``fenced``, the lease must have been taken or
        verified since then.

        Raises:
            NotLeader: another node should lead the topic; nothing was done.
            NoLeader: the deadline (monotonic seconds) passed, or coordination does not answer.
            Unavailable: storage does not answer now.
        """

    def fenced(self, topic: TopicId) -> None:
        """Note that another epoch took this topic's log from this node."""


class Everything:
    """The tenure of a process that has the store to itself, and serves no requests."""

    def place(self, topic: TopicId) -> TopicPlacement:
        """Return this node."""
        return HERE

    async def permit(self, topic: TopicId, deadline: float) -> TailReading | None:
        """Permit every claim at once."""
        return None

    def fenced(self, topic: TopicId) -> None:
        """Do nothing: no other node can lead."""


EVERYTHING = Everything()
