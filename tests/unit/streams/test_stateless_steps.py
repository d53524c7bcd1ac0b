"""Steps without state, and the dead letters of records that fail in them."""

from asyncio import CancelledError
from datetime import UTC, datetime
from typing import Any

import pytest

from broker.streams import stateless_steps
from broker.streams.failures import Failed, Failures, late_letter, payload_of
from broker.streams.operators import Chain
from broker.streams.stateless_steps import Step
from broker.streams.stream_records import (
    BEAT,
    COLUMNS,
    LETTER,
    MESSAGES,
    RECORD,
    Letter,
    StreamRecord,
    beat_row,
    kinds_of,
    lists_of,
    packed_rows,
    unpacked_records,
)
from broker.streams.windows import Window
from broker.wire.attributes import encode

ID = bytes(range(20))


def through(*takes: stateless_steps.Take, value: Any = 1, topic: str | None = "dead") -> list[Any]:
    made = [Step(f"step-{place}", take) for place, take in enumerate(takes, 1)]
    record = StreamRecord(value, ID, 5_000, payload=b"message")
    return list(stateless_steps.run(made, Failures("job", topic), record))


def given(*takes: stateless_steps.Take, value: Any = 1) -> list[Any]:
    return [each.value for each in through(*takes, value=value)]


def test_map_drops_none_and_keeps_false_values() -> None:
    assert given(stateless_steps.Mapping(lambda _: None)) == []
    assert given(stateless_steps.Mapping(lambda _: 0)) == [0]
    assert (
        given(stateless_steps.Mapping(lambda _: None), stateless_steps.Mapping(lambda value: 1 / 0))
        == []
    )


def test_flat_map_drops_none_and_lists_that_are_none() -> None:
    assert given(stateless_steps.FlatMapping(lambda _: None)) == []
    assert given(stateless_steps.FlatMapping(lambda _: [1, None, 0])) == [1, 0]
    assert given(stateless_steps.FlatMapping(lambda _: iter("ab"))) == ["a", "b"]


def test_results_of_flat_maps_have_places_in_their_order() -> None:
    found = through(*[stateless_steps.FlatMapping(lambda value: range(3))] * 2)
    places = [each.at for each in found]
    assert places == sorted(set(places))
    assert all(place.startswith(ID) for place in places)
    assert ID < places[0] < ID[:-1] + b"\xff"


def test_filter_and_foreach() -> None:
    seen: list[int] = []
    odd = stateless_steps.Filtering(lambda value: value % 2)
    assert given(stateless_steps.Tapping(seen.append), odd, value=2) == []
    assert given(odd, stateless_steps.Tapping(seen.append), value=3) == [3]
    assert seen == [2, 3]


def test_keys_and_times_come_from_the_value() -> None:
    [found] = through(
        stateless_steps.Keying(lambda value: ("k", value)),
        stateless_steps.Timing(lambda value: value * 1000),
    )
    assert (found.key, found.time_ms, found.value) == (("k", 1), 1_000, 1)


def test_to_stream_has_key_value_and_window() -> None:
    record = StreamRecord(1, ID, 0, "k", Window(0, 10))
    function = stateless_steps.ValueFunction(lambda *parts: parts)
    assert [each.value for each in function(record)] == [("k", 1, (0, 10))]
    assert list(stateless_steps.ValueFunction(lambda *_: None)(record)) == []


def test_a_time_is_a_number_or_a_datetime_with_a_zone() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert stateless_steps.time_ms_of(moment) == 1_767_225_600_000
    assert stateless_steps.time_ms_of(12.9) == 12
    with pytest.raises(ValueError, match="no time zone"):
        stateless_steps.time_ms_of(moment.replace(tzinfo=None))
    for wrong in ("12", None, True):
        with pytest.raises(TypeError, match="is no time: give ms"):
            stateless_steps.time_ms_of(wrong)


@pytest.mark.parametrize("time", [1e30, -1e30, 1_700_000_000_000_000_000, float("nan")])
def test_a_time_is_of_the_years_1_to_9999(time: float) -> None:
    last = datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)
    assert stateless_steps.time_ms_of(stateless_steps.time_ms_of(last))
    with pytest.raises(ValueError, match="outside the years 1 to 9999"):
        stateless_steps.time_ms_of(time)


