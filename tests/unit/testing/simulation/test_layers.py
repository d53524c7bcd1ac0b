"""Faults that overlap: the end of each takes back only its own effect, in any order."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest

from broker.storage.memory.adversary import CALM
from broker.testing.simulation.cluster import SimCluster
from broker.testing.simulation.layers import Layers
from broker.testing.simulation.world import in_world
from broker.testing.virtual_time import pass_time
from tests.kit.seeds.faults import KINDS
from tests.kit.seeds.kinds import Nothing
from tests.kit.seeds.plan import HOSTILE

LASTS_S = 3.0


def test_each_layer_is_taken_back_alone() -> None:
    layers = Layers[str]()
    assert (layers.top, layers.all) == (None, [])
    first, second, third = (layers.add(name) for name in ("one", "two", "three"))
    assert (layers.top, layers.all) == ("three", ["one", "two", "three"])
    second()
    third()
    assert layers.top == "one"
    first()
    first()
    assert layers.top is None


def test_a_cleared_layer_can_still_be_taken_back() -> None:
    layers = Layers[str]()
    take_back = layers.add("one")
    layers.clear()
    layers.add("two")
    take_back()
    assert layers.all == ["two"]


def state(cluster: SimCluster) -> dict[str, object]:
    """Return the lasting effects of faults."""
    ways = list(itertools.permutations([m.name for m in cluster.machines], 2))
    return {
        "bias": cluster.table.bias,
        "repeats": cluster.repeater.probability,
        "cut": [(m.way.is_cut_there, m.way.is_cut_back) for m in cluster.machines],
        "cut_ways": cluster.network.cut_ways(),
        "slow": [cluster.network.slowness(*way) for way in ways],
        "clocks": [round(m.wall.off_ms, 1) for m in cluster.machines],
        "is_out": cluster.is_out,
    }


@pytest.mark.parametrize(
    "kinds",
    [
        ("storage_storm", "storage_storm"),
        ("storage_storm", "storage_slow"),
        ("storage_slow", "storage_slow"),
        ("storage_cut", "storage_cut"),
        ("storage_cut", "isolate"),
        ("slow", "slow"),
        ("repeat", "repeat"),
        ("clock_step", "clock_rate"),
        ("clock_rate", "clock_rate"),
        ("clock_step", "clock_step"),
        ("split", "deaf"),
        ("outage", "outage"),
    ],
)
@pytest.mark.parametrize("is_first_over_first", [True, False])
def test_faults_that_overlap_leave_nothing_behind(
    kinds: tuple[str, str], is_first_over_first: bool
) -> None:
    """There are two machines, so two faults of one kind often affect the same one."""

    async def overlap(cluster: SimCluster) -> tuple[dict[str, object], ...]:
        before = state(cluster)
        held = [AsyncExitStack(), AsyncExitStack()]
        for kind, stack in zip(kinds, held, strict=True):
            begun = KINDS[kind].begin(cluster, random.Random(1), LASTS_S)
            try:
                await stack.enter_async_context(begun)
            except Nothing:
                assert kind in {"outage", "isolate"}
            await pass_time(1.0)
        meanwhile = state(cluster)
        for stack in held if is_first_over_first else reversed(held):
            await stack.aclose()
            await pass_time(1.0)
        return before, meanwhile, state(cluster)

    before, meanwhile, after = simulated(overlap)
    assert meanwhile != before
    assert after == before


def simulated(
    work: Callable[[SimCluster], Coroutine[Any, Any, tuple[dict[str, object], ...]]],
) -> tuple[dict[str, object], ...]:
    async def main(*_: object) -> tuple[dict[str, object], ...]:
        cluster = SimCluster(nodes=2, bias=HOSTILE)
        await cluster.start()
        return await work(cluster)

    return in_world(1, main)


def test_the_end_of_a_fault_after_a_heal_has_no_effect() -> None:
    async def healed(cluster: SimCluster) -> tuple[dict[str, object], ...]:
        held = AsyncExitStack()
        for kind in ("storage_storm", "storage_cut", "slow", "repeat", "clock_rate"):
            begun = KINDS[kind].begin(cluster, random.Random(1), LASTS_S)
            await held.enter_async_context(begun)
        await pass_time(1.0)
        cluster.heal()
        before = state(cluster)
        await held.aclose()
        return before, state(cluster)

    before, after = simulated(healed)
    assert before == after
    assert before["bias"] == CALM


def test_a_fault_goes_on_when_another_fault_ends() -> None:
    async def storms(cluster: SimCluster) -> tuple[dict[str, object], ...]:
        first, second = AsyncExitStack(), AsyncExitStack()
        for stack, kind in ((first, "storage_slow"), (second, "storage_storm")):
            begun = KINDS[kind].begin(cluster, random.Random(1), LASTS_S)
            await stack.enter_async_context(begun)
        both = state(cluster)
        await first.aclose()
        one = state(cluster)
        await second.aclose()
        return both, one, state(cluster)

    both, one, none = simulated(storms)
    assert both["bias"] == one["bias"] != HOSTILE
    assert none["bias"] == HOSTILE
