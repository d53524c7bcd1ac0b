"""``python -m benchmarks.before --before PATH [questions…] [--json FILE] [--quick] [--page]``.

Questions: publish polls small time expiry disk cluster moves kafka; all of them if none is named. The questions about
clusters (cluster, moves, kafka) start ZooKeeper and HBase, and on them a cluster of each checkout. Exits with 1 if a
figure misses its bound, else with 0. A question without a result is reported as such; it neither meets nor misses.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from benchmarks import machine, peers, report, syncs
from benchmarks.before import cluster, expiry, polls, publishing
from benchmarks.before import report as page
from benchmarks.figures import Question
from benchmarks.harness import Bench, Plan, say

ALONE: dict[str, Callable[[Bench, Path], Awaitable[Question]]] = {
    "publish": publishing.measure,
    "polls": polls.measure,
    "small": polls.small,
    "time": polls.by_time,
    "expiry": expiry.measure,
    "disk": expiry.disk,
}
CLUSTERED = cluster.QUESTIONS
_RAW_SYNC_S = 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; return the exit code."""
    options = _options(arguments)
    asked = options.questions or [*ALONE, *CLUSTERED]
    plan = Plan.quick() if options.quick else Plan()
    if options.runs:
        plan = replace(plan, runs=options.runs, long_runs=options.runs)
    if options.messages:
        plan = replace(plan, stored_messages=options.messages)
    results = machine.described() | {"quick": options.quick, "raw_sync": [], "questions": []}
    results["before"] = machine.commit_of(options.before)
    results["raw_sync"].append(_raw_sync())

    def take(question: Question) -> None:
        results["questions"].append(question.as_json())
        report.save(results, options.json)
        say(report.as_text({"questions": [question.as_json()]}))

    clustered = [name for name in CLUSTERED if name in asked]
    if clustered:
        cluster.measure(
            options.before, clustered, quick=options.quick, runs=options.runs, take=take
        )
    alone = [name for name in ALONE if name in asked]
    if alone:
        os.sched_setaffinity(0, {peers.LOAD_CPU})
        uvloop.run(_alone(alone, plan, options.before, take))
    return _ended(results, options)


async def _alone(
    names: Sequence[str], plan: Plan, before: Path, take: Callable[[Question], None]
) -> None:
    bench = Bench(plan)
    try:
        for name in names:
            asked = ALONE[name]
            say(f"\n({name}) {(asked.__doc__ or '').splitlines()[0]}")
            take(await asked(bench, before))
    finally:
        bench.close()


def _ended(results: dict[str, Any], options: argparse.Namespace) -> int:
    if options.page:
        page.main(options.json)
    else:
        say(f"`python -m benchmarks.before.report {options.json}` makes the page of these results")
    return report.exit_code(results)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.before", description=__doc__)
    names = [*ALONE, *CLUSTERED]
    parser.add_argument("questions", nargs="*", choices=[*names, []], metavar="questions")
    parser.add_argument(
        "--before", type=Path, required=True, help="a checkout of the commit to compare with"
    )
    parser.add_argument("--runs", type=int, help="kept runs a side")
    parser.add_argument("--messages", type=int, help="number of stored messages (5,000,000)")
    parser.add_argument("--quick", action="store_true", help="short runs, no conclusions")
    parser.add_argument("--page", action="store_true", help="write the page in docs as well")
    parser.add_argument("--json", type=Path, default=Path("data/benchmarks-storage.json"))
    options = parser.parse_args(arguments)
    options.before = options.before.resolve()
    if not (options.before / "broker").is_dir():
        parser.error(f"{options.before} is no checkout")
    return options


def _raw_sync() -> dict[str, float]:
    given = syncs.raw_syncs(peers.data_folder(), _RAW_SYNC_S)
    return {"per_second": given.units / given.seconds}


if __name__ == "__main__":
    sys.exit(main())
