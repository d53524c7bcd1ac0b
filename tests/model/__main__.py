"""Search the model for a run that breaks a promise.

python -m tests.model --minutes 2 --seed 1 [--config NAME]      random runs, over all configurations or one
python -m tests.model --exhaustive [--minutes 3] [--config NAME]     complete searches of small ones
python -m tests.model --mutants [--seconds 20] [--config CLAUSE]     drop each clause: is it found?
python -m tests.model --replay SEED --config NAME [--without CLAUSE]     print one run, step by step

Exit status 1: a violation, or a mutant that was not found.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.model.adversary import Found, Run, search
from tests.model.check import Violation
from tests.model.complete import complete
from tests.model.configs import RANDOM, SMALL
from tests.model.mutants import ELSEWHERE, MUTANTS
from tests.model.rules import without
from tests.model.story import told

SEEDS_APART = 10**6
LIMITS = ((0, 0), (1, 0), (0, 1), (1, 1), (2, 0))
"""The numbers of faults and stale answers of the complete searches, smallest first."""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--seconds", type=float, default=20, help="for each mutant")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--config")
    parser.add_argument("--without", default="", help="clauses to drop, separated by commas")
    parser.add_argument("--last", type=int, default=10**6, help="print only the last steps")
    parser.add_argument("--replay", type=int, metavar="SEED")
    parser.add_argument("--exhaustive", action="store_true")
    parser.add_argument("--mutants", action="store_true")
    parser.add_argument(
        "--stale-rollbacks",
        action="store_true",
        help="drop an assumption: stale answers may be older than a rollback",
    )
    return parser.parse_args()


def replay(chosen: argparse.Namespace) -> int:
    """Print one random run."""
    config = chosen.config or list(RANDOM)[chosen.replay % len(RANDOM)]
    run = Run(chosen.replay, config, stale_rollbacks=chosen.stale_rollbacks)
    end, status = "no violation", 0
    try:
        run.go()
    except Violation as violation:
        end, status = f"VIOLATION: {violation}", 1
    for step in run.story[-chosen.last :]:
        print(told(step))
    print(end)
    return status


def exhaustive(chosen: argparse.Namespace) -> int:
    """Search small configurations completely, or until the time is over."""
    names = [chosen.config] if chosen.config else list(SMALL)
    cases = [(name, *limit) for limit in LIMITS for name in names]
    end, cut_off, status = time.monotonic() + chosen.minutes * 60, set(), 0
    for i, (name, faults, stales) in enumerate(cases):
        left = end - time.monotonic()
        if left <= 0 or name in cut_off:
            continue
        begun = time.monotonic()
        share = max(2, 3 * left / (len(cases) - i))
        outcome = complete(name, faults, stales, seconds=min(left, share))
        spent = time.monotonic() - begun
        how = "complete" if outcome.is_complete else "cut off"
        how = "VIOLATION" if outcome.violation else how
        print(
            f"{name:15} faults {faults} stale {stales}  {how:9} {outcome.states:9} states"
            f" {spent:6.1f} s  {outcome.violation}",
            flush=True,
        )
        for step in outcome.story:
            print("   ", told(step))
        if not outcome.is_complete:
            cut_off.add(name)
        status = 1 if outcome.violation else status
    return status


def mutants(chosen: argparse.Namespace) -> int:
    """Drop each clause in turn, and search for a violation."""
    status = 0
    names = chosen.config.split(",") if chosen.config else list(MUTANTS)
    for clause in names:
        does, configs, _, small = MUTANTS[clause]
        begun = time.monotonic()
        with without(clause):
            found = search(configs, chosen.seed, seconds=chosen.seconds)
            if small and not found.violation:
                outcome = complete(small, 1, seconds=chosen.seconds)
                found.config, found.violation = f"{small}, complete", outcome.violation
        spent = time.monotonic() - begun
        how = "found" if found.violation else "NOT FOUND"
        where = f"[{found.config} {found.seed}: {found.violation[:90]}]" if found.violation else ""
        print(
            f"{clause:24} {how:9} {found.runs:6} runs {spent:5.1f} s  {does}  {where}", flush=True
        )
        status = status if found.violation else 1
    for clause, why in ELSEWHERE.items():
        print(f"{clause:24} not in this model: {why}")
    return status


def add(total: Found, found: Found) -> None:
    total.runs += found.runs
    total.calls += found.calls
    total.acknowledged += found.acknowledged


def line(name: str, found: Found) -> str:
    return (
        f"{name:15} {found.runs:8} runs {found.calls:10} calls {found.acknowledged:9} acknowledged"
    )


def at_random(chosen: argparse.Namespace) -> int:
    """Make random runs of all configurations in turn."""
    names = [chosen.config] if chosen.config else list(RANDOM)
    totals = {name: Found(0) for name in names}
    end, seed, shown = time.monotonic() + chosen.minutes * 60, chosen.seed, ""
    while time.monotonic() < end and not shown:
        for name in names:
            seconds = min(4, chosen.minutes * 60 / len(names), max(0.05, end - time.monotonic()))
            found = search([name], seed, seconds=seconds, stale_rollbacks=chosen.stale_rollbacks)
            add(totals[name], found)
            if found.violation:
                shown = f"VIOLATION in {name}, seed {found.seed}: {found.violation}\n"
                shown += f"  python -m tests.model --replay {found.seed} --config {name}"
                shown += " --stale-rollbacks" if chosen.stale_rollbacks else ""
                shown += f" --without {chosen.without}" if chosen.without else ""
                print(shown, flush=True)
                break
        seed += SEEDS_APART
    everything = Found(0)
    for name, total in totals.items():
        print(line(name, total))
        add(everything, total)
    print(f"{line('all', everything)}; {'a violation' if shown else 'no violation'}")
    return 1 if shown else 0


def main() -> int:
    chosen = options()
    if chosen.mutants:
        return mutants(chosen)
    with without(*filter(None, chosen.without.split(","))):
        if chosen.replay is not None:
            return replay(chosen)
        return exhaustive(chosen) if chosen.exhaustive else at_random(chosen)


if __name__ == "__main__":
    sys.exit(main())
