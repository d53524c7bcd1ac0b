"""The log workload: many publishers of unique messages, and consumers of every kind.

Most applications work like this, and other workloads build on it. For any fault, each acknowledged message
must be in the log, once, in order, the same through every node. Each consumer must see all messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from chaos.workloads import publishers, readers
from chaos.workloads.client_process import ClientProcess, TopicTarget
from chaos.workloads.finals import read_everywhere
from chaos.workloads.workload import WorkloadSurroundings


class LogWorkload:
    """Publishers and consumers of some topics."""

    name = "log"

    def __init__(
        self,
        publishing: Sequence[publishers.Publisher] = publishers.KINDS,
        reading: Sequence[readers.Reader] = readers.KINDS,
    ) -> None:
        """Use processes of these kinds, in turn."""
        self.targets: list[TopicTarget] = []
        self._publishing = publishing
        self._reading = reading

    async def prepare(self, around: WorkloadSurroundings) -> None:
        """Create the topics. Raises BrokerError."""
        self.targets = await created(around, self.name, around.scale.topics)

    async def run(self, around: WorkloadSurroundings, stop: asyncio.Event) -> None:
        """Publish and consume until ``stop`` is set."""
        await readers.work(
            [
                kind(around, f"{kind.__name__}-{number}-{target.name}", target, stop)
                for target in self.targets
                for number, kind in readers.some(self._publishing, around.scale.publishers)
            ],
            [
                kind(around, f"{kind.__name__}-{number}-{target.name}", target)
                for target in self.targets
                for number, kind in readers.some(self._reading, around.scale.consumers)
            ],
        )

    async def finish(self, around: WorkloadSurroundings) -> None:
        """Read everything through every node."""
        await read_everywhere(around, self.targets)


async def created(around: WorkloadSurroundings, workload: str, count: int) -> list[TopicTarget]:
    """Create topics with new names, also on a cluster with topics of earlier runs. Raises BrokerError."""
    targets = []
    async with ClientProcess(around, f"creator-{workload}") as process:
        for number in range(count):
            name = f"{workload}-{around.chance.getrandbits(32):08x}-{number}"
            targets.append(await process.create(TopicTarget(name)))
    return targets
