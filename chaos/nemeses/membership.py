"""Changes of the cluster's members: nodes join, leave and drain, and a node starts with a taken instance id."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from typing_extensions import override

from broker.client import admin
from broker.local.servers import ServerFailed
from chaos.nemesis import Repeated
from chaos.target import Ability, Target

INSTANCE = "BROKER_CLUSTER__INSTANCE_ID"
STAYS_S = (2.0, 6.0)
GOES_ON_S = 60.0
"""Six times the interval at which a node checks the record of its instance id."""
EVERY_S = 0.5


class MembershipChanges(Repeated):
    """A node joins and leaves again; others are drained and undrained."""

    name = "membership"
    needs = frozenset({Ability.SPARE})

    def __init__(self) -> None:
        super().__init__()
        self._joined: str | None = None
        self._drained: str | None = None
        """The instance id of a node that is drained, or may be."""

    @override
    async def act(self, target: Target, chance: random.Random) -> Any:
        if self._joined is None:
            self._joined = await target.start_spare({INSTANCE: ""})
            return f"{self._joined} joined"
        if self._drained is None and chance.random() < 0.5:
            members = [row for row in await target.status() if row["url"] in target.urls]
            if not members:
                return None
            member = chance.choice(members)
            # By its instance id: a node that has ended meanwhile is not found by its address.
            self._drained = str(member["node"])
            async with target.client() as client:
                await client.ask(admin.drain(self._drained))
            await self.rest(chance.uniform(*STAYS_S))
            return f"{target.node_at(member['url'])} was drained"
        await self.undo(target)
        return "the nodes are as before"

    @override
    async def undo(self, target: Target) -> None:
        try:
            if self._drained is not None:
                async with target.client() as client:
                    await client.ask(admin.undrain(self._drained))
                self._drained = None
        finally:
            if self._joined is not None:
                await target.stop(self._joined)
                self._joined = None


class Twin(Repeated):
    """A node starts with the instance id of a living node: it must refuse."""

    name = "twin"
    needs = frozenset({Ability.SPARE})
    rest_s: ClassVar[tuple[float, float]] = (3.0, 8.0)

    def __init__(self) -> None:
        super().__init__()
        self.twins: list[int] = []
        """The instance ids with which two nodes went on."""

    @override
    async def act(self, target: Target, chance: random.Random) -> Any:
        rows = [row for row in await target.status() if row["view"] and row["url"] in target.urls]
        if not rows:
            return None
        owner = chance.choice(rows)
        number = owner["node"]
        try:
            name = await target.start_spare({INSTANCE: str(number)})
        except ServerFailed:
            return {"instance": number, "refused": True}
        try:
            node = target.nodes[target.urls.index(owner["url"])]
            if await _go_on(target, node, owner["view"]["incarnation"], name):
                self.twins.append(number)
        finally:
            await target.stop(name)
        return {"instance": number, "refused": False}

    @override
    async def heal(self, target: Target) -> Mapping[str, Any]:
        evidence = await super().heal(target)
        return {**evidence, "twins": self.twins} if self.twins else evidence


async def _go_on(target: Target, owner: str, incarnation: str, spare: str) -> bool:
    """Return True if the spare node and this incarnation of the owner of its instance id both go on."""
    deadline = time.monotonic() + GOES_ON_S
    while time.monotonic() < deadline:
        # Either may end: the owner, because it has lost its session; or the spare node, because the owner goes on.
        if not target.is_running(spare) or await target.incarnation(owner) != incarnation:
            return False
        await asyncio.sleep(EVERY_S)
    return True
