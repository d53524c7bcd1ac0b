"""Partitions: nothing passes between two sides, in both directions or in one.

One node, or all nodes, are cut off from ZooKeeper, from storage, from the other nodes, or from clients. A cut
in one direction is worse than a full one: one of the two sides still receives messages, and believes that
it is connected.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from chaos.links import Direction, Pair, silence
from chaos.nemesis import OnLinks
from chaos.target import Target

DIRECTIONS: tuple[Direction, ...] = ("both", "up", "down")
ALL_NODES = 0.15
"""The fraction of partitions that cut off all nodes at once."""


class Partition(OnLinks):
    """One node, or all nodes, are cut off from one kind of process."""

    def __init__(self, pair: Pair | None = None) -> None:
        super().__init__("partition" if pair is None else f"partition-{pair}")
        if pair is not None:
            self.__doc__ = f"Links {pair} are cut: those of one process, or all."
        self._pair = pair

    async def begin(self, target: Target, chance: random.Random) -> Mapping[str, Any]:
        """Cut the links."""
        pair: Pair = chance.choice(target.links.pairs()) if self._pair is None else self._pair
        direction = chance.choice(DIRECTIONS)
        node = None if chance.random() < ALL_NODES else chance.choice(target.ends_of(pair))
        await self.spoil(target, target.links.around(node, pair), silence(direction))
        return {"pair": pair, "node": node or "all", "direction": direction}
