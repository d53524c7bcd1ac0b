"""Seeded runs of the shipped storage and topic code over a hostile storage.

Every run of the tests makes a few that nobody has looked at before; the nightly one thousands, always the same.
"""

import multiprocessing
import tomllib
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from broker import guards
from broker.testing.exploration import PLANS, explore, explore_many, find

RUNS = 3000
RUNS_DRAWN = 200
CHUNK = 25
AT_LEAST = 1000
AT_LEAST_DRAWN = 20
WRONG = ("takeovers", "unknown", "late_writes", "lies")
TABLE = tomllib.loads((Path(__file__).parent / "guards.toml").read_text())


@pytest.fixture(autouse=True)
def allow_switches(monkeypatch):
    monkeypatch.setenv("BROKER_TESTING", "1")


@pytest.mark.simulation
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_run_of_today_shows_anything_wrong(drawn_seed):
    happened = Counter()
    for place, plan in enumerate(sorted(PLANS)):
        first, count = drawn_seed + place * RUNS_DRAWN, RUNS_DRAWN // len(PLANS)
        summary = explore_many(range(first, first + count), plan)
        assert not summary.bad, "\n".join(
            f"{command}\n    {found}" for command, found in summary.bad
        )
        happened += summary.happened
    few = [name for name in WRONG if happened[name] < AT_LEAST_DRAWN]
    assert not few, f"too little went wrong to trust this: {happened}"


@pytest.mark.simulation
@pytest.mark.nightly
@pytest.mark.timeout(1500)  # About a minute and a half on two idle cores.
def test_no_run_shows_anything_wrong(capsys):
    chunks = [range(first, first + CHUNK) for first in range(1, RUNS + 1, CHUNK)]
    plans = [sorted(PLANS)[number % len(PLANS)] for number in range(len(chunks))]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        summaries = list(pool.map(explore_many, chunks, plans))
    happened = sum((summary.happened for summary in summaries), Counter())
    runs = sum(summary.runs for summary in summaries)
    with capsys.disabled():
        counts = ", ".join(f"{name} {number}" for name, number in sorted(happened.items()))
        print(f"\nexplored {runs} runs: {counts}")  # noqa: T201  The totals are asked for.
    bad = [entry for summary in summaries for entry in summary.bad]
    assert not bad, "\n".join(f"{command}\n    {found}" for command, found in bad)
    assert runs >= RUNS
    few = {name: happened[name] for name in WRONG if happened[name] < AT_LEAST}
    assert not few, f"too little went wrong to trust this: {few}"


@pytest.mark.simulation
@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("row", TABLE["guard"], ids=lambda row: row["name"])
def test_a_guard_taken_away_is_found(row):
    seeds = range(row["seed"], row["seed"] + TABLE["window"])
    with guards.without(row["name"]):
        found = find(row["violation"], seeds, row["plan"])
    assert found is not None, (
        f"without {row['name']} no run of {row['plan']!r} with {seeds} shows {row['violation']!r}"
    )


def test_every_guard_is_accounted_for():
    named = [row["name"] for part in ("guard", "elsewhere") for row in TABLE[part]]
    assert sorted(named) == sorted(guards.NAMES)


@pytest.mark.parametrize("row", TABLE["elsewhere"], ids=lambda row: row["name"])
def test_a_guard_that_no_run_reaches_is_taken_away_elsewhere(row):
    source = Path(row["test"]).read_text()
    assert f'"{row["name"]}"' in source
    assert f'"{row.get("violation", "")}' in source


@pytest.mark.simulation
@pytest.mark.parametrize("plan", sorted(PLANS))
def test_a_seed_repeats_its_run(plan):
    one, other = explore(5, plan), explore(5, plan)
    assert one.calls == other.calls
    assert one.happened == other.happened
    assert explore(6, plan).calls != one.calls
