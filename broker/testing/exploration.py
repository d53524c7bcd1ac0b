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
    "edits": Plan(bias=Bias(again=0.3, late_ms=60.0), take_over=0.1, kill=0.05),
    "deletes": Plan(delete=0.25),
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
    total: Counter[str] = Counter()
    bad = 0
    for seed in range(chosen.seed, chosen.seed + chosen.runs):
        outcome = explore(seed, chosen.plan)
        total += outcome.happened
        if not outcome.verdict.is_valid:
            bad += 1
            _print(f"seed {seed}: {sorted(outcome.verdict.names) or 'too little happened'}")
            if chosen.runs == 1:
                for violation in outcome.verdict.violations:
                    _print(f"  {violation.name}: {violation.detail}")
    _print(
        f"{chosen.runs} runs, {bad} bad; " + ", ".join(f"{n} {c}" for n, c in sorted(total.items()))
    )
    return 1 if bad else 0


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
