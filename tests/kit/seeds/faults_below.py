"""Faults below the nodes: of the coordinator, storage and clocks."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import AsyncGenerator

from broker.coordination.ports import Contact
from broker.storage.memory.adversary import Bias
from tests.kit.seeds.kinds import (
    Detail,
    Nothing,
    fault,
    some,
    some_leader,
)
from tests.kit.seeds.plan import CLOCK_OFF_MS
from tests.kit.seeds.seeded_cluster import SeededCluster

# The coordinator.


@fault(weight=2, lasts_s=4)
async def session_cut(
    cluster: SeededCluster, chance: random.Random, _: float
) -> AsyncGenerator[Detail]:
    """A node is cut off from the coordinator; its session ends early, in time or late."""
    machine = some_leader(cluster, chance)
    ends_s = chance.choice([0.05, 0.5, None, 10.0])
    session = machine.cut_session(ends_s)
    if session is None:
        raise Nothing
    yield {"node": machine.name, "session_ends_after_s": ends_s}
    machine.mend_session(session)


@fault(weight=2, lasts_s=0.1)
async def session_end(
    cluster: SeededCluster, chance: random.Random, _: float
) -> AsyncGenerator[Detail]:
    """A session ends although its node is connected; the node learns of it late."""
    machine = some_leader(cluster, chance)
    if machine.session is None or machine.session.contact is not Contact.CONNECTED:
        raise Nothing
    noticed_s = chance.choice([0.0, 0.3, 3.0])
    cluster.coordination.expire(machine.session, noticed_after_s=noticed_s)
    yield {"node": machine.name, "noticed_after_s": noticed_s}


@fault(weight=1, lasts_s=5)
async def outage(cluster: SeededCluster, _: random.Random, __: float) -> AsyncGenerator[Detail]:
    """The coordinator is down."""
    if cluster.is_out:
        raise Nothing
    cluster.is_out = True
    cluster.coordination.outage()
    yield {}
    if cluster.is_out:
        cluster.is_out = False
        cluster.coordination.recover()


@fault(weight=0.5, lasts_s=0.1)
async def wipe(cluster: SeededCluster, _: random.Random, __: float) -> AsyncGenerator[Detail]:
    """The coordinator loses all its data."""
    cluster.coordination.wipe()
    yield {}


# Storage.


@fault(weight=2, lasts_s=4)
async def storage_cut(
    cluster: SeededCluster, chance: random.Random, _: float
) -> AsyncGenerator[Detail]:
    """A node's calls don't reach storage, or the answers don't reach the node."""
    machine = some_leader(cluster, chance)
    way = chance.choice(["both", "there", "back"])
    mend = machine.way.cut(there=way != "back", back=way != "there")
    yield {"node": machine.name, "way": way}
    mend()


@fault(weight=2, lasts_s=4)
async def storage_storm(
    cluster: SeededCluster, chance: random.Random, _: float
) -> AsyncGenerator[Detail]:
    """Storage has all its faults, often."""
    worst = Bias(late_make_ms=chance.choice([1_500.0, 15_000.0]))
    mend = cluster.spoil_storage(lambda _: worst)
    yield {"late_make_ms": worst.late_make_ms}
    mend()


@fault(weight=1, lasts_s=4)
async def storage_slow(
    cluster: SeededCluster, chance: random.Random, _: float
) -> AsyncGenerator[Detail]:
    """Storage is slow."""
    delay_ms = chance.choice([30.0, 200.0])
    mend = cluster.spoil_storage(lambda bias: dataclasses.replace(bias, delay_ms=delay_ms))
    yield {"delay_ms": delay_ms}
    mend()


# Clocks.


@fault(weight=2, lasts_s=10)
async def clock_step(
    cluster: SeededCluster, chance: random.Random, _: float
) -> AsyncGenerator[Detail]:
    """A clock is set wrong, and later corrected."""
    machine = some(cluster.machines, chance)
    by_ms = chance.uniform(-1, 1) * chance.choice([600, 3_000, 3_600_000])
    by_ms = max(min(by_ms, cluster.clock_off_ms_max), -cluster.clock_off_ms_max)
    machine.wall.step(by_ms)
    yield {"node": machine.name, "by_ms": round(by_ms)}
    machine.wall.step(-by_ms)


@fault(weight=1, lasts_s=20)
async def clock_rate(
    cluster: SeededCluster, chance: random.Random, lasts_s: float
) -> AsyncGenerator[Detail]:
    """A clock runs too fast or too slow, or stops."""
    machine = some(cluster.machines, chance)
    rate = chance.choice([0.0, 0.95, 1.05])
    if cluster.clock_off_ms_max <= CLOCK_OFF_MS:
        # At its end the clock is off by at most the bound: a node that finds its clock wrong leads nothing more.
        slowest = 1 - cluster.clock_off_ms_max / 1000 / max(lasts_s, 1.0)
        rate = max(1 + (rate - 1) / 20, slowest)
    mend = machine.wall.drift(rate)
    yield {"node": machine.name, "rate": rate}
    mend()
