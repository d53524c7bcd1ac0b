"""The state of a job is shown without importing or running the job."""

import enum
import json
import os
import pickle
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from typing_extensions import override

from broker.streams import Accumulator, tumbling
from broker.streams.accumulators import Avg, Count, Max
from broker.streams.changes import BY_SPARK, UNTIMED
from broker.streams.join_operators import LEFT, RIGHT
from broker.streams.key_codec import encode_key
from broker.streams.operators import packed
from broker.streams.state_view import (
    StateEntry,
    StateLocation,
    is_wanted,
    key_shown,
    name_of,
    of_cells,
    of_columns,
    shown,
    text_of,
    unpickled,
)
from broker.streams.windows import Window

HOUR = Window(1_767_225_600_000, 1_767_229_200_000)
HOUR_SHOWN = {"start": "2026-01-01T00:00:00.000Z", "end": "2026-01-01T01:00:00.000Z"}


class Colour(enum.Enum):
    RED = 1


class Point(NamedTuple):
    x: int
    y: int


@dataclass(frozen=True)
class Customer:
    name: str
    city: str


class Spread(Accumulator[int, int]):
    """An accumulator with slots and a class of its own inside."""

    __slots__ = ("_seen", "last")

    def __init__(self) -> None:
        self._seen = {1, 3}
        self.last = Customer("ann", "Rome")

    @override
    def add(self, value: int) -> None:
        self._seen.add(value)

    @override
    def result(self, window: Window | None) -> int:
        return len(self._seen)


def added(accumulator: Any, *values: Any) -> Any:
    for value in values:
        accumulator.add(value)
    return accumulator


def entries(cells: dict[str, Any], key: Any = "k") -> list[StateEntry]:
    return list(of_cells(encode_key(key), packed(cells)))


def test_a_running_aggregate_shows_the_fields_of_its_accumulator() -> None:
    assert entries({"count-1": {"sum": added(Count(), 1, 1)}}) == [
        StateEntry("count-1", "k", None, {"count": 2})
    ]


def test_a_window_shows_its_times_and_each_is_an_entry_the_earliest_first() -> None:
    later = Window(HOUR.end_ms, HOUR.end_ms + 1)
    found = entries({"avg-1": {later: added(Avg(), 9), HOUR: added(Avg(), 1, 2)}})
    assert found[0] == StateEntry("avg-1", "k", HOUR_SHOWN, {"sum": 3, "count": 2})
    assert found[1].window is not None
    assert found[1].window["start"] == HOUR_SHOWN["end"]


def test_all_operators_of_a_chain_are_shown() -> None:
    cells = {"max-1": {"sum": added(Max(), (3, "c"))}, "count-1": {"sum": added(Count(), 1)}}
    assert [(each.operator, each.kept) for each in entries(cells)] == [
        ("max-1", {"best": [3, "c"]}),
        ("count-1", {"count": 1}),
    ]


@pytest.mark.parametrize(
    ("cell", "window", "kept"),
    [
        ({LEFT: {"id": 1}, RIGHT: None}, None, {"left": {"id": 1}, "right": None}),
        ({HOUR: {RIGHT: [1, 2]}}, HOUR_SHOWN, {"right": [1, 2]}),
    ],
)
def test_a_join_shows_its_sides(cell: Any, window: Any, kept: Any) -> None:
    assert entries({"join-1": cell}) == [StateEntry("join-1", "k", window, kept)]


def test_a_processor_shows_its_value_and_when_it_is_called() -> None:
    cell = {"value": Customer("ann", "Rome"), "due": HOUR.start_ms}
    assert entries({"process-1": cell}) == [
        StateEntry(
            "process-1",
            "k",
            None,
            {
                "value": {"class": "Customer", "name": "ann", "city": "Rome"},
                "due": HOUR_SHOWN["start"],
            },
        )
    ]


def test_an_accumulator_of_the_users_shows_its_fields_without_its_class() -> None:
    [found] = entries({"aggregate-1": {"sum": Spread()}})
    assert found.kept == {
        "seen": [1, 3],
        "last": {"class": "Customer", "name": "ann", "city": "Rome"},
    }


