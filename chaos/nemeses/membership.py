"""Changes of the cluster's members: nodes join, leave and drain, and a node starts with a taken instance id."""

from __future__ import annotations

import random
from typing import Any, ClassVar

from typing_extensions import override

from broker.client import admin
from broker.local.servers import ServerFailed
from chaos.nemesis import Repeated
from chaos.target import Ability, Target

INSTANCE = "BROKER_CLUSTER__INSTANCE_ID"
STAYS_S = (2.0, 6.0)


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

    @override
    async def act(self, target: Target, chance: random.Random) -> Any:
        nodes = [row["node"] for row in await target.status() if row["view"]]
        if not nodes:
            return None
        number = chance.choice(nodes)
        try:
            name = await target.start_spare({INSTANCE: str(number)})
        except ServerFailed:
            return {"instance": number, "refused": True}
        # The owner of the instance id has ended meanwhile, so the new node is no twin.
        await target.stop(name)
        return {"instance": number, "refused": False}
