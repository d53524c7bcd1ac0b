"""Pauses of nodes that are longer than ZooKeeper's session time-out.

No other nemesis finds more faults. A resumed node does not know of the pause: it still believes that it
leads, has requests in its sockets, and writes before it learns of its successor.
"""

from __future__ import annotations

import random
from typing import Any

from typing_extensions import override

from chaos.nemesis import Repeated
from chaos.target import Ability, Target

SESSIONS = (1.5, 3.0)


class Pause(Repeated):
    """SIGSTOP of a node or rowlog processor for 1.5 to 3 session time-outs, then SIGCONT."""

    name = "pause"
    needs = frozenset({Ability.PAUSE})

    @override
    async def act(self, target: Target, chance: random.Random) -> Any:
        if not (victims := target.victims()):
            return None
        node = chance.choice(victims)
        seconds = chance.uniform(*SESSIONS) * target.session_s
        await target.pause(node)
        try:
            await self.rest(seconds)
        finally:
            await target.resume(node)
        return {"node": node, "seconds": round(seconds, 2)}
