"""Run seeds of the simulated cluster; see docs/internals/simulation.md.

::

    python -m tests.kit.seeds --seeds 1000 --minutes 10 --jobs 2
    python -m tests.kit.seeds --seeds 1000 --minutes 60 --thin 15
    python -m tests.kit.seeds --seed 77                    repeat a run: the same history
    python -m tests.kit.seeds --seed 77 --shrink           find fewer faults that still fail
    python -m tests.kit.seeds --plan shorter.json          run a saved plan
    python -m tests.kit.seeds --seeds 200 --mutant dedupe
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from broker.testing import mutants
from chaos.workloads import BENEATH, REGISTRY
from tests.kit.seeds.faults import KINDS
from tests.kit.seeds.plan import Plan, draw_plan
from tests.kit.seeds.report import RunSummary, Totals, summary_of
from tests.kit.seeds.run import simulate
from tests.kit.seeds.shrink import shrunk

WORKLOADS = ("log", "transactions", "topics", "bounce")
"""The workloads of seeds, in turn; the others need ``--workload``."""
MINUTES = 3.0
Command = Callable[[Plan], str]
"""Returns the command that repeats a plan."""


def main(arguments: list[str] | None = None) -> int:
    """Run seeds; return 1 if a seed is bad, or acknowledged too few messages."""
    chosen = _parser().parse_args(arguments)
    command = command_of
    if chosen.plan is not None:
        plans = [Plan.of_json(chosen.plan.read_text())]
        command = partial(command_of_file, chosen.plan)
    else:
        first, count = (chosen.seed, 1) if chosen.seed is not None else (chosen.first, chosen.seeds)
        plans = [planned(seed, chosen) for seed in range(first, first + count)]
    if chosen.shrink:
        return _shrink(plans[0])
    return _run_all(plans, command, chosen.jobs, keep_going=chosen.keep_going)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.kit.seeds")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seeds", type=int, default=10, help="how many seeds (10)")
    which.add_argument("--seed", type=int, help="run only this seed")
    which.add_argument("--plan", type=Path, metavar="FILE", help="run a plan that --shrink printed")
    parser.add_argument("--first", type=int, default=1, help="the first of several seeds (1)")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="virtual minutes (3)")
    parser.add_argument(
        "--thin", type=float, default=1.0, help="make all events so many times rarer"
    )
    parser.add_argument("--workload", action="append", choices=sorted(REGISTRY.keys() - BENEATH))
    parser.add_argument(
        "--mutant", choices=sorted(mutants.NAMES), help="run the product without this guard"
    )
    parser.add_argument("--fault", action="append", choices=sorted(KINDS), help="only these kinds")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--shrink", action="store_true", help="look for a shorter failing plan")
    parser.add_argument("--keep-going", action="store_true", help="report every failing seed")
    return parser


def planned(seed: int, chosen: argparse.Namespace) -> Plan:
    """Return the plan of a seed for the given options."""
    kinds = {name: kind.weight for name, kind in KINDS.items()}
    words = [f"--thin {chosen.thin:g}"] if chosen.thin != 1 else []
    if chosen.fault:
        kinds = {name: kinds[name] for name in chosen.fault}
        words += [f"--fault {name}" for name in chosen.fault]
    plan = draw_plan(
        seed,
        minutes=chosen.minutes,
        workloads=chosen.workload or WORKLOADS,
        kinds=kinds,
        mutant=chosen.mutant,
        thin=chosen.thin,
    )
    return replace(plan, drawn=" ".join(words))


def command_of(plan: Plan) -> str:
    """Return the command that repeats a plan drawn from its seed."""
    words = [f"python -m tests.kit.seeds --seed {plan.seed} --minutes {plan.minutes:g}"]
    words.append(f"--workload {plan.workload}")
    words += [f"--mutant {plan.mutant}"] if plan.mutant else []
    return " ".join([*words, plan.drawn]).strip()


def command_of_file(file: Path | str, _: Plan) -> str:
    """Return the command that repeats a plan in a file, which its seed alone does not draw."""
    return f"python -m tests.kit.seeds --plan {shlex.quote(str(file))}"


def run_one(plan: Plan, command: Command = command_of) -> RunSummary:
    """Run one plan, and return its summary."""
    return summary_of(simulate(plan), command(plan))


def run_several(
    plans: list[Plan], jobs: int, command: Command = command_of
) -> Iterator[RunSummary]:
    """Run plans, in parallel processes if there are several plans and jobs."""
    if jobs <= 1 or len(plans) <= 1:
        yield from (run_one(plan, command) for plan in plans)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(partial(run_one, command=command), plans)


def _run_all(plans: list[Plan], command: Command, jobs: int, *, keep_going: bool) -> int:
    totals = Totals()
    reported = 0
    for one in _with_progress(run_several(plans, jobs, command), len(plans)):
        totals.add(one.totals)
        if len(plans) == 1 or one.report or not one.is_enough:
            _print(one.line if one.is_enough else f"{one.line} (empty)")
        if one.report and (keep_going or not reported):
            _print(one.report)
            reported += 1
    for line in totals.lines():
        _print(line)
    return 1 if totals.bad or totals.empty else 0


def _with_progress(runs: Iterable[RunSummary], count: int) -> Iterator[RunSummary]:
    """Show the progress on a terminal."""
    began = time.monotonic()
    for number, one in enumerate(runs, 1):
        if sys.stderr.isatty():
            left_s = (time.monotonic() - began) / number * (count - number)
            sys.stderr.write(f"\r{number}/{count}, {left_s:.0f} s to go   ")
        yield one
    if sys.stderr.isatty():
        sys.stderr.write("\r")


def _shrink(plan: Plan) -> int:
    """Find and print a shorter plan that shows the same violation."""
    wanted = set(run_one(plan).names)
    if not wanted:
        _print(f"seed {plan.seed} shows no violation")
        return 1

    def fails(candidate: Plan) -> bool:
        names = simulate(candidate).verdict.names
        _print(f"  {len(candidate.faults)} faults, {candidate.minutes:g} minutes: {sorted(names)}")
        return bool(wanted & names)

    shorter = shrunk(plan, fails)
    _print(run_one(shorter, partial(command_of_file, "FILE")).report)
    _print(f"{len(plan.faults)} faults became {len(shorter.faults)}; as a file for --plan:")
    _print(shorter.to_json())
    return 1


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    # Import it under its full name: the started processes find their function by that name.
    sys.exit(importlib.import_module("tests.kit.seeds.__main__").main())
