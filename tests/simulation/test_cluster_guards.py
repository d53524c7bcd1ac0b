"""Each guard is missed by the checkers in the simulated cluster when it is switched off, and by nobody else."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from broker import guards
from broker.testing.simulation.directed import Schedule
from broker.testing.simulation.run import simulate

FILE = tomllib.loads((Path(__file__).parent / "cluster_guards.toml").read_text())
WINDOW: int = FILE["window"]
ELSEWHERE: list[dict[str, Any]] = FILE.get("elsewhere", [])


@pytest.fixture(autouse=True)
def allow_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_TESTING", "1")


def test_every_guard_is_accounted_for() -> None:
    assert {row["name"] for row in [*FILE["guard"], *ELSEWHERE]} == guards.NAMES


@pytest.mark.simulation
@pytest.mark.timeout(300)
@pytest.mark.parametrize("row", FILE["guard"], ids=lambda row: row["name"])
def test_its_absence_is_found_by_name(row: dict[str, Any]) -> None:
    schedule = Schedule.of(row)
    for seed in range(schedule.seed, schedule.seed + WINDOW):
        missed = simulate(schedule.plan(seed=seed, without=[row["name"]])).verdict
        if row["violation"] not in missed.names:
            continue
        held = simulate(schedule.plan(seed=seed)).verdict
        assert held.is_valid, f"seed {seed}, with the guard in force: {held}"
        return
    pytest.fail(f"no {row['violation']} in {WINDOW} seeds")


@pytest.mark.parametrize("row", ELSEWHERE, ids=lambda row: row["name"])
def test_what_the_cluster_can_not_show_is_shown_elsewhere(row: dict[str, Any]) -> None:
    assert row["name"] in Path(row["test"]).read_text()
