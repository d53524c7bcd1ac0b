"""Aggregates, as a chain runs them on the records of a key: record by record, and window by window."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.streams import stateless_steps
from broker.streams.accumulators import Avg, Count, Max, Sum
from broker.streams.failures import Failed
from broker.streams.forms import Measured
from broker.streams.operators import Processor, ProcessorOperator, RunningAggregate, State
from broker.streams.stateless_steps import Step
from broker.streams.stream_records import Letter
from broker.streams.windows import Window, session, sliding, tumbling
from tests.unit.streams.chains import Run, letters, results, values, windowed

EVENTS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 9), st.integers(0, 60_000)))


class Picky(Sum):
    """Has no result of two."""

    def result(self, window: Window | None) -> Any:
        if self._sum == 2:
            raise ArithmeticError("two")
        return self._sum


class Strict(Count):
    """Takes no text."""

    def add(self, value: Any) -> None:
        super().add(value + 1)


class TestRunning:
    def test_each_record_gives_a_result(self) -> None:
        run = Run(RunningAggregate("count", Count))
        found = run.batch(("a", "x", 1), ("b", "x", 1), ("a", "y", 1))
        assert [(each.key, each.value) for each in found] == [("a", 1), ("a", 2), ("b", 1)]
        assert values(run.batch(("a", "z", 1))) == [3]

    def test_aggregates_in_a_chain_have_cells_of_their_own(self) -> None:
        run = Run(
            RunningAggregate("one", Count),
            RunningAggregate("two", Count),
            RunningAggregate("three", Sum),
        )
        found = values(run.batch(*[("a", "x", 1)] * 3)) + values(run.batch(("a", "x", 1)))
        assert found == [1, 3, 6, 10]

    def test_records_of_a_key_are_taken_in_the_order_of_their_places(self) -> None:
        run = Run(RunningAggregate("sum", Sum))
        cells: dict[str, Any] = {}
        made = list(Run().batch(("a", 1, 0), ("a", 10, 0), ("a", 100, 0)))
        random.Random(1).shuffle(made)
        assert values(list(run.chain.take(made, cells, 0))) == [1, 11, 111]

    def test_values_of_none_are_not_aggregated(self) -> None:
        run = Run(RunningAggregate("avg", Avg, lambda value: value.get("n")))
        assert values(run.batch(("a", {}, 1), ("a", {"n": 4}, 1), ("a", {}, 1))) == [4]

    def test_the_whole_value_with_the_greatest_measure_is_kept(self) -> None:
        run = Run(RunningAggregate("max", Max, Measured(lambda value: value["n"])))
        events = [{"n": n, "place": place} for place, n in enumerate([1, 3, 3, 2])]
        found = values(run.batch(*[("a", event, 1) for event in events]))
        assert [value["place"] for value in found] == [0, 1, 1, 1]

    def test_functions_between_aggregates_drop_and_multiply(self) -> None:
        twice = Step("flat_map-1", stateless_steps.FlatMapping(lambda n: [n, None, n * 10]))
        odd = Step("filter-1", stateless_steps.Filtering(lambda n: n % 2))
        run = Run(RunningAggregate("count", Count), twice, odd, RunningAggregate("sum", Sum))
        assert values(run.batch(*[("a", "x", 1)] * 3)) == [1, 4]


class TestWindows:
    def test_a_window_gives_its_result_once_when_the_watermark_reaches_its_end(self) -> None:
        run = Run(windowed(Count, tumbling("10s")))
        assert run.batch(("a", 0, 1_000), ("a", 0, 9_999), ("b", 0, 10_000)) == []
        assert run.reach(9_999) == []
        assert results(run.reach(10_000)) == [("a", 0, 10, 2)]
        assert run.reach(19_999) == []
        assert results(run.reach(20_000)) == [("b", 10, 20, 1)]
        assert not any(run.chain.due_ms(run.cells_of(key)) for key in "ab")

    def test_a_late_record_is_taken_while_its_window_is_open(self) -> None:
        run = Run(windowed(Count, tumbling("10s")))
        run.reach(8_000)
        assert run.batch(("a", 0, 3_000)) == []
        assert results(run.reach(10_000)) == [("a", 0, 10, 1)]

    def test_a_record_whose_window_is_closed_becomes_a_late_letter(self) -> None:
        run = Run(windowed(Count, sliding("10s", "5s")))
        run.reach(10_000)
        [letter] = run.batch(("a", {"n": 1}, 7_000))
        assert isinstance(letter, Letter)
        assert letter.topic == "late"
        assert letter.payload == b'{"n":1}'
        told = {name: letter.headers[name] for name in ("reason", "operator", "key", "time")}
        assert told == {
            "reason": b"late",
            "operator": b"windowed",
            "key": b'"a"',
            "time": b"7000",
        }
        assert (letter.headers["start"], letter.headers["end"]) == (b"0", b"10000")
        assert results(run.reach(15_000)) == [("a", 5, 15, 1)]

    @given(EVENTS, st.integers(1, 9), st.integers(1, 9), st.randoms())
    def test_windows_give_the_results_of_a_plain_model(self, events, one, other, chance) -> None:
        """That holds for any micro-batches, and for any moves of the watermark."""
        windows = sliding(f"{max(one, other)}s", f"{min(one, other)}s")
        run, late, closed, found = Run(windowed(Sum, windows)), 0, {}, []
        model: dict[tuple[str, Window], int] = {}
        for event in events:
            key, value, time_ms = event
            late += len(letters(run.batch(event)))
            for window in windows.windows_of(time_ms):
                if window.end_ms <= run.watermark_ms:
                    late -= 1
                else:
                    model[key, window] = model.get((key, window), 0) + value
            if chance.random() < 0.3:
                found += run.reach(max(run.watermark_ms, chance.randrange(60_000)))
        found += run.reach(200_000)
        assert late == 0
        closed = {(each.key, each.window): each.value for each in found}
        assert closed == model
        assert len(closed) == len(found)

    def test_windows_of_windows_lose_no_record(self) -> None:
        """However far the watermark jumps, a window of ten seconds has all those of one second."""
        for reached in ([5_000, 13_000, 40_000], [40_000], range(0, 41_000, 100)):
            run = Run(windowed(Count, tumbling("1s")), windowed(Sum, tumbling("10s"), name="outer"))
            assert run.batch(*[("a", 0, time_ms) for time_ms in range(0, 25_000, 250)]) == []
            found = [row for ms in reached for row in results(run.reach(ms))]
            assert found == [("a", 0, 10, 40), ("a", 10, 20, 40), ("a", 20, 30, 20)]

    def test_a_failing_result_fails_its_window_alone(self) -> None:
        run = Run(windowed(Picky, tumbling("1s")))
        run.batch(("a", 1, 0), ("a", 2, 1_000), ("a", 3, 2_000))
        found = run.reach(60_000)
        assert [each.value for each in found if not isinstance(each, Letter)] == [1, 3]
        [letter] = letters(found)
        assert letter.headers["error"] == b"ArithmeticError: two"
        assert letter.headers["key"] == b'"a"'

    def test_a_record_that_can_not_be_added_opens_no_window(self) -> None:
        for windows in (tumbling("1s"), session("1s")):
            run = Run(windowed(Strict, windows))
            [letter] = run.batch(("a", "text", 0))
            assert letter.headers["operator"] == b"windowed"
            assert run.reach(60_000) == []


class TestSessions:
    def test_sessions_are_of_each_key(self) -> None:
        run = Run(windowed(Count, session("10s")))
        run.batch(*[(key, 0, time_ms) for time_ms, key in enumerate("abab")])
        assert sorted(each.key + str(each.value) for each in run.reach(60_000)) == ["a2", "b2"]

    def test_a_record_between_two_makes_them_one(self) -> None:
        run = Run(windowed(Sum, session("5s")))
        run.batch(("a", 1, 0), ("a", 10, 8_000))
        run.batch(("a", 100, 4_000))
        assert results(run.reach(60_000)) == [("a", 0, 13, 111)]

    def test_a_gap_ends_a_session(self) -> None:
        run = Run(windowed(Count, session("5s")))
        run.batch(("a", 0, 0), ("a", 0, 4_999), ("a", 0, 9_999))
        assert results(run.reach(9_998)) == []
        assert results(run.reach(60_000)) == [("a", 0, 9, 2), ("a", 9, 14, 1)]

    def test_a_late_record_still_joins_a_session_that_is_open(self) -> None:
        run = Run(windowed(Count, session("5s")))
        run.batch(("a", 0, 10_000))
        run.reach(12_000)
        assert run.batch(("a", 0, 6_000)) == []
        assert len(letters(run.batch(("a", 0, 1_000)))) == 1
        assert results(run.reach(15_000)) == [("a", 6, 15, 2)]

    @given(st.lists(st.integers(0, 100), min_size=1), st.randoms())
    def test_the_order_of_records_does_not_matter(self, times, chance) -> None:
        ordered = sorted(times)
        model = [[ordered[0]]]
        for time in ordered[1:]:
            if time - model[-1][-1] < 7:
                model[-1].append(time)
            else:
                model.append([time])
        chance.shuffle(times)
        run = Run(windowed(Count, session("7s")))
        for time in times:
            assert run.batch(("a", 0, time * 1000)) == []
        expected = [("a", some[0], some[-1] + 7, len(some)) for some in model]
        assert results(run.reach(200_000)) == expected


class TestFailing:
    def fail(self, value: Any) -> Any:
        return 1 / value

    def test_a_failing_function_fails_that_record_alone(self) -> None:
        run = Run(
            RunningAggregate("sum", Sum, self.fail),
            Step("map-1", stateless_steps.Mapping(self.fail)),
        )
        found = run.batch(("a", 1, 1), ("a", 0, 1), ("a", -1, 1), ("a", 1, 1))
        assert [each.value for each in found if not isinstance(each, Letter)] == [1, 1]
        assert [letter.headers["operator"] for letter in letters(found)] == [b"sum", b"map-1"]
        ids = [bytes.fromhex(letter.headers["id"].decode()) for letter in letters(found)]
        assert ids == [b"%020d" % 2, b"%020d" % 3]

    def test_without_a_topic_the_first_stops_the_job(self) -> None:
        run = Run(RunningAggregate("sum", Sum, self.fail), topic=None)
        with pytest.raises(
            Failed, match=r"sum failed at the message 30.*ZeroDivisionError"
        ) as error:
            run.batch(("a", 0, 1))
        assert isinstance(error.value.__cause__, ZeroDivisionError)

    def test_a_failure_behind_other_operators_is_reported_once(self) -> None:
        run = Run(
            RunningAggregate("one", Count),
            RunningAggregate("two", Count),
            RunningAggregate("bad", Sum, self.fail_all),
        )
        assert [letter.headers["operator"] for letter in letters(run.batch(("a", 0, 1)))] == [
            b"bad"
        ]

    def fail_all(self, value: Any) -> Any:
        raise ValueError(value)


class Reminder(Processor[str, str]):
    """Tells a key's last value, a second after it, and again a second later."""

    def process(self, key: Any, value: str, time_ms: int, state: State) -> list[str]:
        was, state.value = state.value, value
        state.call_at(time_ms + 1_000)
        return [f"{was} -> {value}"]

    def on_time(self, key: Any, time_ms: int, state: State) -> list[str]:
        told = f"{key}: {state.value} at {time_ms}"
        if not state.value.endswith("!"):
            state.value += "!"
            state.call_at(time_ms + 1_000)
        else:
            state.value = None
        return [told]


