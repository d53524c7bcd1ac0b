from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.bench.measure import (
    BYTES_MIN,
    US_MAX,
    Histogram,
    Measure,
    bucket_end,
    moment_of,
    stamped,
)
from broker.errors import Overloaded


def test_an_interval_counts_events_since_the_last_look() -> None:
    measure = Measure(10.0)
    measure.add(5, 500, 2000)
    first = measure.look(11.0)
    assert (first.seconds, first.messages, first.bytes, first.latencies.count) == (1.0, 5, 500, 5)
    assert "5 messages/s" in first.line
    assert "p50 2.0" in first.line
    second = measure.look(12.0)
    assert (second.messages, second.bytes, second.latencies.count) == (0, 0, 0)
    assert "p50" not in second.line


def test_the_summary_counts_all_intervals() -> None:
    measure = Measure(0.0)
    measure.add(10, 1000, 1000)
    measure.look(1.0)
    measure.add(10, 1000, 3000)
    measure.failed(Overloaded("busy"))
    told = measure.as_json(4.0)
    assert (told["messages"], told["messages_per_s"], told["bytes_per_s"]) == (20, 5.0, 500.0)
    assert told["errors"] == {"overloaded": 1}
    assert told["latency_ms"]["mean"] == 2.0


def test_a_stamp_is_found_in_stamped_payloads_alone() -> None:
    for size in (BYTES_MIN, 100):
        payload = stamped(size, 123_456)
        assert len(payload) == size
        assert moment_of(payload) == 123_456
    assert moment_of(b"") is None
    assert moment_of(b"x" * 100) is None


durations = st.lists(st.integers(0, 10**9), min_size=1, max_size=200)


def of(found: list[int]) -> Histogram:
    histogram = Histogram()
    for us in found:
        histogram.add(us)
    return histogram


@given(st.integers(0, US_MAX))
def test_a_bucket_holds_a_duration_and_is_less_than_one_percent_wide(us: int) -> None:
    end = bucket_end(us)
    assert us <= end == bucket_end(end) < bucket_end(end + 1)
    assert end - us <= us / 100


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
    buckets, us = 0, 0
    while us <= US_MAX:
        buckets, us = buckets + 1, bucket_end(us) + 1
    assert buckets < 5000


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
