"""``python -m benchmarks.cluster [i g h k j] [--runs N] [--json FILE] [--quick] [--page]``.

Starts its own cluster in a temporary folder, and ends it. Exits with 1 if a figure misses its bound, else with 0. A
figure without a result is reported as such; it neither meets nor misses its bound.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from benchmarks import machine, prepared, report, syncs
from benchmarks.cluster import failover, pauses, rates, shares
from benchmarks.cluster import report as page
from benchmarks.cluster.ground import ALONE, SIZES, Ground
from benchmarks.figures import Question, percentile
from benchmarks.harness import Bench, Plan, say
from benchmarks.load import drive
from benchmarks.peers import data_folder
from broker.local import LocalCluster

Ask = Callable[[Bench, Ground], Awaitable[Question]]
QUESTIONS: dict[str, Ask] = {
    "i": pauses.measure,
    "g": rates.through_a_node,
    "h": rates.forwarded,
    "k": shares.measure,
    "j": failover.measure,
}
"""The order matters: pauses come first, before HBase must compact the data of full load; the last leaves a node dead."""
PLAN = Plan(runs=3, long_runs=9, run_s=2.5, settle_s=0.3, attempts_per_run=2)
QUICK = Plan(runs=1, long_runs=1, run_s=1.0, settle_s=0.2, attempts_per_run=1)
WARM_S, QUICK_WARM_S = 9.0, 2.0
"""The warm-up time of each of four kinds of load: in its first seconds a JVM has a tenth of its speed."""
RAW_S = 1.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; return the exit code."""
    options = _options(arguments)
    plan = QUICK if options.quick else PLAN
    if options.runs:
        plan = replace(plan, runs=options.runs, long_runs=options.runs)
    results = machine.described() | {"quick": options.quick, "raw_sync": [], "questions": []}
    began = time.monotonic()
    # Start and end the cluster outside of the event loop, as this blocks.
    with LocalCluster(SIZES, own_settings=ALONE, report=say) as cluster:
        uvloop.run(_measure(cluster, plan, results, options))
    say(f"took {time.monotonic() - began:.0f} s")
    if options.page:
        page.main(options.json)
    else:
        say(f"`python -m benchmarks.cluster.report {options.json}` makes the page of these results")
    return report.exit_code(results)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("questions", nargs="*", choices=[*QUESTIONS, []], metavar="g…k")
    parser.add_argument("--runs", type=int, help=f"runs a side ({PLAN.runs})")
    parser.add_argument("--quick", action="store_true", help="short runs, no conclusions")
    parser.add_argument("--page", action="store_true", help="write the page in docs as well")
    parser.add_argument("--json", type=Path, default=Path("data/benchmarks-cluster.json"))
    return parser.parse_args(arguments)


async def _measure(
    cluster: LocalCluster, plan: Plan, results: dict[str, Any], options: argparse.Namespace
) -> None:
    bench, ground = Bench(plan), Ground(cluster)
    bench.companions = ground.pids
    try:
        await ground.look()
        results["raw_sync"].append(_raw_sync())
        await _warm(ground, QUICK_WARM_S if options.quick else WARM_S)
        for letter, asked in QUESTIONS.items():
            if options.questions and letter not in options.questions:
                continue
            say(f"\n({letter}) {(asked.__doc__ or '').splitlines()[0]}")
            question = (await asked(bench, ground)).as_json()
            question["bare"] = await _bare(ground)
            results["questions"].append(question)
            report.save(results, options.json)
            say(report.as_text({"questions": [question]}))
    finally:
        bench.close()


async def _warm(ground: Ground, seconds: float) -> None:
    """Run every kind of load on every process, until the processes have their full speed."""
    say(f"warming for {4 * seconds:.0f} s")
    node = ground.nodes[0]
    names = await ground.topics("warm", 8, node.instance)
    for messages in (100, 1):
        queues = [prepared.publishes(name, messages=messages, requests=16) for name in names]
        await drive(node.port, queues, units=messages, seconds=seconds)
        await ground.bare(len(names), messages, seconds)
    asked = prepared.publishes(names[0], messages=1, requests=16)
    others = (drive(other.port, [asked] * 2, units=1, seconds=3) for other in ground.nodes[1:])
    await asyncio.gather(*others)


async def _bare(ground: Ground) -> dict[str, float]:
    """Return the present rates of bare commits."""
    alone = await ground.bare(1, 1, RAW_S)
    batched = await ground.bare(8, 100, RAW_S)
    return {
        "alone": alone.units / alone.seconds,
        "p50": percentile(sorted(alone.latencies_ns), 0.5) / 1e6,
        "batched": batched.units / batched.seconds,
    }


def _raw_sync() -> dict[str, float]:
    given = syncs.raw_syncs(data_folder(), RAW_S)
    return {"per_second": given.units / given.seconds}


if __name__ == "__main__":
    sys.exit(main())
