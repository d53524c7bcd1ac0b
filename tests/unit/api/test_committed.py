"""Polls and streams of events that show committed messages only, over HTTP and through the client."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing

import pytest

from broker.client import Client, Message, TailOptions
from broker.http.reply import ChunkedReply
from tests.kit.http_cluster import HttpCluster, on_cluster
from tests.kit.serving import Broker, eventually, listening, topic_path
from tests.unit.api.test_blockers import JSON, SERVICE, begun, publish

POLL = topic_path("t", "poll")
EVENTS = topic_path("t", "events")
PLAIN = {"Content-Type": "application/json"}


async def shown(broker: Broker, query: str = "?committed=true") -> list[str]:
    reply = await broker.call("POST", POLL + query, b"{}", PLAIN)
    assert reply.status == 200, reply
    return [each["payload"] for each in reply.json]


async def end(broker: Broker, pointer: int, how: str) -> None:
    if how == "commit":
        await broker.call("POST", f"{SERVICE}/{pointer}/can-commit", b"{}", JSON)
    reply = await broker.call("POST", f"{SERVICE}/{pointer}/{how}", b"", JSON)
    assert reply.status == 200, reply


async def test_a_poll_shows_no_message_of_an_open_transaction(broker: Broker) -> None:
    pointer = await begun(broker)
    await publish(broker, b"before")
    await publish(broker, b"mine", pointer=pointer)
    await publish(broker, b"behind")
    assert await shown(broker, "") == ["before", "mine", "behind"]
    assert await shown(broker) == ["before"]
    assert await shown(broker, "?committed=false") == ["before", "mine", "behind"]
    await end(broker, pointer, "commit")
    assert await shown(broker) == ["before", "mine", "behind"]


async def test_a_poll_passes_over_an_invalid_transaction(broker: Broker) -> None:
    pointer = await begun(broker)
    await publish(broker, b"mine", pointer=pointer)
    await publish(broker, b"behind")
    await end(broker, pointer, "invalidate")
    assert await shown(broker) == ["behind"]


@pytest.mark.parametrize("query", ["?committed=yes", "?committed=", "?committed=True"])
@pytest.mark.parametrize("path", [POLL, EVENTS])
async def test_another_word_is_refused(broker: Broker, path: str, query: str) -> None:
    await publish(broker, b"a")
    method = "POST" if path == POLL else "GET"
    reply = await broker.call(method, path + query, b"{}", PLAIN)
    assert (reply.status, "committed" in reply.json["message"]) == (400, True)


async def test_a_snapshot_beside_it_is_refused(broker: Broker) -> None:
    await publish(broker, b"a")
    body = json.dumps({"transaction": {"transaction_id": "7", "read_pointer": "7"}}).encode()
    reply = await broker.call("POST", POLL + "?committed=true", body, PLAIN)
    assert reply.status == 400


async def test_a_stream_shows_a_message_when_its_transaction_is_committed(broker: Broker) -> None:
    pointer = await begun(broker)
    await publish(broker, b"mine", pointer=pointer)
    await publish(broker, b"behind")
    answer = await broker.answer("GET", EVENTS + "?committed=true")
    assert isinstance(answer, ChunkedReply)
    async with aclosing(answer.chunks) as chunks, asyncio.timeout(30):
        assert (await anext(chunks)).startswith(b": default:t")
        ending = asyncio.create_task(end(broker, pointer, "commit"))
        told = b"".join([await anext(chunks)])
        while b"behind" not in told:
            told += await anext(chunks)
        await ending
    assert told.index(b"mine") < told.index(b"behind")


async def test_the_client_asks_for_committed_messages(broker: Broker) -> None:
    pointer = await begun(broker)
    await publish(broker, b"before")
    await publish(broker, b"mine", pointer=pointer)
    async with listening(broker) as http, Client(http.url) as client:
        assert [m.payload for m in await client.poll("t", committed=True)] == [b"before"]
        options = TailOptions(follow=False)
        tail = client.tail("t", committed=True, options=options)
        assert [m.payload async for m in tail] == [b"before"]
        async with aclosing(client.events("t", committed=True)) as events, asyncio.timeout(30):
            assert (await anext(events)).payload == b"before"
            waiting = asyncio.ensure_future(anext(events))
            await end(broker, pointer, "commit")
            assert (await waiting).payload == b"mine"
        snapshot = await client.transactions.snapshot()
        with pytest.raises(ValueError, match="snapshot"):
            await client.poll("t", committed=True, snapshot=snapshot)


@pytest.mark.parametrize("reader", ["events", "subscriber"])
async def test_from_now_on_a_reader_gets_the_messages_that_are_committed_later(
    broker: Broker, reader: str
) -> None:
    """No reader has seen a message of a transaction that is open now, so it is new when it is committed."""
    pointer = await begun(broker)
    await publish(broker, b"old")
    await publish(broker, b"mine", pointer=pointer)
    await publish(broker, b"behind")
    seen: asyncio.Queue[bytes] = asyncio.Queue()
    async with listening(broker) as http, Client(http.url) as client, asyncio.timeout(30):

        async def follow() -> None:
            async for each in client.events("t", "now", committed=True):
                await seen.put(each.payload)

        async def handle(each: Message) -> None:
            await seen.put(each.payload)

        if reader == "events":
            following = asyncio.create_task(follow())
            # The stream has its place once its handler has answered.
            await eventually(lambda: b'"events"' in broker.metrics.render(), list)
        else:
            subscriber = client.subscriber("t", "s", handle, start="now", transactional=True)
            following = asyncio.create_task(subscriber.run())
            await eventually(lambda: subscriber.is_working, list)
        await publish(broker, b"later")
        await end(broker, pointer, "commit")
        assert [await seen.get() for _ in range(3)] == [b"mine", b"behind", b"later"]
        following.cancel()
        await asyncio.wait([following])


@pytest.mark.parametrize("leader", [0, 1])
@on_cluster(2)
async def test_any_node_of_a_cluster_shows_committed_messages(
    cluster: HttpCluster, leader: int
) -> None:
    await cluster.lead(leader)
    async with cluster.client(1) as writer, cluster.client(0) as reader:
        begun_there = await writer.transactions.start()
        await writer.publish("t", b"before")
        await writer.publish("t", b"mine", pointer=begun_there.transaction_id)
        assert [m.payload for m in await reader.poll("t", committed=True)] == [b"before"]
        async with aclosing(reader.events("t", committed=True)) as events:
            assert (await anext(events)).payload == b"before"
            waiting = asyncio.ensure_future(anext(events))
            await writer.transactions.can_commit(begun_there.transaction_id)
            await writer.transactions.commit(begun_there.transaction_id)
            assert (await waiting).payload == b"mine"
