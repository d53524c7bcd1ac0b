"""Windows against the plainest model of them: try every window, and look whether it holds the time."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.streams.windows import SessionWindow, Window, duration_ms, session, sliding, tumbling

TIMES = st.integers(-100, 100)


@given(TIMES, st.integers(1, 12), st.integers(1, 12))
def test_sliding_windows_are_those_that_hold_the_time(time: int, one: int, other: int) -> None:
    size, slide = max(one, other), min(one, other)
    windows = sliding(timedelta(milliseconds=size), timedelta(milliseconds=slide))
    starts = [start for start in range(-200, 200) if start % slide == 0]
    held = [Window(start, start + size) for start in starts if start <= time < start + size]
    assert windows.windows_of(time) == held


@given(TIMES, st.integers(1, 12))
def test_each_time_has_one_tumbling_window(time: int, size: int) -> None:
    [window] = tumbling(timedelta(milliseconds=size)).windows_of(time)
    assert window == Window(time // size * size, time // size * size + size)


def test_windows_are_half_open() -> None:
    assert tumbling("10s").windows_of(9_999) == [(0, 10_000)]
    assert tumbling("10s").windows_of(10_000) == [(10_000, 20_000)]
    assert sliding("5s", "2s").windows_of(5_000) == [(2_000, 7_000), (4_000, 9_000)]


def test_a_session_alone_ends_a_gap_behind_its_record() -> None:
    assert session("5s") == SessionWindow(5_000)
    assert session("5s").window_of(7_000) == (7_000, 12_000)


@pytest.mark.parametrize(
    ("duration", "ms"),
    [
        ("500ms", 500),
        ("10s", 10_000),
        ("1.5s", 1_500),
        ("5m", 300_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        (timedelta(seconds=1, microseconds=500), 1_000),
    ],
)
def test_durations(duration: str | timedelta, ms: int) -> None:
    assert duration_ms(duration) == ms


@pytest.mark.parametrize("wrong", ["", "10", "1.5ms", "-1s", "s", "10 weeks", 10, None], ids=repr)
def test_an_invalid_duration_is_refused_with_advice(wrong) -> None:
    with pytest.raises(ValueError, match=r"duration|whole number"):
        duration_ms(wrong)


@pytest.mark.parametrize("make", [tumbling, session, lambda size: sliding("10s", size)])
@pytest.mark.parametrize("none", ["0s", timedelta(0), timedelta(seconds=-1)])
def test_a_window_needs_a_size(make, none) -> None:
    with pytest.raises(ValueError, match="must be at least 1ms"):
        make(none)


def test_a_slide_longer_than_its_window_is_refused() -> None:
    with pytest.raises(ValueError, match="leaves out times"):
        sliding("2s", "5s")


def test_windows_describe_themselves() -> None:
    told = [str(windows) for windows in (tumbling("1s"), sliding("5s", "2s"), session("3s"))]
    assert told == [
        "tumbling 1000 ms",
        "sliding 5000 ms every 2000 ms",
        "sessions with gaps of 3000 ms",
    ]
