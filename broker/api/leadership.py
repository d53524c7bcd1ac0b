"""Handler that tells which node leads a topic, so that clients can send requests to it directly."""

from __future__ import annotations

from collections.abc import Callable

from broker.coordination.ports import NodeInfo
from broker.coordination.tenure import TopicPlacement
from broker.http.reply import Answer, json_reply
from broker.http.request import Request
from broker.model import TopicId
from broker.topics.topics import Topics


class Leadership:
    """The handler of ``GET …/leader``. Without ``place``, the node is standalone and leads every topic."""

    def __init__(
        self,
        topics: Topics,
        *,
        me: NodeInfo | None = None,
        place: Callable[[TopicId], TopicPlacement] | None = None,
    ) -> None:
        """Keep the service, this node, and the function that tells which node should lead a topic."""
        self._topics = topics
        self._me = me
        self._place = place

    async def leader(self, request: Request) -> Answer:
        """Answer node, URL and epoch. The epoch is null until this node has claimed the topic."""
        await self._topics.get(request.topic, request.generation)
        epoch = epoch_of(self._topics, request.topic)
        if self._me is None or self._place is None:
            url = f"http://{request.headers.get('Host', 'localhost')}"
            return json_reply({"node": None, "url": url, "epoch": epoch})
        place = self._place(request.topic)
        node = self._me if place.here else place.node
        return json_reply(
            {
                "node": None if node is None else node.instance,
                "url": None if node is None else node.url,
                "epoch": epoch,
            }
        )


def epoch_of(topics: Topics, topic: TopicId) -> int | None:
    """Return the epoch in which this node leads a topic. None if it does not lead it, or not yet."""
    state = topics.leaders.states.get(topic)
    return None if state is None or state.leader is None else state.leader.epoch
