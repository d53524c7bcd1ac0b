"""The bounce workload: the log workload, while an operator moves leaders all the time.

A pin makes one node lead a topic. An unpin lets any node lead it again. They are the commands ``broker
cluster move`` and ``unpin``. A standalone node refuses them, and the history records that.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from typing_extensions import override

from broker.client import BrokerError, admin
from chaos.workloads.client_process import ClientProcess, TopicTarget
from chaos.workloads.log import LogWorkload
from chaos.workloads.workload import WorkloadSurroundings

ANYWHERE = 0.2
"""The fraction of steps that unpin the topic, so that the cluster chooses its leader."""


class BounceWorkload(LogWorkload):
    """The log workload and one operator for each topic."""

    name = "bounce"

    @override
    async def run(self, around: WorkloadSurroundings, stop: asyncio.Event) -> None:
        """Publish, consume and move leaders until ``stop`` is set; then unpin all topics."""
        async with asyncio.TaskGroup() as group:
            group.create_task(super().run(around, stop))
            for target in self.targets:
                group.create_task(_operator(around, f"operator-{target.name}", target, stop))


async def _operator(
    around: WorkloadSurroundings, name: str, target: TopicTarget, stop: asyncio.Event
) -> None:
    async with ClientProcess(around, name) as process:
        while not stop.is_set():
            with suppress(BrokerError):
                if around.chance.random() < ANYWHERE:
                    await _unpin(process, target)
                else:
                    await _move(process, target)
                await process.pause()
                await _note_leader(process, target)
            await process.pause()
        with suppress(BrokerError):
            await _unpin(process, target)


async def _move(process: ClientProcess, target: TopicTarget) -> None:
    """Pin a topic to one of the serving nodes. Raises BrokerError."""
    status = await process.client.ask(admin.status())
    serving = [node["node"] for node in status["nodes"] if node["state"] == "serving"]
    if not serving:
        return
    node = str(process.around.chance.choice(serving))
    with process.asking("elect", target.id, {"node": node}) as ending:
        await process.client.ask(admin.pin(target.id, node))
        ending.ok({})


async def _unpin(process: ClientProcess, target: TopicTarget) -> None:
    with process.asking("elect", target.id, {"node": None}) as ending:
        await process.client.ask(admin.unpin(target.id))
        ending.ok({})


async def _note_leader(process: ClientProcess, target: TopicTarget) -> None:
    with process.asking("leader", target.id, {}) as ending:
        leader = await process.client.leader(target.id)
        ending.node, ending.epoch = leader.url, leader.epoch
        ending.ok({})
