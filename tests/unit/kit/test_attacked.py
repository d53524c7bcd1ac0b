import pytest

from tests.kit.attacked import ALONE_S_MIN, Round, longest_block_s, p99
from tests.kit.neighbour import Published


def test_a_percentile_is_one_of_the_times() -> None:
    assert p99([3.0, 1.0, 2.0]) == 3.0
    assert p99([float(number) for number in range(1, 201)]) == 198.0


def test_the_longest_hold_is_in_the_last_bucket_that_grew() -> None:
    before = {0.01: 5, 0.02: 6, 0.05: 6, float("inf"): 7}
    after = {0.01: 9, 0.02: 11, 0.05: 11, float("inf"): 12}
    assert longest_block_s(before, after) == 0.02
    assert longest_block_s(before, {**before, float("inf"): 8}) == float("inf")


def test_a_very_fast_publish_counts_as_the_minimum_latency() -> None:
    measured = Round(ALONE_S_MIN / 10, ALONE_S_MIN * 2, 0.1, 300, 0.0)
    assert measured.slower == pytest.approx(2.0)
    assert "300" in str(measured)


def test_a_line_of_the_neighbour_is_parsed() -> None:
    published = Published.of(b"12.500000 0.001000 200\n")
    assert published == (12.5, 0.001, 200)
    assert published.ended_s == pytest.approx(12.501)
