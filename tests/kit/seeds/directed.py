"""Directed runs: schedules in which rare events happen soon, for guards that random seeds seldom need.

A schedule gives the kinds of fault in a run, their frequency, and the faults of storage. Its seed decides all else. So a
run finds a mutant (broker/testing/mutants.py) within a minute of virtual time, with the same nodes, workloads and
checkers as other seeds. Faults and workloads that only schedules use are in ``rare``.
``tests/simulation/cluster_mutants.toml`` has a schedule for each mutant::

    python -m tests.kit.seeds.directed dedupe            run without the guard
    python -m tests.kit.seeds.directed dedupe --with     run with the guard
"""

from __future__ import annotations

import argparse
import random
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from broker.storage.memory.adversary import CALM, Bias
from tests.kit.seeds.faults import KINDS
from tests.kit.seeds.plan import EARLY_MS, Fault, Plan
from tests.kit.seeds.report import failure
from tests.kit.seeds.run import Outcome, simulate

TABLE: Final = Path("tests/simulation/cluster_mutants.toml")
START_S: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The fixed parts of a run; its seed decides all random choices.

    Attributes:
        seed: a seed that is known to find the mutant.
        faults: the kinds to draw from; a kind that is listed twice is drawn twice as often.
        every_s: the mean time between two faults.
        lasts_s: the mean duration of a fault; default: the duration of its kind.
        script: faults at given times: kind, at_s, lasts_s.
        bias: the faults of storage, by probability.
        early_ms: how long before the end of its life a message may be gone for a reader.
    """

    seed: int
    workload: str = "log"
    minutes: float = 1.0
    pause_s: float = 1.0
    nodes: int = 3
    faults: tuple[str, ...] = ()
    every_s: float = 3.0
    lasts_s: float | None = None
    script: tuple[tuple[str, float, float], ...] = ()
    bias: Mapping[str, float] = field(default_factory=dict)
    early_ms: int = EARLY_MS
    clocks: tuple[float, ...] = ()
    small: bool = False

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Schedule:
        """Read a schedule from a table's row; the row may have other entries."""
        fields = {name: row[name] for name in cls.__dataclass_fields__ if name in row}
        for name in ("faults", "script", "clocks"):
            fields[name] = tuple(fields.get(name, ()))
        return cls(**fields)

    def plan(self, *, seed: int | None = None, mutant: str | None = None) -> Plan:
        """Return the plan of its seed, or of the given seed."""
        seed = self.seed if seed is None else seed
        return Plan(
            seed=seed,
            minutes=self.minutes,
            workload=self.workload,
            nodes=self.nodes,
            faults=tuple(self._faults(random.Random(f"{seed}/directed"))),
            bias=Bias(**{**_plain(CALM), **self.bias}),
            clocks=self.clocks,
            small=self.small,
            pause_s=self.pause_s,
            early_ms=self.early_ms,
            mutant=mutant,
        )

    def _faults(self, chance: random.Random) -> Iterator[Fault]:
        for kind, at_s, lasts_s in self.script:
            yield Fault(kind, at_s, lasts_s, chance.getrandbits(32))
        at_s = START_S
        while self.faults and at_s < self.minutes * 60 - 1:
            kind = chance.choice(self.faults)
            mean_s = self.lasts_s or KINDS[kind].weight.lasts_s
            lasts_s = min(chance.expovariate(1 / mean_s), 4 * mean_s)
            yield Fault(kind, round(at_s, 3), round(lasts_s, 3), chance.getrandbits(32))
            at_s += chance.expovariate(1 / self.every_s)


def _plain(bias: Bias) -> dict[str, float]:
    return {name: getattr(bias, name) for name in Bias.__dataclass_fields__}


# The command line.


def rows(table: Path = TABLE) -> list[dict[str, Any]]:
    """Return the table's rows."""
    found: list[dict[str, Any]] = tomllib.loads(table.read_text())["mutant"]
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the schedule of a guard, and print its violations."""
    scheduled = {row["name"]: row for row in rows()}
    parser = argparse.ArgumentParser(prog="python -m tests.kit.seeds.directed")
    parser.add_argument("guard", choices=sorted(scheduled))
    parser.add_argument("--with", dest="held", action="store_true", help="run with the guard")
    parser.add_argument("--seed", type=int, help="use another seed than the recorded one")
    chosen = parser.parse_args(arguments)
    mutant = None if chosen.held else chosen.guard
    outcome = simulate(Schedule.of(scheduled[chosen.guard]).plan(seed=chosen.seed, mutant=mutant))
    for line in _result_lines(outcome, chosen.guard):
        sys.stdout.write(line + "\n")
    return 1 if outcome.verdict.names else 0


def _result_lines(outcome: Outcome, guard: str) -> Iterator[str]:
    if outcome.verdict.names:
        yield from failure(outcome, f"python -m tests.kit.seeds.directed {guard}")
    yield f"{outcome.acknowledged} acknowledged, {outcome.epochs} epochs: " + (
        ", ".join(sorted(outcome.verdict.names)) or "no violation"
    )


if __name__ == "__main__":
    sys.exit(main())