class TestProcessors:
    def test_a_processor_has_state_of_each_key_and_is_called_in_time(self) -> None:
        run = Run(ProcessorOperator("process", Reminder()))
        assert values(run.batch(("a", "x", 5_000), ("a", "y", 6_000), ("b", "z", 6_500))) == [
            "None -> x",
            "x -> y",
            "None -> z",
        ]
        assert values(run.reach(6_999)) == []
        assert values(run.reach(7_000)) == ["a: y at 7000"]
        assert values(run.reach(60_000)) == ["a: y! at 8000", "b: z at 7500", "b: z! at 8500"]

    def test_a_finished_key_keeps_no_state(self) -> None:
        run = Run(ProcessorOperator("process", Reminder()))
        run.batch(("a", "x", 5_000))
        run.reach(60_000)
        assert run.cells_of("a") == {}

    def test_a_timer_that_is_set_to_the_same_time_again_is_called_once(self) -> None:
        class Eager(Reminder):
            def on_time(self, key: Any, time_ms: int, state: State) -> list[str]:
                state.call_at(time_ms)
                return ["now"]

        run = Run(ProcessorOperator("process", Eager()))
        run.batch(("a", "x", 0))
        assert values(run.reach(10_000)) == ["now"]

    def test_results_go_on_through_the_chain(self) -> None:
        run = Run(ProcessorOperator("process", Reminder()), RunningAggregate("count", Count))
        assert values(run.batch(("a", "x", 0))) == [1]
        assert values(run.reach(60_000)) == [2, 3]


class Bounds(Count):
    """Gives its window."""

    def result(self, window: Window | None) -> Any:
        return window


def test_an_accumulator_of_ones_own_sees_the_window() -> None:
    run = Run(windowed(Bounds, tumbling("1s")))
    run.batch(("a", 1, 500))
    [found] = run.reach(1_000)
    assert not isinstance(found, Letter)
    assert found.value == found.window == (0, 1_000)
    assert found.time_ms == 999
