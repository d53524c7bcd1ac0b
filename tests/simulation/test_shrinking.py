"""A failing plan is shortened, and the shorter plan shows the same violation."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kit.seeds.__main__ import main
from tests.kit.seeds.directed import Schedule
from tests.kit.seeds.plan import Plan
from tests.kit.seeds.run import simulate

FILE = tomllib.loads((Path(__file__).parent / "cluster_mutants.toml").read_text())
MUTANT = "put-before-raise"
"""A run finds it only after a leader had a fault."""
MINUTES = 0.5


def names(plan: Plan) -> set[str]:
    return simulate(plan).verdict.names


@pytest.mark.simulation
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_schedule_of_a_mutant_is_shortened_and_still_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (row,) = [row for row in FILE["mutant"] if row["name"] == MUTANT]
    schedule = replace(Schedule.of(row), minutes=MINUTES)
    seeds = range(schedule.seed, schedule.seed + FILE["window"])
    plans = (schedule.plan(seed=seed, mutant=MUTANT) for seed in seeds)
    plan = next(plan for plan in plans if row["violation"] in names(plan))
    file = tmp_path / "plan.json"
    file.write_text(plan.to_json())

    assert main(["--plan", str(file), "--shrink"]) == 1

    printed = capsys.readouterr().out.splitlines()
    shorter = Plan.of_json(printed[-1])
    assert 0 < len(shorter.faults) < len(plan.faults)
    assert set(shorter.faults) < set(plan.faults)
    assert shorter.minutes <= plan.minutes
    assert row["violation"] in names(shorter)
    # With the guard the shorter plan has no violation.
    assert not names(replace(shorter, mutant=None))
