"""A workload on a simulated cluster without faults, with or without lies to its clients."""

import asyncio
from dataclasses import replace
from typing import NamedTuple

from broker.testing.simulation.loop import SimLoop
from broker.testing.simulation.trace import Trace
from broker.testing.simulation.world import in_world
from chaos.checkers import Verdict, check
from chaos.history import Operation
from chaos.workloads import SIMULATED, Scale, Workload
from tests.unit.chaos.workloads.lying import Lies, LyingCluster

SECONDS = 15.0
SCALE = replace(SIMULATED, publishers=6, page_messages_max=20, transaction_s=5.0)


class Played(NamedTuple):
    """The result of a played workload."""

    verdict: Verdict
    calls: list[Operation]

    @property
    def done(self) -> set[str]:
        """Return the operations that were acknowledged."""
        return {call.op for call in self.calls if call.is_ok}


def play(
    workload: Workload,
    lies: Lies | None = None,
    seconds: float = SECONDS,
    scale: Scale = SCALE,
) -> Played:
    """Run a workload for a while of virtual time, and judge it."""

    async def main(_: SimLoop, __: Trace) -> Played:
        cluster = LyingCluster(seed=1, scale=scale)
        # Each play tells the lies from the first one on.
        cluster.lies = replace(lies or Lies(), told=0, late=[])
        await cluster.start()
        await workload.prepare(cluster)
        stop = asyncio.Event()
        running = asyncio.create_task(workload.run(cluster, stop))
        await cluster.clock.sleep(seconds)
        stop.set()
        await running
        await asyncio.gather(*cluster.lies.late, return_exceptions=True)
        await workload.finish(cluster)
        calls = cluster.history.calls()
        return Played(check(calls), calls)

    return in_world(1, main)
