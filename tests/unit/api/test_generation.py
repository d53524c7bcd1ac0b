"""A topic that was deleted and created again: no place of the earlier generation is taken for one of the new one."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest
from multidict import CIMultiDict

from broker.client import (
    BadRequest,
    Client,
    Place,
    TailOptions,
    range_read,
)
from broker.errors import TopicRecreated
from broker.http.reply import ChunkedReply
from broker.model import Message, PublishRequest, TopicId
from broker.topics import streams, topics
from tests.kit.http_cluster import HttpCluster, on_cluster
from tests.kit.openapi import Answered
from tests.kit.serving import Broker, Http, topic_path

TOPIC = TopicId("default", "t")
GENERATION = "Broker-Generation"
BOTH = r"generation 1.*generation 2"
TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json", "Accept": "application/json"}


async def publish(broker: Broker, *payloads: bytes) -> list[str]:
    """Publish messages, and return the ids of the first and the last one."""
    published = await broker.topics.publish(TOPIC, PublishRequest(None, list(payloads)))
    return [row.hex() + "0" * 20 for row in published[:2]]


async def recreate(broker: Broker, *payloads: bytes) -> None:
    """Delete the topic, create it again, and publish messages."""
    await broker.topics.delete(TOPIC)
    await broker.call("PUT", topic_path("t"))
    if payloads:
        await publish(broker, *payloads)


def refused(reply: Answered) -> str:
    """Return the text of a refusal, which names both generations."""
    assert (reply.status, reply.headers["Broker-Error"]) == (410, "topic_recreated"), reply
    text = reply.body.decode()
    assert "generation 1" in text
    assert "generation 2" in text
    return text


async def test_a_bulk_read_never_goes_on_in_the_next_generation(
    broker: Broker, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (topics, streams):
        monkeypatch.setattr(module, "BULK_BYTES", 100)
    _, last = await publish(broker, *[b"old %d" % number * 10 for number in range(40)])
    rows = await broker.topics.bulk(TOPIC, None, bytes.fromhex(last))
    await rows.next()
    await recreate(broker, b"new")
    with pytest.raises(TopicRecreated, match=BOTH):
        await rows.next()
    reply = await http("GET", topic_path("t", f"arrow?through={last}@1"))
    refused(reply)


@pytest.mark.parametrize("limit", [None, 30])
async def test_a_long_poll_reply_never_goes_on_in_the_next_generation(
    broker: Broker, limit: int | None
) -> None:
    await publish(broker, *[b"old %d" % number * 4000 for number in range(40)])
    body = json.dumps({"limit": limit} if limit else {}).encode()
    answer = await broker.answer("POST", topic_path("t", "poll"), CIMultiDict(JSON), body)
    assert isinstance(answer, ChunkedReply)
    seen = bytes(await anext(answer.chunks))
    await recreate(broker, b"new")
    with pytest.raises(TopicRecreated, match=BOTH):
        seen += b"".join([bytes(chunk) async for chunk in answer.chunks])
    assert b"old" in seen
    assert b"new" not in seen


REQUESTS = [
    ("POST", "poll", {"start": "{id}@1"}),
    ("POST", "poll", {"start": "{id}", "inclusive": False}),
    ("GET", "messages?from={id}@1", None),
    ("GET", "messages?to={id}@1&order=desc", None),
    ("GET", "messages?from={id}", None),
    ("POST", "blockers?from={id}@1", None),
    ("GET", "lag?after={id}@1", None),
    ("GET", "range?after={id}@1", None),
    ("GET", "range?through={id}@1", None),
    ("GET", "range", None),
    ("GET", "arrow?through={id}@1", None),
    ("GET", "events?from={id}@1", None),
    ("GET", "events", None),
    ("GET", "stats", None),
    ("GET", "cursors/mine", None),
    ("PUT", "cursors/mine", {"after": "{id}@1", "expected": None}),
    ("PUT", "cursors/mine", {"after": "{id}", "expected": None}),
    ("POST", "publish", {"messages": ["m"]}),
    ("POST", "stages", None),
    ("POST", "purge?before=now", None),
    ("PUT", "properties", {}),
    ("GET", "", None),
    ("DELETE", "", None),
]


@pytest.mark.parametrize(("method", "action", "body"), REQUESTS)
async def test_a_place_of_an_earlier_generation_is_refused(
    broker: Broker, method: str, action: str, body: Any
) -> None:
    _, last = await publish(broker, b"old")
    await recreate(broker, b"new")
    target = topic_path("t", action.format(id=last)).removesuffix("/")
    sent = b"" if body is None else json.dumps(body).replace("{id}", last).encode()
    names_it = b"@1" in sent or "@1" in action
    headers = JSON if names_it else {**JSON, GENERATION: "1"}
    refused(await broker.call(method, target, sent, headers))
    told = {**headers, GENERATION: "2"} if not names_it else headers
    fitting = sent.replace(b"@1", b"@2")
    reply = await broker.answer(method, target.replace("@1", "@2"), CIMultiDict(told), fitting)
    assert reply.status in (200, 404), reply.status  # There is no such cursor.
    if isinstance(reply, ChunkedReply):
        await reply.chunks.aclose()


async def test_a_reply_names_its_generation_and_what_the_next_page_needs(broker: Broker) -> None:
    await recreate(broker)
    path = topic_path("t", "publish")
    for headers, body in [(TEXT, b"m"), (JSON, b'{"messages": ["m", "n"]}')]:
        assert (await broker.call("POST", path, body, headers)).headers[GENERATION] == "2"
    pointer = (await broker.call("POST", "/v1/transactions")).json["write_pointer"]
    stored = json.dumps({"messages": ["m"], "write_pointer": pointer}).encode()
    reply = await broker.call("POST", topic_path("t", "store"), stored, JSON)
    assert reply.headers[GENERATION] == "2"
    reply = await broker.call("POST", topic_path("t", "poll"), b"{}", JSON)
    assert (len(reply.json), reply.headers[GENERATION]) == (3, "2")
    page = await broker.call("GET", topic_path("t", "messages?limit=1"))
    assert page.headers[GENERATION] == "2"
    following = page.json["next"]
    assert following.endswith("@2")
    assert len((await broker.call("GET", topic_path("t", f"messages?from={following}"))).json) == 2
    assert (await broker.call("GET", topic_path("t", "range"))).json["generation"] == 2
    await recreate(broker, b"new")
    reply = await broker.call("GET", topic_path("t", f"messages?from={following}"))
    assert reply.status == 410


async def test_stored_messages_of_an_earlier_generation_are_not_published_as_an_empty_reference(
    broker: Broker,
) -> None:
    pointer = (await broker.call("POST", "/v1/transactions")).json["write_pointer"]
    stored = json.dumps({"messages": ["m"], "write_pointer": pointer}).encode()
    reply = await broker.call("POST", topic_path("t", "store"), stored, JSON)
    generation = {GENERATION: reply.headers[GENERATION]}
    await recreate(broker)
    sent = json.dumps({"messages": [], "write_pointer": pointer}).encode()
    reply = await broker.call("POST", topic_path("t", "publish"), sent, {**JSON, **generation})
    refused(reply)


async def test_events_resume_in_their_own_generation_alone(broker: Broker) -> None:
    await publish(broker, b"old")
    events = topic_path("t", "events")
    answer = await broker.answer("GET", events)
    assert isinstance(answer, ChunkedReply)
    assert dict(answer.headers)[GENERATION] == "1"
    opening, event = [(await anext(answer.chunks)).decode() for _ in range(2)]
    assert opening == ": default:t\n\n"
    last = event.split("\n")[0].removeprefix("id: ")
    assert last.endswith("@1")
    await recreate(broker, b"new")
    assert [chunk async for chunk in answer.chunks] == []  # The stream ends: its topic is gone.
    refused(await broker.call("GET", events, headers={"Last-Event-ID": last}))
    again = await broker.answer("GET", f"{events}?from=now")
    assert isinstance(again, ChunkedReply)
    assert (await anext(again.chunks)).split(b"\n")[0].endswith(b"@2")
    await again.chunks.aclose()


async def test_rates_are_those_of_the_generation(broker: Broker) -> None:
    await publish(broker, *[b"m"] * 600)
    await broker.call("POST", topic_path("t", "poll"), b"{}", JSON)
    before = (await broker.call("GET", topic_path("t", "stats"))).json["rates"]
    assert before["poll_per_s"] > 0
    await recreate(broker)
    after = (await broker.call("GET", topic_path("t", "stats"))).json["rates"]
    assert after == {"publish_per_s": 0, "poll_per_s": 0}


@pytest.mark.parametrize("text", ["x", "0", "-1", "1.0", "99999999999", "٣"])
async def test_a_malformed_generation_is_refused(broker: Broker, text: str) -> None:
    reply = await broker.call("POST", topic_path("t", "poll"), b"{}", {**JSON, GENERATION: text})
    assert (reply.status, "generation" in reply.json["message"]) == (400, True)
    target = topic_path("t", f"lag?after={'0' * 40}@{text}")
    assert (await broker.call("GET", target)).status == 400


async def test_two_generations_in_one_request_are_refused(broker: Broker) -> None:
    target = topic_path("t", f"messages?from={'0' * 40}@1&to={'f' * 40}@2")
    assert (await broker.call("GET", target)).status == 400
    target = topic_path("t", f"messages?from={'0' * 40}@1")
    assert (await broker.call("GET", target, headers={GENERATION: "2"})).status == 400


def test_in_a_cluster_every_node_refuses_it() -> None:
    async def story(cluster: HttpCluster) -> None:
        path = topic_path("t")
        await cluster.call(0, "PUT", path)
        published = await cluster.call(1, "POST", path + "/publish", b"old", TEXT)
        assert published.headers[GENERATION] == "1"
        last = published.headers["Broker-Last-Id"]
        await cluster.call(0, "DELETE", path)
        await cluster.call(1, "PUT", path)
        await cluster.call(0, "POST", path + "/publish", b"new", TEXT)
        for node in range(2):
            body = json.dumps({"start": last}).encode()
            for headers in ({**JSON, GENERATION: "1"},):
                refused(await cluster.call(node, "POST", path + "/poll", body, headers))
            refused(await cluster.call(node, "GET", f"{path}/range?after={last}@1"))
            refused(await cluster.call(node, "GET", f"{path}/arrow?through={last}@1"))
            resumed = {"Last-Event-ID": f"{last}@1"}
            refused(await cluster.call(node, "GET", path + "/events", b"", resumed))
            headers = {**TEXT, GENERATION: "1"}
            refused(await cluster.call(node, "POST", path + "/publish", b"m", headers))

    on_cluster(story)


# --- Each way in which a client reads ends with an error.
OLD = [b"old %d" % number for number in range(12)]


@pytest.fixture
async def client(broker: Broker, http: Http) -> AsyncIterator[Client]:
    async with Client(http.url, retry_delay_min_s=0.0) as client:
        await publish(broker, *OLD)
        yield client


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
    await recreate(broker, b"new")
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
                    await recreate(broker, b"new")

    with pytest.raises(TopicRecreated, match=r"generation 1.*generation 2"):
        await read()
    assert seen == OLD[: len(seen)]


async def test_batches_of_records_are_of_one_generation(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (topics, streams):
        monkeypatch.setattr(module, "BULK_BYTES", 60)
    through = (await client.range(TOPIC)).latest
    batches = client.read_arrow(TOPIC, through=through)
    values = (await anext(batches)).column("value").to_pylist()
    await recreate(broker, b"new")
    with pytest.raises(TopicRecreated):
        values += [value async for batch in batches for value in batch.column("value").to_pylist()]
    assert values == OLD[: len(values)]


async def test_a_table_of_a_reading_is_of_the_generation_of_its_first_use(
    broker: Broker, client: Client
) -> None:
    reading = client.read(TOPIC)
    assert (await reading.to_arrow()).num_rows == 12
    await recreate(broker, b"new")
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
    await recreate(broker, b"new")
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
    await recreate(broker, b"new")
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
            await recreate(broker, b"new")

    with pytest.raises(TopicRecreated):
        await work()
    assert [m.payload for m in await client.poll(TOPIC)] == [b"new"]
