"""Random runs of the log protocol over a table with all allowed faults, and the mutants that they find."""

import multiprocessing
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import pytest

from broker.testing import mutants
from tests.kit.logs.exploration import PLANS, Summary, explore, explore_many

RUNS = 300
RUNS_AT_NIGHT = 4000
APART = 10
"""The plugin leaves room between the seeds of two days. This factor makes room for all runs of a night."""
CHUNK = 50
FOUND_WITHIN = {
    "entry-epoch": 100,
    "finish-a-begun-deletion": 250,
    "look-at-the-root": 250,
    "sealed-before-next": 100,
    "stale-is-not-never": 150,
}
"""The number of seeds to try for mutants that need more than RUNS_MAX."""
RUNS_MAX = 60

pytestmark = pytest.mark.simulation


def report(summary: Summary) -> str:
    return "\n".join(
        f"python -m tests.kit.logs.exploration --seed {bad.seed} --plan {bad.plan} --story\n    "
        + "\n    ".join([*bad.wrong[:5], *bad.story[-30:]])
        for bad in summary.bad
    )


def judge(summaries: list[Summary]) -> Counter[str]:
    happened = sum((summary.happened for summary in summaries), Counter())
    bad = [report(summary) for summary in summaries if summary.bad]
    assert not bad, "\n".join(bad)
    return happened


@pytest.mark.timeout(300)
def test_no_run_shows_a_violation(drawn_seed):
    first = drawn_seed * APART
    happened = judge([explore_many(range(first, first + RUNS))])
    for name in ("killed", "paused", "lies", "late_writes", "again", "old_rows", "old_falses"):
        assert happened[name] > RUNS / 5, f"too few faults: {happened}"
    for name in ("append", "keyed", "rollback", "floor", "store", "publish", "delete", "poll"):
        assert happened[f"{name} ok"] > RUNS / 5, f"too few requests: {happened}"


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_no_run_of_thousands_shows_a_violation(drawn_seed):
    first = drawn_seed * APART + RUNS
    chunks = [range(at, at + CHUNK) for at in range(first, first + RUNS_AT_NIGHT, CHUNK)]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        judge(list(pool.map(explore_many, chunks)))


@pytest.mark.parametrize("plan", sorted(PLANS))
def test_a_seed_repeats_its_run(plan):
    one, other = explore(5, plan), explore(5, plan)
    assert one.story == other.story
    assert one.happened == other.happened
    assert explore(6, plan).story != one.story


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [name for name, each in mutants.MUTANTS.items() if each.plan])
def test_a_mutant_is_found(name):
    plan = mutants.MUTANTS[name].plan
    runs = FOUND_WITHIN.get(name, RUNS_MAX)
    with mutants.in_force(name):
        summary = explore_many(range(1, 1 + runs), plan, bad_max=1)
    assert summary.bad, f"{runs} runs of plan {plan} with the mutant {name!r} show no violation"
