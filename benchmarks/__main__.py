"""``python -m benchmarks [a b c d e f] [--runs N] [--attempts N] [--json FILE] [--quick]``.

Exits with 1 if a figure misses its bound, else with 0. A figure that was not measured, or gave no result, is reported
as such. It neither meets nor misses its bound.
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

from benchmarks import (
    client_publish,
    full_topic,
    http_batches,
    http_single,
    latency,
    machine,
    peers,
    polls,
    report,
    syncs,
)
from benchmarks.figures import Question, percentile
from benchmarks.harness import Bench, Plan, say

QUESTIONS: dict[str, Callable[[Bench], Awaitable[Question]]] = {
    "a": client_publish.measure,
    "b": http_single.measure,
    "c": http_batches.measure,
    "d": polls.measure,
    "e": latency.measure,
    "f": full_topic.measure,
}
_RAW_SYNC_S = 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; return the exit code."""
    options = _options(arguments)
    if len(os.sched_getaffinity(0)) < 2:
        say("Two cores are needed: one for the server, one for the load.")
        return 2
    os.sched_setaffinity(0, {peers.LOAD_CPU})
    plan = Plan.quick() if options.quick else Plan()
    if options.runs:
        plan = replace(plan, runs=options.runs, long_runs=options.runs)
    if options.attempts:
        plan = replace(plan, attempts_per_run=options.attempts)
    results = machine.described()
    results |= {"quick": options.quick, "raw_sync": [], "questions": []}
    uvloop.run(_measure(options.questions or list(QUESTIONS), plan, results, options.json))
    say(f"`python -m benchmarks.report {options.json}` makes the page of these results")
    return report.exit_code(results)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("questions", nargs="*", choices=[*QUESTIONS, []], metavar="a…f")
    parser.add_argument("--runs", type=int, help="kept runs a side (11 short ones, or 5 long)")
    parser.add_argument("--attempts", type=int, help="most runs for each kept one (3)")
    parser.add_argument("--quick", action="store_true", help="short runs, no conclusions")
    parser.add_argument("--json", type=Path, default=Path("data/benchmarks.json"))
    return parser.parse_args(arguments)


async def _measure(letters: Sequence[str], plan: Plan, results: dict[str, Any], file: Path) -> None:
    """Answer one question after the other; write the results after each."""
    bench = Bench(plan)
    results["raw_sync"].append(_raw_sync())
    try:
        for letter in letters:
            asked = QUESTIONS[letter]
            say(f"\n{(sys.modules[asked.__module__].__doc__ or '').splitlines()[0]}")
            question = (await asked(bench)).as_json()
            results["questions"].append(question)
            results["raw_sync"].append(_raw_sync())
            report.save(results, file)
            say(report.as_text({"questions": [question]}))
    finally:
        bench.close()


def _raw_sync() -> dict[str, float]:
    given = syncs.raw_syncs(peers.data_folder(), _RAW_SYNC_S)
    ordered = sorted(given.latencies_ns)
    raw = {
        "per_second": given.units / given.seconds,
        "p50_ms": percentile(ordered, 0.5) / 1e6,
        "p99_ms": percentile(ordered, 0.99) / 1e6,
    }
    say(f"raw syncs of 256 B: {raw['per_second']:,.0f} per second, p50 {raw['p50_ms']:.3f} ms")
    return raw


if __name__ == "__main__":
    sys.exit(main())
