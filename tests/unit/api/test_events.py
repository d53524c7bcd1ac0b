import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import pytest
from multidict import CIMultiDict

from broker.api.messages.events import Events
from broker.api.messages.polls import Polling, RoutedPage
from broker.api.routed import OwnService
from broker.api.router import NodeParts
from broker.api.routes import any_pointer
from broker.clock import SystemClock
from broker.coordination.ports import NodeInfo
from broker.coordination.tenure import EVERYTHING, HERE, Everything, TopicPlacement
from broker.errors import Overloaded
from broker.http.budget import Bounds, BudgetKind, Budgets, Usage
from broker.http.reply import ChunkedReply
from broker.http.request import PathNames, Request
from broker.model import TopicId
from broker.operations.media_types import MESSAGES
from broker.routing.nodeheaders import PROTOCOL
from broker.storage.log import Logs
from broker.storage.memory.table import MemoryTable
from broker.storage.records import Records
from broker.testing.virtual_time import pass_time
from broker.wire import messages
from broker.wire.varint import END, encode_bytes
from tests.kit.http_cluster import TOPIC, HttpCluster, on_cluster
from tests.kit.serving import Broker, alone, topic_path

EVENTS = topic_path("t", "events")
TEXT = {"Content-Type": "text/plain"}
SMALL = Budgets({BudgetKind.REPLY_BYTES: Bounds(350_000, 350_000, 350_000)})


async def publish(broker: Broker, *payloads: str) -> None:
    for payload in payloads:
        await broker.call("POST", topic_path("t", "publish"), payload.encode(), TEXT)


async def events(
    broker: Broker, query: str = "", headers: dict[str, str] | None = None
) -> AsyncIterator[dict[str, object]]:
    """Yield the events of a stream. Closing this generator ends the stream."""
    answer = await broker.answer("GET", EVENTS + query, CIMultiDict(headers or {}))
    assert isinstance(answer, ChunkedReply), answer
    assert answer.content_type == "text/event-stream"
    try:
        async for chunk in answer.chunks:
            for event in chunk.decode().strip().split("\n\n"):
                identifier, _, data = event.partition("\n")
                if data:
                    value = json.loads(data.removeprefix("data: "))
                    assert identifier == f"id: {value['id']}@1"
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


async def test_last_event_id_resumes_exactly_and_overrides_from(broker: Broker) -> None:
    await publish(broker, "1", "2", "3")
    first, second, _ = await take(3, events(broker))
    query = f"?from={first['id']}"
    assert [e["payload"] for e in await take(2, events(broker, query))] == ["2", "3"]
    headers = {"Last-Event-ID": str(second["id"])}
    assert [e["payload"] for e in await take(1, events(broker, query, headers))] == ["3"]


async def test_from_now_shows_only_new_messages(broker: Broker) -> None:
    await publish(broker, "old")
    stream = events(broker, "?from=now")
    waiting = asyncio.ensure_future(take(1, stream))
    await broker.someone_waits()
    await publish(broker, "new")
    assert [e["payload"] for e in await waiting] == ["new"]


async def opening(broker: Broker, query: str = "", headers: dict[str, str] | None = None) -> str:
    """Return what a stream begins with, and end it."""
    answer = await broker.answer("GET", EVENTS + query, CIMultiDict(headers or {}))
    assert isinstance(answer, ChunkedReply), answer
    try:
        return (await anext(answer.chunks)).decode()
    finally:
        await answer.chunks.aclose()


@pytest.mark.parametrize("before", [[], ["1", "2"]])
async def test_a_reconnect_after_a_stream_without_events_loses_nothing(
    broker: Broker, before: list[str]
) -> None:
    await publish(broker, *before)
    identifier, *rest = (await opening(broker, "?from=now")).split("\n")
    assert rest == ["", ": default:t", "", ""]
    await publish(broker, "between")
    # As a browser does: the same address, and the last id that it was told, with an event or without.
    headers = {"Last-Event-ID": identifier.removeprefix("id: ")}
    stream = events(broker, "?from=now", headers)
    await publish(broker, "after")
    assert [e["payload"] for e in await take(2, stream)] == ["between", "after"]


async def test_a_stream_that_begins_behind_an_id_sends_the_id_first(broker: Broker) -> None:
    await publish(broker, "1")
    (event,) = await take(1, events(broker))
    told = f"id: {event['id']}@1\n\n: default:t\n\n"
    assert await opening(broker, "?from=now") == told
    assert await opening(broker, f"?from={event['id']}") == told
    assert await opening(broker, "", {"Last-Event-ID": str(event["id"])}) == told
    assert await opening(broker) == ": default:t\n\n"
    assert await opening(broker, "?from=0") == ": default:t\n\n"


ELSEWHERE = NodeInfo(3, "life", "http://b:8083", "test", PROTOCOL)


class Decreed(Everything):
    """A tenure that permits every claim, whichever node should lead."""

    def __init__(self, place: TopicPlacement) -> None:
        self._place = place

    def place(self, topic: TopicId) -> TopicPlacement:
        return self._place


