"""Each guard is missed by the checkers in the simulated cluster when it is switched off, and by nobody else."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from broker import guards
from broker.testing.checkers import NAMES
from broker.testing.simulation.directed import Schedule, main, met
from broker.testing.simulation.run import simulate

FILE = tomllib.loads((Path(__file__).parent / "cluster_guards.toml").read_text())
WINDOW: int = FILE["window"]
ELSEWHERE: list[dict[str, Any]] = FILE.get("elsewhere", [])
MET: list[dict[str, Any]] = FILE["random"]
PAGE = Path("docs/internals/guards.md")
SEEDS_MAX = 200
"""Within so many random seeds a guard's absence is found that is common."""
SLOW = {"token"}
"""A run without it takes as long as twenty others."""
COMMON = [
    row["name"] for row in MET if row.get("found") and row["seeds"] == 1 and row["name"] not in SLOW
]
"""Those that one seed showed, so that a test can look each time."""


@pytest.fixture(autouse=True)
def allow_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_TESTING", "1")


def test_every_guard_is_accounted_for() -> None:
    assert {row["name"] for row in [*FILE["guard"], *ELSEWHERE]} == guards.NAMES


def test_of_every_guard_it_is_told_what_it_protects_and_what_shows_its_absence() -> None:
    assert sorted(row["name"] for row in MET) == sorted(guards.NAMES)
    assert all(row["protects"] for row in MET)
    assert {word for row in MET for word in row.get("found", [])} <= NAMES
    assert all(row["seeds"] <= SEEDS_MAX for row in MET if "seeds" in row)
    in_random_seeds = {row["name"] for row in MET if row.get("found")}
    directed = {row["name"] for row in FILE["guard"]}
    assert in_random_seeds | directed == guards.NAMES - {row["name"] for row in ELSEWHERE}


@pytest.mark.parametrize("row", MET, ids=lambda row: row["name"])
def test_the_page_tells_after_how_many_seeds(row: dict[str, Any]) -> None:
    (line,) = (
        line
        for line in PAGE.read_text().splitlines()
        if line.startswith(f"| `{row['name']}` | {row['protects']} |")
    )
    *_, words, seeds, _ = (cell.strip() for cell in line.split("|"))
    assert all(f"`{word}`" in words for word in row.get("found", []))
    if "seeds" not in row:
        assert seeds == "not run"
    else:
        assert seeds == (str(row["seeds"]) if row.get("found") else f"none in {row['seeds']}")


@pytest.mark.simulation
@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", COMMON)
def test_what_is_common_is_met_in_random_seeds(name: str) -> None:
    assert met(name, SEEDS_MAX).found


@pytest.mark.simulation
def test_a_guard_that_no_random_seed_of_a_cluster_can_miss_is_told_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["leveldb-reopen", "--random", "1"]) == 0
    assert capsys.readouterr().out == "leveldb-reopen: nothing in 1 seeds\n"


@pytest.mark.simulation
@pytest.mark.nightly
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
