"""The log workload: unique messages by many publishers, and consumers of every kind.

It is what most applications do, and the ground of the other workloads: whatever happens, what was
acknowledged is there, once, in order, the same through every node, and every consumer sees all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from chaos.workloads import publishers, readers
from chaos.workloads.client_process import ClientProcess, TopicTarget
from chaos.workloads.finals import read_everywhere
from chaos.workloads.workload import WorkloadStage


class LogWorkload:
    """Publishers and consumers of some topics."""

    name = "log"

    def __init__(
        self,
        publishing: Sequence[publishers.Publisher] = publishers.KINDS,
        reading: Sequence[readers.Reader] = readers.KINDS,
    ) -> None:
        """Have processes of these kinds, in turn."""
        self.targets: list[TopicTarget] = []
        self._publishing = publishing
        self._reading = reading

    async def prepare(self, stage: WorkloadStage) -> None:
        """Create the topics. Raises BrokerError."""
        self.targets = await created(stage, self.name, stage.scale.topics)

    async def run(self, stage: WorkloadStage, stop: asyncio.Event) -> None:
        """Publish and consume until ``stop`` is set."""
        await readers.work(
            [
                kind(stage, f"{kind.__name__}-{number}-{target.name}", target, stop)
                for target in self.targets
                for number, kind in readers.some(self._publishing, stage.scale.publishers)
            ],
            [
                kind(stage, f"{kind.__name__}-{number}-{target.name}", target)
                for target in self.targets
                for number, kind in readers.some(self._reading, stage.scale.consumers)
            ],
        )

    async def finish(self, stage: WorkloadStage) -> None:
        """Read everything through every node."""
        await read_everywhere(stage, self.targets)


async def created(stage: WorkloadStage, workload: str, count: int) -> list[TopicTarget]:
    """Create topics with names that a cluster used before does not have. Raises BrokerError."""
    targets = []
    async with ClientProcess(stage, f"creator-{workload}") as process:
        for number in range(count):
            name = f"{workload}-{stage.chance.getrandbits(32):08x}-{number}"
            targets.append(await process.create(TopicTarget(name)))
    return targets
