"""Polls and streams of events at any node of a cluster, while leadership moves."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import aclosing

import pytest

from broker.model import Poll, PublishRequest
from broker.testing.virtual_time import pass_time
from broker.topics.pages import PIECE_BYTES_MAX
from broker.wire import attributes, avro, messages
from tests.kit.http_cluster import JSON, HttpCluster, NodeConnection, on_cluster
from tests.kit.openapi import Answered
from tests.kit.serving import topic_path

PUBLISH = topic_path("t", "publish")
POLL = topic_path("t", "poll")
EVENTS = topic_path("t", "events")
AVRO = {"Content-Type": "avro/binary"}
MESSAGES = {"Content-Type": "avro/message"}
AVRO_POLL = avro.encode_poll(Poll())
DEADLINE_S = 90.0
"""In virtual time; a dead node's session ends within it."""


def polling(
    cluster: HttpCluster, node: int, wait_s: float = 60, body: bytes = b"{}"
) -> asyncio.Future[Answered]:
    """Begin a poll at a node."""
    return asyncio.ensure_future(cluster(node, "POST", f"{POLL}?wait={wait_s}", body, JSON))


async def waits(cluster: HttpCluster, node: int) -> None:
    """Wait until a poll waits at a node."""
    async with asyncio.timeout(DEADLINE_S):
        while not await cluster.metric(node, "broker_waiting_polls"):
            await pass_time(0.1)


def payloads(reply: Answered) -> list[str]:
    assert reply.status == 200
    return [message["payload"] for message in reply.json]


def held_by_a_transaction(pointer: int) -> bytes:
    return json.dumps({"write_pointer": str(pointer), "messages": ["held"]}).encode()


@on_cluster()
async def test_a_poll_is_answered_alike_by_all_nodes(cluster: HttpCluster) -> None:
    await cluster.publish(0, "a")
    for body, headers in ((b"{}", JSON), (AVRO_POLL, AVRO)):
        replies = [await cluster(node, "POST", POLL, body, headers) for node in range(3)]
        assert len({reply.body for reply in replies}) == 1
        assert len({reply.headers["Broker-Leader"] for reply in replies}) == 1


@on_cluster()
async def test_a_long_reply_is_passed_on_as_it_comes(cluster: HttpCluster) -> None:
    """The leader dies while the client has not read all of the reply: the client has the beginning."""
    whole = [b"%06d" % number * 1000 for number in range(800)]
    for start in range(0, len(whole), 100):
        body = avro.encode_publish_request(PublishRequest(None, whole[start : start + 100]))
        assert (await cluster(1, "POST", PUBLISH, body, AVRO)).status == 200
    far, near = [await cluster(node, "POST", POLL, AVRO_POLL, AVRO) for node in (1, 0)]
    assert far.body == near.body
    assert len(far.body) > 4_000_000
    async with cluster.connection(1) as http:
        await http.ask("POST", POLL, AVRO_POLL, AVRO)
        assert await http.line() == b"HTTP/1.1 200 OK\r\n"
        cluster.machines[0].kill()
        begun = await http.rest()
    assert whole[0] in begun
    assert whole[-1] not in begun


@on_cluster()
async def test_keys_and_headers_come_through_every_node(cluster: HttpCluster) -> None:
    encoded = [attributes.encode(b"k", {"h": b"1"}), b""]
    wanted = PublishRequest(None, [b"a", b"b"], attributes=encoded)
    body = messages.encode_publish_request(wanted)
    assert (await cluster(1, "POST", PUBLISH, body, MESSAGES)).status == 200
    asked = AVRO | {"Accept": "avro/message"}
    replies = [await cluster(node, "POST", POLL, AVRO_POLL, asked) for node in range(3)]
    assert {reply.headers["Content-Type"] for reply in replies} == {"avro/message"}
    assert len({reply.body for reply in replies}) == 1
    found = messages.PagesDecoder().feed(replies[0].body)
    assert [(each.key, dict(each.headers)) for each in found] == [(b"k", {"h": b"1"}), (None, {})]


