"""Polls and streams of events over several nodes, while leadership moves under them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from broker.client import Client
from broker.http.budget import BudgetKind
from broker.model import Poll, PublishRequest
from broker.wire import attributes, avro, messages
from tests.kit.ring import TOPIC, Ring, ring_of
from tests.kit.serving import eventually, topic_path

PUBLISH = topic_path("t", "publish")
POLL = topic_path("t", "poll")
TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
AVRO = {"Content-Type": "avro/binary"}


@pytest.fixture
async def ring() -> AsyncIterator[Ring]:
    """Three nodes that listen, with a topic ``t``, led by the first."""
    async with ring_of(3) as ring:
        assert (await ring.nodes[0].http("PUT", topic_path("t"))).status == 200
        yield ring


async def publish(ring: Ring, payload: str, node: int = 0) -> None:
    assert (await ring.nodes[node].http("POST", PUBLISH, payload.encode(), TEXT)).status == 200


async def poll(ring: Ring, node: int, wait_s: float = 0.0, body: bytes = b"{}"):
    target = POLL + (f"?wait={wait_s}" if wait_s else "")
    return await ring.nodes[node].http("POST", target, body, JSON)


def payloads(reply) -> list[str]:
    assert reply.status == 200
    return [message["payload"] for message in reply.json]


def waits(ring: Ring, node: int):
    """Wait until a poll waits at a node."""
    topics = ring.nodes[node].topics
    return eventually(lambda: topics.waiting_polls, lambda: f"no poll waits at node {node}")


async def test_a_poll_is_answered_alike_by_all_nodes(ring: Ring) -> None:
    await publish(ring, "a")
    replies = [await poll(ring, node) for node in range(3)]
    assert replies[0].body == replies[1].body == replies[2].body
    raw = [await node.http("POST", POLL, avro_body(), AVRO) for node in ring.nodes]
    assert raw[0].body == raw[1].body == raw[2].body
    assert raw[1].headers["Broker-Leader"] == raw[0].headers["Broker-Leader"]


def avro_body() -> bytes:
    return avro.encode_poll(Poll())


async def test_a_long_reply_is_passed_on_as_it_comes(ring: Ring) -> None:
    whole = [b"%06d" % number * 1000 for number in range(500)]
    body = avro.encode_publish_request(PublishRequest(None, whole))
    assert (await ring.nodes[1].http("POST", PUBLISH, body, AVRO)).status == 200
    far, near = [await ring.nodes[n].http("POST", POLL, avro_body(), AVRO) for n in (1, 0)]
    assert len(far.body) > 3_000_000
    assert far.body == near.body
    assert far.headers["Transfer-Encoding"] == "chunked"


async def test_keys_and_headers_come_through_every_node(ring: Ring) -> None:
    encoded = [attributes.encode(b"k", {"h": b"1"}), b""]
    wanted = PublishRequest(None, [b"a", b"b"], attributes=encoded)
    body, whole = messages.encode_publish_request(wanted), {"Content-Type": "avro/message"}
    assert (await ring.nodes[1].http("POST", PUBLISH, body, whole)).status == 200
    asked = AVRO | {"Accept": "avro/message"}
    replies = [await node.http("POST", POLL, avro_body(), asked) for node in ring.nodes]
    assert {reply.headers["Content-Type"] for reply in replies} == {"avro/message"}
    assert len({reply.body for reply in replies}) == 1
    found = messages.PagesDecoder().feed(replies[0].body)
    assert [(each.key, dict(each.headers)) for each in found] == [(b"k", {"h": b"1"}), (None, {})]


async def test_a_bad_wait_is_refused_before_anybody_is_asked(ring: Ring) -> None:
    reply = await ring.nodes[1].http("POST", POLL + "?wait=x", b"{}", JSON)
    assert (reply.status, reply.headers["Broker-Error"]) == (400, "bad_request")


async def test_a_poll_waits_at_the_leader(ring: Ring) -> None:
    waiting = asyncio.create_task(poll(ring, 1, 20))
    await waits(ring, 0)
    await publish(ring, "a", node=2)
    assert payloads(await waiting) == ["a"]


async def test_a_wait_ends_in_time(ring: Ring) -> None:
    assert payloads(await poll(ring, 1, 0.05)) == []
    ring.leader = -1
    assert payloads(await poll(ring, 1, 0.05)) == []


@pytest.mark.parametrize("node", [0, 1, 2])
async def test_a_poll_that_waits_moves_with_the_leader(ring: Ring, node: int) -> None:
    await publish(ring, "a")
    seen = (await poll(ring, 0)).json[0]["id"]
    body = json.dumps({"start": seen, "inclusive": False}).encode()
    waiting = asyncio.create_task(poll(ring, node, 20, body))
    await waits(ring, 0)
    await ring.move(2)
    await waits(ring, 2)
    await publish(ring, "b")
    assert payloads(await waiting) == ["b"]


@pytest.mark.parametrize("node", [0, 1])
async def test_a_poll_with_a_large_snapshot_holds_no_body_while_it_waits(
    ring: Ring, node: int
) -> None:
    """Where the leader moves it ends early if the client asked there; else its first node asks again."""
    snapshot = {"transaction_id": 9, "read_pointer": 8, "in_progress": [*range(10, 2000)]}
    body = json.dumps({"snapshot": snapshot}).encode()
    waiting = asyncio.create_task(poll(ring, node, 20, body))
    await waits(ring, 0)
    assert ring.nodes[0].server.budgets.held[BudgetKind.BODY_BYTES] == 0
    await ring.move(2)
    if node == 1:
        await waits(ring, 2)
        await publish(ring, "b")
    assert payloads(await waiting) == (["b"] if node else [])


@pytest.mark.parametrize("node", [0, 1])
async def test_a_poll_ends_when_a_transaction_holds_it(ring: Ring, node: int) -> None:
    body = json.dumps({"snapshot": {"transaction_id": 9, "read_pointer": 9}}).encode()
    waiting = asyncio.create_task(poll(ring, node, 60, body))
    await waits(ring, 0)
    pointer = ring.nodes[0].topics.around.clock.now_ms() * 1_000_000
    held = json.dumps({"messages": ["held"], "write_pointer": pointer}).encode()
    assert (await ring.nodes[0].http("POST", PUBLISH, held, JSON)).status == 200
    async with asyncio.timeout(30):
        ended = await waiting
        assert (payloads(ended), ended.headers["Broker-Blocked-By"]) == ([], str(pointer))
        ring.leader = -1  # Nor is it asked again where there is no leader.
        ended = await poll(ring, node, 60, body)
        assert (payloads(ended), ended.headers["Broker-Blocked-By"]) == ([], str(pointer))


@pytest.mark.slow
async def test_a_poll_survives_its_leader(ring: Ring) -> None:
    waiting = asyncio.create_task(poll(ring, 1, 20))
    await waits(ring, 0)
    await ring.nodes[0].kill()
    await ring.move(2)
    await waits(ring, 2)
    await publish(ring, "b", node=2)
    assert payloads(await waiting) == ["b"]


async def test_without_a_leader_polls_read_storage(ring: Ring) -> None:
    await publish(ring, "a")
    await ring.nodes[0].kill()
    assert payloads(await poll(ring, 1)) == ["a"]
    ring.leader = -1
    assert payloads(await poll(ring, 2)) == ["a"]
    assert payloads(await poll(ring, 2, 20)) == ["a"]


@pytest.mark.slow
async def test_a_poll_that_waits_without_a_leader_looks_for_one(ring: Ring) -> None:
    ring.leader = -1
    waiting = asyncio.create_task(poll(ring, 1, 20))
    await waits(ring, 1)
    await ring.move(2)
    await publish(ring, "a", node=2)
    assert payloads(await waiting) == ["a"]


async def test_a_poll_sent_on_by_a_node_that_drains_is_answered_empty(ring: Ring) -> None:
    waiting = asyncio.create_task(poll(ring, 1, 20))
    await waits(ring, 0)
    ring.nodes[1].server.begin_drain()
    reply = await waiting
    assert payloads(reply) == []
    assert reply.headers["Connection"] == "close"


async def test_a_leader_that_drains_sends_polls_on(ring: Ring) -> None:
    waiting = asyncio.create_task(poll(ring, 1, 20))
    await waits(ring, 0)
    ring.leader = 2
    ring.nodes[0].server.begin_drain()
    await ring.nodes[0].topics.leaders.hand_over([TOPIC])
    ring.told()
    await waits(ring, 2)
    await publish(ring, "a", node=1)
    reply = await waiting
    assert payloads(reply) == ["a"]
    assert "Broker-Moved" not in reply.headers


async def test_a_poll_for_an_unknown_topic(ring: Ring) -> None:
    reply = await ring.nodes[1].http("POST", topic_path("no", "poll"), b"{}", JSON)
    assert (reply.status, reply.headers["Broker-Error"]) == (404, "topic_not_found")


class Follower:
    """A client of an event stream, reading on in a task."""

    def __init__(self, ring: Ring, node: int) -> None:
        self.payloads: list[str] = []
        self.whole = False
        self._task = asyncio.create_task(self._follow(ring, node))

    async def _follow(self, ring: Ring, node: int) -> None:
        http = ring.nodes[node].http
        url = http.url + topic_path("t", "events")
        async with http.session.get(url) as reply:
            assert reply.status == 200
            async for line in reply.content:
                if line.startswith(b"data: "):
                    self.payloads.append(line.split(b'"payload":"')[1].split(b'"')[0].decode())
        self.whole = True

    def has(self, count: int):
        return eventually(lambda: len(self.payloads) >= count, lambda: f"only {self.payloads}")

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait((self._task,))


@pytest.mark.slow
@pytest.mark.parametrize("node", [0, 1, 2])
async def test_a_stream_of_events_loses_and_repeats_nothing_while_leadership_moves(
    ring: Ring, node: int
) -> None:
    follower = Follower(ring, node)
    sent = []
    for turn, to in enumerate((1, 2, 0, 2, 1)):
        for number in range(10):
            sent.append(f"{turn}.{number}")
            await publish(ring, sent[-1], node=number % 3)
        await ring.move(to)
    await follower.has(len(sent))
    assert follower.payloads == sent
    await follower.end()


async def test_events_have_keys_and_headers_at_every_node(ring: Ring) -> None:
    wanted = PublishRequest(None, [b"a"], attributes=[attributes.encode(b"k", {"h": b"1"})])
    body, whole = messages.encode_publish_request(wanted), {"Content-Type": "avro/message"}
    assert (await ring.nodes[0].http("POST", PUBLISH, body, whole)).status == 200
    for node in ring.nodes:
        async with (
            Client(node.http.url, follow_leaders=False) as client,
            aclosing(client.events("t")) as events,
        ):
            message = await anext(events)
        assert (message.key, dict(message.headers)) == (b"k", {"h": b"1"})


async def test_a_stream_survives_its_leader(ring: Ring) -> None:
    follower = Follower(ring, 1)
    await publish(ring, "a")
    await follower.has(1)
    await ring.nodes[0].kill()
    await ring.move(2)
    await publish(ring, "b", node=2)
    await follower.has(2)
    assert follower.payloads == ["a", "b"]
    await follower.end()


async def test_a_stream_ends_whole_when_its_node_drains(ring: Ring) -> None:
    follower = Follower(ring, 1)
    await publish(ring, "a")
    await follower.has(1)
    ring.nodes[1].server.begin_drain()
    await eventually(lambda: follower.whole, lambda: "the stream goes on")


async def test_a_stream_ends_when_its_topic_is_deleted(ring: Ring) -> None:
    follower = Follower(ring, 1)
    await publish(ring, "a")
    await follower.has(1)
    assert (await ring.nodes[2].http("DELETE", topic_path("t"))).status == 200
    await eventually(lambda: follower.whole, lambda: "the stream goes on")
