"""What only schedules have, for guards of time: of lives that end, and of ids that come a second time.

As ``rare``, which knows these kinds and workloads; nothing here happens in a random plan.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from typing_extensions import override

from broker.client import BrokerError
from broker.model import Topic
from broker.testing.history import Value
from broker.testing.simulation.cluster import SimCluster
from broker.testing.simulation.kinds import SERVED_S, Detail, Nothing, fault
from broker.testing.simulation.node import Machine
from broker.testing.simulation.storage import StorageWay
from broker.testing.workloads import Stage, Workload, readers
from broker.testing.workloads.log import LogWorkload
from broker.testing.workloads.process import Process, Target
from broker.topics.leaders import Leaders
from broker.topics.retention import Sweeper, SweepReport

SLEW_MS: Final = 450
"""By so much a clock may be set at once and is believed at once."""
OFF_MS: Final = 4 * SLEW_MS
"""By so much a clock may be wrong, and its node still leads."""
ANSWERED_S: Final = 1.0
"""Within this everything is answered that was asked before nobody could ask any more."""
LATE_S: Final = 3.0
"""How late the rows of a node come that dies meanwhile."""
LOOK_S: Final = 0.01
LOOKS_MAX: Final = 500
TOPICS: Final = 3
"""More than nodes, so that one leads several."""
LONGER: Final = 100
"""How many times longer messages live when their topic's lifetime was raised."""
OLDEST: Final = 60


# Kinds of fault.


@fault(weight=0, lasts_s=1)
async def ahead(cluster: SimCluster, _: random.Random, __: float) -> AsyncGenerator[Detail]:
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


@fault(weight=0, lasts_s=50)
async def stale_sweep(
    cluster: SimCluster, _: random.Random, lasts_s: float
) -> AsyncGenerator[Detail]:
    """A node stands still in a sweep, until others lead its topics, and then goes on with it."""
    machine = max(cluster.up, key=lambda up: len(up.topics_led), default=None)
    if machine is None or machine.process is None or len(machine.topics_led) < 2:
        raise Nothing
    assert machine.below is not None, "it leads"
    assert machine.below.topics is not None, "it leads"
    with _nobody_asks(cluster, [machine]):
        await asyncio.sleep(cluster.scale.wait_s + ANSWERED_S)
        sweeper = _Halting(machine.below.topics.leaders, machine)
        sweep = machine.process.begin(sweeper.sweep())
        await asyncio.sleep(ANSWERED_S)
        if not machine.is_paused:
            raise Nothing
        await asyncio.sleep(lasts_s)
        machine.resume()
        await asyncio.wait((sweep,), timeout=SERVED_S)
    yield {"node": machine.name, "skipped": sweep.result().skipped}


class _Halting(Sweeper):
    """A sweep in which the node stands still when it has just read the record of the second topic.

    At the first one it would find out that it leads no more, for there a sweep compares clocks.
    """

    def __init__(self, leaders: Leaders, machine: Machine) -> None:
        super().__init__(leaders)
        self._machine = machine
        self._begun = 0

    @override
    async def _sweep_live(self, topic: Topic, report: SweepReport) -> None:
        self._begun += 1
        if self._begun == 2:
            self._machine.pause()
            await asyncio.sleep(0)
        await super()._sweep_live(topic, report)


@fault(weight=0, lasts_s=1)
async def same_ids(cluster: SimCluster, _: random.Random, __: float) -> AsyncGenerator[Detail]:
    """A node dies with its first rows under way; its next process begins at the same ids, and they come.

    That takes a log that is ahead of the clock: the next process goes on from it, not from the clock. To
    be run with one node, whose clock is ahead from the start.
    """
    machine = cluster.machines[0]
    way = machine.way
    _slew(cluster, -2 * OFF_MS)
    try:
        way.changes_late_s = LATE_S
        await _again(cluster, machine)
        await _sends_late(way)
    finally:
        way.changes_late_s = 0.0
    await _again(cluster, machine)
    await asyncio.sleep(LATE_S)
    # Who leads from now on knows only what is stored.
    await _again(cluster, machine)
    yield {"node": machine.name}


