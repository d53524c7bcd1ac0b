"""Every method of the client accepts the same kinds of places: an id, or a moment."""

from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import pandas as pd
import pytest

from broker.client import Snapshot, TailOptions
from broker.client.client_request import Reply
from broker.client.positions import before, id_of, start_of
from broker.errors import BadRequest, TopicNotFound
from broker.model import LOG_KEY_MAX, log_key
from broker.moments import MOMENT_MAX_MS
from broker.wire import avro
from tests.kit.request_bodies import read_poll

ID = log_key(1_764_000_000_123, 7) + bytes(10)
MOMENT = datetime(2026, 1, 31, 12, 0, 0, 123_000, tzinfo=UTC)
MOMENT_MS = 1_769_860_800_123


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (None, None),
        (ID, ID),
        (ID.hex(), ID),
        (ID.hex().upper(), ID),
        (0, 0),
        (MOMENT_MS, MOMENT_MS),
        (np.int64(MOMENT_MS), MOMENT_MS),
        (MOMENT, MOMENT_MS),
        (MOMENT.astimezone(timezone(timedelta(hours=-7))), MOMENT_MS),
        (pd.Timestamp(MOMENT), MOMENT_MS),
        (MOMENT + timedelta(microseconds=1), MOMENT_MS + 1),
        (MOMENT - timedelta(microseconds=1), MOMENT_MS),
        (datetime(1969, 12, 31, tzinfo=UTC), 0),
        (datetime(1970, 2, 1, tzinfo=UTC), 0),
        (datetime.max.replace(tzinfo=UTC), MOMENT_MAX_MS),
    ],
)
def test_a_place_is_an_id_or_a_moment(place, expected):
    assert start_of(place) == expected


@pytest.mark.parametrize(
    ("place", "error", "told"),
    [
        (b"short", BadRequest, "where: a message id has 20 bytes, not 5"),
        (ID.hex() + "00", BadRequest, "where: A message id has 40 hex digits"),
        ("2026-01-31T12:00:00Z", BadRequest, "moment is given as a datetime with a time zone"),
        ("now", BadRequest, "40 hex digits, not 'now'"),
        (datetime(2026, 1, 31), BadRequest, "has no time zone"),  # noqa: DTZ001
        (-1, BadRequest, "where: -1 is not a time"),
        (60, BadRequest, "where: 60 is a time of January 1970"),
        (1 << 63, BadRequest, "is not a time"),
        (
            1_795_467_053,
            BadRequest,
            "where: 1795467053 looks like seconds .* Give ms: 1795467053000",
        ),
        (date(2026, 1, 31), TypeError, "where: give a message id .* not date"),
        (1.5, TypeError, "not float 1.5"),
        (True, TypeError, "not bool True"),
        ([ID], TypeError, "not list"),
        (bytearray(ID), TypeError, "not bytearray"),
    ],
)
def test_a_bad_place_is_refused_with_advice(place, error, told):
    with pytest.raises(error, match=told):
        start_of(place, "where")


@pytest.mark.parametrize(
    ("identifier", "error"), [("12", BadRequest), (b"", BadRequest), (5, TypeError)]
)
def test_where_an_id_is_needed_only_an_id_is_accepted(identifier, error):
    assert id_of(ID, "after") == id_of(ID.hex(), "after") == ID
    with pytest.raises(error, match="after"):
        id_of(identifier, "after")


ONCE = TailOptions(follow=False)
SNAPSHOT = Snapshot(transaction_id=7, read_pointer=7)
POLLING = {
    "poll": lambda client, place: client.poll("t", place),
    "transaction": lambda client, place: client.transaction_publisher(7, SNAPSHOT).poll("t", place),
    "tail": lambda client, place: anext(client.tail("t", place, options=ONCE), None),
    "tail_pages": lambda client, place: anext(client.tail_pages("t", place, options=ONCE), None),
}
ASKING = {
    "browse-start": lambda client, place: client.browse("t", start=place),
    "browse-stop": lambda client, place: client.browse("t", stop=place),
    "events": lambda client, place: anext(client.events("t", place)),
}
NAMING = {
    "range-after": lambda client, place: client.range("t", after=place),
    "range-through": lambda client, place: client.range("t", through=place),
    "lag": lambda client, place: client.lag("t", place),
    "arrow-through": lambda client, place: anext(client.read_arrow("t", through=place)),
    "arrow-after": lambda client, place: anext(client.read_arrow("t", through=ID, after=place)),
}
DOORS = POLLING | ASKING | NAMING


@pytest.mark.parametrize("door", POLLING)
async def test_every_poll_takes_a_datetime(make_client, transport, door):
    transport.answer = lambda _: [b"\0"]
    async with make_client() as client:
        await POLLING[door](client, MOMENT)
    assert [read_poll(avro, request.body).start for request in transport.requests] == [MOMENT_MS]


@pytest.mark.parametrize("door", ASKING)
async def test_every_query_takes_a_datetime(make_client, transport, door):
    transport.answer = lambda _: Reply(404, {"broker-error": "topic_not_found"}, b"no")
    async with make_client() as client:
        with pytest.raises(TopicNotFound):
            await ASKING[door](client, MOMENT)
    (request,) = transport.requests
    assert f"={MOMENT_MS}" in request.path


@pytest.mark.parametrize("door", NAMING)
async def test_every_id_may_be_hex(make_client, transport, door):
    transport.answer = lambda _: Reply(404, {"broker-error": "topic_not_found"}, b"no")
    async with make_client() as client:
        with pytest.raises(TopicNotFound):
            await NAMING[door](client, ID.hex().upper())
    (request,) = transport.requests
    assert f"={ID.hex()}" in request.path


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("place", [datetime(2026, 1, 31), "2026-01-31T12:00:00Z", 1.5])  # noqa: DTZ001
async def test_no_method_sends_a_bad_place(make_client, transport, door, place):
    async with make_client() as client:
        with pytest.raises((BadRequest, TypeError)):
            await DOORS[door](client, place)
    assert transport.requests == []


def test_reading_after_the_id_before_a_place_begins_at_it():
    row = log_key(1000, 7)
    assert before(row + bytes(10)) == log_key(1000, 6) + LOG_KEY_MAX
    assert before(row + log_key(5, 2)) == row + log_key(5, 1)
    assert before(1000) == log_key(999, 65535) + LOG_KEY_MAX
    assert before(bytes(20)) == before(0) == bytes(20)
