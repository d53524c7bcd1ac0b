"""Rare kinds of fault and workloads, which only a directed schedule uses.

The kinds have weight 0, so no random plan draws them; the workloads are only in the registry of this module. Each is
made for one guard: it creates the situation in which only that guard keeps a promise.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, cast

from broker.client import BrokerError, Client
from chaos.checkers import Violation
from chaos.workloads import Workload, WorkloadSurroundings, publishers
from chaos.workloads.client_process import ClientProcess, TopicTarget, tell
from chaos.workloads.log import LogWorkload
from tests.kit.seeds.kinds import Detail, Nothing, fault, some_leader
from tests.kit.seeds.rare_times import WORKLOADS as OF_TIMES
from tests.kit.seeds.rare_writes import WORKLOADS as OF_WRITES
from tests.kit.seeds.seeded_cluster import SeededCluster

SUPERSEDED_S: Final = 30.0
"""A node must stop within this time after another has taken its instance id."""


@fault(weight=0, lasts_s=5)
async def impostor(
    cluster: SeededCluster, chance: random.Random, _: float
) -> AsyncGenerator[Detail]:
    """A node is cut off from the coordinator for long, and another node takes its instance id."""
    machine = some_leader(cluster, chance)
    process, number = machine.process, machine.instance
    session = machine.cut_session(0.3)
    if session is None or number is None:
        raise Nothing
    await asyncio.sleep(1.0)
    other = cluster.add_machine(number)
    other.start()
    if await other.served(SUPERSEDED_S):
        await asyncio.sleep(SUPERSEDED_S)
        if machine.process is process and machine.is_up and other.instance == number:
            detail = f"{machine.name} and {other.name} both serve as number {number}"
            cluster.wrong.append(Violation("shared_number", detail))
    yield {"node": machine.name, "number": number}
    machine.mend_session(session)
    other.kill()


class _Through:
    """Surroundings whose clients all use one node."""

    def __init__(self, around: WorkloadSurroundings, node: str) -> None:
        self._around = around
        self._node = node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._around, name)

    def client(self, process: str, *, node: str | None = None, **settings: Any) -> Client:
        return self._around.client(process, node=node or self._node, **settings)


async def relayed(
    around: WorkloadSurroundings, name: str, target: TopicTarget, stop: asyncio.Event
) -> None:
    """Publish in the background through one node, which mostly has to forward the request."""
    node = around.chance.choice(list(around.nodes))
    await publishers.pipelined(
        cast(WorkloadSurroundings, _Through(around, node)), name, target, stop
    )


STORES: Final = (1, 1, 8)
"""The number of stores in a transaction. With small pages, eight stores fill more than one page."""


async def storing(
    around: WorkloadSurroundings, name: str, target: TopicTarget, stop: asyncio.Event
) -> None:
    """Store messages, publish them, and after a while store more, which the leader must refuse."""
    async with ClientProcess(around, name) as process:
        while not stop.is_set():
            pointer = around.clock.now_ms() * 1_000_000 + around.chance.randrange(1_000_000)
            try:
                for _ in range(around.chance.choice(STORES)):
                    await _store(process, target, pointer)
                asked = {"number": pointer, "generation": target.generation}
                with process.asking("reference", target.id, asked) as ending:
                    tell(ending, await process.client.publish_stored(target.id, pointer=pointer))
                await process.pause()
                await _store(process, target, pointer)
            except BrokerError:
                await process.pause()
            await process.pause()


async def _store(process: ClientProcess, target: TopicTarget, pointer: int) -> None:
    labels = process.labels()
    asked = {"payloads": labels, "number": pointer, "generation": target.generation}
    with process.asking("store", target.id, asked) as ending:
        messages = [process.message(label) for label in labels]
        await process.client.store(target.id, messages, pointer=pointer)
        ending.ok({"last": ""}, "")


WORKLOADS: Final[dict[str, Callable[[], Workload]]] = {
    "relayed": lambda: LogWorkload(publishing=(relayed,)),
    "storing": lambda: LogWorkload(publishing=(storing, publishers.single)),
    **OF_TIMES,
    **OF_WRITES,
}
"""Workloads of directed schedules, each for one guard."""
