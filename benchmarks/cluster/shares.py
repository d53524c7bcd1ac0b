"""What a message costs when three nodes lead the topics, beside what it costs at one.

::

    three nodes    9 topics, 3 at each
    one node       9 others, all at the first; what the others use while they have nothing to do is left out

Both get the same requests at the same moments, by a clock and not by the last answer, each at its topic's
leader, so that nothing is forwarded. Between runs nothing moves: a side has topics of its own.

A process that is busy finds several answers whenever it looks, and what it takes to wake up is shared by
them. So one node gets cheaper, message by message, the busier it is, and three nodes that share the same
load not so soon; and the more processes take turns on two processors, the less each finds in their caches.
That is no work that a cluster does more, but it is what a message costs: every load is judged.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from benchmarks import prepared
from benchmarks.cluster.ground import Ground
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
    "Both sides get the same requests at the same moments, spread over nine topics. The busier a process is, "
    "the more answers it finds whenever it wakes up, and the more of it is in the caches: so one node gets "
    "cheaper with the load sooner than three that share it, most of all where each request is one message."
)
THREE, ONE = "three nodes", "one node"
CPU, CALLS = "processor time", "storage calls"


class _Side(NamedTuple):
    """Whose topics are published to, and which nodes are counted."""

    name: str
    topics: Sequence[tuple[int, str]]
    """The port of each one's leader, and its name."""
    counted: Collection[int] | None


async def measure(bench: Bench, ground: Ground) -> Question:
    """Ask what a message costs with three nodes, beside one."""
    question = Question(letter="k", title="three nodes beside one: what a message costs")
    first = ground.nodes[0]
    shared = [
        (node.port, name)
        for node in ground.nodes
        for name in await ground.topics("shares", EACH, node.instance)
    ]
    at_one = [(first.port, name) for name in await ground.topics("alone", 9, first.instance)]
    await ground.until_led([name for _, name in shared + at_one], None, first.port)
    sides = (_Side(THREE, shared, None), _Side(ONE, at_one, [first.instance]))
    for shape in LOADS:
        await _take_turns(bench, ground, question, shape, sides)
    question.notes.append(NOTE)
    return question


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
        three, one = series[THREE, what], series[ONE, what]
        question.ratios.append(compare(three, one, must=MUST, at_most=True))


async def _run(bench: Bench, ground: Ground, side: _Side, shape: Shape) -> tuple[Run, Run]:
    calls = await ground.storage_calls(side.counted)
    before, cpu_s = bench.snapshot(), ground.node_cpu_s(side.counted)
    count = await _load(side, shape, bench.plan.run_s)
    cpu_s = ground.node_cpu_s(side.counted) - cpu_s
    apart = bench.objection(before)
    calls = await ground.storage_calls(side.counted) - calls
    return (
        Run(value=1e6 * cpu_s / count, apart=apart),
        # Company changes times, and not how often storage is asked.
        Run(value=1e3 * calls / count),
    )


async def _load(side: _Side, shape: Shape, seconds: float) -> int:
    """Publish to all topics at their leaders; return how many messages were acknowledged."""
    lanes = [
        (port, prepared.publishes(name, messages=shape.messages, requests=8))
        for port, name in side.topics
    ]
    load = await pace(lanes, rate=shape.rate, units=shape.messages, seconds=seconds)
    return load.units
