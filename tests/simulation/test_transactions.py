"""The transaction service in the simulated cluster: kills of a single node, and takeovers between several."""

from __future__ import annotations

import pytest

from broker.testing import mutants
from tests.kit.seeds.cluster_transactions import simulate

SEEDS, CHUNK = 600, 50
SEEDS_MAX = 20
"""The number of seeds that find a missing guard."""


def judge(first: int, count: int) -> None:
    """Run ``count`` seeds from ``first`` on, and check the results."""
    outcomes = [simulate(seed, nodes=1) for seed in range(first, first + count)]
    for outcome in outcomes:
        assert not outcome.violations, f"seed {outcome.seed}, one node\n{outcome.violations[:3]}"
    # The runs must have enough faults and enough commits.
    assert sum(each.faults["kill"] for each in outcomes) > 3 * count
    assert sum(each.commits for each in outcomes) > 10 * count
    assert sum(each.conflicts for each in outcomes) > count
    assert sum(each.unknown for each in outcomes) > count // 4


@pytest.mark.simulation
def test_no_seed_of_today_shows_a_violation(drawn_seed: int) -> None:
    judge(drawn_seed, CHUNK)


@pytest.mark.simulation
@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1, SEEDS + 1, CHUNK))
def test_no_fixed_seed_shows_a_violation(first: int) -> None:
    judge(first, CHUNK)


@pytest.mark.simulation
@pytest.mark.parametrize(
    ("name", "shows"),
    [
        ("answer-before-durable", "lost_commit"),
        ("edits-not-carried", "lost_end"),
        ("floor-at-the-begin", "storage_corrupt"),
    ],
)
def test_a_missing_guard_is_found(name: str, shows: str) -> None:
    with mutants.in_force(name):
        for seed in range(1, SEEDS_MAX + 1):
            if any(shows in violation for violation in simulate(seed, nodes=1).violations):
                return
    raise AssertionError(f"{name} was not found in {SEEDS_MAX} seeds")


def judge_cluster(first: int, count: int) -> None:
    """Run ``count`` seeds of the cluster, and check the results."""
    outcomes = [simulate(seed) for seed in range(first, first + count)]
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
