"""Rare faults and workloads for guards of time: messages that expire.

``rare`` registers them; no random plan uses them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from broker.client import BrokerError
from broker.testing.simulation.node import Machine
from chaos.workloads import Workload, WorkloadSurroundings
from chaos.workloads.client_process import ClientProcess, TopicTarget
from chaos.workloads.log import LogWorkload
from tests.kit.seeds.kinds import Detail, fault
from tests.kit.seeds.seeded_cluster import SeededCluster

SLEW_MS: Final = 450
"""The largest step of a clock that a node accepts at once."""
OFF_MS: Final = 4 * SLEW_MS
"""The largest error of a clock with which its node still leads."""
ANSWERED_S: Final = 1.0
"""In this time the nodes answer all requests that were sent before the cut."""
OLDEST: Final = 60


# Kinds of fault.


@fault(weight=0, lasts_s=1)
async def ahead(cluster: SeededCluster, _: random.Random, __: float) -> AsyncGenerator[Detail]:
    """All nodes sweep while their clocks are a little ahead; no request is served with such a clock."""
    with _without_requests(cluster, cluster.machines):
        await asyncio.sleep(ANSWERED_S)
        _slew(cluster, OFF_MS)
        sweeping = []
        for machine in cluster.up:
            assert machine.process is not None, "it is up"
            assert machine.node is not None, "it is up"
            sweeping.append(machine.process.begin(machine.node.sweep()))
        await asyncio.gather(*sweeping)
        _slew(cluster, -OFF_MS)
    yield {"by_ms": OFF_MS}


@contextmanager
def _without_requests(cluster: SeededCluster, machines: Sequence[Machine]) -> Iterator[None]:
    """Cut off the requests of clients and other nodes to these nodes."""
    others = [machine.name for machine in cluster.machines if machine not in machines]
    ways = [(asks, machine.name) for asks in (*cluster.clients, *others) for machine in machines]
    for source, target in ways:
        cluster.network.cut(source, target)
    try:
        yield
    finally:
        for source, target in ways:
            cluster.network.mend(source, target)


def _slew(cluster: SeededCluster, by_ms: float) -> None:
    """Step all clocks in total by ``by_ms``, in steps that a node treats as slewing."""
    steps = round(abs(by_ms) / SLEW_MS)
    for _ in range(steps):
        for machine in cluster.machines:
            machine.wall.step(by_ms / steps)
            if machine.node is not None:
                machine.node.clock.now_ms()


# Workloads.


async def shortly(
    around: WorkloadSurroundings, name: str, target: TopicTarget, stop: asyncio.Event
) -> None:
    """Publish messages with a short life."""
    async with ClientProcess(around, name) as process:
        while not stop.is_set():
            with suppress(BrokerError):
                await process.publish(target, process.labels(), ttl_s=around.scale.ttl_s)
            await process.pause()


async def oldest(around: WorkloadSurroundings, name: str, target: TopicTarget) -> None:
    """Read the messages that are about to expire, again and again."""
    async with ClientProcess(around, name) as process:
        while True:
            moment_ms = around.clock.now_ms() - around.scale.ttl_s * 1000
            with suppress(BrokerError):
                await process.poll(target, moment_ms, limit=OLDEST)
            await process.pause(around.scale.pause_s / 2)


WORKLOADS: Final[dict[str, Callable[[], Workload]]] = {
    "shortly": lambda: LogWorkload(publishing=(shortly,), reading=(oldest,)),
}
"""Workloads of directed schedules, each for one guard."""
