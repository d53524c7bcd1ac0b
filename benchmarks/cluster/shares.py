"""What a message costs when three nodes lead the topics, beside what it costs at one.

::

    three nodes        9 topics, 3 at each                     what a cluster of three does
    one, as much       3 topics at one node, the others idle   what each of its nodes does, alone
    one, all of it     9 topics at one node, the others drained, and their processor time left out

The same connections, each to its topic's leader, so that nothing is forwarded. The first two sides give a
node the same work: what a message costs more among three is what being a cluster costs. The third gives
one node three times as much: then several answers of storage have come whenever it looks, and what it
takes to wake up is shared by them. That is no cost of a cluster; it is shown, and not judged.

Nor is a topic's one publisher that waits for each answer. Each of three nodes then does exactly the work of
"one, as much", and what it costs more is this machine's: between any two of the few wake-ups that a message
takes, its two processors have served seven other processes.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection
from typing import NamedTuple

from benchmarks import prepared
from benchmarks.cluster.ground import Ground
from benchmarks.figures import Question, Run, Series, compare
from benchmarks.harness import Bench, say
from benchmarks.load import drive

EACH, MUST = 3, 1.2
TURNS, RUNS = 2, 2


class Shape(NamedTuple):
    """A load: connections for each topic, and messages in each request."""

    connections: int
    messages: int
    judged: bool = True

    @property
    def name(self) -> str:
        """What it is called."""
        return f"{self.messages} a request, {self.connections} at a time"


LOADS = (Shape(1, 1, judged=False), Shape(8, 1), Shape(1, 100))
THREE, AS_MUCH, ALL_OF_IT = "three nodes", "one, as much", "one, all of it"


async def measure(bench: Bench, ground: Ground) -> Question:
    """Ask what a message costs with three nodes, beside one."""
    question = Question(letter="k", title="three nodes beside one: what a message costs")
    wanted = TURNS * RUNS
    series = {
        (who, shape, what): Series(
            name=f"{who}, {shape.name}: {what}", unit=unit, runs_wanted=wanted
        )
        for shape in LOADS
        for what, unit in (("processor time", "µs"), ("storage calls", "per 1,000 messages"))
        for who in (THREE, AS_MUCH, ALL_OF_IT)
    }
    question.series += series.values()
    names = [
        name for node in ground.nodes for name in await ground.topics("shares", EACH, node.instance)
    ]
    for _ in range(TURNS):
        await ground.until_led(names, None, ground.nodes[0].port)
        await _runs(bench, ground, THREE, names, series)
        await _runs(bench, ground, AS_MUCH, names[:EACH], series)
        for node in ground.nodes[1:]:
            await ground.drain(node.instance)
        await ground.until_led(names, ground.nodes[0].instance, ground.nodes[0].port)
        await _runs(bench, ground, ALL_OF_IT, names, series)
        for node in ground.nodes[1:]:
            await ground.drain(node.instance, back=True)
    for shape in LOADS:
        for what in ("processor time", "storage calls"):
            three, as_much, all_of_it = (
                series[who, shape, what] for who in (THREE, AS_MUCH, ALL_OF_IT)
            )
            must = MUST if shape.judged else None
            question.ratios.append(compare(three, as_much, must=must, at_most=True))
            question.ratios.append(compare(three, all_of_it, at_most=True))
    return question


async def _runs(
    bench: Bench,
    ground: Ground,
    who: str,
    names: list[str],
    series: dict[tuple[str, Shape, str], Series],
) -> None:
    counted = None if who == THREE else [ground.nodes[0].instance]
    led = {name: await ground.leader(name, ground.nodes[0].port) for name in names}
    for shape in LOADS:
        await _load(ground, led, shape, bench.plan.settle_s)
        for _ in range(RUNS):
            cpu, calls = await _run(bench, ground, led, shape, counted)
            series[who, shape, "processor time"].runs.append(cpu)
            series[who, shape, "storage calls"].runs.append(calls)
            apart = f"   APART: {cpu.apart}" if cpu.apart else ""
            say(f"  {who}, {shape.name}: {cpu.value:.1f} µs, {calls.value:.1f} calls{apart}")


async def _run(
    bench: Bench,
    ground: Ground,
    led: dict[str, int | None],
    shape: Shape,
    counted: Collection[int] | None,
) -> tuple[Run, Run]:
    calls = await ground.storage_calls(counted)
    before, cpu_s = bench.snapshot(), ground.node_cpu_s(counted)
    count = await _load(ground, led, shape, bench.plan.run_s)
    cpu_s = ground.node_cpu_s(counted) - cpu_s
    apart = bench.objection(before)
    calls = await ground.storage_calls(counted) - calls
    return (
        Run(value=1e6 * cpu_s / count, apart=apart),
        # Company changes times, and not how often storage is asked.
        Run(value=1e3 * calls / count),
    )


async def _load(ground: Ground, led: dict[str, int | None], shape: Shape, seconds: float) -> int:
    """Publish to all topics at their leaders; return how many messages were acknowledged."""
    lanes: dict[int | None, list[list[bytes]]] = defaultdict(list)
    for name, instance in led.items():
        lane = prepared.publishes(name, messages=shape.messages, requests=8)
        lanes[instance] += [lane] * shape.connections
    loads = await asyncio.gather(
        *(
            drive(node.port, lanes[node.instance], units=shape.messages, seconds=seconds)
            for node in ground.nodes
            if node.instance in lanes
        )
    )
    return sum(load.units for load in loads)
