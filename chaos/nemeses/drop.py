"""Connections end all at once, and can be opened again, as after the restart of a load balancer."""

from __future__ import annotations

import random
from typing import Any

from typing_extensions import override

from chaos.nemesis import Repeated
from chaos.target import Ability, Target


class Drop(Repeated):
    """All connections of one kind, or of one node, end every few seconds."""

    name = "drop"
    needs = frozenset({Ability.LINKS})

    @override
    async def act(self, target: Target, chance: random.Random) -> Any:
        pair = chance.choice(target.links.pairs())
        node = chance.choice((None, *target.ends_of(pair)))
        await target.links.drop(target.links.around(node, pair))
        return {"pair": pair, "node": node or "all"}
