"""Seeded exploration: shipped code over a hostile storage, judged by what its clients were told.

A run is a function of its seed and its plan: two nodes, four publishing clients, three readers and a
nemesis act for about a second of virtual time; then everything heals, late writes land, a last leader
claims the topic, and the log is read to the end. The checkers (broker/testing/checkers) see the history
alone. One guard taken away must make them find something: tests/simulation/guards.toml says which seed
shows it.

    python -m broker.testing.exploration --seed 7 [--plan storm] [--without token] [--runs 100]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from typing import NamedTuple

from broker import guards
from broker.testing import checkers
from broker.testing.adversary import Bias
from broker.testing.checkers import Verdict
from broker.testing.clock import virtual_loop
from broker.testing.history import Call
from broker.testing.workload import Plan, Workload
from broker.testing.world import own_tasks

PLANS = {
    "usual": Plan(),
    "storm": Plan(bias=Bias(late_write=0.12, again=0.12, lie=0.1, partial_put=0.1)),
    "moves": Plan(bias=Bias(move=0.3), kill=0.3),
    "clocks": Plan(step_clock=0.6, one_instance=True, bias=Bias(late_write=0.1, again=0.15)),
    "edits": Plan(bias=Bias(again=0.5, late_ms=60.0), take_over=0.02, kill=0.02, second_node=0.05),
    "late": Plan(
        bias=Bias(late_write=0.3, partial_put=0.3, late_ms=60.0), take_over=0.02, second_node=0.05
    ),
    "deletes": Plan(delete=0.25),
    "keys": Plan(keyed=0.7, kill=0.9, take_over=0.0, nemesis_steps=10),
}


class Outcome(NamedTuple):
    """One run: its verdict, what happened in it, and its history."""

    seed: int
    plan: str
    verdict: Verdict
    happened: Counter[str]
    calls: list[Call]

    @property
    def command(self) -> str:
        """The command that repeats the run."""
        off = " ".join(f"--without {name}" for name in sorted(guards.switched_off()))
        return (
            f"python -m broker.testing.exploration --seed {self.seed} --plan {self.plan} {off}"
        ).rstrip()


def explore(seed: int, plan: str = "usual") -> Outcome:
    """Make one run and judge it."""
    with virtual_loop() as loop:
        own_tasks(loop)
        world = Workload(loop, seed, PLANS[plan])
        loop.run_until_complete(world.run())
    calls = world.history.calls()
    happened = world.cells.happened
    happened["takeovers"] = sum(node.claims for node in world.nodes) - 1
    happened["unknown"] = sum(
        call.outcome == "unknown" for call in calls if call.op not in ("read", "payloads")
    )
    happened["acknowledged"] = sum(call.op == "publish" and call.is_ok for call in calls)
    return Outcome(seed, plan, checkers.check(calls), happened, calls)


class Summary(NamedTuple):
    """Many runs: what happened in all of them, and those in which something was wrong."""

    runs: int
    happened: Counter[str]
    bad: list[tuple[str, list[str]]]
    """(the command that repeats the run, what was found)."""


def explore_many(seeds: range, plan: str) -> Summary:
    """Make a run for each seed. Top-level, so that other processes can do it."""
    happened: Counter[str] = Counter()
    bad = []
    for seed in seeds:
        outcome = explore(seed, plan)
        happened += outcome.happened
        if not outcome.verdict.is_valid:
            found = [f"{name}: {detail}" for name, detail, _ in outcome.verdict.violations]
            bad.append((outcome.command, found or ["too little happened to tell"]))
    return Summary(len(seeds), happened, bad)


def find(violation: str, seeds: range, plan: str) -> int | None:
    """Return the first seed whose run shows a violation of this name."""
    for seed in seeds:
        if violation in explore(seed, plan).verdict.names:
            return seed
    return None


def main(arguments: list[str] | None = None) -> int:
    """Repeat runs by seed and print what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m broker.testing.exploration")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1, help="this seed and the following ones")
    parser.add_argument("--plan", choices=sorted(PLANS), default="usual")
    parser.add_argument("--without", action="append", default=[], metavar="GUARD")
    chosen = parser.parse_args(arguments)
    os.environ["BROKER_TESTING"] = "1"
    for name in chosen.without:
        guards.switch_off(name)
    seeds = range(chosen.seed, chosen.seed + chosen.runs)
    summary = explore_many(seeds, chosen.plan)
    for command, found in summary.bad:
        _print(command)
        for line in found:
            _print(f"  {line}")
    counts = ", ".join(f"{name} {number}" for name, number in sorted(summary.happened.items()))
    _print(f"{summary.runs} runs, {len(summary.bad)} bad; {counts}")
    return 1 if summary.bad else 0


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
