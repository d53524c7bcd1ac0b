"""The client against a whole broker: calls that the original's interface does not have."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from broker.client import (
    BadRequest,
    Client,
    IdempotencyKeyReused,
    NewMessage,
    PayloadsSealed,
    Published,
    Snapshot,
    SyncClient,
    TailOptions,
)
from tests.kit.served import ServedNode

NUMBERS = itertools.count()


@pytest.fixture
async def client(node: ServedNode) -> AsyncIterator[Client]:
    async with Client(node.url, namespace=f"client{next(NUMBERS)}") as client:
        await client.create_topic("t")
        yield client


async def test_a_key_publishes_once(client: Client) -> None:
    first = await client.publish("t", [b"a"], idempotency_key="k")
    again = await client.publish("t", [b"a"], idempotency_key="k")
    assert (first.replayed, again) == (False, first._replace(replayed=True))
    assert first.count == 1
    with pytest.raises(IdempotencyKeyReused):
        await client.publish("t", b"b", idempotency_key="k")
    (message,) = await client.poll("t")
    assert message.id == first.first_id == first.last_id


async def test_a_publish_returns_its_ids(client: Client) -> None:
    pointer = time.time_ns()
    several = await client.publish("t", [b"a", b"b", b"c"])
    undone = await client.publish("t", [b"x", b"y"], pointer=pointer)
    await client.rollback("t", undone)
    async with client.stage("t") as stage:
        await stage.store([b"d", b"e"])
    staged = await client.publish_stages("t", [stage.id])
    again = await client.publish_stages("t", [stage.id])
    rows = [row for row in (await client.browse("t")).messages if row.kind != "stored"]
    ids = [row.id for row in rows]
    told = [(each.first_id, each.last_id, each.count) for each in (several, undone, staged)]
    assert told == [(ids[0], ids[2], 3), (ids[3], ids[4], 2), (ids[5], ids[5], 2)]
    assert again == staged._replace(replayed=True)


async def test_a_publish_with_a_lower_number_returns_no_ids(client: Client) -> None:
    first = await client.publish("t", [b"a", b"b"], producer=("p", 5))
    again = await client.publish("t", [b"a", b"b"], producer=("p", 5))
    below = await client.publish("t", [b"a", b"b"], producer=("p", 4))
    assert again == first._replace(replayed=True)
    assert below == Published(replayed=True, generation=first.generation)


async def test_namespaces_are_listed(node: ServedNode, client: Client) -> None:
    names = await client.namespaces()
    assert client.settings.namespace in names
    assert names == sorted(names)
    with SyncClient(node.url) as blocking:
        assert await asyncio.to_thread(blocking.namespaces) == names


async def test_an_idempotent_client_sends_keys_of_its_own(node: ServedNode) -> None:
    namespace = f"client{next(NUMBERS)}"
    async with Client(node.url, namespace=namespace, idempotent=True) as client:
        await client.create_topic("t")
        await asyncio.gather(*[client.publish("t", b"%d" % i) for i in range(100)])
        await client.publish("t", [b"100"])
        assert [m.payload for m in await client.poll("t")] == [b"%d" % i for i in range(101)]


async def test_a_lifetime_may_be_shorter_but_not_longer(client: Client) -> None:
    await client.publish("t", b"x", ttl_s=60)
    with pytest.raises(BadRequest):
        await client.publish("t", b"x", ttl_s=10**9)
    (row,) = (await client.browse("t")).messages
    assert row.expires_at is not None
    lives = datetime.fromisoformat(row.expires_at) - datetime.fromtimestamp(
        row.timestamp_ms / 1000, UTC
    )
    assert lives == timedelta(seconds=60)


async def test_stores_after_the_publish_are_refused(client: Client) -> None:
    pointer = int(datetime.now(UTC).timestamp() * 1e9)  # noqa: TID251 - A pointer of now.
    await client.store("t", b"x", pointer=pointer)
    await client.publish_stored("t", pointer=pointer)
    with pytest.raises(PayloadsSealed):
        await client.store("t", b"y", pointer=pointer)


async def test_a_poll_waits_for_the_first_message(client: Client) -> None:
    waiting = asyncio.create_task(client.poll("t", wait_s=30))
    await client.publish("t", b"x")
    assert [m.payload for m in await waiting] == [b"x"]


async def test_browsing_pages_both_ways_and_shows_hidden_messages(
    client: Client,
) -> None:
    pointer = int(datetime.now(UTC).timestamp() * 1e9)  # noqa: TID251 - A pointer of now.
    await client.publish("t", [b"%d" % i for i in range(5)])
    await client.publish("t", b"\xff" * 2000, pointer=pointer)
    first = await client.browse("t", limit=4)
    assert [row.payload for row in first.messages] == [b"%d" % i for i in range(4)]
    second = await client.browse("t", start=first.next, limit=4)
    assert second.next is None
    big = second.messages[-1]
    assert (big.size, big.truncated, big.tx_state, big.write_pointer) == (
        2000,
        False,
        "published",
        pointer,
    )
    assert big.payload == b"\xff" * 2000
    (newest,) = (await client.browse("t", limit=1, descending=True, full=False)).messages
    assert (newest.truncated, newest.payload) == (True, b"\xff" * 1024)
    snapshot = Snapshot(transaction_id=pointer + 9, read_pointer=pointer - 1)
    rows = (await client.browse("t", snapshot=snapshot)).messages
    assert [row.consumable for row in rows] == [True] * 5 + [False]
    times = await client.browse("t", stop=datetime.fromtimestamp(0, UTC))
    assert times.messages == []


async def test_every_start_may_be_a_time(client: Client) -> None:
    await client.publish("t", b"before")
    (before,) = await client.poll("t")
    moment = datetime.fromtimestamp(before.timestamp_ms / 1000, UTC) + timedelta(milliseconds=1)
    while not (found := await client.poll("t", moment)):
        await client.publish("t", b"behind")
    (behind,) = found
    tail = client.tail("t", moment, options=TailOptions(follow=False))
    assert [message async for message in tail] == [behind]
    events = client.events("t", moment)
    assert await anext(events) == behind
    await events.aclose()
    (row,) = (await client.browse("t", start=moment)).messages
    assert (row.id, row.payload) == (behind.id, b"behind")


def test_a_range_is_read_without_asyncio(node: ServedNode) -> None:
    with SyncClient(node.url, namespace=f"client{next(NUMBERS)}") as client:
        client.create_topic("t")
        client.publish("t", [b"%d" % number for number in range(2500)])
        everything = list(client.read("t"))
        assert [message.payload for message in everything] == [b"%d" % n for n in range(2500)]
        some = client.read("t", everything[10].id, everything[20].id)
        assert list(some) == everything[10:20]
        assert some.to_arrow().column("value").to_pylist() == [b"%d" % n for n in range(10, 20)]
        assert some.to_pandas()["id"].tolist() == [message.id for message in everything[10:20]]
        for message in client.read(
            "t"
        ):  # A read that is abandoned in the middle leaves no connection open.
            assert message == everything[0]
            break


async def test_stats_are_returned(client: Client) -> None:
    await client.publish("t", [b"%d" % i for i in range(5)])
    assert (await client.stats("t"))["messages"]["value"] == 5


async def test_events_are_received_from_the_start_and_from_an_id(client: Client) -> None:
    await client.publish("t", [b"%d" % i for i in range(5)])
    messages = await client.poll("t")
    for start, expected in ((None, messages), (messages[1].id, messages[2:])):
        events = client.events("t", start)
        async with asyncio.timeout(30):
            assert [await anext(events) for _ in expected] == expected
        await events.aclose()


async def test_a_tail_goes_on_through_a_restart_of_the_broker(tmp_path: Path) -> None:
    options = TailOptions(wait_s=30, idle_delay_s=0.01)
    with ServedNode(folder=tmp_path) as first:
        async with Client(first.url) as client:
            await client.create_topic("t")
            await client.publish("t", [b"0", b"1"])
            tail = client.tail("t", options=options)
            found = [await anext(tail), await anext(tail)]
            await tail.aclose()
    with ServedNode(folder=tmp_path) as second:
        async with Client(second.url) as client:
            await client.publish("t", [b"2"])
            tail = client.tail("t", found[-1].id, inclusive=False, options=options)
            found.append(await asyncio.wait_for(anext(tail), 30))
            await tail.aclose()
    assert [message.payload for message in found] == [b"0", b"1", b"2"]


async def test_ten_thousand_concurrent_publishes_are_each_acknowledged(client: Client) -> None:
    published = await asyncio.gather(*[client.publish("t", b"%d" % i) for i in range(10_000)])
    messages = await client.poll("t")
    assert [m.payload for m in messages] == [b"%d" % i for i in range(10_000)]
    assert published == [Published(first_id=m.id, last_id=m.id, count=1) for m in messages]


async def test_a_generation_can_not_be_set(client: Client) -> None:
    with pytest.raises(BadRequest, match="generation = 9 can't be set"):
        await client.create_topic("new", {"generation": "9"})
    assert await client.topics() == ["t"]
    with pytest.raises(BadRequest, match="and is 1 now"):
        await client.set_topic("t", {"generation": "9", "color": "red"})
    assert "color" not in (await client.topic("t")).properties


async def test_properties_that_were_read_may_be_sent_back(client: Client) -> None:
    properties = {**(await client.topic("t")).properties, "ttl": "60"}
    assert properties["generation"] == "1"
    await client.set_topic("t", properties)
    info = await client.topic("t")
    assert (info.ttl_s, info.generation) == (60, 1)


async def test_keys_headers_and_lifetimes_come_back(client: Client) -> None:
    await client.publish("t", NewMessage("a", key="k", headers={"raw": b"\xff"}, ttl_s=60))
    await client.publish("t", ["b", "c"], key=b"\x00", headers={"by": "anna"})
    wanted = [
        (b"a", b"k", {"raw": b"\xff"}),
        (b"b", b"\x00", {"by": b"anna"}),
        (b"c", b"\x00", {"by": b"anna"}),
    ]
    polled = await client.poll("t")
    browsed = (await client.browse("t")).messages
    for found in (polled, browsed):
        assert [(m.payload, m.key, dict(m.headers)) for m in found] == wanted
    assert len({row.expires_at for row in browsed}) == 2
