"""Clean restarts of nodes, as in an upgrade."""

from __future__ import annotations

import random
from typing import Any

from typing_extensions import override

from chaos.nemesis import Repeated
from chaos.target import Ability, Target


class Restart(Repeated):
    """SIGTERM of one node after another; each hands its topics over first, and starts again."""

    name = "restart"
    needs = frozenset({Ability.KILL})

    @override
    async def act(self, target: Target, chance: random.Random) -> Any:
        if not (alive := target.alive()):
            return None
        node = chance.choice(alive)
        code = await target.stop(node)
        await target.start(node)
        return {"node": node, "exit": code}
