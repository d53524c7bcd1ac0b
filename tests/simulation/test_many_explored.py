"""Several whole nodes over a storage and a coordinator that fail: sixty seeds."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from broker import guards
from broker.testing.many_explored import simulate

SEEDS = 60
CHUNK = 20
ENOUGH = 60
"""Seeds among which a missing guard is found; mostly it is in the first."""
TABLE = tomllib.loads((Path(__file__).parent / "guards.toml").read_text())["several"]


@pytest.fixture(autouse=True)
def allow_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_TESTING", "1")


@pytest.mark.simulation
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(1, SEEDS + 1, CHUNK))
def test_no_seed_shows_anything_wrong(first: int) -> None:
    lives = acknowledged = unknown = 0
    for seed in range(first, first + CHUNK):
        outcome = simulate(seed)
        assert outcome.verdict.is_valid, f"{outcome.command}\n{outcome.verdict}"
        lives += outcome.lives
        acknowledged += sum(call.op == "publish" and call.is_ok for call in outcome.calls)
        unknown += sum(call.outcome == "unknown" for call in outcome.calls)
    # Enough must have gone wrong, and right, for this to mean something.
    assert lives > 5 * CHUNK
    assert acknowledged > 20 * CHUNK
    assert unknown > CHUNK // 2


@pytest.mark.simulation
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "row", [row for row in TABLE if "seed" in row], ids=lambda row: row["name"]
)
def test_a_guard_taken_away_is_found(row: dict[str, Any]) -> None:
    with guards.without(row["name"]):
        assert any(
            simulate(seed).verdict.names for seed in range(row["seed"], row["seed"] + ENOUGH)
        )


@pytest.mark.parametrize(
    "row", [row for row in TABLE if "test" in row], ids=lambda row: row["name"]
)
def test_a_guard_that_no_run_reaches_is_taken_away_elsewhere(row: dict[str, Any]) -> None:
    assert f'without("{row["name"]}")' in Path(row["test"]).read_text()
