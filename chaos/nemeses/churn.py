"""Topics are deleted and created again beside the others, and leaders are moved in a storm."""

from __future__ import annotations

import random
from typing import Any, ClassVar

from typing_extensions import override

from broker.client import TopicExists, TopicNotFound
from chaos.nemesis import Repeated
from chaos.target import Ability, Target

CHURNED = tuple(f"default/churned-{number}" for number in range(4))


class Churn(Repeated):
    """Topics of its own are created, published to, and deleted, all the time.

    What becomes of *their* messages is what the workload ``topics`` looks at; this makes generations,
    tombstones and claims beside the workload that runs.
    """

    name = "churn"
    needs: ClassVar[frozenset[Ability]] = frozenset()
    rest_s: ClassVar[tuple[float, float]] = (0.05, 0.5)

    @override
    async def act(self, target: Target, chance: random.Random) -> Any:
        topic = chance.choice(CHURNED)
        async with target.client() as client:
            try:
                await client.create_topic(topic)
            except TopicExists:
                await client.publish(topic, b"in between")
                try:
                    await client.delete_topic(topic)
                except TopicNotFound:
                    return None
        return topic


class LeaderMoves(Repeated):
    """Every topic that is led is pinned to another node, many times a second."""

    name = "leaders"
    needs: ClassVar[frozenset[Ability]] = frozenset()
    rest_s: ClassVar[tuple[float, float]] = (0.05, 0.4)

    def __init__(self) -> None:
        super().__init__()
        self._pinned: set[str] = set()
        self._topics: list[str] = []

    @override
    async def act(self, target: Target, chance: random.Random) -> Any:
        if len(self._topics) == 0 or chance.random() < 0.1:
            self._topics = await target.topics()
        if not self._topics:
            return None
        topic, node = chance.choice(self._topics), chance.choice(target.nodes)
        self._pinned.add(topic)
        await target.pin(topic, node)
        return {"topic": topic, "node": node}

    @override
    async def undo(self, target: Target) -> None:
        for topic in sorted(self._pinned):
            await target.pin(topic, None)
