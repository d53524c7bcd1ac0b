"""Accumulators give the same result for any split of the values over two that are merged."""

import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.streams.accumulators import Accumulator, Avg, Count, Max, Min, Sum

KINDS: list[Callable[[], Accumulator[Any, Any]]] = [Count, Sum, Avg, Min, Max]


def given_to(make: Callable[[], Accumulator[Any, Any]], values: list[Any]) -> Any:
    accumulator = make()
    for value in values:
        accumulator.add(value)
    return accumulator


def values_for(make: Callable[[], Accumulator[Any, Any]], numbers: list[int]) -> list[Any]:
    """Min and Max take a measure with its value, here the place: of equal ones the first is told."""
    return list(zip(numbers, itertools.count(), strict=False)) if make in {Min, Max} else numbers


@pytest.mark.slow
@pytest.mark.parametrize("make", KINDS)
@given(numbers=st.lists(st.integers(-3, 3)), at=st.integers(0, 20))
def test_any_split_gives_the_same(make, numbers: list[int], at: int) -> None:
    values = values_for(make, numbers)
    whole, one, other = (given_to(make, part) for part in (values, values[:at], values[at:]))
    kept = pickle.loads(pickle.dumps(other))
    one.merge(kept)
    assert one.result(None) == whole.result(None)


@given(st.lists(st.integers(-3, 3), min_size=1))
def test_the_results_are_those_of_python(numbers: list[int]) -> None:
    assert given_to(Count, numbers).result(None) == len(numbers)
    assert given_to(Sum, numbers).result(None) == sum(numbers)
    assert given_to(Avg, numbers).result(None) == sum(numbers) / len(numbers)
    pairs = list(zip(numbers, itertools.count(), strict=False))
    first = dict(reversed(pairs))
    assert given_to(Min, pairs).result(None) == first[min(numbers)]
    assert given_to(Max, pairs).result(None) == first[max(numbers)]


def test_accumulators_without_values_have_no_result() -> None:
    assert [make().result(None) for make in KINDS] == [0, None, None, None, None]


def test_min_and_max_keep_the_whole_value_and_the_first_of_equal_ones() -> None:
    values = [{"n": n, "place": place} for place, n in enumerate([2, 1, 3, 1, 3])]
    measured = [(value["n"], value) for value in values]
    assert given_to(Min, measured).result(None) is values[1]
    assert given_to(Max, measured).result(None) is values[2]


def test_an_average_of_averages_is_that_of_all() -> None:
    one, other = given_to(Avg, [10]), given_to(Avg, [20, 30])
    one.merge(other)
    assert one.result(None) == 20


def test_an_accumulator_without_merge_says_where_it_is_needed() -> None:
    class Last(Accumulator[int, int]):
        def add(self, value: int) -> None:
            self.value = value

        def result(self, window: Any) -> int:
            return self.value

    with pytest.raises(NotImplementedError, match=r"Last needs merge\(\) to be used with sessions"):
        Last().merge(Last())
