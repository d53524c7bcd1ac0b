"""One node with its real handlers over a hostile storage, crashed at any await.

Every run takes a few seeds that nobody has looked at before; the nightly one a hundred, always the same.
"""

from __future__ import annotations

import pytest

from broker.testing import mutants
from broker.topics.topic_state import TopicState
from tests.kit.one_node import simulate

SEEDS = 100
CHUNK = 20
FEW, ENOUGH = 4, 20
SEEDS_MAX = 60
"""The rarest mutant that must be found is found by one seed of fifteen."""
"""Seeds among which a missing guard is found, and with it nothing."""


@pytest.mark.simulation
@pytest.mark.timeout(300)
@pytest.mark.parametrize("plan", ["usual", "alone"])
def test_no_seed_of_today_shows_anything_wrong(drawn_seed: int, plan: str) -> None:
    judge(drawn_seed, plan)


@pytest.mark.simulation
@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(1, SEEDS + 1, CHUNK))
def test_no_seed_shows_anything_wrong(first: int) -> None:
    judge(first, "usual" if first % (2 * CHUNK) == 1 else "alone")


def judge(first: int, plan: str) -> None:
    """Run some seeds, the first of which is given."""
    starts = acknowledged = unknown = 0
    for seed in range(first, first + CHUNK):
        outcome = simulate(seed, plan)
        assert outcome.verdict.is_valid, f"{outcome.command}\n{outcome.verdict}"
        starts += outcome.starts
        acknowledged += sum(call.op == "publish" and call.is_ok for call in outcome.calls)
        unknown += sum(call.op == "publish" and call.outcome == "unknown" for call in outcome.calls)
    # Enough must have gone wrong, and right, for this to mean something.
    assert starts > 3 * CHUNK
    assert acknowledged > 10 * CHUNK
    assert unknown > CHUNK // 2


@pytest.mark.simulation
@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [FEW, pytest.param(ENOUGH, marks=pytest.mark.nightly)])
def test_a_clock_within_the_margin_makes_no_sweep_remove_what_lives(
    count: int, drawn_seed: int
) -> None:
    for seed in range(drawn_seed, drawn_seed + count):
        outcome = simulate(seed, "swept")
        assert outcome.verdict.is_valid, f"{outcome.command}\n{outcome.verdict}"


def found_within(names: set[str], plan: str = "usual") -> bool:
    return any(simulate(seed, plan).verdict.names & names for seed in range(1, SEEDS_MAX + 1))


@pytest.mark.simulation
@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("mutant", "names", "plan"),
    [
        ("ids-rise", {"unexpected"}, "usual"),
        ("dedupe", {"two_answers", "duplicated"}, "usual"),
        ("close-at-publish", {"unreadable"}, "usual"),
        ("sweep-margin", {"expired_early"}, "swept"),
    ],
)
def test_a_mutant_is_found(mutant: str, names: set[str], plan: str) -> None:
    with mutants.in_force(mutant):
        assert found_within(names, plan)


@pytest.mark.simulation
def test_a_wake_up_that_is_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TopicState, "wake", lambda self: None)
    assert found_within({"stalled"})


@pytest.mark.simulation
def test_expired_messages_that_are_shown_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "broker.topics.topic_reader.oldest_live", lambda topic, now_ms, lifetime_ms=None: bytes(10)
    )
    assert found_within({"expired_late"})


@pytest.mark.simulation
def test_a_seed_repeats_its_run() -> None:
    one, other = simulate(3), simulate(3)
    assert one.calls == other.calls
    assert simulate(4).calls != one.calls


@pytest.mark.simulation
def test_keys_and_headers_that_are_lost_are_found() -> None:
    with mutants.in_force("attributes"):
        assert found_within({"other_attributes"}, "alone")
