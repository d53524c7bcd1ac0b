import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.model import LOG_KEY_MIN, first_log_key_at, log_key
from broker.spark.offsets import (
    SourceOffset,
    beat_ms_of,
    first_offset,
    next_offset,
    place_in,
    range_of,
)

IDS = st.builds(
    lambda ms, seq: log_key(ms, seq) + LOG_KEY_MIN, st.integers(0, 1 << 50), st.integers(0, 0xFFFF)
)


AT = '{"v": 2, "topic": "n/t", "generation": 3,'


def ident(number: int) -> bytes:
    return log_key(number, 0) + LOG_KEY_MIN


@given(IDS)
def test_a_message_lies_behind_the_place_before_it_and_no_other_row_does(identifier: bytes) -> None:
    place = SourceOffset.of(identifier)
    assert place.after < identifier or identifier == bytes(20)
    assert int.from_bytes(identifier[:10], "big") - int.from_bytes(place.after[:10], "big") <= 1


@given(st.integers(0, 1 << 60))
def test_a_time_begins_with_the_first_millisecond_that_is_not_earlier(time_us: int) -> None:
    milliseconds = -(-time_us // 1000)
    assert (
        SourceOffset.at_time(time_us).after
        == SourceOffset.of(first_log_key_at(milliseconds) + LOG_KEY_MIN).after
    )


def test_the_end_of_a_first_batch_says_where_it_began() -> None:
    start = first_offset("n/t", 3, ident(5))
    end = next_offset(start, ident(5), ident(9))
    assert range_of(start, end) == (ident(5), ident(9))
    # A later run starts elsewhere: the batch that is repeated has the same range.
    assert range_of(first_offset("n/t", 3, ident(8)), end) == (ident(5), ident(9))
    assert range_of(first_offset("n/t", 3, ident(11)), end) == (ident(5), ident(9))


def test_later_batches_begin_where_the_one_before_ended() -> None:
    first = next_offset(first_offset("n/t", 3, ident(5)), ident(5), ident(9))
    second = next_offset(first, ident(9), ident(12))
    assert "from" not in second
    assert range_of(first, second) == (ident(9), ident(12))


def test_a_batch_with_messages_of_another_source_only_is_empty() -> None:
    after, through = range_of(first_offset("n/t", 3, ident(8)), first_offset("n/t", 3, ident(5)))
    assert after >= through


def test_an_offset_keeps_its_text() -> None:
    """Spark compares the text of an offset with the text that an earlier version wrote."""
    start = first_offset("n/t", 3, ident(5))
    assert json.dumps(start) == AT + ' "id": "' + ident(5).hex() + '", "init": true}'
    end = next_offset(start, ident(5), ident(6))
    assert (
        json.dumps(end) == AT + ' "id": "' + ident(6).hex() + '", "from": "' + ident(5).hex() + '"}'
    )
    assert json.dumps(next_offset(end, ident(6), ident(7))) == (
        AT + ' "id": "' + ident(7).hex() + '"}'
    )
    beat = next_offset(end, ident(6), ident(6), 1764000000000)
    assert json.dumps(beat) == AT + ' "id": "' + ident(6).hex() + '", "beat": 1764000000000}'
    assert (
        json.dumps(next_offset(start, ident(5), ident(5), 7))
        == AT + ' "id": "' + ident(5).hex() + '", "from": "' + ident(5).hex() + '", "beat": 7}'
    )


def test_a_heart_beat_lies_between_two_offsets_that_differ_and_has_no_messages() -> None:
    start = first_offset("n/t", 3, ident(5))
    first = next_offset(start, ident(5), ident(5), 700)
    second = next_offset(first, ident(5), ident(5), 900)
    message = next_offset(second, ident(5), ident(6))
    assert range_of(start, first) == range_of(first, second) == (ident(5), ident(5))
    assert (beat_ms_of(start, first), beat_ms_of(first, second)) == (700, 900)
    assert range_of(second, message) == (ident(5), ident(6))
    assert beat_ms_of(second, message) is None
    assert beat_ms_of(second, dict(second)) is None


WHOLE = {"v": 2, "topic": "n/t", "generation": 1, "id": ident(5).hex()}
DAMAGED = [
    {"v": 1, "id": ident(5).hex()},
    *({name: value for name, value in WHOLE.items() if name != left_out} for left_out in WHOLE),
    {**WHOLE, "id": WHOLE["id"][:-1]},
    {**WHOLE, "id": None},
    {**WHOLE, "topic": 1},
    {**WHOLE, "generation": "1"},
    {**WHOLE, "from": "12"},
    {**WHOLE, "beat": "12"},
    [],
]


@pytest.mark.parametrize("offset", DAMAGED, ids=str)
def test_an_offset_of_another_version_or_a_damaged_one_is_refused(offset: Any) -> None:
    assert place_in(WHOLE, "n/t") == (ident(5), 1)
    with pytest.raises(ValueError, match="use the version that wrote it"):
        place_in(offset, "n/t")