@on_cluster(nodes=2)
async def test_a_bad_wait_is_refused_without_asking_the_leader(cluster: HttpCluster) -> None:
    reply = await cluster(1, "POST", POLL + "?wait=x", b"{}", JSON)
    assert (reply.status, reply.headers["Broker-Error"]) == (400, "bad_request")
    assert not cluster.forwarded(1, "poll")


@on_cluster()
async def test_a_poll_waits_at_the_leader(cluster: HttpCluster) -> None:
    waiting = polling(cluster, 1)
    await waits(cluster, 0)
    for node in (0, 1):
        assert await cluster.metric(node, "broker_budget_held", 'budget="waiting"') == 1
    await cluster.publish(2, "a")
    assert payloads(await waiting) == ["a"]
    assert len(cluster.forwarded(1, "poll")) == 1


@on_cluster()
async def test_a_wait_ends_in_time_with_a_leader_and_without_one(cluster: HttpCluster) -> None:
    for lose_leader in (lambda: None, lambda: cluster.kill_without_successor(0)):
        lose_leader()
        began = asyncio.get_running_loop().time()
        assert payloads(await polling(cluster, 1, wait_s=5)) == []
        assert 5 <= asyncio.get_running_loop().time() - began < 6


@pytest.mark.parametrize("node", [0, 1, 2])
@on_cluster()
async def test_a_poll_that_waits_moves_with_the_leader(cluster: HttpCluster, node: int) -> None:
    seen = (await cluster.publish(0, "a")).headers["Broker-Last-Id"]
    body = json.dumps({"start": seen, "inclusive": False}).encode()
    waiting = polling(cluster, node, body=body)
    await waits(cluster, 0)
    await cluster.lead(2)
    await waits(cluster, 2)
    await cluster.publish(0, "b")
    assert payloads(await waiting) == ["b"]


@pytest.mark.parametrize("node", [0, 1])
@on_cluster()
async def test_a_poll_with_a_large_snapshot_holds_no_body_while_it_waits(
    cluster: HttpCluster, node: int
) -> None:
    """If the leader moves, a poll at the leader ends early. A poll at another node is asked again from there."""
    snapshot = {"transaction_id": 9, "read_pointer": 8, "in_progress": [*range(10, 2000)]}
    waiting = polling(cluster, node, body=json.dumps({"snapshot": snapshot}).encode())
    await waits(cluster, 0)
    assert await cluster.metric(0, "broker_budget_held", 'budget="body_bytes"') == 0
    await cluster.lead(2)
    if node == 1:
        await waits(cluster, 2)
        await cluster.publish(0, "b")
    async with asyncio.timeout(1):
        assert payloads(await waiting) == (["b"] if node else [])


@pytest.mark.parametrize("node", [0, 1])
@on_cluster()
async def test_a_poll_ends_when_a_transaction_holds_it(cluster: HttpCluster, node: int) -> None:
    body = json.dumps({"snapshot": {"transaction_id": 9, "read_pointer": 9}}).encode()
    waiting = polling(cluster, node, body=body)
    await waits(cluster, 0)
    pointer = cluster.sim.clock.now_ms() * 1_000_000
    held = held_by_a_transaction(pointer)
    assert (await cluster(0, "POST", PUBLISH, held, JSON)).status == 200
    async with asyncio.timeout(1):
        ended = await waiting
    assert (payloads(ended), ended.headers["Broker-Blocked-By"]) == ([], str(pointer))
    # Without a leader a poll does not wait for the transaction either.
    cluster.kill_without_successor(0)
    async with asyncio.timeout(1):
        ended = await polling(cluster, 1, body=body)
    assert (payloads(ended), ended.headers["Broker-Blocked-By"]) == ([], str(pointer))


