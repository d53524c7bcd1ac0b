from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cli.bench.histogram import US_MAX, Histogram, bucket_of, last_of

durations = st.lists(st.integers(0, 10**9), min_size=1, max_size=200)


def of(found: list[int]) -> Histogram:
    histogram = Histogram()
    for us in found:
        histogram.add(us)
    return histogram


@given(st.integers(0, US_MAX))
def test_a_bucket_holds_a_duration_and_is_less_than_one_percent_wide(us: int) -> None:
    bucket = bucket_of(us)
    assert us <= last_of(bucket)
    assert bucket == 0 or last_of(bucket - 1) < us
    assert last_of(bucket) - us <= us / 100


@given(durations, st.sampled_from([0.1, 1, 50, 90, 99, 99.9, 100]))
def test_a_percentile_is_that_of_the_sorted_durations(found: list[int], percent: float) -> None:
    exact = sorted(found)[max(math.ceil(len(found) * percent / 100), 1) - 1]
    told = of(found).percentile_us(percent)
    assert told is not None
    assert exact <= told <= max(exact * 1.01, exact)


@given(durations, durations)
def test_a_merged_histogram_is_that_of_all(some: list[int], others: list[int]) -> None:
    merged = of(some)
    merged.merge(of(others))
    assert merged.summary_ms() == of(some + others).summary_ms()


def test_impossible_durations_are_counted_at_the_ends() -> None:
    histogram = of([-5, US_MAX * 8])
    assert histogram.percentile_us(1) == 0
    assert histogram.percentile_us(100) == US_MAX


def test_an_empty_histogram_has_no_summary() -> None:
    assert Histogram().summary_ms() is None
    assert Histogram().percentile_us(50) is None


def test_the_memory_of_a_histogram_is_bounded() -> None:
    assert bucket_of(US_MAX) < 5000


@pytest.mark.parametrize("times", [1, 7])
def test_messages_of_one_request_count_each(times: int) -> None:
    histogram = Histogram()
    histogram.add(1000, times)
    assert histogram.summary_ms() == {
        "p50": 1.0,
        "p90": 1.0,
        "p99": 1.0,
        "p99_9": 1.0,
        "max": 1.0,
        "mean": 1.0,
    }
    assert histogram.count == times