async def _again(cluster: SimCluster, machine: Machine) -> None:
    """End a process and its session, and start another. Raises Nothing."""
    if machine.session is not None:
        cluster.coordination.expire(machine.session)
    machine.kill()
    machine.start()
    if not await machine.served(SERVED_S):
        raise Nothing


async def _sends_late(way: StorageWay) -> None:
    """Wait until rows are on their way that come late. Raises Nothing."""
    late = way.happened["late_changes"]
    for _ in range(LOOKS_MAX):
        if way.happened["late_changes"] > late:
            return
        await asyncio.sleep(LOOK_S)
    raise Nothing


@contextmanager
def _nobody_asks(cluster: SimCluster, machines: Sequence[Machine]) -> Iterator[None]:
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


def _slew(cluster: SimCluster, by_ms: float) -> None:
    """Set all clocks by so much, in steps that a node takes for slewing."""
    steps = round(abs(by_ms) / SLEW_MS)
    for _ in range(steps):
        for machine in cluster.machines:
            machine.wall.step(by_ms / steps)
            if machine.node is not None:
                machine.node.clock.now_ms()


# Workloads.


async def shortly(stage: Stage, name: str, target: Target, stop: asyncio.Event) -> None:
    """Publish messages that live shortly."""
    async with Process(stage, name) as process:
        while not stop.is_set():
            with suppress(BrokerError):
                await process.publish(target, process.labels(), ttl_s=stage.scale.ttl_s)
            await process.pause()


async def oldest(stage: Stage, name: str, target: Target) -> None:
    """Read what is about to expire, again and again."""
    async with Process(stage, name) as process:
        while True:
            moment_ms = stage.clock.now_ms() - stage.scale.ttl_s * 1000
            with suppress(BrokerError):
                await process.poll(target, moment_ms, limit=OLDEST)
            await process.pause(stage.scale.pause_s / 2)


class RaisedWorkload(LogWorkload):
    """Topics whose messages live shortly, until an operator lets them live for long.

    Nobody waits: who is woken lets a leader find out that it leads no more.
    """

    name = "raised"

    def __init__(self) -> None:
        """Have readers of single pages."""
        super().__init__(reading=(readers.paging, readers.timed, readers.browsing))

    @override
    async def prepare(self, stage: Stage) -> None:
        """Create the topics. Raises BrokerError."""
        async with Process(stage, "operator") as process:
            for number in range(TOPICS):
                target = Target(f"{self.name}-{stage.chance.getrandbits(32):08x}-{number}")
                self.targets.append(await process.create(target, ttl_s=stage.scale.ttl_s))

    @override
    async def run(self, stage: Stage, stop: asyncio.Event) -> None:
        """Publish and consume until ``stop`` is set; when the first messages expire, change that."""
        async with asyncio.TaskGroup() as group:
            group.create_task(super().run(stage, stop))
            for target in self.targets:
                group.create_task(_raise(stage, f"operator-{target.name}", target, stop))


async def _raise(stage: Stage, name: str, target: Target, stop: asyncio.Event) -> None:
    ttl_s = LONGER * stage.scale.ttl_s
    asked: Value = {"generation": target.generation, "ttl_s": ttl_s}
    await stage.clock.sleep(stage.scale.ttl_s)
    async with Process(stage, name) as process:
        while not stop.is_set():
            with suppress(BrokerError):
                with process.asking("update", target.id, asked) as ending:
                    await process.client.set_topic(target.id, {"ttl": str(ttl_s)})
                    ending.ok({})
                return
            await process.pause()


WORKLOADS: Final[dict[str, Callable[[], Workload]]] = {
    "shortly": lambda: LogWorkload(publishing=(shortly,), reading=(oldest,)),
    "raised": RaisedWorkload,
}
"""Workloads that are made for one guard."""
