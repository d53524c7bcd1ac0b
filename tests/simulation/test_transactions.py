"""The transaction service: one node over a hostile storage, killed at any await; and a cluster whose leader goes."""

from __future__ import annotations

import pytest

from broker.testing import mutants
from tests.kit.one_node_transactions import Outcome, simulate
from tests.kit.seeds import cluster_transactions

SEEDS, CHUNK = 600, 50
SEEDS_MAX = 40
"""Seeds among which a missing guard is found."""


def judge(first: int, count: int) -> None:
    """Run some seeds, the first of which is given."""
    outcomes: list[Outcome] = []
    for seed in range(first, first + count):
        outcome = simulate(seed)
        assert not outcome.violations, f"{outcome.command}\n{outcome.violations[:3]}"
        outcomes.append(outcome)
    # Enough must have gone wrong, and right, for this to mean something.
    assert sum(each.lives for each in outcomes) > 3 * count
    assert sum(each.commits for each in outcomes) > 10 * count
    assert sum(each.conflicts for each in outcomes) > count
    assert sum(each.unknown for each in outcomes) > count


@pytest.mark.simulation
def test_no_seed_of_today_shows_anything_wrong(drawn_seed: int) -> None:
    judge(drawn_seed, CHUNK)


@pytest.mark.simulation
@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1, SEEDS + 1, CHUNK))
def test_no_seed_shows_anything_wrong(first: int) -> None:
    judge(first, CHUNK)


@pytest.mark.simulation
@pytest.mark.parametrize(
    ("name", "shows"),
    [
        ("answer-before-durable", "lost_start"),
        ("edits-not-carried", "an edit is missing"),
        ("floor-at-the-begin", "nor a whole snapshot"),
    ],
)
def test_without_a_guard_it_is_found(name: str, shows: str) -> None:
    with mutants.in_force(name):
        for seed in range(1, SEEDS_MAX + 1):
            if any(shows in violation for violation in simulate(seed).violations):
                return
    raise AssertionError(f"{name} was not found in {SEEDS_MAX} seeds")


def judge_cluster(first: int, count: int) -> None:
    """Run some seeds of the cluster."""
    outcomes = [cluster_transactions.simulate(seed) for seed in range(first, first + count)]
    for outcome in outcomes:
        assert not outcome.violations, f"seed {outcome.seed}\n{outcome.violations[:3]}"
    assert sum(each.commits for each in outcomes) > 20 * count
    assert sum(each.faults.total() for each in outcomes) > count


@pytest.mark.simulation
def test_the_service_is_taken_over_under_load(drawn_seed: int) -> None:
    judge_cluster(drawn_seed, 6)


@pytest.mark.simulation
@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(1, 101, 25))
def test_the_service_is_taken_over_under_load_by_every_seed(first: int) -> None:
    judge_cluster(first, 25)