@pytest.mark.parametrize(
    ("place", "told"),
    [
        (TopicPlacement(here=True, node=ELSEWHERE), "http://b:8083;node=3;epoch=1"),
        # The log is still here: its epoch is not that of the node that it is handed over to.
        (TopicPlacement(here=False, node=ELSEWHERE), "http://b:8083;node=3"),
        (TopicPlacement(here=False, node=None), None),
        (HERE, None),
    ],
)
async def test_the_head_names_the_node_that_should_lead(
    place: TopicPlacement, told: str | None
) -> None:
    clock = SystemClock()
    logs = Logs(MemoryTable(is_alone=False), clock)
    broker = Broker(clock=clock, stores=(logs, Records(logs.resolver)))
    await broker.call("PUT", topic_path("t"))
    await publish(broker, "1")
    broker.topics.around.tenure = Decreed(place)
    answer = await broker.answer("GET", EVENTS)
    assert isinstance(answer, ChunkedReply)
    assert dict(answer.headers).get("Broker-Leader") == told
    await answer.chunks.aclose()
    broker.topics.around.tenure = EVERYTHING
    await broker.close()


@on_cluster()
async def test_a_client_that_only_follows_events_comes_to_the_leader(
    cluster: HttpCluster,
) -> None:
    async with cluster.client(1) as client, aclosing(client.events(TOPIC, "now")) as stream:
        waiting = asyncio.ensure_future(anext(stream))
        await pass_time(1.0)
        forwarded = len(cluster.forwarded(1, "poll"))
        await cluster.publish(0, "1")
        assert (await waiting).payload == b"1"
        waiting = asyncio.ensure_future(anext(stream))
        await pass_time(1.0)
        cluster.machines[1].kill()
        await cluster.publish(0, "2")
        assert (await waiting).payload == b"2"
        assert len(cluster.forwarded(1, "poll")) == forwarded


@on_cluster()
async def test_a_client_that_follows_events_moves_along_with_the_leader(
    cluster: HttpCluster,
) -> None:
    async with cluster.client(0) as client, aclosing(client.events(TOPIC, "now")) as stream:
        got = [asyncio.ensure_future(anext(stream))]
        await pass_time(1.0)
        await cluster.lead(1)
        for number in range(8):
            await cluster.publish(1, b"%d" % number)
            assert (await got[-1]).payload == b"%d" % number
            got.append(asyncio.ensure_future(anext(stream)))
        # The poll that was waiting, and one that ended with the stream there.
        assert len(cluster.forwarded(0, "poll")) <= 2
        cluster.machines[0].kill()
        await cluster.publish(1, "last")
        assert (await got[-1]).payload == b"last"


@on_cluster()
async def test_a_stream_of_events_tells_each_new_leader_once(cluster: HttpCluster) -> None:
    async with cluster.connection(0) as http:
        await http.ask("GET", EVENTS)
        lines = [await http.line()]

        async def until(end: bytes) -> None:
            async with asyncio.timeout(30):
                while end not in lines[-1]:
                    lines.append(await http.line())

        await until(b": default:t\n")
        for to in (1, 2):
            await cluster.lead(to)
            for payload in (b"first-%d" % to, b"second-%d" % to):
                await cluster.publish(0, payload)
                await until(b'"' + payload + b'"')
    told = [line for line in lines if line.startswith(b": leader")]
    assert told == [f": leader {cluster.url(to)};node={to}\n".encode() for to in (1, 2)]


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


async def test_a_silent_stream_sends_keep_alives(broker: Broker) -> None:
    names = PathNames("default", TopicId("default", "t"))
    request = Request("GET", EVENTS, "", CIMultiDict(), b"", names=names)
    routed = alone(broker.topics, 30.0)
    service = OwnService(broker.transactions, routed)
    parts = NodeParts(broker.topics, broker.config, routed, service, any_pointer)
    events = Events(parts, Polling(parts), keep_alive_s=0.01)
    answer = await events.events(request)
    assert isinstance(answer, ChunkedReply)
    async with asyncio.timeout(30):
        assert [await anext(answer.chunks) for _ in range(3)] == [
            b": default:t\n\n",
            b": keep-alive\n\n",
            b": keep-alive\n\n",
        ]
    await answer.chunks.aclose()


async def test_a_stream_counts_what_another_node_sends_before_it_keeps_it() -> None:
    payload, usage = b"a" * 300_000, Usage(SMALL.account("a", lambda _: None))
    whole = b"".join(messages.page(1, [b"\x28" + bytes(20) + encode_bytes(payload)], [])) + END

    async def chunks() -> AsyncGenerator[bytes]:
        for at in range(0, len(whole), 100_000):
            yield whole[at : at + 100_000]
            held.append(usage.used.get(BudgetKind.REPLY_BYTES, 0))

    held: list[int] = []
    async for found in RoutedPage(ChunkedReply(chunks(), MESSAGES), usage).messages():
        assert [message.payload for message in found] == [payload]
        assert usage.used[BudgetKind.REPLY_BYTES] == len(whole)
    assert held == [100_000, 200_000, 300_000, 0]
    assert not usage.used

    usage.take(BudgetKind.REPLY_BYTES, 100_000)
    with pytest.raises(Overloaded):
        async for _ in RoutedPage(ChunkedReply(chunks(), MESSAGES), usage).messages():
            pass
    assert usage.used == {BudgetKind.REPLY_BYTES: 100_000}
