"""All kinds of fault: faults of nodes and leaders are here; this module imports the others."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator

from broker.coordination import placement
from broker.errors import BrokerError
from broker.model import TopicId
from tests.kit.seeds import faults_below, faults_network
from tests.kit.seeds.kinds import (
    KINDS,
    SERVED_S,
    Detail,
    Nothing,
    fault,
    some,
    some_leader,
)
from tests.kit.seeds.seeded_cluster import SeededCluster

__all__ = ["KINDS", "faults_below", "faults_network"]

# Nodes.


@fault(weight=3, lasts_s=3)
async def kill(
    cluster: SeededCluster, chance: random.Random, lasts_s: float
) -> AsyncGenerator[Detail]:
    """A process is killed."""
    machine = some_leader(cluster, chance)
    machine.kill()
    yield {"node": machine.name, "lasts_s": lasts_s}
    machine.start()


@fault(weight=1, lasts_s=6)
async def power(
    cluster: SeededCluster, chance: random.Random, lasts_s: float
) -> AsyncGenerator[Detail]:
    """A machine loses power: its connections end without a reset."""
    machine = some_leader(cluster, chance)
    machine.kill(silently=True)
    yield {"node": machine.name, "lasts_s": lasts_s}
    machine.start()


@fault(weight=2, lasts_s=2)
async def stop(cluster: SeededCluster, chance: random.Random, _: float) -> AsyncGenerator[Detail]:
    """A node gets SIGTERM, and stops cleanly."""
    machine = some_leader(cluster, chance)
    machine.terminate()
    yield {"node": machine.name}


@fault(weight=4, lasts_s=5)
async def pause(cluster: SeededCluster, chance: random.Random, _: float) -> AsyncGenerator[Detail]:
    """A process pauses, perhaps past the end of its session, and goes on."""
    machine = some_leader(cluster, chance)
    machine.pause()
    yield {"node": machine.name}
    machine.resume()


@fault(weight=0.5, lasts_s=8)
async def rolling(cluster: SeededCluster, _: random.Random, __: float) -> AsyncGenerator[Detail]:
    """All nodes are restarted one after the other."""
    for machine in list(cluster.machines):
        if machine.is_up:
            machine.terminate()
            await asyncio.sleep(0.1)
            await machine.served(SERVED_S / 4)
    yield {}


@fault(weight=1, lasts_s=8)
async def twin(cluster: SeededCluster, chance: random.Random, _: float) -> AsyncGenerator[Detail]:
    """A node pauses, another node takes its instance id, and the first one goes on."""
    machine = some_leader(cluster, chance)
    instance = machine.instance
    if instance is None:
        raise Nothing
    other = cluster.add_machine(instance)
    machine.pause()
    other.start()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SERVED_S / 4):
            await other.serving
    yield {"node": machine.name, "twin": other.name, "instance": instance, "up": other.is_up}
    machine.resume()
    await asyncio.sleep(chance.uniform(0.0, 3.0))
    other.kill()


# Placement.


@fault(weight=3, lasts_s=4)
async def moves(
    cluster: SeededCluster, chance: random.Random, lasts_s: float
) -> AsyncGenerator[Detail]:
    """An operator pins topics to random nodes, faster than they can move."""
    topics = cluster.topics()
    numbers = [machine.instance for machine in cluster.up if machine.instance is not None]
    if not topics or not numbers:
        raise Nothing
    count = chance.randint(2, 8)
    for _ in range(count):
        await _pin(cluster, chance, some(topics, chance), some(numbers, chance))
        await asyncio.sleep(chance.uniform(0, lasts_s / count))
    yield {"moves": count}


async def _pin(cluster: SeededCluster, chance: random.Random, topic: TopicId, node: int) -> None:
    await placement.pin(cluster.records, topic, node)
    await _hint(cluster, chance)


async def _hint(cluster: SeededCluster, chance: random.Random) -> None:
    """Send the nodes a hint of a new placement, mostly: a lost hint is a fault, too."""
    if chance.random() < 0.8:
        operator = cluster.coordination.session()
        with contextlib.suppress(BrokerError, TimeoutError):
            await asyncio.wait_for(operator.hint(placement.HINT), 1)
        await operator.close()


@fault(weight=1, lasts_s=5)
async def drain(cluster: SeededCluster, chance: random.Random, _: float) -> AsyncGenerator[Detail]:
    """An operator drains a node for a while."""
    machine = some_leader(cluster, chance)
    instance = machine.instance
    if instance is None:
        raise Nothing
    if not await placement.drain(cluster.records, instance):
        raise Nothing  # Another operator drains it already, and will end the drain.
    await _hint(cluster, chance)
    yield {"node": machine.name}
    await placement.undrain(cluster.records, instance)
    await _hint(cluster, chance)