@on_cluster()
async def test_a_poll_survives_its_leader(cluster: HttpCluster) -> None:
    waiting = polling(cluster, 1)
    await waits(cluster, 0)
    cluster.machines[0].kill()
    await cluster.publish(2, "b")
    assert payloads(await waiting) == ["b"]


@on_cluster()
async def test_without_a_leader_polls_read_storage(cluster: HttpCluster) -> None:
    await cluster.publish(0, "a")
    cluster.kill_without_successor(0)
    assert await cluster.payloads(1) == ["a"]
    assert payloads(await polling(cluster, 2)) == ["a"]


@on_cluster()
async def test_a_poll_that_waits_without_a_leader_looks_for_one(cluster: HttpCluster) -> None:
    cluster.kill_without_successor(0)
    waiting = polling(cluster, 1)
    await waits(cluster, 1)
    cluster.coordinator_recovers()
    await cluster.publish(2, "a")
    assert payloads(await waiting) == ["a"]


@on_cluster()
async def test_a_poll_sent_on_by_a_node_that_drains_is_answered_empty(
    cluster: HttpCluster,
) -> None:
    waiting = polling(cluster, 1)
    await waits(cluster, 0)
    cluster.machines[1].terminate(again=False)
    async with asyncio.timeout(5):
        reply = await waiting
    assert payloads(reply) == []
    assert reply.headers["Connection"] == "close"


@on_cluster()
async def test_a_poll_that_does_not_wait_is_sent_on_although_its_node_drains(
    cluster: HttpCluster,
) -> None:
    """An empty answer would say that there are no messages."""
    await cluster.publish(0, "a")
    assert payloads(await cluster(1, "POST", POLL, b"{}", JSON)) == ["a"]
    ends = cluster.strand(1, 0)
    asking = asyncio.ensure_future(cluster(1, "POST", POLL, b"{}", JSON))
    await pass_time(0.5)
    cluster.machines[1].terminate(again=False)
    await pass_time(0.5)
    cluster.sim.network.land(ends)
    assert payloads(await asking) == ["a"]


@on_cluster()
async def test_a_leader_that_stops_sends_polls_on(cluster: HttpCluster) -> None:
    waiting = polling(cluster, 1)
    await waits(cluster, 0)
    cluster.machines[0].terminate(again=False)
    await cluster.publish(1, "a")
    reply = await waiting
    assert payloads(reply) == ["a"]
    assert "Broker-Moved" not in reply.headers


@on_cluster(nodes=2)
async def test_a_poll_for_an_unknown_topic(cluster: HttpCluster) -> None:
    for node in (0, 1):
        reply = await cluster(node, "POST", topic_path("no", "poll"), b"{}", JSON)
        assert (reply.status, reply.headers["Broker-Error"]) == (404, "topic_not_found")


# Streams of events.


async def events(http: NodeConnection, count: int) -> list[str]:
    """Read the payloads of so many events from a stream."""
    found: list[str] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < count:
            line = await http.line()
            assert line, f"the stream was cut after {found}"
            if line.startswith(b"data: "):
                found.append(json.loads(line.removeprefix(b"data: "))["payload"])
    return found


async def to_its_end(http: NodeConnection) -> None:
    """Read a stream to its last chunk. Fail if it is cut off before."""
    async with asyncio.timeout(DEADLINE_S):
        while (line := await http.line()) != b"0\r\n":
            assert line, "the stream was cut"


@pytest.mark.parametrize("node", [0, 1, 2])
@on_cluster()
async def test_a_stream_of_events_loses_and_repeats_nothing_while_leadership_moves(
    cluster: HttpCluster, node: int
) -> None:
    sent = []
    async with cluster.connection(node) as http:
        await http.ask("GET", EVENTS)
        for turn, to in enumerate((1, 2, 0, 2, 1)):
            moving = asyncio.ensure_future(cluster.lead(to))
            for number in range(10):
                sent.append(f"{turn}.{number}")
                assert (await cluster.publish(number % 3, sent[-1])).status == 200
            await moving
        assert await events(http, len(sent)) == sent


