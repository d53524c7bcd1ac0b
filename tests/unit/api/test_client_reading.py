"""A range that a client reads: the same messages one by one and as a table, whatever its bounds are."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from broker.client import BadRequest, Client, NewMessage, SyncClient, TopicNotFound, range_read
from broker.errors import NotInstalled, Unavailable, UnavailableError
from broker.model import Message, Poll, PublishRequest, Snapshot, TopicId, log_key
from broker.topics import streams, topics
from broker.topics.topic_state import TopicState
from tests.kit.http_cluster import HttpCluster, on_cluster
from tests.kit.serving import Broker, Http

TOPIC = TopicId("default", "t")
ARROW_TYPES = {
    "id": pa.binary(),
    "time": pa.timestamp("ms", tz="UTC"),
    "value": pa.binary(),
    "key": pa.binary(),
    "headers": pa.map_(pa.string(), pa.binary()),
}


@pytest.fixture
async def client(broker: Broker, http: Http) -> AsyncIterator[Client]:
    async with Client(http.url, retry_delay_min_s=0.0) as client:
        yield client


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (topics, streams):
        monkeypatch.setattr(module, "BULK_BYTES", 300)
    monkeypatch.setattr(range_read, "PAGE_MESSAGES_MAX", 3)


@pytest.fixture
async def filled(broker: Broker, small_pages: None) -> list[Message]:
    """Messages in the log, then two references to several stored ones, then one more; return all."""
    pointer = broker.clock.now_ms() * 1_000_000
    await publish(broker, *[b"%d" % number for number in range(5)])
    for more in (0, 1):
        stored = [b"stored %d %d" % (more, number) for number in range(5)]
        await broker.topics.store(TOPIC, PublishRequest(pointer + more, stored))
        await publish(broker, pointer=pointer + more)
    await publish(broker, b"last")
    return await polled(broker)


async def publish(broker: Broker, *payloads: bytes, pointer: int | None = None) -> None:
    await broker.topics.publish(TOPIC, PublishRequest(pointer, payloads))


async def polled(broker: Broker) -> list[Message]:
    found = await broker.topics.poll(TOPIC, Poll())
    return [message async for messages in found.messages() for message in messages]


def attributes_of(table: pa.Table) -> list[tuple[bytes | None, dict[str, bytes]]]:
    keys = table.column("key").to_pylist()
    headers = table.column("headers").to_pylist(maps_as_pydicts="strict")
    return [(key, some or {}) for key, some in zip(keys, headers, strict=True)]


def rows_of(table: pa.Table) -> list[tuple[bytes, bytes]]:
    table.validate(full=True)
    assert dict(zip(table.schema.names, table.schema.types, strict=True)) == ARROW_TYPES
    times = table.column("time").cast(pa.int64()).to_pylist()
    ids, values = table.column("id").to_pylist(), table.column("value").to_pylist()
    assert times == [int.from_bytes(each[:8], "big") for each in ids]
    return list(zip(ids, values, strict=True))


async def read_both(client: Client, *bounds: Any, **options: Any) -> list[Message]:
    """Return a range as it is iterated, after comparing it with its table."""
    one = client.read("t", *bounds, **options)
    found = [message async for message in one]
    table = await one.to_arrow()
    assert rows_of(table) == [message[:2] for message in found]
    assert attributes_of(table) == [message[2:] for message in found]
    return found


async def test_a_read_without_bounds_is_the_whole_topic(
    client: Client, filled: list[Message]
) -> None:
    assert await read_both(client) == filled
    assert len(filled) == 16


async def test_bounds_are_half_open_wherever_they_lie(
    client: Client, filled: list[Message]
) -> None:
    """Also among the messages of a reference, which have one row."""
    places = [*range(0, 16, 3), 15]
    for first in places:
        for last in places:
            found = await read_both(client, filled[first].id, filled[last].id.hex())
            assert found == filled[first:last], (first, last)


async def test_reading_goes_on_behind_an_id(client: Client, filled: list[Message]) -> None:
    for place, message in enumerate(filled):
        assert await read_both(client, message.id, inclusive=False) == filled[place + 1 :]


async def test_moments_bound_a_read(client: Client, filled: list[Message]) -> None:
    for moment_ms in {message.timestamp_ms for message in filled}:
        moment = datetime.fromtimestamp(moment_ms / 1000, UTC)
        for place in (moment_ms, moment):
            later = [message for message in filled if message.timestamp_ms >= moment_ms]
            assert await read_both(client, place) == later
            assert await read_both(client, None, place) == filled[: len(filled) - len(later)]
    assert await read_both(client, datetime(2000, 1, 1, tzinfo=UTC)) == filled
    assert await read_both(client, None, datetime(2000, 1, 1, tzinfo=UTC)) == []
    future = datetime.fromtimestamp(filled[-1].timestamp_ms / 1000, UTC) + timedelta(days=9)
    assert await read_both(client, None, future) == filled
    assert await read_both(client, future) == []
    assert await read_both(client, future, future - timedelta(days=1)) == []


@pytest.mark.usefixtures("small_pages")
async def test_keys_and_headers_are_read_with_their_messages(
    broker: Broker, client: Client
) -> None:
    """Published plainly, and stored first; a page without any is between those that have some."""
    pointer = broker.clock.now_ms() * 1_000_000
    some = [
        NewMessage(b"0", key="k", headers={"kind": "tick", "raw": b"\xff"}),
        NewMessage(b"1"),
        NewMessage(b"2", key=b""),
        NewMessage(b"3", headers={"empty": b""}),
    ]
    await client.publish("t", some)
    await client.publish("t", [b"%d" % number * 50 for number in range(20)])
    await client.store("t", some, pointer=pointer)
    await client.publish_stored("t", pointer=pointer)
    found = await read_both(client)
    expected = [
        (b"k", {"kind": b"tick", "raw": b"\xff"}),
        (None, {}),
        (b"", {}),
        (None, {"empty": b""}),
    ]
    assert [message[2:] for message in found] == [*expected, *[(None, {})] * 20, *expected]
    assert [message[2:] for message in await read_both(client, found[25].id)] == expected[1:]
    frame = await client.read("t", found[24].id).to_pandas()
    assert frame["key"].tolist() == [b"k", None, b"", None]
    assert frame["headers"].tolist() == [expected[0][1], None, None, expected[3][1]]


async def test_an_empty_topic_has_no_messages(client: Client) -> None:
    assert await read_both(client) == []
    assert await read_both(client, log_key(5, 5) + bytes(10), log_key(9, 9) + bytes(10)) == []


async def test_messages_published_during_a_read_are_no_part_of_it(
    broker: Broker, client: Client, small_pages: None
) -> None:
    """Otherwise a reader that is slower than the publishers would never end."""
    await publish(broker, *[b"%d" % number for number in range(20)])
    one = client.read("t")
    found = []
    async for message in one:
        found.append(message.payload)
        await publish(broker, b"later")
    assert found == [b"%d" % number for number in range(20)]
    assert [value for _, value in rows_of(await one.to_arrow())] == found
    assert [message.payload async for message in one] == found
    assert len([1 async for _ in client.read("t")]) == 40


async def test_a_transaction_reads_its_visible_messages(broker: Broker, client: Client) -> None:
    pointer = broker.clock.now_ms() * 1_000_000
    await publish(broker, b"plain")
    await publish(broker, b"open", pointer=pointer)
    await publish(broker, b"behind")
    snapshot = Snapshot(transaction_id=pointer + 5, read_pointer=pointer + 1, in_progress=[pointer])
    found = await read_both(client, snapshot=snapshot)
    assert [message.payload for message in found] == [b"plain"]
    assert len(await read_both(client)) == 3


@pytest.mark.slow
async def test_a_read_goes_on_where_a_reply_was_cut_off(
    client: Client, filled: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = TopicState.next_page, 0

    async def failing(self: TopicState, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise Unavailable("storage is gone for a moment")
        return await real(self, *arguments)

    monkeypatch.setattr(TopicState, "next_page", failing)
    assert await read_both(client, filled[2].id, filled[14].id) == filled[2:14]
    assert calls > 8


@pytest.mark.slow
async def test_a_read_fails_if_nothing_comes_within_the_deadline(
    http: Http, filled: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(self: TopicState, *_: object) -> None:
        raise Unavailable("storage is gone")

    monkeypatch.setattr(TopicState, "next_page", failing)
    async with Client(http.url, deadline_s=0.05, retry_delay_max_s=0.01) as client:
        with pytest.raises(UnavailableError):
            await anext(aiter(client.read("t")))
        with pytest.raises(UnavailableError):
            await client.read("t").to_arrow()


async def test_a_read_of_a_missing_topic_raises_topic_not_found(client: Client) -> None:
    with pytest.raises(TopicNotFound):
        await anext(aiter(client.read("missing")))
    with pytest.raises(TopicNotFound):
        await client.read("missing").to_arrow()


@on_cluster()
async def test_any_node_of_a_cluster_is_read_from(cluster: HttpCluster) -> None:
    for node in range(3):
        async with cluster.client(node, follow_leaders=False) as client:
            await client.publish("t", [NewMessage(f"m{node}", key="k"), "plain"])
            found = await read_both(client)
    assert [message.payload for message in found[::2]] == [b"m0", b"m1", b"m2"]
    assert [message.key for message in found] == [b"k", None] * 3


@pytest.mark.parametrize("bounds", [("yesterday",), (None, datetime(2026, 1, 1))])  # noqa: DTZ001
def test_a_bound_that_is_no_place_is_refused_at_once(bounds: tuple[Any, ...]) -> None:
    with SyncClient("http://127.0.0.1:9") as client, pytest.raises(BadRequest, match="time zone"):
        client.read("t", *bounds)


async def test_a_table_of_pandas_has_times_in_utc(client: Client, filled: list[Message]) -> None:
    frame = await client.read("t", filled[1].id, filled[8].id).to_pandas()
    assert list(frame.columns) == [*ARROW_TYPES]
    assert str(frame["time"].dtype) == "datetime64[ms, UTC]"
    assert frame["value"].tolist() == [message.payload for message in filled[1:8]]
    first = pd.Timestamp(filled[1].timestamp_ms, unit="ms", tz="UTC")
    assert frame["time"][0] == first
    assert await read_both(client, first) == [
        message for message in filled if message.timestamp_ms >= filled[1].timestamp_ms
    ]


async def test_a_table_of_polars_has_the_same_rows(client: Client, filled: list[Message]) -> None:
    await client.publish("t", "keyed", key="k", headers={"a": "b"})
    frame = await client.read("t").to_polars()
    assert frame.columns == [*ARROW_TYPES]
    assert frame.schema["time"] == pl.Datetime("ms", "UTC")
    rows = list(zip(frame["id"], frame["value"], strict=True))
    assert rows[:-1] == [message[:2] for message in filled]
    assert frame["key"].to_list() == [*(message.key for message in filled), b"k"]
    assert frame["headers"].to_list()[-1] == [{"key": "a", "value": b"b"}]


@pytest.mark.parametrize(
    ("missing", "method", "told"),
    [
        ("pyarrow", "to_arrow", r"tms-broker\[arrow\]"),
        ("pyarrow", "to_pandas", r"tms-broker\[arrow\]"),
        ("pandas", "to_pandas", "pip install pandas"),
        ("polars", "to_polars", "pip install polars"),
    ],
)
async def test_a_missing_package_is_named(
    client: Client, monkeypatch: pytest.MonkeyPatch, missing: str, method: str, told: str
) -> None:
    nothing: Any = None
    for name in [name for name in sys.modules if name.split(".")[0] == missing] or [missing]:
        monkeypatch.setitem(sys.modules, name, nothing)
    with pytest.raises(ImportError, match=told):
        await getattr(client.read("t"), method)()


async def test_a_broker_without_the_extra_says_so(
    client: Client, filled: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing: Any = None
    monkeypatch.setitem(sys.modules, "numpy", nothing)
    with pytest.raises(NotInstalled, match=r"tms-broker\[arrow\]"):
        await client.read("t").to_arrow()
    assert [message async for message in client.read("t")] == filled
