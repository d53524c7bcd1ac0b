"""ZooKeeper sessions that end while their node is healthy, and a ZooKeeper that loses its data."""

from __future__ import annotations

import random
from typing import Any, ClassVar

from typing_extensions import override

from chaos.nemesis import Repeated
from chaos.target import Ability, Target


class SessionLoss(Repeated):
    """A node's ZooKeeper session is ended by its id, while the connection is healthy."""

    name = "session"
    needs = frozenset({Ability.ZOOKEEPER})
    rest_s: ClassVar[tuple[float, float]] = (2.0, 6.0)

    @override
    async def act(self, target: Target, chance: random.Random) -> Any:
        node = chance.choice(target.nodes)
        session = await target.expire_session(node)
        return None if session is None else {"node": node, "session": f"{session:#x}"}


class Wipe(Repeated):
    """SIGKILL of the nodes' ZooKeeper, which starts again without its data."""

    name = "zookeeper-wipe"
    needs = frozenset({Ability.OWN_ZOOKEEPER})
    rest_s: ClassVar[tuple[float, float]] = (8.0, 15.0)

    @override
    async def act(self, target: Target, chance: random.Random) -> Any:
        await target.wipe_zookeeper()
        return "wiped"
