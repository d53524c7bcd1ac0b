"""May this node claim a topic's log? What the rest of a node asks of coordination.

A tenure only suggests: it keeps nodes from claiming what another should lead. Whose writes count is
decided by the head of the log's last page. A standalone node may claim everything at any time.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from broker.coordination.ports import NodeInfo
from broker.errors import NotLeader
from broker.model import TopicId
from broker.storage.last_page import TailReading


class TopicPlacement(NamedTuple):
    """Which node should lead a topic. ``node`` None: nobody that lives may lead it."""

    here: bool
    node: NodeInfo | None


HERE = TopicPlacement(here=True, node=None)


def not_leader(topic: TopicId, place: TopicPlacement, epoch: int | None = None) -> NotLeader:
    """Return the error that sends a request to where its topic is led."""
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
    """The right to claim topics. Implementations: everything is mine; a cluster's leases."""

    def place(self, topic: TopicId) -> TopicPlacement:
        """Return who should lead a topic by what is known now. Asks nobody; costs microseconds."""

    async def permit(self, topic: TopicId, deadline: float) -> TailReading | None:
        """Return once this node may claim the topic, with what it saw of its log; None: it did not look.

        It waits for the lease while another node still has it. After ``fenced`` only a lease that was
        taken, or verified, since then will do.

        Raises:
            NotLeader: another node should lead the topic; nothing was done.
            NoLeader: the deadline (monotonic seconds) passed, or coordination can't be asked.
            Unavailable: storage can't be asked just now.
        """

    def fenced(self, topic: TopicId) -> None:
        """Take note that another epoch took this topic's log from this node."""


class Everything:
    """The tenure of a standalone node."""

    def place(self, topic: TopicId) -> TopicPlacement:
        """Return this node."""
        return HERE

    async def permit(self, topic: TopicId, deadline: float) -> TailReading | None:
        """Permit."""
        return None

    def fenced(self, topic: TopicId) -> None:
        """Do nothing: there is nobody to make way for."""


EVERYTHING = Everything()
