"""The rules of storage keep their promises in the model, and the model finds a violation if a clause is dropped."""

from __future__ import annotations

import pytest

from tests.model.adversary import search
from tests.model.complete import complete
from tests.model.configs import RANDOM
from tests.model.mutants import MUTANTS, RUNS_MAX, Mutant
from tests.model.rules import without
from tests.model.story import told
from tests.plugins.seeds import first_seed

# The numbers of faults, stale answers and states. The number of states changes with the model. If it falls without a
# reason, the search misses states.
COMPLETE = {
    ("two", 0, 0): 131_858,
    ("two-late", 1, 0): 17_575,
    ("floor-late", 1, 0): 110_552,
    ("read", 1, 1): 290_534,
    ("read-floor", 1, 1): 286_493,
    ("marks-late", 1, 0): 3_937,
    ("rollback", 1, 1): 211_246,
    ("rollback-slices", 1, 0): 27_252,
    ("rollback-slices", 0, 1): 10_736,
    ("rollback-sealed", 0, 0): 400,
    ("rollback-floor", 0, 0): 17_503,
    ("gone", 1, 0): 2_139,
    ("dead", 1, 0): 2_588,
    ("effects", 1, 0): 10_444,
    ("topic", 0, 1): 58_733,
    ("topic-roll", 0, 0): 16_426,
    ("stores", 1, 1): 3_383,
    ("payloads-late", 1, 0): 130_620,
    ("payloads-topic", 0, 0): 6_503,
}
NIGHTLY = [
    ("two-rolls", 0, 0),
    ("two-late", 2, 0),
    ("two-late", 1, 1),
    ("three", 0, 0),
    ("roll", 0, 0),
    ("floor", 0, 0),
    ("packed", 0, 0),
    ("zombie", 0, 0),
    ("poll", 0, 0),
    ("marks", 0, 0),
    ("marks-behind", 0, 0),
    ("rollback", 2, 0),
    ("rollback-sealed", 1, 0),
    ("rollback-floor", 1, 0),
    ("topic", 1, 0),
    ("topic-gone", 1, 0),
    ("topic-roll", 1, 0),
    ("payloads", 0, 0),
    ("payloads-topic", 1, 0),
]
NIGHTLY_SECONDS = 100


@pytest.mark.parametrize(("name", "faults", "stales"), COMPLETE)
def test_every_order_of_a_small_configuration_keeps_the_promises(
    name: str, faults: int, stales: int
) -> None:
    outcome = complete(name, faults, stales)
    assert outcome.violation == "", "\n".join(map(told, outcome.story))
    assert outcome.is_complete
    assert outcome.states == COMPLETE[name, faults, stales]


def test_the_searches_cover_a_million_states() -> None:
    assert sum(COMPLETE.values()) >= 1_000_000


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "faults", "stales"), NIGHTLY)
def test_larger_searches_keep_the_promises_within_their_time(
    name: str, faults: int, stales: int
) -> None:
    outcome = complete(name, faults, stales, seconds=NIGHTLY_SECONDS)
    assert outcome.violation == "", "\n".join(map(told, outcome.story))


@pytest.mark.parametrize("config", RANDOM)
def test_random_runs_keep_the_promises(config: str) -> None:
    seed = first_seed()
    print(f"python -m tests.model --seed {seed} --config {config}")  # noqa: T201 - Shown if it fails.
    found = search([config], seed, runs_max=40)
    assert found.violation == "", f"python -m tests.model --replay {found.seed} --config {config}"
    assert found.runs == 40


def mutants() -> list[object]:
    """Return the mutants; the slow ones run at night."""
    return [
        pytest.param(
            clause,
            mutant,
            id=clause,
            marks=[pytest.mark.nightly] if mutant.runs_max > RUNS_MAX else [],
        )
        for clause, mutant in MUTANTS.items()
    ]


@pytest.mark.parametrize(("clause", "mutant"), mutants())
def test_a_search_finds_each_dropped_clause(clause: str, mutant: Mutant) -> None:
    with without(clause):
        if mutant.small:
            violation = complete(mutant.small, 1).violation
        else:
            violation = search(mutant.configs, 1, runs_max=mutant.runs_max).violation
    assert violation, f"{mutant.does}: no violation was found"


def test_a_violation_of_a_complete_search_has_its_whole_story() -> None:
    with without("gone-stays"):
        outcome = complete("gone", 1)
    lines = [told(step) for step in outcome.story]
    assert lines[0] == "node 0  get! record: (1, True)"
    assert lines[-1].startswith("node 0  change page 1 of T(1,)")
    assert any(line.startswith("late    change page 1 of T(1,): absent") for line in lines)
