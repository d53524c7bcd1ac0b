from __future__ import annotations

from broker.coordination.ports import NodeInfo
from broker.coordination.tenure import EVERYTHING, HERE, TopicPlacement, not_leader
from broker.model import TopicId

TOPIC = TopicId("ns", "t")


async def test_a_standalone_node_may_claim_everything() -> None:
    EVERYTHING.fenced(TOPIC)
    await EVERYTHING.permit(TOPIC, deadline=0)
    assert EVERYTHING.place(TOPIC) == HERE


def test_a_node_that_does_not_lead_names_the_assigned_node() -> None:
    node = NodeInfo(7, "life", "http://seven", "1.0", 1)
    error = not_leader(TOPIC, TopicPlacement(here=False, node=node), 5)
    assert (error.node, error.url, error.epoch, error.outcome) == (7, "http://seven", 5, "refused")
    unled = not_leader(TOPIC, TopicPlacement(here=False, node=None))
    assert (unled.node, unled.url, unled.epoch) == (None, None, None)
