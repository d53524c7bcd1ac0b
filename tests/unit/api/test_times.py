from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.api.asked_places import parse_place
from broker.errors import BadRequest
from broker.moments import moment_of, rfc3339, rfc3339_or_none
from broker.places import Place

NOON_MS = 1_763_640_000_123


def test_moments_are_written_in_utc_with_milliseconds() -> None:
    assert rfc3339(0) == "1970-01-01T00:00:00.000Z"
    assert rfc3339(NOON_MS) == "2025-11-20T12:00:00.123Z"
    assert rfc3339((1 << 63) - 1).startswith("9999-12-31")
    assert rfc3339_or_none((1 << 63) - 1) is None
    assert rfc3339_or_none(0) == "1970-01-01T00:00:00.000Z"


@given(st.integers(0, 253_402_300_799_999))
def test_a_written_moment_is_read_back(time_ms: int) -> None:
    assert moment_of(rfc3339(time_ms)) == time_ms


@pytest.mark.parametrize(
    "text",
    [
        "2025-11-20T12:00:00.123Z",
        "2025-11-20t12:00:00.123z",
        "2025-11-20 12:00:00.122001Z",  # A fraction of a ms is rounded up.
        "2025-11-20T12:00:00.123",  # Without a zone it is in UTC.
        "2025-11-20T13:00:00.123+01:00",
        "2025-11-20T13:00:00.123 01:00",  # A plus sign that was not escaped.
        "2025-11-20T09:30:00.122000001-02:30",
    ],
)
def test_forms_of_one_moment(text: str) -> None:
    assert moment_of(text) == NOON_MS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2025-11-20Z",
        "2025-11-20T12",
        "2025-13-20T12:00:00Z",
        "2025-11-20T25:00:00Z",
        "2025-11-20T12:00:00+99:00",
        "\u0662\u0660\u0662\u0665-11-20T12:00:00Z",
        "2025-11-20T12:00:00.Z",
    ],
)
def test_an_invalid_moment_is_malformed(text: str) -> None:
    with pytest.raises(ValueError, match=r"moment|time of the day"):
        moment_of(text)


def test_places() -> None:
    assert parse_place("from", "00" * 20) == Place(bytes(20))
    assert parse_place("from", "1" * 40) == Place(bytes.fromhex("11" * 20))
    assert parse_place("from", "1763640000123") == NOON_MS
    assert parse_place("from", "2025-11-20T12:00:00.123Z") == NOON_MS
    assert parse_place("from", "1969-12-31T00:00:00Z") == 0
    assert parse_place("from", "2025-11-20") == NOON_MS - 43_200_123
    for text in ("", "-1", "1.5", "zz" * 20, "00" * 19, str((1 << 63) - 1), "9" * 400):
        with pytest.raises(BadRequest, match=r"^from: "):
            parse_place("from", text)
    with pytest.raises(BadRequest, match=r"'now' is neither a message id .*, ms since 1970, nor a"):
        parse_place("to", "now")
    with pytest.raises(BadRequest, match="from: 1795467053 looks like seconds"):
        parse_place("from", "1795467053")


def test_rfc3339_agrees_with_the_calendar() -> None:
    moment = datetime(2024, 2, 29, 23, 59, 59, 999_000, tzinfo=UTC)
    assert rfc3339(int(moment.timestamp() * 1000)) == "2024-02-29T23:59:59.999Z"