@on_cluster()
async def test_events_have_keys_and_headers_at_every_node(cluster: HttpCluster) -> None:
    wanted = PublishRequest(None, [b"a"], attributes=[attributes.encode(b"k", {"h": b"1"})])
    body = messages.encode_publish_request(wanted)
    assert (await cluster(0, "POST", PUBLISH, body, MESSAGES)).status == 200
    for node in range(3):
        async with (
            cluster.client(node, follow_leaders=False) as client,
            aclosing(client.events("t")) as stream,
        ):
            message = await anext(stream)
        assert (message.key, dict(message.headers)) == (b"k", {"h": b"1"})


@pytest.mark.parametrize("node", [0, 1])
@on_cluster(nodes=2)
async def test_large_and_small_events_come_in_order_and_in_pieces(
    cluster: HttpCluster, node: int
) -> None:
    sent = ["a", "x" * 50_000, "b", "y" * 50_000, *["\x01" * 2_000] * 200]
    body = json.dumps(sent).encode()
    assert (await cluster(0, "POST", PUBLISH, body, JSON)).status == 200
    async with (
        cluster.client(node, follow_leaders=False) as client,
        aclosing(client.events("t")) as stream,
    ):
        found = [(await anext(stream)).payload.decode() for _ in sent]
    assert found == sent
    async with cluster.connection(node) as http:
        await http.ask("GET", EVENTS)
        lines = [b""]
        while sum(line.startswith(b"id: ") for line in lines) < len(sent):
            lines.append(await http.line())
    sizes = [int(line, 16) for line in lines if re.fullmatch(rb"[0-9a-f]+\r\n", line)]
    assert max(sizes) <= PIECE_BYTES_MAX


@on_cluster()
async def test_a_stream_survives_its_leader(cluster: HttpCluster) -> None:
    async with cluster.connection(1) as http:
        await http.ask("GET", EVENTS)
        await cluster.publish(0, "a")
        assert await events(http, 1) == ["a"]
        cluster.machines[0].kill()
        await cluster.publish(2, "b")
        assert await events(http, 1) == ["b"]


@on_cluster()
async def test_a_stream_survives_a_leader_that_dies_in_the_middle_of_a_page(
    cluster: HttpCluster,
) -> None:
    whole = [b"%06d" % number * 2000 for number in range(480)]
    for start in range(0, len(whole), 80):
        body = avro.encode_publish_request(PublishRequest(None, whole[start : start + 80]))
        assert (await cluster(0, "POST", PUBLISH, body, AVRO)).status == 200
    async with cluster.connection(1) as http:
        await http.ask("GET", EVENTS)
        found = await events(http, 1)
        cluster.machines[0].kill()
        found += await events(http, len(whole) - 1)
    assert found == [payload.decode() for payload in whole]


@on_cluster()
async def test_a_stream_ends_after_a_whole_event_when_its_node_drains(
    cluster: HttpCluster,
) -> None:
    sent = [f"{number}" * 900_000 for number in range(6)]
    for payload in sent:
        assert (await cluster.publish(0, payload)).status == 200
    async with cluster.connection(1) as http:
        await http.ask("GET", EVENTS)
        # Now the node sends as much as fits into buffers: a part of some event.
        await pass_time(1.0)
        cluster.machines[1].terminate(again=False)
        reply = await http.reply()
    lines = [line for line in reply.body.splitlines() if line.startswith(b"data: ")]
    found = [json.loads(line.removeprefix(b"data: "))["payload"] for line in lines]
    assert 0 < len(found) < len(sent)
    assert found == sent[: len(found)]


@on_cluster()
async def test_a_stream_ends_whole_when_its_topic_is_deleted(cluster: HttpCluster) -> None:
    async with cluster.connection(1) as http:
        await http.ask("GET", EVENTS)
        await cluster.publish(0, "a")
        assert await events(http, 1) == ["a"]
        assert (await cluster(2, "DELETE", topic_path("t"))).status == 200
        await to_its_end(http)
