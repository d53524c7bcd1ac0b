"""What only schedules have, for guards of time: lives that end.

As ``rare``, which knows these kinds and workloads; nothing here happens in a random plan.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from broker.client import BrokerError
from broker.testing.simulation.node import Machine
from chaos.workloads import Workload, WorkloadStage
from chaos.workloads.client_process import ClientProcess, TopicTarget
from chaos.workloads.log import LogWorkload
from tests.kit.seeds.kinds import Detail, fault
from tests.kit.seeds.stage import StagedCluster

SLEW_MS: Final = 450
"""By so much a clock may be set at once and is believed at once."""
OFF_MS: Final = 4 * SLEW_MS
"""By so much a clock may be wrong, and its node still leads."""
ANSWERED_S: Final = 1.0
"""Within this everything is answered that was asked before nobody could ask any more."""
OLDEST: Final = 60


# Kinds of fault.


@fault(weight=0, lasts_s=1)
async def ahead(cluster: StagedCluster, _: random.Random, __: float) -> AsyncGenerator[Detail]:
    """All nodes sweep while their clocks are a little ahead; nobody reads by such a clock."""
    with _nobody_asks(cluster, cluster.machines):
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
def _nobody_asks(cluster: StagedCluster, machines: Sequence[Machine]) -> Iterator[None]:
    """Hold up what clients and other nodes send to some nodes."""
    others = [machine.name for machine in cluster.machines if machine not in machines]
    ways = [(asks, machine.name) for asks in (*cluster.clients, *others) for machine in machines]
    for source, target in ways:
        cluster.network.cut(source, target)
    try:
        yield
    finally:
        for source, target in ways:
            cluster.network.mend(source, target)


def _slew(cluster: StagedCluster, by_ms: float) -> None:
    """Set all clocks by so much, in steps that a node takes for slewing."""
    steps = round(abs(by_ms) / SLEW_MS)
    for _ in range(steps):
        for machine in cluster.machines:
            machine.wall.step(by_ms / steps)
            if machine.node is not None:
                machine.node.clock.now_ms()


# Workloads.


async def shortly(
    stage: WorkloadStage, name: str, target: TopicTarget, stop: asyncio.Event
) -> None:
    """Publish messages that live shortly."""
    async with ClientProcess(stage, name) as process:
        while not stop.is_set():
            with suppress(BrokerError):
                await process.publish(target, process.labels(), ttl_s=stage.scale.ttl_s)
            await process.pause()


async def oldest(stage: WorkloadStage, name: str, target: TopicTarget) -> None:
    """Read what is about to expire, again and again."""
    async with ClientProcess(stage, name) as process:
        while True:
            moment_ms = stage.clock.now_ms() - stage.scale.ttl_s * 1000
            with suppress(BrokerError):
                await process.poll(target, moment_ms, limit=OLDEST)
            await process.pause(stage.scale.pause_s / 2)


WORKLOADS: Final[dict[str, Callable[[], Workload]]] = {
    "shortly": lambda: LogWorkload(publishing=(shortly,), reading=(oldest,)),
}
"""Workloads that are made for one guard."""
