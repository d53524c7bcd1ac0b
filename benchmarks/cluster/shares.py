"""What a message costs when three nodes lead the topics, beside what it costs at one.

::

    three nodes    one cluster: 9 topics, 3 led by each
    alone          three nodes that know nothing of each other, each a cluster by itself with 3 topics; they
                   share the servers of ZooKeeper and of HBase, with a root and tables of their own
    one node       the first of the three, with 9 other topics

All get the same requests at the same moments, by a clock and not by the last answer, each at its topic's
leader, so that nothing is forwarded. Between runs nothing moves: a side has topics of its own.

What a cluster costs is what its nodes need more than *nodes alone that have as much to do each*: that is
judged. Beside one node that does it all there is another difference, and no work that a cluster does more. A
busy process finds several answers whenever it looks, and what it takes to wake up is shared by them; and the
more processes take turns on two processors, the less each finds in their caches. How much that is on the
machine that measures, the nodes alone show: their ratio to the one node is told too.
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
"""Turns beyond those that are wanted, for those in which the host took a processor away."""


class Shape(NamedTuple):
    """A load: requests a second, and messages in each."""

    rate: int
    messages: int

    @property
    def name(self) -> str:
        """What it is called."""
        return f"{self.rate} requests/s of {self.messages}"


LOADS = (
    Shape(100, 1),
    Shape(50, 100),
    Shape(300, 1),
    Shape(500, 1),
)
NOTE = (
    "All sides get the same requests at the same moments, spread over nine topics. *Alone* are three nodes "
    "that know nothing of each other, each a cluster by itself, with three topics: as many processes with as "
    "much to do each, so what the three of a cluster need more is what the cluster costs. One node that "
    "does it all gets cheaper with the load, whether it is compared with a cluster or with nodes alone: it "
    "finds more answers whenever it wakes up, and more of itself in the caches of the machine that all share."
)
THREE, ALONE, ONE = "three nodes", "alone", "one node"
CPU, CALLS = "processor time", "storage calls"


class _Side(NamedTuple):
    """Whose topics are published to, and which nodes are counted."""

    name: str
    topics: Sequence[tuple[int, str]]
    """The port of each one's leader, and its name."""
    counted: Sequence[Node]


async def measure(bench: Bench, ground: Ground) -> Question:
    """Ask what a message costs with three nodes, beside three alone and beside one."""
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
    """Give all sides, each with topics that are led; the nodes alone run until the end."""
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
        (side.name, what): Series(
            name=f"{side.name}, {shape.name}: {what}", unit=unit, runs_wanted=wanted
        )
        for what, unit in ((CPU, "µs"), (CALLS, "per 1,000 messages"))
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
    for what in (CPU, CALLS):
        three, alone, one = (series[side, what] for side in (THREE, ALONE, ONE))
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
        # Company changes times, and not how often storage is asked.
        Run(value=1e3 * (now.calls - counted.calls) / count),
    )


async def _load(side: _Side, shape: Shape, seconds: float) -> int:
    """Publish to all topics at their leaders; return how many messages were acknowledged."""
    lanes = [
        (port, prepared.publishes(name, messages=shape.messages, requests=8))
        for port, name in side.topics
    ]
    load = await pace(lanes, rate=shape.rate, units=shape.messages, seconds=seconds)
    return load.units