@pytest.mark.parametrize(
    ("value", "as_json"),
    [
        (b"text", "text"),
        (b"\xff", {"base64": "/w=="}),
        ((1, [2.5, None]), [1, [2.5, None]]),
        (float("nan"), "nan"),
        ({1: "a", (2, 3): "b"}, {"1": "a", "[2, 3]": "b"}),
        (datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00+00:00"),
        (Decimal("1.50"), "1.50"),
        (Colour.RED, {"class": "Colour", "parts": [1]}),
        (Point(1, 2), {"class": "Point", "parts": [1, 2]}),
        (Counter("aab"), {"class": "Counter", "parts": [{"a": 2, "b": 1}]}),
        (OrderedDict(a=1), {"a": 1}),
        (deque([1, 2]), [1, 2]),
        (HOUR, HOUR_SHOWN),
    ],
)
def test_every_value_is_shown_as_json_has_it(value: Any, as_json: Any) -> None:
    found = shown(unpickled(pickle.dumps(value)))
    assert found == as_json
    json.dumps(found, allow_nan=False)


def test_endless_nesting_is_cut() -> None:
    value: list[Any] = []
    value.append(value)
    assert "…" in json.dumps(shown(unpickled(pickle.dumps(value))), ensure_ascii=False)


class Runs:
    """An object that runs a command when it is unpickled."""

    @override
    def __reduce__(self) -> Any:
        return os.putenv, ("SHOWN", "yes")


def test_looking_at_state_runs_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    state = pickle.dumps(Runs())
    monkeypatch.setattr(os, "putenv", lambda *given: ran.append(given))
    assert shown(unpickled(state)) == {"class": "putenv", "parts": ["SHOWN", "yes"]}
    assert ran == []


def test_bytes_that_are_no_state_are_refused() -> None:
    with pytest.raises(ValueError, match="can't be read"):
        unpickled(b"no pickle")


@pytest.mark.parametrize(
    ("key", "as_json"),
    [
        ("a", "a"),
        (7, 7),
        (None, None),
        (("a", 1), ["a", 1]),
        (Customer("ann", "Rome"), {"class": "Customer", "parts": ["ann", "Rome"]}),
        (Colour.RED, {"class": "Colour", "parts": ["RED"]}),
    ],
)
def test_a_key_is_shown_without_its_class(key: Any, as_json: Any) -> None:
    assert key_shown(encode_key(key)) == as_json


@pytest.mark.parametrize(
    ("operator", "key", "is_it"),
    [
        (None, None, True),
        ("count-1", '["a", 1]', True),
        ("count-2", None, False),
        (None, "a", False),
    ],
)
def test_entries_are_found_by_operator_and_by_their_keys_text(
    operator: str | None, key: str | None, is_it: bool
) -> None:
    entry = StateEntry("count-1", ["a", 1], None, {})
    assert is_wanted(entry, operator, key) is is_it
    assert text_of("a") == "a"


def test_an_aggregate_of_sparks_shows_its_columns() -> None:
    bounds = {
        "start": datetime(2026, 1, 1, tzinfo=UTC),
        "end": datetime(2026, 1, 1, 1),  # noqa: DTZ001 - As Spark gives it, in a session of UTC.
    }
    found = of_columns("sum-1", None, {"window": bounds, "_key": "a"}, {"sum": 2.0})
    assert found == StateEntry("sum-1", "a", HOUR_SHOWN, {"sum": 2.0})
    key = {"_key": "a", "sessionStartTime": bounds["start"]}
    value = {"session_window": bounds, "_key": "a", "count": 2}
    assert of_columns("count-1", None, key, value) == StateEntry(
        "count-1", "a", HOUR_SHOWN, {"count": 2}
    )


def test_a_join_of_sparks_shows_one_side_of_a_row() -> None:
    bounds = {"start": datetime(2026, 1, 1, tzinfo=UTC), "end": datetime(2026, 1, 1, 1, tzinfo=UTC)}
    value = {"_left_bounds": bounds, "_left_key": "a", "_left_at": b"\x00", "left": {"id": 1}}
    found = of_columns("join-1", "left", {"field0": "a"}, value)
    assert found == StateEntry("join-1", "a", HOUR_SHOWN, {"left": {"id": 1}})
    pruned = {"_left_bounds": bounds, "_left_key": "a", "_extract_id": 1}
    found = of_columns("join-1", "left", {"field0": "a"}, pruned)
    assert found.kept == {"left": {"_extract_id": 1}}


def test_the_columns_of_spark_have_the_operators_name_if_it_can_be_only_one() -> None:
    place = StateLocation(0, "stateStoreSave")
    hourly = f"sum by {tumbling('1h')}"
    native = {"operators": {"sum-1": hourly}, "run": BY_SPARK}
    chain = {"operators": {"sum-2": hourly, "count-1": "count"}, "run": UNTIMED}
    assert name_of(place, [chain, native]) == "sum-1"
    assert (
        name_of(place, [native, {**native, "operators": {"sum-3": hourly}}]) == "stateStoreSave-0"
    )
    assert StateLocation(0, "symmetricHashJoin").sides == ("left", "right")
    assert StateLocation(0, "transformWithStateInPySparkExec").is_chain
