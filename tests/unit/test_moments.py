"""The one parser of moments and spans, and every door that uses it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.api.asked import parse_place
from broker.cli.command.options import SpanType, place_of
from broker.cli.messages.topics import properties_of
from broker.client.positions import start_of
from broker.config.sources import load
from broker.errors import BadRequest
from broker.moments import (
    MOMENT_MAX_MS,
    checked_ms,
    datetime_ms,
    moment_of,
    rfc3339,
    rfc3339_or_none,
    span_ms,
    whole_s,
)
from broker.places import Place
from broker.streams.stateless_steps import time_ms_of
from broker.streams.windows import duration_ms
from tests.kit.serving import Broker, topic_path

NOW_MS = 1_769_860_800_000
JSON = {"Content-Type": "application/json", "Accept": "application/json"}

DOORS: dict[str, Callable[[str], Any]] = {
    "http": lambda text: parse_place("from", text),
    "command line": lambda text: place_of(text, 0),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "text",
    [
        "2026-01-31T12:00:00Z",
        "2026-01-31t12:00z",
        "2026-01-31T12:00:00",  # Without a zone it is in UTC.
        "2026-01-31 12:00",
        "2026-01-31T13:00:00+01:00",
        "2026-01-31T13:00:00+0100",
        "2026-01-31T13:00:00 01:00",  # A plus sign that was not escaped.
        "2026-01-31T11:59:59.9999999Z",  # Rounded up to the ms.
        "2026-01-31T09:29:59.999999001-02:30",
        "1769860800000",
    ],
)
def test_every_door_reads_a_moment_in_the_same_way(door: str, text: str) -> None:
    assert DOORS[door](text) == NOW_MS


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("text", "told"),
    [
        (str(NOW_MS // 1000), "looks like seconds"),
        ("946684800", "January 1970"),  # The year 2000 in seconds.
        ("20260131", "January 1970"),
        ("60", "January 1970"),
        (str(NOW_MS * 1000), "looks like microseconds"),
        (str(NOW_MS * 10**6), "looks like nanoseconds"),
        (str((1 << 63) - 1), "nanoseconds|not a time in ms"),
        ("2026-02-30", "neither|not a moment"),
        ("31.01.2026", "neither"),
    ],
)
def test_every_door_refuses_another_unit(door: str, text: str, told: str) -> None:
    with pytest.raises((ValueError, BadRequest), match=told):
        DOORS[door](text)


@pytest.mark.parametrize("number", [NOW_MS * 10**6, NOW_MS * 1000, NOW_MS // 1000])
def test_the_client_and_a_stream_refuse_numbers_of_another_unit(number: int) -> None:
    with pytest.raises(BadRequest, match="looks like"):
        start_of(number)
    with pytest.raises(ValueError, match=r"looks like|outside the years"):
        time_ms_of(number)
    assert start_of(NOW_MS) == time_ms_of(NOW_MS) == NOW_MS


def test_a_datetime_without_a_zone_is_refused_by_the_client_and_by_a_stream() -> None:
    naive = datetime(2026, 1, 31, 12)  # noqa: DTZ001 - This is what is tested.
    with pytest.raises(BadRequest, match="no time zone"):
        start_of(naive)
    with pytest.raises(ValueError, match="no time zone"):
        time_ms_of(naive)
    aware = naive.replace(tzinfo=timezone(timedelta(hours=1)))
    assert start_of(aware) == time_ms_of(aware) == NOW_MS - 3_600_000


SPANS = [("500ms", 500), ("30s", 30_000), ("1.5h", 5_400_000), ("1d", 86_400_000)]


@pytest.mark.parametrize(("text", "ms"), SPANS)
def test_every_door_reads_a_span_in_the_same_way(text: str, ms: int) -> None:
    assert span_ms(text) == duration_ms(text) == ms
    assert SpanType().convert(text, None, None) * 1000 == ms
    assert load(flags={"server.drain_s": text}, environment={}).config.server.drain_s * 1000 == ms


@pytest.mark.parametrize("text", ["", "x", "1y", "-1s", "1 d", "9" * 400, "1e999s", "nan", "٣s"])
def test_every_door_refuses_what_is_no_span(text: str) -> None:
    for read in (span_ms, duration_ms, whole_s):
        with pytest.raises(ValueError, match=r"duration|unit|too long"):
            read(text)
    with pytest.raises(click.BadParameter):
        SpanType().convert(text, None, None)


async def test_a_ttl_may_have_a_unit_at_every_door_of_http(broker: Broker) -> None:
    path = topic_path("spans")
    reply = await broker.call("PUT", path, b'{"ttl": "1d"}', JSON)
    assert reply.status == 200, reply.body
    assert (await broker.call("GET", path)).json["ttl"] == "86400"
    await broker.call("PUT", path + "/properties", b'{"ttl": "2w"}', JSON)
    assert (await broker.call("GET", path)).json["ttl"] == "1209600"
    sent = json.dumps({"messages": [{"value": "x", "ttl": "1h"}]}).encode()
    assert (await broker.call("POST", path + "/publish?ttl=1d", sent, JSON)).status == 200
    page = (await broker.call("GET", path + "/messages")).json["messages"]
    lives_s = [
        (
            datetime.fromisoformat(one["expires_at"]) - datetime.fromisoformat(one["time"])
        ).total_seconds()
        for one in page
    ]
    assert lives_s == [3600]
    for bad in ("1y", "0", "0.5s", "1.5"):
        assert (await broker.call("POST", f"{path}/publish?ttl={bad}", sent, JSON)).status == 400
        body = json.dumps({"ttl": bad}).encode()
        assert (await broker.call("PUT", path + "/properties", body, JSON)).status == 400
    body = json.dumps({"limit": 1}).encode()
    assert (await broker.call("POST", path + "/poll?wait=1ms", body, JSON)).status == 200
    assert (await broker.call("POST", path + "/poll?wait=2m", body, JSON)).status == 400
    timed = {**JSON, "Request-Timeout": "500ms"}
    assert (await broker.call("GET", path, b"", timed)).status == 200


def test_a_property_of_the_command_line_may_have_a_unit() -> None:
    assert properties_of(["ttl=1d"], any_property=False) == {"ttl": "86400"}
    with pytest.raises(click.BadParameter, match="ttl"):
        properties_of(["ttl=1y"], any_property=False)


@given(st.integers(10**10, MOMENT_MAX_MS))
def test_a_number_of_ms_is_kept(number: int) -> None:
    assert checked_ms(number) == number


@given(st.datetimes(min_value=datetime(1970, 1, 2), timezones=st.just(UTC)))  # noqa: DTZ001
def test_the_text_of_a_datetime_is_read_as_the_datetime(moment: datetime) -> None:
    assert moment_of(moment.isoformat()) == datetime_ms(moment)


# Moments as replies have them.

NOON_MS = 1_763_640_000_123


def test_moments_are_written_in_utc_with_milliseconds() -> None:
    assert rfc3339(0) == "1970-01-01T00:00:00.000Z"
    assert rfc3339(NOON_MS) == "2025-11-20T12:00:00.123Z"
    assert rfc3339((1 << 63) - 1).startswith("9999-12-31")
    assert rfc3339_or_none((1 << 63) - 1) is None
    assert rfc3339_or_none(0) == "1970-01-01T00:00:00.000Z"


@given(st.integers(10**10, 253_402_300_799_999))
def test_a_written_moment_is_read_back(time_ms: int) -> None:
    assert moment_of(rfc3339(time_ms)) == time_ms


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
