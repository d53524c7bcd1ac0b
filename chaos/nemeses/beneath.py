"""Faults of the servers below the nodes: kills of ZooKeeper and HBase processes, and moves of regions."""

from __future__ import annotations

import random
from typing import Any, ClassVar

from typing_extensions import override

from broker.local import ProcessKind
from chaos.nemesis import Repeated
from chaos.target import Ability, Target

DOWN_S = (0.5, 5.0)


class ZooKeeperLeader(Repeated):
    """SIGKILL of the leading or only ZooKeeper; it starts again with its data."""

    name = "zookeeper-leader"
    needs = frozenset({Ability.ZOOKEEPER})
    rest_s: ClassVar[tuple[float, float]] = (3.0, 8.0)

    @override
    async def act(self, target: Target, chance: random.Random) -> Any:
        leader = await target.zookeeper_leader()
        if leader is None:
            return None
        await target.kill(leader)
        await self.rest(chance.uniform(*DOWN_S))
        await target.start(leader)
        return leader


class _OfHBase(Repeated):
    needs = frozenset({Ability.HBASE})
    rest_s: ClassVar[tuple[float, float]] = (3.0, 8.0)
    kind: ClassVar[ProcessKind]

    @override
    async def act(self, target: Target, chance: random.Random) -> Any:
        victim = chance.choice(target.processes(self.kind))
        if target.is_running(victim):
            await target.kill(victim)
            await self.rest(chance.uniform(*DOWN_S))
        # A region server that HBase takes for dead exits by itself, so it must be started too.
        await target.start(victim)
        return victim


class RegionServer(_OfHBase):
    """SIGKILL of one of HBase's region servers."""

    name = "region-server"
    kind = ProcessKind.REGION_SERVER


class GatewayKill(_OfHBase):
    """SIGKILL of one of HBase's Thrift-2 gateways."""

    name = "gateway"
    kind = ProcessKind.GATEWAY


class RegionMove(Repeated):
    """HBase's master moves all regions of one region server to the others."""

    name = "region-move"
    needs = frozenset({Ability.HBASE})

    @override
    async def act(self, target: Target, chance: random.Random) -> Any:
        running = [
            each for each in target.processes(ProcessKind.REGION_SERVER) if target.is_running(each)
        ]
        if len(running) < 2:
            return None
        server = chance.choice(running)
        regions = await target.move_regions(server)
        return {"from": server, "regions": regions} if regions else None
