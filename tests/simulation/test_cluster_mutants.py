"""The checkers find each mutant of ``cluster_mutants.toml`` in the simulated cluster; other tests find the others."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from broker.testing import mutants
from chaos.checkers import NAMES
from tests.kit.seeds.directed import Schedule
from tests.kit.seeds.run import simulate

FILE = tomllib.loads((Path(__file__).parent / "cluster_mutants.toml").read_text())
WINDOW: int = FILE["window"]
ROWS: list[dict[str, Any]] = FILE["mutant"]
ELSEWHERE: list[dict[str, Any]] = FILE["elsewhere"]
SOON = ("repeat-or-never", "attributes", "deadline", "dedupe")
"""The mutants that every run of the tests tries: two of storage, one of routing, one of topics. The first seed finds them."""


def test_every_guard_is_accounted_for() -> None:
    """Each mutant has a schedule here, a plan of runs of one log, or its own test."""
    named = [row["name"] for row in (*ROWS, *ELSEWHERE)]
    assert len(set(named)) == len(named)
    in_one_log = {name for name, mutant in mutants.MUTANTS.items() if mutant.plan is not None}
    assert {*named, *in_one_log} == set(mutants.MUTANTS)
    of_the_simulation = {"shared_number", "unexpected_error"}
    assert {row["violation"] for row in ROWS} <= NAMES | of_the_simulation


@pytest.mark.parametrize("row", ELSEWHERE, ids=lambda row: row["name"])
def test_a_mutant_that_the_cluster_does_not_find_has_its_own_test(row: dict[str, Any]) -> None:
    assert f'"{row["name"]}"' in Path(row["where"]).read_text()


@pytest.mark.simulation
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=() if row["name"] in SOON else pytest.mark.nightly, id=row["name"])
        for row in ROWS
    ],
)
def test_a_mutant_is_found_and_the_product_is_valid(row: dict[str, Any]) -> None:
    schedule = Schedule.of(row)
    for seed in range(schedule.seed, schedule.seed + WINDOW):
        found = simulate(schedule.plan(seed=seed, mutant=row["name"])).verdict
        if row["violation"] not in found.names:
            continue
        whole = simulate(schedule.plan(seed=seed)).verdict
        assert whole.is_valid, f"seed {seed}, with the guard: {whole}"
        return
    pytest.fail(f"no {row['violation']} in {WINDOW} seeds")
