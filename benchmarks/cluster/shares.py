"""Compare the cost of a message on three nodes of a cluster with its cost on one node.

::

    three nodes    one cluster: 9 topics, each node leads 3
    alone          three separate clusters of one node, each with 3 topics; they share the servers of ZooKeeper
                   and HBase, and each has its own root and tables
    one node       the first node of the cluster, with 9 other topics

All sides get the same requests at the same moments. A clock sets the moments, and not the last answer. Each request
goes to the leader of its topic, so no node forwards any. Each side has its own topics, so no topic moves between runs.

The cost of a cluster is the difference between its nodes and *nodes alone with the same work*. This difference is
judged. One node with all the work is cheaper for another reason, and not because a cluster does more work. A busy
process finds several answers each time it wakes up, and they share the cost of the wake-up. And the more processes take
turns on two processors, the less of its data each finds in the processors' caches. The ratio of the nodes alone to the
one node shows how much this is on the measuring machine. It is reported, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from benchmarks import prepared
from benchmarks.cluster.ground import Ground, Node
from benchmarks.figures import Question, Run, Series, compare
from benchmarks.harness import Bench, say
from benchmarks.load import pace

EACH, MUST = 3, 1.2
SPARE = 2
"""Extra turns, in place of turns in which the host took a processor away."""


class Shape(NamedTuple):
    """A load: requests a second, and messages in each."""

    rate: int
    messages: int

    @property
    def name(self) -> str:
        """The name of the load."""
        return f"{self.rate} requests/s of {self.messages}"


LOADS = (
    Shape(100, 1),
    Shape(50, 100),
    Shape(300, 1),
    Shape(500, 1),
)
NOTE = (
    "All sides get the same requests at the same moments, spread over nine topics. *Alone* are three separate "
    "clusters of one node with three topics each. They are as many processes as the three nodes, and each has the "
    "same work. So the difference is the cost of the cluster. One node with all the work gets cheaper as the load "
    "grows, compared with a cluster and also with nodes alone. It finds more answers each time it wakes up, and "
    "more of its data in the processors' caches."
)
THREE, ALONE, ONE = "three nodes", "alone", "one node"
CPU, CALLS = "processor time", "storage calls"


class _Side(NamedTuple):
    """A side: the topics that get the publishes, and the nodes whose cost counts."""

    name: str
    topics: Sequence[tuple[int, str]]
    """For each topic the port of its leader, and its name."""
    counted: Sequence[Node]


async def measure(bench: Bench, ground: Ground) -> Question:
    """Measure the cost of a message with three nodes, beside three nodes alone and beside one."""
    question = Question(
        letter="k", title="three nodes beside three alone, and beside one: what a message costs"
    )
    async with _sides(ground) as sides:
        for shape in LOADS:
            await _take_turns(bench, ground, question, shape, sides)
    question.notes.append(NOTE)
    return question


@asynccontextmanager
async def _sides(ground: Ground) -> AsyncIterator[Sequence[_Side]]:
    """Give all sides; each topic has its leader. The nodes alone run until the end of the block."""
    first = ground.nodes[0]
    shared = [
        (node.port, name)
        for node in ground.nodes
        for name in await ground.topics("shares", EACH, node.instance)
    ]
    at_one = [(first.port, name) for name in await ground.topics("alone", 9, first.instance)]
    await ground.until_led([name for _, name in shared + at_one], None, first.port)
    alone = await asyncio.to_thread(ground.start_alone)
    try:
        apart = [(node.port, f"apart-{number}") for node in alone for number in range(EACH)]
        for port, name in apart:
            await prepared.create_topic(port, name)
        yield (
            _Side(THREE, shared, ground.nodes),
            _Side(ALONE, apart, alone),
            _Side(ONE, at_one, [first]),
        )
    finally:
        await asyncio.to_thread(ground.end_alone)


async def _take_turns(
    bench: Bench, ground: Ground, question: Question, shape: Shape, sides: Sequence[_Side]
) -> None:
    """Measure one load."""
    wanted = bench.plan.long_runs
    series = {
        (side.name, quantity): Series(
            name=f"{side.name}, {shape.name}: {quantity}", unit=unit, runs_wanted=wanted
        )
        for quantity, unit in ((CPU, "µs"), (CALLS, "per 1,000 messages"))
        for side in sides
    }
    question.series += series.values()
    for side in sides:
        await _load(side, shape, bench.plan.run_s)
    for _ in range(wanted + SPARE):
        for side in sides:
            cpu, calls = await _run(bench, ground, side, shape)
            series[side.name, CPU].runs.append(cpu)
            series[side.name, CALLS].runs.append(calls)
            apart = f"   APART: {cpu.apart}" if cpu.apart else ""
            say(f"  {side.name}, {shape.name}: {cpu.value:.1f} µs, {calls.value:.1f} calls{apart}")
    for quantity in (CPU, CALLS):
        three, alone, one = (series[side, quantity] for side in (THREE, ALONE, ONE))
        question.ratios.append(compare(three, alone, must=MUST, at_most=True))
        question.ratios += [compare(three, one), compare(alone, one)]


async def _run(bench: Bench, ground: Ground, side: _Side, shape: Shape) -> tuple[Run, Run]:
    counted = await ground.counted(side.counted)
    before, cpu_s = bench.snapshot(), ground.cpu_s(side.counted)
    count = await _load(side, shape, bench.plan.run_s)
    cpu_s = ground.cpu_s(side.counted) - cpu_s
    apart = bench.objection(before)
    now = await ground.counted(side.counted)
    if now.forwarded > counted.forwarded:
        apart = f"{now.forwarded - counted.forwarded:.0f} requests were forwarded: a leader moved"
    return (
        Run(value=1e6 * cpu_s / count, apart=apart),
        # Other programs change times, but not the number of storage calls. So this run always counts.
        Run(value=1e3 * (now.calls - counted.calls) / count),
    )


async def _load(side: _Side, shape: Shape, seconds: float) -> int:
    """Publish to all topics at their leaders; return the number of acknowledged messages."""
    queues = [
        (port, prepared.publishes(name, messages=shape.messages, requests=8))
        for port, name in side.topics
    ]
    load = await pace(queues, rate=shape.rate, units=shape.messages, seconds=seconds)
    return load.units