def test_a_function_that_raises_fails_only_its_record() -> None:
    with pytest.raises(ZeroDivisionError) as divided:
        divmod(6, 0)
    divide = stateless_steps.Mapping(lambda value: 6 // value)
    found = through(
        stateless_steps.FlatMapping(lambda _: [1, 0, 2]), divide, stateless_steps.Mapping(str)
    )
    assert [getattr(each, "value", None) for each in found] == ["6", None, "3"]
    letter = found[1]
    assert isinstance(letter, Letter)
    assert (letter.topic, letter.payload) == ("dead", b"message")
    assert {
        name: letter.headers[name] for name in ("reason", "job", "operator", "id", "error")
    } == {
        "reason": b"error",
        "job": b"job",
        "operator": b"step-2",
        "id": ID.hex().encode(),
        "error": f"ZeroDivisionError: {divided.value}".encode(),
    }
    assert b"test_stateless_steps.py" in letter.headers["stack"]


class Odd(BaseException):
    pass


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


@pytest.mark.parametrize(
    "error", [StopIteration(), GeneratorExit(), CancelledError(), Odd(), Unspeakable()]
)
def test_any_end_of_a_function_fails_only_its_record(error: BaseException) -> None:
    def fails(_: Any) -> None:
        raise error

    [letter] = through(stateless_steps.Mapping(fails))
    assert (letter.topic, letter.payload) == ("dead", b"message")
    with pytest.raises(Failed, match="step-1 failed at"):
        through(stateless_steps.Mapping(fails), topic=None)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_function_may_end_the_program(error: type[BaseException]) -> None:
    def ends(_: Any) -> None:
        raise error

    with pytest.raises(error):
        through(stateless_steps.Mapping(ends))


def test_a_flat_map_that_fails_half_way_keeps_its_earlier_results() -> None:
    def some(value: int) -> Any:
        yield value
        raise RuntimeError

    found = through(stateless_steps.FlatMapping(some))
    assert [type(each) for each in found] == [StreamRecord, Letter]


def test_without_a_topic_the_job_stops_and_says_where() -> None:
    with pytest.raises(Failed, match=rf"step-2 failed at the message {ID.hex()} .*dead_letters="):
        through(stateless_steps.Mapping(str), stateless_steps.Mapping(int.__neg__), topic=None)


class TestLetters:
    def test_without_its_message_a_letter_has_the_value(self) -> None:
        values = [{"a": 1}, b"\xff", {1, 2}, 2**70, {(1, 2): object}]
        assert payload_of(StreamRecord(values[0], ID, 0)) == b'{"a":1}'
        assert all(payload_of(StreamRecord(value, ID, 0)) for value in values)
        assert payload_of(StreamRecord(1, ID, 0, payload=b"\x00raw")) == b"\x00raw"

    def test_a_value_or_a_key_that_can_not_be_shown_fails_alone(self) -> None:
        record = StreamRecord(Unspeakable(), b"", 0, Unspeakable())
        letter = Failures("job", "dead").letter("error", "op", record, ValueError())
        assert letter.payload == letter.headers["key"] == b"a Unspeakable, whose repr fails"
        with pytest.raises(Failed, match="a Unspeakable, whose repr fails"):
            Failures("job", None).letter("error", "op", record, ValueError())

    def test_a_long_error_is_cut_and_its_end_is_kept(self) -> None:
        error = ValueError("\ud800" + "x" * 100_000)
        record = StreamRecord(1, b"", 0, "k" * 100_000)
        letter = Failures("job", "dead").letter("error", "op", record, error)
        assert encode(None, letter.headers)
        assert letter.headers["error"].startswith(b"ValueError: \\ud800xxx")
        assert letter.headers["stack"].endswith(b"xxx\n")
        record.at, record.window = ID, Window(0, 1)
        assert encode(None, late_letter("job", "op", "late", record).headers)

    def test_a_letter_of_no_message_has_its_key(self) -> None:
        record = StreamRecord(None, b"", 9_999, ("a", 1))
        letter = Failures("job", "dead").letter("error", "op", record, ValueError())
        assert (letter.headers["key"], letter.headers["time"]) == (b'["a",1]', b"9999")
        with pytest.raises(Failed, match=r"op failed at the key \('a', 1\)"):
            Failures("job", None).letter("error", "op", record, ValueError())

    def test_a_late_letter_tells_the_window(self) -> None:
        record = StreamRecord({"n": 1}, ID, 5, {1, 2}, Window(0, 10))
        letter = late_letter("job", "count-1", None, record)
        assert letter.topic is None
        assert letter.headers["reason"] == b"late"
        assert (letter.headers["start"], letter.headers["end"]) == (b"0", b"10")


NAMES = list(kinds_of(COLUMNS))


class TestRows:
    def test_columns_are_named(self) -> None:
        assert kinds_of(MESSAGES)["headers"] == "MAP<STRING, BINARY>"
        assert set(kinds_of(MESSAGES)) < set(NAMES)
        assert lists_of("a BINARY, b MAP<STRING, BINARY>") == (
            "a ARRAY<BINARY>, b ARRAY<MAP<STRING, BINARY>>"
        )

    def test_records_of_a_key_travel_in_one_row_and_are_read_back(self) -> None:
        records = [
            StreamRecord({"n": {n}}, ID + bytes([n]), 5 - n, "k", Window(0, n)) for n in range(3)
        ]
        other = StreamRecord(None, ID, 9, "l")
        rows = [each.row(each.key.encode()) for each in (*records, other)]
        packed = list(packed_rows([*rows, beat_row(7)]))
        assert [(row[0], row[2], row[3]) for row in packed] == [
            (BEAT, 7, b""),
            (RECORD, 5, b"k"),
            (RECORD, 9, b"l"),
        ]
        found = list(unpacked_records(packed[1], "k", Chain([], Failures("job", None)).unreadable))
        assert len(found) == 3
        for mine, theirs in zip(found, records, strict=True):
            for name in ("value", "at", "time_ms", "key", "window", "side"):
                assert getattr(mine, name) == getattr(theirs, name)

    def test_beats_and_letters_have_no_key(self) -> None:
        beat = dict(zip(NAMES, beat_row(5), strict=True))
        assert (beat["kind"], beat["time"], beat["key"]) == (BEAT, 5, b"")
        letter = dict(zip(NAMES, Letter("t", b"p", {"h": b"v"}).row(), strict=True))
        assert (letter["kind"], letter["topic"], letter["value"]) == (LETTER, "t", b"p")
