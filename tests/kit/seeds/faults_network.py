"""Faults between machines: cuts, delays, resets, repeated requests."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable, Sequence

from tests.kit.seeds.kinds import (
    Detail,
    Nothing,
    fault,
    some,
    some_leader,
)
from tests.kit.seeds.seeded_cluster import SeededCluster


def _cut(cluster: SeededCluster, ways: Sequence[tuple[str, str]]) -> Callable[[], None]:
    for source, target in ways:
        cluster.network.cut(source, target)

    def mend() -> None:
        for source, target in ways:
            cluster.network.mend(source, target)

    return mend


def _both(ways: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [*ways, *((target, source) for source, target in ways)]


@fault(weight=2, lasts_s=5)
async def split(cluster: SeededCluster, chance: random.Random, _: float) -> AsyncGenerator[Detail]:
    """One node is cut off from the other nodes, in both directions."""
    names = [machine.name for machine in cluster.machines]
    alone = some(names, chance)
    mend = _cut(cluster, _both([(alone, name) for name in names if name != alone]))
    yield {"node": alone}
    mend()


@fault(weight=2, lasts_s=5)
async def deaf(cluster: SeededCluster, chance: random.Random, _: float) -> AsyncGenerator[Detail]:
    """One node's messages to another get lost; the other direction works."""
    names = [machine.name for machine in cluster.machines]
    source = some(names, chance)
    target = some([name for name in names if name != source], chance)
    mend = _cut(cluster, [(source, target)])
    yield {"from": source, "to": target}
    mend()


@fault(weight=2, lasts_s=4)
async def clients_cut(
    cluster: SeededCluster, chance: random.Random, _: float
) -> AsyncGenerator[Detail]:
    """Some clients don't reach a node, or don't get its answers."""
    node = some_leader(cluster, chance).name
    clients = [name for name in cluster.clients if chance.random() < 0.5]
    there = [(name, node) for name in clients]
    back = [(node, name) for name in clients]
    way = chance.choice(["both", "there", "back"])
    mend = _cut(cluster, {"both": there + back, "there": there, "back": back}[way])
    yield {"node": node, "clients": len(clients), "way": way}
    mend()


@fault(weight=1, lasts_s=5)
async def isolate(
    cluster: SeededCluster, chance: random.Random, _: float
) -> AsyncGenerator[Detail]:
    """A node reaches no other node, no coordinator and no storage."""
    machine = some_leader(cluster, chance)
    names = [other.name for other in cluster.machines if other is not machine]
    mend = _cut(cluster, _both([(machine.name, name) for name in names]))
    mend_way = machine.way.cut(there=True, back=False)
    session = machine.cut_session(None)
    yield {"node": machine.name}
    mend()
    mend_way()
    machine.mend_session(session)


@fault(weight=2, lasts_s=8)
async def slow(cluster: SeededCluster, chance: random.Random, _: float) -> AsyncGenerator[Detail]:
    """One node's network is slow and loses some packets."""
    node = some(cluster.machines, chance).name
    others = [machine.name for machine in cluster.machines if machine.name != node]
    delay_s, loss = chance.choice([0.005, 0.05, 0.3]), chance.choice([0.0, 0.05, 0.3])
    ways = _both([(node, other) for other in [*others, *cluster.clients]])
    mends = [cluster.network.slow(source, target, delay_s, loss) for source, target in ways]
    yield {"node": node, "delay_s": delay_s, "loss": loss}
    for mend in mends:
        mend()


@fault(weight=2, lasts_s=0.1)
async def reset(cluster: SeededCluster, chance: random.Random, _: float) -> AsyncGenerator[Detail]:
    """Half of a node's connections are reset."""
    machine = some(cluster.up, chance)
    count = cluster.network.reset_some(machine.name, chance)
    if not count:
        raise Nothing
    yield {"node": machine.name, "connections": count}


@fault(weight=1, lasts_s=5)
async def repeat(cluster: SeededCluster, chance: random.Random, _: float) -> AsyncGenerator[Detail]:
    """A proxy between clients and nodes sends requests with a key twice."""
    probability = chance.choice([0.2, 1.0])
    mend = cluster.repeater.repeat(probability)
    yield {"probability": probability}
    mend()
