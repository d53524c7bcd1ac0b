"""A client that reads a topic never goes on in the next generation of it: each way of reading ends with an error."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest

from broker.client import (
    BadRequest,
    Client,
    Place,
    TailOptions,
    TopicRecreated,
    range_read,
)
from broker.model import Message, PublishRequest, TopicId
from broker.topics import streams, topics
from tests.kit.serving import Broker, Http

TOPIC = TopicId("default", "t")
OLD = [b"old %d" % number for number in range(12)]


@pytest.fixture
async def client(broker: Broker, http: Http) -> AsyncIterator[Client]:
    async with Client(http.url, retry_delay_min_s=0.0) as client:
        await publish(broker, *OLD)
        yield client


async def publish(broker: Broker, *payloads: bytes) -> None:
    await broker.topics.publish(TOPIC, PublishRequest(None, list(payloads)))


async def recreate(broker: Broker) -> None:
    await broker.topics.delete(TOPIC)
    await broker.topics.create(TOPIC, {"ttl": "1000"})
    await publish(broker, b"new")


SMALL = TailOptions(page_messages_max=3, wait_s=0.01)
READS: dict[str, Callable[[Client, Message], AsyncGenerator[Any]]] = {
    "tail": lambda client, _: client.tail(TOPIC, options=SMALL),
    "tail behind an id": lambda client, first: client.tail(TOPIC, first.id, options=SMALL),
    "a tail that does not follow": lambda client, _: client.tail(
        TOPIC, options=TailOptions(page_messages_max=3, follow=False)
    ),
    "read": lambda client, _: client.read(TOPIC).__aiter__(),
    "events": lambda client, _: client.events(TOPIC),
    "events from a time": lambda client, _: client.events(TOPIC, 0),
}


async def test_a_publish_or_a_tail_may_name_its_generation(broker: Broker, client: Client) -> None:
    assert (await client.publish(TOPIC, b"m", generation=1)).generation == 1
    await recreate(broker)
    with pytest.raises(TopicRecreated):
        await client.publish(TOPIC, b"m", generation=1)
    with pytest.raises(TopicRecreated):
        await anext(client.tail(TOPIC, options=TailOptions(generation=1)))
    message = await anext(client.tail(TOPIC, options=TailOptions(generation=2)))
    assert message.payload == b"new"


@pytest.mark.parametrize("way", READS)
async def test_a_reader_ends_at_the_end_of_its_generation(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(range_read, "PAGE_MESSAGES_MAX", 3)
    (first,) = await client.poll(TOPIC, limit=1)
    seen: list[bytes] = []

    async def read() -> None:
        async with aclosing(READS[way](client, first)) as messages:
            async for message in messages:
                seen.append(message.payload)
                if len(seen) == 2:
                    await recreate(broker)

    with pytest.raises(TopicRecreated, match=r"generation 1.*generation 2"):
        await read()
    assert seen == OLD[: len(seen)]


async def test_batches_of_records_are_of_one_generation(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (topics, streams):
        monkeypatch.setattr(module, "ROWS_BYTES", 60)
    through = (await client.range(TOPIC)).latest
    batches = client.read_arrow(TOPIC, through=through)
    values = (await anext(batches)).column("value").to_pylist()
    await recreate(broker)
    with pytest.raises(TopicRecreated):
        values += [value async for batch in batches for value in batch.column("value").to_pylist()]
    assert values == OLD[: len(values)]


async def test_a_table_of_a_reading_is_of_the_generation_of_its_first_use(
    broker: Broker, client: Client
) -> None:
    reading = client.read(TOPIC)
    assert (await reading.to_arrow()).num_rows == 12
    await recreate(broker)
    with pytest.raises(TopicRecreated):
        await reading.to_arrow()
    assert (await client.read(TOPIC).to_arrow()).num_rows == 1


async def test_a_place_with_its_generation_is_refused_by_every_call(
    broker: Broker, client: Client
) -> None:
    page = await client.browse(TOPIC, limit=2)
    found = await client.range(TOPIC)
    published = await client.publish(TOPIC, b"m")
    assert (found.generation, published.generation) == (1, 1)
    assert published.last_id is not None
    place = Place(published.last_id, published.generation)
    assert page.next is not None
    assert await client.poll(TOPIC, place) == await client.poll(TOPIC, str(place))
    await recreate(broker)
    calls: list[Callable[[Any], Any]] = [
        lambda at: client.poll(TOPIC, at),
        lambda at: client.browse(TOPIC, start=at),
        lambda at: client.browse(TOPIC, stop=at, descending=True),
        lambda at: client.lag(TOPIC, at),
        lambda at: client.range(TOPIC, after=at),
        lambda at: client.range(TOPIC, through=at),
        lambda at: client.blockers(TOPIC, start=at),
        lambda at: client.cursors.put(TOPIC, "c", at, expected=None),
        lambda at: client.read(TOPIC, at).to_arrow(),
        lambda at: client.read(TOPIC, end=at).to_arrow(),
        lambda at: anext(client.read_arrow(TOPIC, through=at)),
        lambda at: anext(client.tail(TOPIC, at)),
        lambda at: anext(client.events(TOPIC, at)),
    ]
    for call in calls:
        for at in (place, str(place), page.next):
            with pytest.raises(TopicRecreated):
                await call(at)
    assert [m.payload for m in await client.poll(TOPIC, Place(bytes(20), 2))] == [b"new"]
    with pytest.raises(BadRequest, match="generation"):
        await client.poll(TOPIC, f"{'0' * 40}@x")
    with pytest.raises(BadRequest, match="generations"):
        await client.range(TOPIC, after=Place(bytes(20), 1), through=Place(bytes(20), 2))


async def test_stored_messages_are_not_published_in_the_next_generation(
    broker: Broker, client: Client
) -> None:
    begun = await client.transactions.start()
    publisher = client.transaction_publisher(begun.write_pointer)
    await publisher.store(TOPIC, [b"stored"])
    await recreate(broker)
    with pytest.raises(TopicRecreated):
        await publisher.store(TOPIC, [b"stored"])
    with pytest.raises(TopicRecreated):
        await publisher.publish_stored(TOPIC)
    assert await publisher.rollback()


async def test_a_transaction_that_spilled_is_not_committed_in_the_next_generation(
    broker: Broker, client: Client
) -> None:
    async def work() -> None:
        async with client.transaction(buffer_bytes_max=100) as tx:
            await tx.publish(TOPIC, [b"x" * 200])
            await recreate(broker)

    with pytest.raises(TopicRecreated):
        await work()
    assert [m.payload for m in await client.poll(TOPIC)] == [b"new"]
