"""Deletions and creations of other topics, and many moves of leaders."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any, ClassVar

from typing_extensions import override

from broker.client import BrokerError, TopicExists, TopicNotFound
from chaos.nemesis import Repeated
from chaos.target import Ability, Target

CHURNED = tuple(f"default/churned-{number}" for number in range(4))


class Churn(Repeated):
    """Its own topics are created, published to, and deleted, all the time.

    No checker judges these topics; the workload ``topics`` tests deletion. This nemesis only makes
    generations, tombstones and claims while another workload runs.
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
    """A random topic of the run is pinned to a random node, many times a second."""

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
        """Unpin each topic, also if another one can't be unpinned. Raises BrokerError after all."""
        failed: BrokerError | None = None
        for topic in sorted(self._pinned):
            try:
                with suppress(TopicNotFound):  # It was deleted, and has no pin.
                    await target.pin(topic, None)
            except BrokerError as error:
                failed = error
            else:
                self._pinned.remove(topic)
        if failed is not None:
            raise failed
