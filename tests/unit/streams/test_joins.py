"""Joins without a window, and of the last values of a window: RIP-58's tables."""

from typing import Any

import pytest

from broker.streams.join_operators import LEFT, RIGHT, AllOfWindow, Latest, LatestOfWindow
from broker.streams.stateless_steps import PairFunction, Step
from broker.streams.stream_records import Letter, StreamRecord
from broker.streams.windows import sliding, tumbling
from tests.unit.streams.chains import Run, letters, results, values


def made(function: Any) -> Step:
    return Step("join", PairFunction(function))


def pair(left: Any, right: Any) -> Any:
    return left, right


def latest(*, is_left: bool) -> Run:
    return Run(Latest("join", is_left=is_left), made(pair))


def of_window(
    windows: Any = None, *, is_left: bool, kind: Any = LatestOfWindow, function: Any = pair
) -> Run:
    joined = kind("join", windows or tumbling("10s"), "job", "late", is_left=is_left)
    return Run(joined, made(function))


class TestWithoutWindow:
    def given(self, run: Run, *records: tuple[int, int]) -> list[Any]:
        return [value for side, v in records for value in values(run.batch(("k", v, 0), side=side))]

    def test_left(self) -> None:
        """A right record never fires; a left one has the newest right one, or None."""
        found = self.given(
            latest(is_left=True), (LEFT, 1), (RIGHT, 10), (RIGHT, 20), (LEFT, 2), (LEFT, 3)
        )
        assert found == [(1, None), (2, 20), (3, 20)]

    def test_inner(self) -> None:
        """Each record of either side fires, once there is one of the other."""
        found = self.given(
            latest(is_left=False), (LEFT, 1), (LEFT, 2), (RIGHT, 10), (RIGHT, 20), (LEFT, 3)
        )
        assert found == [(2, 10), (2, 20), (3, 20)]

    def test_records_of_different_keys_are_not_joined(self) -> None:
        run = latest(is_left=False)
        assert run.batch(("a", 1, 0), side=LEFT) + run.batch(("b", 2, 0), side=RIGHT) == []

    def test_sides_of_one_batch_go_by_their_places(self) -> None:
        left, right = StreamRecord(1, b"2", 0, "k"), StreamRecord(10, b"1", 0, "k")
        right.side = RIGHT
        [found] = latest(is_left=True).chain.take([left, right], {}, 0)
        assert isinstance(found, StreamRecord)
        assert found.value == (1, 10)

    def test_a_pair_of_which_the_function_makes_none_gives_nothing(self) -> None:
        run = Run(Latest("join", is_left=True), made(lambda left, right: right))
        assert run.batch(("k", 1, 0)) == []

    def test_a_function_that_raises_fails_the_pair_alone(self) -> None:
        run = Run(Latest("join", is_left=False), made(lambda left, right: left // right))
        run.batch(("k", 0, 0), side=RIGHT)
        [letter] = run.batch(("k", 6, 0), side=LEFT)
        assert isinstance(letter, Letter)
        assert letter.headers["operator"] == b"join"
        assert values(run.batch(("k", 2, 0), side=RIGHT)) == [3]


class TestLastOfWindow:
    @pytest.mark.parametrize("is_left", [True, False])
    def test_the_last_of_either_side_when_the_window_is_over(self, is_left: bool) -> None:
        run = of_window(is_left=is_left)
        run.batch(("k", "k1", 1_000), ("k", "k2", 2_000), side=LEFT)
        run.batch(("k", "K1", 1_500), ("k", "K2", 9_000), side=RIGHT)
        assert run.reach(9_999) == []
        assert results(run.reach(10_000)) == [("k", 0, 10, ("k2", "K2"))]
        assert run.reach(60_000) == []

    def test_a_left_row_without_a_right_one_is_not_lost(self) -> None:
        run = of_window(is_left=True)
        run.batch(("k", 1, 1_000), side=LEFT)
        run.batch(("k", 10, 11_000), side=RIGHT)
        assert results(run.reach(60_000)) == [("k", 0, 10, (1, None))]

    def test_an_inner_join_gives_pairs_alone(self) -> None:
        run = of_window(is_left=False)
        run.batch(("k", 1, 1_000), side=LEFT)
        run.batch(("k", 10, 11_000), side=RIGHT)
        assert run.reach(60_000) == []

    @pytest.mark.parametrize("side", [LEFT, RIGHT])
    def test_a_late_record_of_either_side_is_reported(self, side: int) -> None:
        run = of_window(sliding("10s", "5s"), is_left=True)
        run.reach(10_000)
        [letter] = letters(run.batch(("k", 1, 7_000), side=side))
        assert (letter.topic, letter.headers["end"]) == ("late", b"10000")

    def test_a_function_that_raises_fails_its_window_alone(self) -> None:
        run = of_window(tumbling("1s"), is_left=False, function=lambda a, b: a // b)
        for place, (left, right) in enumerate([(4, 2), (1, 0), (9, 3)]):
            run.batch(("k", left, place * 1_000), side=LEFT)
            run.batch(("k", right, place * 1_000), side=RIGHT)
        found = run.reach(60_000)
        assert [each.value for each in found if isinstance(each, StreamRecord)] == [2, 3]
        assert [letter.payload for letter in letters(found)] == [b"[1,0]"]


class TestAllOfWindow:
    @pytest.mark.parametrize("is_left", [True, False])
    def test_each_pair_comes_as_soon_as_both_are_there(self, is_left: bool) -> None:
        run = of_window(is_left=is_left, kind=AllOfWindow)
        assert run.batch(("k", 1, 1_000), ("k", 2, 2_000), side=LEFT) == []
        found = run.batch(("k", 10, 9_000), ("k", 20, 12_000), side=RIGHT)
        assert results(found) == [("k", 0, 10, (1, 10)), ("k", 0, 10, (2, 10))]
        assert values(run.batch(("k", 3, 3_000), side=LEFT)) == [(3, 10)]
        assert run.reach(60_000) == []

    def test_left_rows_without_a_right_one_come_when_the_window_is_over(self) -> None:
        run = of_window(is_left=True, kind=AllOfWindow)
        run.batch(("k", 1, 1_000), ("k", 2, 2_000), ("j", 3, 3_000), side=LEFT)
        run.batch(("j", 10, 12_000), side=RIGHT)
        assert run.reach(9_999) == []
        expected = [("k", 0, 10, (1, None)), ("k", 0, 10, (2, None)), ("j", 0, 10, (3, None))]
        assert results(run.reach(60_000)) == expected

    def test_a_late_record_is_reported(self) -> None:
        run = of_window(is_left=True, kind=AllOfWindow)
        run.reach(10_000)
        assert len(letters(run.batch(("k", 1, 7_000), side=RIGHT))) == 1

    def test_a_pair_that_raises_fails_alone(self) -> None:
        run = of_window(is_left=True, kind=AllOfWindow, function=lambda a, b: a // (b or 0))
        run.batch(*[("k", n, 1_000) for n in (1, 2)], ("j", 1, 1_000), ("j", 2, 1_000), side=LEFT)
        found = run.batch(("k", 0, 1_000), ("k", 1, 1_000), side=RIGHT)
        assert [each.value for each in found if isinstance(each, StreamRecord)] == [1, 2]
        assert [letter.payload for letter in letters(found)] == [b"[1,0]", b"[2,0]"]
        assert [letter.payload for letter in run.reach(60_000)] == [b"[1,null]", b"[2,null]"]
