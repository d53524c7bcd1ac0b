"""The client's calls give the same results with CDAP's own server and with this one."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from broker.client import (
    BadRequest,
    BodyTooLarge,
    Client,
    NotFound,
    Published,
    Snapshot,
    SyncClient,
    TailOptions,
    TopicExists,
    TopicNotFound,
    TransactionTooOld,
)
from tests.kit.served import ServedNode

NUMBERS = itertools.count()


@pytest.fixture(scope="module", params=["original", "ours"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "original":
        yield request.getfixturevalue("tms_server").url
        return
    with ServedNode() as node:
        yield node.url


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async with Client(url, namespace=f"client{next(NUMBERS)}") as client:
        yield client


@pytest.fixture
async def topic(client: Client) -> str:
    await client.create_topic("t")
    return "t"


def pointer_now() -> int:
    return time.time_ns()


async def test_topics_are_administered(client: Client) -> None:
    assert await client.topics() == []
    await client.create_topic("t", {"color": "red"}, ttl_s=60)
    with pytest.raises(TopicExists):
        await client.create_topic("t")
    await client.create_topic("t", if_exists="keep")
    info = await client.topic("t")
    assert (info.generation, info.ttl_s, info.properties["color"]) == (1, 60, "red")
    await client.set_topic("t", {"ttl": "70"})
    assert (await client.topic("t")).ttl_s == 70
    assert await client.topics() == ["t"]
    await client.delete_topic("t")
    with pytest.raises(TopicNotFound):
        await client.delete_topic("t")
    await client.create_topic("t")
    assert (await client.topic("t")).generation == 2
    with pytest.raises(BadRequest):
        await client.create_topic("u", {"ttl": "none"})


async def test_every_call_raises_topic_not_found_for_a_missing_topic(client: Client) -> None:
    pointer = pointer_now()
    for call in (
        client.topic("no"),
        client.set_topic("no", {}),
        client.publish("no", b"x"),
        client.publish("no", b"x", pointer=pointer),
        client.store("no", b"x", pointer=pointer),
        client.poll("no"),
    ):
        with pytest.raises(TopicNotFound):
            await call


async def test_concurrent_publishes_keep_their_order_and_payloads(
    client: Client, topic: str
) -> None:
    payloads = [b"", b"\x00", b"x" * 100_000, "ü".encode(), *(b"%d" % i for i in range(2000))]
    published = await asyncio.gather(*[client.publish(topic, payload) for payload in payloads])
    messages = await client.poll(topic)
    told = [Published(first_id=m.id, last_id=m.id, count=1) for m in messages]
    # The original returns no ids.
    assert published in (told, [Published()] * len(payloads))
    assert [message.payload for message in messages] == payloads
    ids = [message.id for message in messages]
    assert ids == sorted(set(ids))


async def test_polls_start_at_ids_and_times(client: Client, topic: str) -> None:
    await client.publish(topic, [b"%d" % i for i in range(10)])
    messages = await client.poll(topic)
    third = messages[3]
    assert await client.poll(topic, third.id, limit=2) == messages[3:5]
    assert await client.poll(topic, third.id.hex(), inclusive=False, limit=2) == messages[4:6]
    assert await client.poll(topic, third.timestamp_ms) == messages
    assert await client.poll(topic, messages[-1].timestamp_ms + 1) == []
    assert await client.poll(topic, limit=1) == messages[:1]


async def test_a_transaction_is_published_stored_and_rolled_back(
    client: Client, topic: str
) -> None:
    pointer = pointer_now()
    open_snapshot = Snapshot(transaction_id=pointer + 9, read_pointer=pointer - 1)
    committed = Snapshot(transaction_id=pointer + 9, read_pointer=pointer)
    transaction = client.transaction_publisher(pointer, committed)
    await transaction.publish(topic, [b"0", b"1"])
    await transaction.store(topic, b"2")
    await transaction.store(topic, [b"3", b"4"])
    await transaction.publish_stored(topic)
    payloads = [message.payload for message in await transaction.poll(topic)]
    assert payloads == [b"0", b"1", b"2", b"3", b"4"]
    assert await client.poll(topic, snapshot=open_snapshot) == []
    assert await transaction.rollback()
    assert await transaction.poll(topic) == []
    assert len(await client.poll(topic)) == 5


async def test_a_tail_reads_all_pages_and_new_messages(client: Client, topic: str) -> None:
    await client.publish(topic, [b"%d" % i for i in range(25)])
    pages = TailOptions(follow=False, page_messages_max=7)
    found = [message async for message in client.tail(topic, options=pages)]
    assert [message.payload for message in found] == [b"%d" % i for i in range(25)]

    follow = TailOptions(wait_s=2, idle_delay_s=0.01)
    tail = client.tail(topic, found[-1].id, inclusive=False, options=follow)
    waiting = asyncio.ensure_future(anext(tail))
    await client.publish(topic, b"new")
    assert (await asyncio.wait_for(waiting, 30)).payload == b"new"
    await tail.aclose()


async def test_messages_are_published_later(client: Client, topic: str) -> None:
    for i in range(500):
        await client.publish_later(topic, b"%d" % i)
    await client.flush()
    assert client.later.counts.published == 500
    assert [m.payload for m in await client.poll(topic)] == [b"%d" % i for i in range(500)]


async def test_refusals_raise_their_exceptions(client: Client, topic: str) -> None:
    with pytest.raises(BadRequest):
        await client.publish(topic, [])
    with pytest.raises(TransactionTooOld):
        await client.publish(topic, b"x", pointer=1)
    with pytest.raises(BodyTooLarge):
        await client.publish(topic, b"x" * (65 << 20))
    with pytest.raises(NotFound):
        await client.ask(_unknown_path())
    await client.publish(topic, b"the connections still work")


def _unknown_path():  # type: ignore[no-untyped-def]
    from broker.client.client_request import ClientRequest  # noqa: PLC0415

    return ClientRequest("GET", "/v1/nothing/here", reading=True, repeatable=True)


def test_the_blocking_client_does_the_same(url: str) -> None:
    with SyncClient(url, namespace=f"client{next(NUMBERS)}") as client:
        client.create_topic("t")
        client.publish("t", [b"a", b"b"])
        client.publish("t", "c")
        payloads = [m.payload for m in client.tail("t", options=TailOptions(follow=False))]
        assert payloads == [b"a", b"b", b"c"]
        transaction = client.publish("t", b"d", pointer=pointer_now())
        client.rollback("t", transaction)
        client.delete_topic("t")
