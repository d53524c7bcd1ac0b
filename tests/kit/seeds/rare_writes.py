"""What only schedules have, for guards of writes: of their way between nodes, and of what undoes them.

As ``rare``, which knows these kinds and workloads; nothing here happens in a random plan.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, suppress
from typing import Final

from typing_extensions import override

from broker.client import BrokerError, Published
from broker.storage.table import Space
from broker.testing.simulation.node import Machine
from broker.wire import avro
from chaos.workloads import Workload, WorkloadStage
from chaos.workloads.client_process import ClientProcess, TopicTarget
from chaos.workloads.finals import overview
from chaos.workloads.log import LogWorkload
from tests.kit.seeds.kinds import Detail, Nothing, fault, some
from tests.kit.seeds.stage import StagedCluster

UNDER_WAY_S: Final = (0.2, 0.6)
"""So long connections deliver nothing before whoever uses them is told, so that something is under way."""
RECORD_S: Final = 1.0
TIMELY_S: Final = 2.0


# Kinds of fault.


@fault(weight=0, lasts_s=15)
async def unheard(
    cluster: StagedCluster, chance: random.Random, _: float
) -> AsyncGenerator[Detail]:
    """What other nodes send a leader is held up; it answers clients, and itself reaches everybody."""
    leader = _leader(cluster, chance)
    others = [machine.name for machine in cluster.machines if machine is not leader]
    for other in others:
        cluster.network.cut(other, leader.name)
    yield {"node": leader.name}
    for other in others:
        cluster.network.mend(other, leader.name)


@fault(weight=0, lasts_s=6)
async def stranded(
    cluster: StagedCluster, chance: random.Random, _: float
) -> AsyncGenerator[Detail]:
    """What nodes send a leader is held up, and their connections break: what they send again is faster."""
    leader = _leader(cluster, chance)
    others = [machine.name for machine in cluster.machines if machine is not leader]
    ends = [end for other in others for end in cluster.network.strand(other, leader.name)]
    if not ends:
        raise Nothing
    await asyncio.sleep(chance.uniform(*UNDER_WAY_S))
    cluster.network.break_off(ends)
    yield {"node": leader.name, "connections": len(ends)}
    cluster.network.land(ends)


@fault(weight=0, lasts_s=10)
async def records_slow(
    cluster: StagedCluster, _: random.Random, __: float
) -> AsyncGenerator[Detail]:
    """A change of a record takes long; logs are as fast as ever."""
    cluster.table.slow_s[Space.RECORDS] += RECORD_S
    yield {"by_s": RECORD_S}
    cluster.table.slow_s[Space.RECORDS] -= RECORD_S


def _leader(cluster: StagedCluster, chance: random.Random) -> Machine:
    """Choose a machine whose node leads something. Raises Nothing."""
    return some([machine for machine in cluster.up if machine.topics_led], chance)


# Workloads.


async def timely(stage: WorkloadStage, name: str, target: TopicTarget, stop: asyncio.Event) -> None:
    """Publish through one node, with little time for each request, and say until when it may be done."""
    node = stage.chance.choice(list(stage.nodes))
    async with ClientProcess(stage, name, node=node, deadline_s=TIMELY_S) as process:
        while not stop.is_set():
            # The last attempt may begin when time is nearly up, and gives the node as much again.
            until_ms = stage.clock.now_ms() + round(2 * TIMELY_S * 1000)
            with suppress(BrokerError):
                await process.publish(target, process.labels(), until_ms=until_ms)
            await process.pause()


async def undoing(
    stage: WorkloadStage, name: str, target: TopicTarget, stop: asyncio.Event
) -> None:
    """Publish under a write pointer through one node, and roll that back through another."""
    async with AsyncExitStack() as stack:
        ways = [
            await stack.enter_async_context(ClientProcess(stage, f"{name}-{number}", node=node))
            for number, node in enumerate(stage.nodes)
        ]
        while not stop.is_set():
            there, back = stage.chance.sample(ways, 2)
            pointer = stage.clock.now_ms() * 1_000_000 + stage.chance.randrange(1_000_000)
            with suppress(BrokerError):
                published = await there.publish(target, there.labels(), pointer=pointer)
                await _roll_back(back, target, published)
            await there.pause()


async def _roll_back(process: ClientProcess, target: TopicTarget, published: Published) -> None:
    assert published.rollback is not None, "published with a pointer"
    rows = avro.decode_publish_response(published.rollback)
    asked = {
        "pointer": rows.pointer,
        "generation": target.generation,
        "first": rows.first.hex(),
        "last": rows.last.hex(),
    }
    with process.asking("rollback", target.id, asked) as ending:
        await process.client.rollback(target.id, published)
        ending.ok({})


class UndoingWorkload(LogWorkload):
    """Everything that is published is rolled back, and nobody looks before the end.

    Whoever polls or publishes through a leader lets it find out that it leads no more.
    """

    name = "undoing"

    def __init__(self) -> None:
        """Have nobody but those who roll back."""
        super().__init__(publishing=(undoing,), reading=())

    @override
    async def finish(self, stage: WorkloadStage) -> None:
        """Read everything through every node, and look at what is rolled back."""
        await super().finish(stage)
        for target in self.targets:
            await overview(stage, target)


WORKLOADS: Final[dict[str, Callable[[], Workload]]] = {
    "timely": lambda: LogWorkload(publishing=(timely,)),
    "undoing": UndoingWorkload,
}
"""Workloads that are made for one guard."""
