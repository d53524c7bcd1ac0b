"""Quotas: who has which limits, and what the token buckets let through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.access.quotas import (
    KINDS,
    Bucket,
    QuotaKind,
    Quotas,
    check_count,
    checked_limits,
    share,
    taken,
)
from broker.errors import BadName, BadRequest, QuotaExceeded
from broker.model import TopicId
from broker.principal import ANYONE, NODE, Principal

REQUESTS, BYTES, WAITS = (
    QuotaKind.PUBLISH_REQUESTS_S,
    QuotaKind.PUBLISH_BYTES_S,
    QuotaKind.WAITS,
)
STEPS = st.lists(
    st.tuples(st.floats(0, 5), st.integers(0, 2_000)),  # Seconds since the last one; amount.
    max_size=60,
)


@given(STEPS, st.integers(1, 500), st.integers(1, 5))
def test_a_bucket_lets_no_more_through_than_its_rate_and_its_burst(
    steps: list[tuple[float, int]], limit: int, nodes: int
) -> None:
    rate, bucket, now = share(limit, nodes), None, 100.0
    passed: list[tuple[float, int]] = []
    for after, amount in steps:
        now += after
        bucket = rate.now(bucket, now)
        if rate.wait_s(bucket, amount) == 0:
            bucket = taken(bucket, amount)
            passed.append((now, amount))
    largest = max([amount for _, amount in passed], default=0)
    assert rate.rate == limit / nodes
    for first in range(len(passed)):  # Each span of time that begins and ends with an amount.
        total = 0
        for at, amount in passed[first:]:
            total += amount
            most = rate.rate * (at - passed[first][0]) + max(rate.burst, largest)
            assert total <= most * (1 + 1e-9) + 1e-6


@given(st.floats(-2_000, 500), st.integers(1, 500), st.integers(0, 2_000))
def test_an_amount_passes_after_the_time_that_the_refusal_tells(
    level: float, limit: int, amount: int
) -> None:
    rate = share(limit, 1)
    bucket = Bucket(min(level, rate.burst), 10.0)
    wait_s = rate.wait_s(bucket, amount)
    later = rate.now(bucket, 10.0 + wait_s)
    assert rate.wait_s(later, amount) * rate.rate == pytest.approx(0, abs=1e-6)
    assert later.level <= rate.burst
    if wait_s > 1e-6:
        assert rate.wait_s(rate.now(bucket, 10.0 + wait_s / 2), amount) > 0


def test_a_clock_that_steps_back_brings_nothing() -> None:
    rate = share(10, 1)
    bucket = taken(rate.now(None, 100.0), 10)
    back = rate.now(bucket, 50.0)
    assert back.level == 0
    assert rate.now(back, 100.0).level == 0


def test_a_small_rate_on_many_nodes_still_lets_single_requests_through() -> None:
    rate = share(1, 10)
    assert rate.wait_s(rate.now(None, 0.0), 1) == 0
    assert rate.wait_s(taken(rate.now(None, 0.0), 1), 1) == pytest.approx(10)


def test_the_most_exact_name_decides_for_each_kind() -> None:
    quotas = Quotas(
        {
            "*": {REQUESTS: 10, WAITS: 5},
            "alice": {REQUESTS: 100, WAITS: None},
            "topic:*": {BYTES: 1},
            "topic:ns/*": {BYTES: 2, REQUESTS: 20},
            "topic:ns/t": {BYTES: 3},
        }
    )
    assert quotas.of_principal(Principal("alice")) == {REQUESTS: 100}
    assert quotas.of_principal(Principal("bob")) == {REQUESTS: 10, WAITS: 5}
    assert quotas.of_topic(TopicId("ns", "t")) == {BYTES: 3, REQUESTS: 20}
    assert quotas.of_topic(TopicId("ns", "u")) == {BYTES: 2, REQUESTS: 20}
    assert quotas.of_topic(TopicId("other", "t")) == {BYTES: 1}


def test_the_node_and_unknown_callers_have_no_quota() -> None:
    quotas = Quotas({"*": {REQUESTS: 10}})
    assert quotas.of_principal(NODE) == {}
    assert quotas.of_principal(ANYONE) == {}


def test_the_name_of_a_topic_is_no_principal() -> None:
    """A principal can't take a topic's limits by its name."""
    quotas = Quotas({"topic:ns/t": {BYTES: 3}})
    with pytest.raises(BadRequest, match="no quota of a topic"):
        checked_limits("topic:ns/t", {"waits": 1})
    assert quotas.of_principal(Principal("ns/t")) == {}


@pytest.mark.parametrize("who", ["", "a\n", "x" * 301])
def test_a_name_that_no_principal_has_is_refused(who: str) -> None:
    with pytest.raises(BadRequest, match="not the name"):
        checked_limits(who, {})


def test_a_topic_that_can_not_be_is_refused() -> None:
    with pytest.raises(BadName):
        checked_limits("topic:ns/a b", {})


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "1", 1 << 53])
def test_a_limit_is_a_positive_whole_number(limit: object) -> None:
    with pytest.raises(BadRequest, match="whole number"):
        checked_limits("alice", {"waits": limit})


def test_an_unknown_kind_is_refused_with_all_that_there_are() -> None:
    with pytest.raises(BadRequest, match="waits, connections"):
        checked_limits("alice", {"speed": 1})


def test_a_count_may_reach_its_limit_and_not_pass_it() -> None:
    check_count({WAITS: 2}, WAITS, 2, "alice")
    check_count({}, WAITS, 1_000, "alice")
    with pytest.raises(QuotaExceeded, match=r"alice .* 2 of waits") as refused:
        check_count({WAITS: 2}, WAITS, 3, "alice")
    assert refused.value.kind == "waits"
    assert refused.value.retry_after_s
    assert refused.value.retriable


def test_each_kind_says_what_counts_and_how_exactly() -> None:
    assert set(KINDS) == set(QuotaKind)
    for facts in KINDS.values():
        assert facts.doc
        assert facts.exactness
