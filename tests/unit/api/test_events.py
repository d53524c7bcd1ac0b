import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from multidict import CIMultiDict

from broker.api.events import Events
from broker.api.replies import Stream
from broker.api.request import Names, Request
from broker.model import TopicId
from broker.testing.serving import Broker, topic_path

EVENTS = topic_path("t", "events")


async def publish(broker: Broker, *payloads: str) -> None:
    for payload in payloads:
        headers = {"Content-Type": "text/plain"}
        await broker.call("POST", topic_path("t", "publish"), payload.encode(), headers)


async def events(
    broker: Broker, query: str = "", headers: dict[str, str] | None = None
) -> AsyncIterator[dict[str, object]]:
    """Yield the events of a stream; whoever breaks off ends it."""
    answer = await broker.dispatch.call("GET", EVENTS + query, CIMultiDict(headers or {}))
    assert isinstance(answer, Stream), answer
    assert answer.content_type == "text/event-stream"
    try:
        async for chunk in answer.chunks:
            for event in chunk.decode().strip().split("\n\n"):
                if not event.startswith(":"):
                    identifier, data = event.split("\n")
                    value = json.loads(data.removeprefix("data: "))
                    assert identifier == f"id: {value['id']}"
                    yield value
    finally:
        await answer.chunks.aclose()


async def take(count: int, stream: AsyncIterator[dict[str, object]]) -> list[dict[str, object]]:
    got = []
    async with asyncio.timeout(30):
        while len(got) < count:
            got.append(await anext(stream))
    return got


async def test_a_stream_begins_with_the_oldest_and_goes_on(broker: Broker) -> None:
    await publish(broker, "1", "2")
    stream = events(broker)
    assert [e["payload"] for e in await take(2, stream)] == ["1", "2"]
    await publish(broker, "3\nline")
    assert [e["payload"] for e in await take(1, stream)] == ["3\nline"]


async def test_last_event_id_resumes_exactly_and_wins(broker: Broker) -> None:
    await publish(broker, "1", "2", "3")
    first, second, _ = await take(3, events(broker))
    query = f"?from={first['id']}"
    assert [e["payload"] for e in await take(2, events(broker, query))] == ["2", "3"]
    headers = {"Last-Event-ID": str(second["id"])}
    assert [e["payload"] for e in await take(1, events(broker, query, headers))] == ["3"]


async def test_from_now_shows_only_what_is_new(broker: Broker) -> None:
    await publish(broker, "old")
    stream = events(broker, "?from=now")
    waiting = asyncio.ensure_future(take(1, stream))
    await broker.someone_waits()
    await publish(broker, "new")
    assert [e["payload"] for e in await waiting] == ["new"]


async def test_a_time_is_inclusive(broker: Broker) -> None:
    await publish(broker, "1")
    (event,) = await take(1, events(broker))
    again = await take(1, events(broker, f"?from={event['timestamp_ms']}"))
    assert again == [event]


@pytest.mark.parametrize(
    ("query", "headers"),
    [("?from=x", {}), ("?from=", {}), ("", {"Last-Event-ID": "x"}), ("?from=-1", {})],
)
async def test_malformed_starts(broker: Broker, query: str, headers: dict[str, str]) -> None:
    reply = await broker.call("GET", EVENTS + query, headers=headers)
    assert (reply.status, reply.headers["Broker-Error"]) == (400, "bad_request")


async def test_an_unknown_topic_is_not_found(broker: Broker) -> None:
    assert (await broker.call("GET", topic_path("no", "events"))).status == 404


async def test_a_stream_ends_when_its_topic_is_deleted(broker: Broker) -> None:
    await publish(broker, "1")
    stream = events(broker)
    await take(1, stream)
    waiting = asyncio.ensure_future(anext(stream, None))
    await broker.someone_waits()
    await broker.call("DELETE", topic_path("t"))
    async with asyncio.timeout(30):
        assert await waiting is None


async def test_a_silent_stream_says_that_it_lives(broker: Broker) -> None:
    names = Names("default", TopicId("default", "t"))
    request = Request("GET", EVENTS, "", CIMultiDict(), b"", names=names)
    answer = await Events(broker.topics, keep_alive_s=0.01).stream(request)
    assert isinstance(answer, Stream)
    async with asyncio.timeout(30):
        assert [await anext(answer.chunks) for _ in range(3)] == [
            b": default:t\n\n",
            b": keep-alive\n\n",
            b": keep-alive\n\n",
        ]
    await answer.chunks.aclose()
