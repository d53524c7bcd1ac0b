"""SIGKILL of nodes and of rowlog processors, which start again a little later."""

from __future__ import annotations

import random
from typing import Any

from typing_extensions import override

from chaos.nemesis import Repeated
from chaos.target import Ability, Target

DOWN_S = (0.2, 6.0)


class Kill(Repeated):
    """SIGKILL of one node or rowlog processor after another."""

    name = "kill"
    needs = frozenset({Ability.KILL})

    @override
    async def act(self, target: Target, chance: random.Random) -> Any:
        if not (victims := target.victims()):
            return None
        node = chance.choice(victims)
        await target.kill(node)
        await self.rest(chance.uniform(*DOWN_S))
        await target.start(node)
        return node
