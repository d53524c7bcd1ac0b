"""Partitions: nothing passes between two sides, in both directions or in one.

One node, or all nodes, are cut off from ZooKeeper, from storage, from the other nodes, or from clients. A cut
in one direction is worse than a full one: one of the two sides still receives messages, and believes that
it is connected.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from chaos.links import Direction, Link, Pair
from chaos.nemesis import OnLinks
from chaos.target import Target

DIRECTIONS: tuple[Direction, ...] = ("both", "up", "down")
ALL_NODES = 0.15
"""The fraction of partitions that cut off all nodes at once."""


class Partition(OnLinks):
    """One node, or all nodes, are cut off from one kind of process."""

    def __init__(self, pair: Pair | None = None, direction: Direction | None = None) -> None:
        self.name = "partition" if pair is None else f"partition-{pair}"
        if pair is not None:
            self.__doc__ = f"Links {pair} are cut: those of one process, or all."
        self._pair = pair
        self._given = direction
        self._direction: Direction = "both"
        self._links: list[Link] = []

    @override
    async def begin(self, target: Target, chance: random.Random) -> Mapping[str, Any]:
        pair: Pair = chance.choice(target.links.pairs()) if self._pair is None else self._pair
        self._direction = chance.choice(DIRECTIONS) if self._given is None else self._given
        node = None if chance.random() < ALL_NODES else chance.choice(target.ends_of(pair))
        self._links = target.links.of(pair) if node is None else target.links.around(node, pair)
        await target.links.cut(self._links, self._direction)
        return {"pair": pair, "node": node or "all", "direction": self._direction}

    @override
    async def heal(self, target: Target) -> Mapping[str, Any]:
        spoilt = await target.links.spoilt()
        held = [link.proxy for link in self._links if link.proxy in spoilt]
        await target.links.heal(self._links, self._direction)
        return {"happened": bool(held), "links": held}
