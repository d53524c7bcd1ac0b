"""Rare faults and workloads for guards of writes: forwarding between nodes, and rollbacks.

``rare`` registers them; no random plan uses them.
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
from chaos.workloads import Workload, WorkloadSurroundings
from chaos.workloads.client_process import ClientProcess, TopicTarget
from chaos.workloads.finals import overview
from chaos.workloads.log import LogWorkload
from tests.kit.seeds.kinds import Detail, Nothing, fault, some
from tests.kit.seeds.seeded_cluster import SeededCluster

IN_FLIGHT_S: Final = (0.2, 0.6)
"""How long connections deliver no data before they break, so that requests are in flight."""
RECORD_S: Final = 1.0
TIMELY_S: Final = 2.0


# Kinds of fault.


@fault(weight=0, lasts_s=15)
async def unheard(
    cluster: SeededCluster, chance: random.Random, _: float
) -> AsyncGenerator[Detail]:
    """Requests of other nodes to a leader are delayed; it answers clients, and its own requests arrive."""
    leader = _leader(cluster, chance)
    others = [machine.name for machine in cluster.machines if machine is not leader]
    for other in others:
        cluster.network.cut(other, leader.name)
    yield {"node": leader.name}
    for other in others:
        cluster.network.mend(other, leader.name)


@fault(weight=0, lasts_s=6)
async def stranded(
    cluster: SeededCluster, chance: random.Random, _: float
) -> AsyncGenerator[Detail]:
    """Requests of nodes to a leader are delayed, and the connections break: the repeated requests arrive first."""
    leader = _leader(cluster, chance)
    others = [machine.name for machine in cluster.machines if machine is not leader]
    ends = [end for other in others for end in cluster.network.strand(other, leader.name)]
    if not ends:
        raise Nothing
    await asyncio.sleep(chance.uniform(*IN_FLIGHT_S))
    cluster.network.break_off(ends)
    yield {"node": leader.name, "connections": len(ends)}
    cluster.network.land(ends)


@fault(weight=0, lasts_s=10)
async def records_slow(
    cluster: SeededCluster, _: random.Random, __: float
) -> AsyncGenerator[Detail]:
    """Changes of records are slow; logs are as fast as usual."""
    cluster.table.slow_s[Space.RECORDS] += RECORD_S
    yield {"by_s": RECORD_S}
    cluster.table.slow_s[Space.RECORDS] -= RECORD_S


def _leader(cluster: SeededCluster, chance: random.Random) -> Machine:
    """Choose a machine whose node leads a topic. Raises Nothing."""
    return some([machine for machine in cluster.up if machine.topics_led], chance)


# Workloads.


async def timely(
    around: WorkloadSurroundings, name: str, target: TopicTarget, stop: asyncio.Event
) -> None:
    """Publish through one node with short deadlines, and record the latest time at which each publish may be done."""
    node = around.chance.choice(list(around.nodes))
    async with ClientProcess(around, name, node=node, deadline_s=TIMELY_S) as process:
        while not stop.is_set():
            # The last attempt may begin just before the deadline, and gives the node the same time again.
            until_ms = around.clock.now_ms() + round(2 * TIMELY_S * 1000)
            with suppress(BrokerError):
                await process.publish(target, process.labels(), until_ms=until_ms)
            await process.pause()


async def undoing(
    around: WorkloadSurroundings, name: str, target: TopicTarget, stop: asyncio.Event
) -> None:
    """Publish with a write pointer through one node, and roll it back through another."""
    async with AsyncExitStack() as stack:
        ways = [
            await stack.enter_async_context(ClientProcess(around, f"{name}-{number}", node=node))
            for number, node in enumerate(around.nodes)
        ]
        while not stop.is_set():
            there, back = around.chance.sample(ways, 2)
            pointer = around.clock.now_ms() * 1_000_000 + around.chance.randrange(1_000_000)
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
    """All published messages are rolled back, and no process reads before the end.

    A poll or another publish would let a former leader find out that it leads no more.
    """

    name = "undoing"

    def __init__(self) -> None:
        """Run only the processes that publish and roll back."""
        super().__init__(publishing=(undoing,), reading=())

    @override
    async def finish(self, around: WorkloadSurroundings) -> None:
        """Read all topics through every node, and read which messages are rolled back."""
        await super().finish(around)
        for target in self.targets:
            await overview(around, target)


WORKLOADS: Final[dict[str, Callable[[], Workload]]] = {
    "timely": lambda: LogWorkload(publishing=(timely,)),
    "undoing": UndoingWorkload,
}
"""Workloads of directed schedules, each for one guard."""
