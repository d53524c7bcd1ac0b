"""Links that lose packets, in both directions or in one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any, ClassVar

from chaos.nemeses.partition import DIRECTIONS
from chaos.target import Ability, Target

PERCENT = (5, 35)


class Loss:
    """One node's links of one kind lose some of their packets."""

    name = "loss"
    needs: ClassVar[frozenset[Ability]] = frozenset({Ability.PACKETS})

    async def begin(self, target: Target, chance: random.Random) -> Mapping[str, Any]:
        """Begin to drop packets."""
        pair = chance.choice(target.links.pairs())
        node = chance.choice(target.ends_of(pair))
        percent, direction = chance.randrange(*PERCENT), chance.choice(DIRECTIONS)
        addresses = [target.links.addresses[link] for link in target.links.around(node, pair)]
        ports = [int(address.rpartition(":")[2]) for address in addresses]
        await asyncio.to_thread(target.packets.lose, ports, percent, direction)
        return {"pair": pair, "node": node, "percent": percent, "direction": direction}

    async def heal(self, target: Target) -> Mapping[str, Any]:
        """Stop dropping packets; return how many were lost."""
        lost = await asyncio.to_thread(target.packets.lost)
        await asyncio.to_thread(target.packets.heal)
        return {"happened": lost > 0, "packets": lost}
