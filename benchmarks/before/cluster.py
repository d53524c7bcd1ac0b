"""A cluster of each checkout on the same HBase and ZooKeeper, each with its own tables and root.

While one cluster has its turn, the nodes of the other are idle. They are not frozen, as they would lose their sessions.
All nodes run without a cache, so that polls read from HBase.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import uvloop
from typing_extensions import override

from benchmarks import occupancy, prepared
from benchmarks.before import kafka
from benchmarks.before.sides import BEFORE, NOT_WORSE, NOW, environment_of, named, related
from benchmarks.cluster import failover, pauses
from benchmarks.cluster.__main__ import PLAN, QUICK
from benchmarks.cluster.ground import Ground, publishes
from benchmarks.figures import Question, Run, Series, judged
from benchmarks.harness import Bench, Side, p50_of, say
from benchmarks.load import Load, ask, connect, drive
from benchmarks.polls import decoded
from broker.local import LocalCluster, Member, Sizes

SIZES = Sizes(nodes=3, spares=3)
CACHE = "topics.cache_bytes_max"
SPARES = range(SIZES.nodes + 1, SIZES.nodes + SIZES.spares + 1)
BEFORE_OWN = {"cluster.zookeeper_root": "/before", "hbase.hbase_table_prefix": "before_"}
POINTS = ((1, 1), (8, 10), (8, 100), (8, 1_000))
READ, SMALL_READ = "1,000 messages from HBase", "1,000 small entries from HBase"
READ_MESSAGES, PAGE = 10_000, 1_000
HANDOFF_MUST_MS = 80.0


class GroundBefore(Ground):
    """The spare nodes, as one cluster."""

    @property
    @override
    def members(self) -> Sequence[Member]:
        """The nodes of this ground."""
        return self.cluster.spares


class Grounds(NamedTuple):
    """The shared servers, and the cluster of each side."""

    cluster: LocalCluster
    by_side: dict[str, Ground]


Ask = Callable[[Bench, Grounds], Awaitable[Question]]


def measure(
    before: Path,
    names: Sequence[str],
    *,
    quick: bool,
    runs: int | None,
    take: Callable[[Question], None],
) -> None:
    """Start both clusters, ask the questions, end the clusters."""
    plan = QUICK if quick else PLAN
    if runs:
        plan = replace(plan, runs=runs, long_runs=runs)
    environment = environment_of(before)
    with LocalCluster(
        SIZES,
        settings={CACHE: 0},
        own_settings=dict.fromkeys(SPARES, BEFORE_OWN),
        own_environment=dict.fromkeys(SPARES, environment),
        report=say,
    ) as cluster:
        _start_before(cluster, environment)
        grounds = Grounds(cluster, {NOW: Ground(cluster), BEFORE: GroundBefore(cluster)})
        uvloop.run(_measure(Bench(plan), grounds, names, take))


def _start_before(cluster: LocalCluster, environment: dict[str, str]) -> None:
    first = cluster.spares[0]
    file = first.folder / f"{first.name}.toml"
    command = [sys.executable, "-m", "broker.cli", "storage", "init", "--config", str(file)]
    subprocess.run(command, check=True, env={**os.environ, **environment})
    for node in cluster.spares:
        node.launch()
    for node in cluster.spares:
        node.await_ready()


async def _measure(
    bench: Bench, grounds: Grounds, names: Sequence[str], take: Callable[[Question], None]
) -> None:
    bench.companions = grounds.by_side[NOW].pids
    try:
        for ground in grounds.by_side.values():
            await ground.look()
        for name in names:
            asked = QUESTIONS[name]
            say(f"\n({name}) {(asked.__doc__ or '').splitlines()[0]}")
            take(await asked(bench, grounds))
    finally:
        bench.close()


async def _rates(bench: Bench, grounds: Grounds) -> Question:
    """Measure how fast clusters store messages, at which cost, and how fast consumers read them."""
    question = Question(letter="cluster", title="cluster: publishing and reading")
    led = {
        side: await ground.topics("before", 8, ground.nodes[0].instance)
        for side, ground in grounds.by_side.items()
    }
    for topics, messages in POINTS:
        case = f"{topics} x {messages:,}"
        sides = [
            Side(
                name=named(side, case),
                run=partial(publishes, ground.nodes[0].port, led[side][:topics], messages),
                unit="ms" if topics == 1 else "msg/s",
                figure=p50_of if topics == 1 else None,
                warm_s=3.0,
            )
            for side, ground in grounds.by_side.items()
        ]
        await bench.measure(question, sides)
        related(question, case, at_most=topics == 1)
    await _costs(bench, question, grounds, led)
    for case, each in ((READ, PAGE), (SMALL_READ, 1)):
        await _reads(bench, question, grounds, case, each)
        related(question, case, at_most=True)
    return question


async def _costs(
    bench: Bench, question: Question, grounds: Grounds, led: dict[str, list[str]]
) -> None:
    """Count the processor time of a node, the gateway and the region server."""
    case = "processor time a message, 8 x 100"
    cluster = grounds.cluster
    wanted = bench.plan.runs
    series = {side: Series(name=named(side, case), unit="µs", runs_wanted=wanted) for side in led}
    question.series += series.values()
    for _ in range(wanted * bench.plan.attempts_per_run):
        for side, ground in grounds.by_side.items():
            node = ground.nodes[0]
            counted = [node.process, *cluster.gateways, *cluster.region_servers]
            before, used_s = bench.snapshot(), _cpu_s(counted)
            load = await publishes(node.port, led[side], 100, bench.plan.run_s)
            used_s = _cpu_s(counted) - used_s
            run = Run(value=1e6 * used_s / max(load.units, 1), apart=bench.objection(before))
            series[side].runs.append(run)
            say(f"  {side}: {run.value:.1f} µs a message   {run.apart}")
    related(question, case, at_most=True)


def _cpu_s(members: Sequence[Member]) -> float:
    return sum(occupancy.process_s(member.pid) for member in members)


async def _reads(bench: Bench, question: Question, grounds: Grounds, case: str, each: int) -> None:
    """Publish messages, ``each`` at a time, and poll them by pages."""
    sides = []
    for side, ground in grounds.by_side.items():
        node = ground.nodes[0]
        count = READ_MESSAGES if each > 1 else 2 * PAGE
        (topic,) = await ground.topics(f"read-{each}", 1, node.instance)
        wire = await connect(node.port)
        for request in prepared.publishes(topic, messages=each, requests=count // each):
            await wire.exchange(request)
        wire.close()
        ids = [message.id for message in decoded(await ask(node.port, prepared.poll(topic)))]
        starts = ids[: count - PAGE : max(1, (count - PAGE) // 64)]
        queue = [prepared.poll(topic, start=start, limit=PAGE) for start in starts]
        run = partial(_polled, node.port, queue)
        sides.append(Side(name=named(side, case), run=run, unit="ms", figure=p50_of, warm_s=3.0))
    await bench.measure(question, sides)


async def _polled(port: int, queue: Sequence[bytes], seconds: float) -> Load:
    return await drive(port, [queue], units=PAGE, seconds=seconds)


async def _moves(bench: Bench, grounds: Grounds) -> Question:
    """Measure how long a topic pauses while it moves, and how long 1,000 topics take to fail over."""
    question = Question(letter="moves", title="cluster: planned handoffs, and a failover")
    for side, ground in grounds.by_side.items():
        gaps, apart = await pauses.moved(bench, ground, 1)
        pauses.judge(question, f"{side}, planned handoff", gaps, HANDOFF_MUST_MS, apart, part=0.99)
    taken: dict[str, float] = {}
    for side, ground in grounds.by_side.items():
        answer = await failover.measure(bench, ground)
        (series,) = answer.series
        series.name = named(side, series.name)
        question.series.append(series)
        question.notes += [f"{side}: {note}" for note in answer.notes]
        taken[side] = series.median_of_all or 0.0
    value = taken[NOW] / max(taken[BEFORE], 1e-9)
    text = f"failover of {failover.TOPICS:,} topics, {NOW} / {BEFORE}"
    question.ratios.append(judged(text, value, must=1 / NOT_WORSE, at_most=True))
    return question


async def _beside_kafka(bench: Bench, grounds: Grounds) -> Question:
    """Measure 8 topics x 100 messages through Python clients, beside three Kafka brokers."""
    ground = grounds.by_side[NOW]
    names = await ground.topics("kafka", 8, ground.nodes[0].instance)
    urls = [str(node.process.url) for node in ground.nodes]
    return await kafka.measure(bench, urls, names)


QUESTIONS: dict[str, Ask] = {"cluster": _rates, "kafka": _beside_kafka, "moves": _moves}
"""The order matters: the last question leaves nodes dead."""
