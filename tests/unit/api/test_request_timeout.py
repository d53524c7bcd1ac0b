"""Deadlines of requests: their own, and those that a silent leader would pass."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from broker.api.messages.polls import Polling
from broker.api.routed import OwnService, Routed
from broker.api.router import NodeParts
from broker.api.routes import any_pointer
from broker.clock import SystemClock
from broker.config.sections import Config, ServerConfig, TopicsConfig
from broker.coordination.ports import NodeInfo
from broker.coordination.tenure import TopicPlacement
from broker.http.answer import NoAnswer
from broker.http.reply import Reply
from broker.http.request import PathNames, Request
from broker.metrics import Metrics
from broker.model import Poll, PublishRequest, TopicId
from broker.operations.media_types import AVRO
from broker.routing.forwarder import READING_S, Forwarder
from broker.routing.nodeheaders import PROTOCOL, Sender
from broker.routing.peer_requests import Receiving
from broker.routing.routing import Routing
from broker.storage.log import Logs
from broker.storage.memory.table import MemoryTable
from broker.storage.records import Records
from broker.testing.memory import MemoryRecords
from broker.testing.virtual_time import VirtualClock, VirtualLoop, pass_time, simulate
from broker.topics.settings import TopicSettings
from broker.topics.surroundings import Surroundings
from broker.topics.topics import Topics
from broker.transactions.service import Transactions
from broker.wire import avro
from broker.wire.messages import PollDecoder
from tests.kit.bench import Gate, HookedTable
from tests.kit.openapi import Answered
from tests.kit.serving import Broker, Http, RawHttp, listening, topic_path

PUBLISH = topic_path("t", "publish")
TEXT = {"Content-Type": "text/plain"}


@pytest.mark.parametrize("text", ["0", "-1", "x", "301", "nan", ""])
async def test_an_invalid_request_timeout_is_refused(http: Http, text: str) -> None:
    reply = await http("POST", PUBLISH, b"a", {**TEXT, "Request-Timeout": text})
    assert (reply.status, reply.headers["Broker-Error"]) == (400, "bad_request")
    page = await http("GET", topic_path("t", "messages"))
    assert page.json["messages"] == []


async def test_no_request_takes_longer_than_half_of_the_idempotency_window(monkeypatch) -> None:
    config = Config(topics=TopicsConfig(idempotency_window_s=60.0))
    broker = Broker(config)
    await broker.call("PUT", topic_path("t"))
    left: list[float] = []
    answer = broker.dispatch.answer

    async def noted(found, request):
        left.append(request.deadline - broker.clock.monotonic())
        return await answer(found, request)

    monkeypatch.setattr(broker.dispatch, "answer", noted)
    async with listening(broker) as http:
        for seconds in ("300", "10"):
            await http("POST", PUBLISH, b"m", {**TEXT, "Request-Timeout": seconds})
    assert left == [pytest.approx(30, abs=5), pytest.approx(10, abs=5)]
    await broker.close()


@pytest.mark.parametrize(
    "headers",
    [
        {"Request-Timeout": "0.05"},
        {"Request-Timeout": "0.05", "Idempotency-Key": "k"},
        {},  # The node's configuration sets the limit.
        {"Idempotency-Key": "k"},
    ],
)
async def test_a_publish_that_waits_past_its_timeout_is_refused_and_never_stored(headers) -> None:
    clock = SystemClock()
    table = HookedTable(MemoryTable())
    logs = Logs(table, clock)
    stores = (logs, Records(logs.resolver))
    patient_broker = Broker(clock=clock, stores=stores)
    await patient_broker.call("PUT", topic_path("t"))
    await patient_broker.close()
    config = Config(server=ServerConfig(request_deadline_s=0.1))
    broker = Broker(config, clock=clock, stores=stores)
    patient = {**TEXT, "Request-Timeout": "60"}
    async with listening(broker) as http:
        await http("POST", PUBLISH, b"first", patient)
        gate = Gate()
        table.on("append", gate.before)
        ahead = asyncio.create_task(http("POST", PUBLISH, b"ahead", patient))
        await gate.reached.wait()
        async with asyncio.timeout(30):  # The reply comes while storage is still blocked.
            reply = await http("POST", PUBLISH, b"late", {**TEXT, **headers})
        assert (reply.status, reply.headers["Broker-Outcome"]) == (503, "refused")
        gate.open()
        assert (await ahead).status == 200
        page = await http("GET", topic_path("t", "messages"))
        assert "late" not in [message["payload"] for message in page.json["messages"]]
    await broker.close()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", topic_path("t")),
        ("GET", topic_path("t", "messages")),
        ("POST", topic_path("t", "poll")),
        ("GET", topic_path("t", "stats")),
        ("POST", topic_path("t", "blockers")),
        ("GET", topic_path("t", "cursors")),
    ],
)
async def test_a_read_that_waits_for_storage_ends_at_its_timeout(method, path) -> None:
    reply = await answered_while_storage_hangs(method, path)
    assert (reply.status, reply.headers["Broker-Outcome"]) == (503, "refused")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", topic_path("new"), b""),
        ("PUT", topic_path("t", "properties"), b"{}"),
        ("POST", topic_path("t", "purge?before=now"), b""),
        ("DELETE", topic_path("t"), b""),
        ("POST", topic_path("t", "stages"), b""),
        ("POST", "/v1/transactions", b""),
        ("POST", "/v1/transactions/reset", b""),
        ("PUT", topic_path("t", "cursors/c"), b'{"after": null, "expected": null}'),
        ("DELETE", topic_path("t", "cursors/c"), b""),
    ],
)
async def test_a_change_that_waits_for_storage_ends_at_its_timeout(method, path, body) -> None:
    reply = await answered_while_storage_hangs(method, path, body)
    assert reply.headers["Broker-Outcome"] in {"refused", "unknown"}


async def answered_while_storage_hangs(method: str, path: str, body: bytes = b"") -> Answered:
    clock = SystemClock()
    table = HookedTable(MemoryTable())
    logs = Logs(table, clock)
    stores = (logs, Records(logs.resolver))
    before = Broker(clock=clock, stores=stores)
    await before.call("PUT", topic_path("t"))
    await before.close()
    broker = Broker(clock=clock, stores=stores)
    gate = Gate()
    async with listening(broker) as http:
        for call in ("get", "cells", "columns", "scan"):
            table.on(call, *[gate.before] * 50)
        async with asyncio.timeout(30):  # The reply comes while storage is still blocked.
            asked = {"Request-Timeout": "0.05", "Content-Type": "application/json"}
            reply = await http(method, path, b"{}" if path.endswith("poll") else body, asked)
        assert gate.reached.is_set(), reply
        gate.open()
    await broker.close()
    return reply


async def test_a_body_that_comes_too_late_is_refused_at_its_timeout(
    broker: Broker, http: Http
) -> None:
    head = "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 9\r\n{}\r\n"
    async with RawHttp(http.port) as raw:
        await raw.send(head.format(PUBLISH, "Request-Timeout: 0.05\r\n").encode() + b"late")
        async with asyncio.timeout(10):
            reply = await raw.reply()
        assert (reply.status, reply.headers["Broker-Outcome"]) == (503, "refused")
    async with RawHttp(http.port) as raw:
        await raw.send(head.format(PUBLISH, "").encode() + b"in ")
        await raw.send(b" time!")
        assert (await raw.reply()).status == 200
    page = await http("GET", topic_path("t", "messages"))
    assert [message["payload"] for message in page.json["messages"]] == ["in  time!"]


# --- A node answers a poll from storage if the leader is silent.

TOPIC = TopicId("default", "t")
ME, LEADER = (NodeInfo(n, f"life-{n}", f"http://node-{n}", "test", PROTOCOL) for n in range(2))
DEADLINE_S = 30.0


class SilentNodes:
    """Other nodes that take requests and never answer."""

    def __init__(self) -> None:
        self.patience_s: list[float] = []

    async def stream(self, url: str, ask: object, timeout_s: float) -> Any:
        self.patience_s.append(timeout_s)
        await pass_time(timeout_s)
        raise NoAnswer("silence")


class Far:
    """A node that leads no topic, and the polls that it takes."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.clock = VirtualClock(loop)
        self.table, self.records = MemoryTable(is_alone=False), MemoryRecords()
        self.others = SilentNodes()
        elsewhere = SimpleNamespace(place=lambda _: TopicPlacement(here=False, node=LEADER))
        forwarder = Forwarder(self.others, self.clock, Sender(0, ME.incarnation), "secret")
        routing = Routing(
            elsewhere, forwarder, self.clock, Metrics("0"), me=ME, leads=lambda _: False
        )
        topics = self._topics(ME, tenure=elsewhere)
        receiving = Receiving("secret", self.clock)
        routed = Routed(routing, receiving, topics, deadline_s=DEADLINE_S)
        service = OwnService(Transactions(topics.leaders), routed)
        self.polls = Polling(NodeParts(topics, Config(), routed, service, any_pointer))

    def _topics(self, node: NodeInfo, **tenure: Any) -> Topics:
        around = Surroundings(
            Logs(self.table, self.clock),
            self.clock,
            TopicSettings(),
            owner=node.incarnation,
            instance=node.instance,
            **tenure,
        )
        return Topics(around, self.records)

    async def stored(self, *payloads: bytes) -> None:
        """Let the leader store messages, and then stay silent."""
        leader = self._topics(LEADER)
        await leader.create(TOPIC, {"ttl": "600"})
        if payloads:
            await leader.publish(TOPIC, PublishRequest(None, payloads))
        await leader.close()

    async def poll(self, query: str, within_s: float = DEADLINE_S) -> list[bytes]:
        request = Request(
            "POST",
            "/v1/namespaces/default/topics/t/poll",
            query,
            {"Content-Type": AVRO},
            avro.encode_poll(Poll()),
            names=PathNames("default", TOPIC),
            deadline=self.clock.monotonic() + within_s,
        )
        answer = await self.polls.poll(request)
        assert isinstance(answer, Reply)
        assert answer.status == 200
        return [message.payload for message in PollDecoder().feed(answer.body)]


def virtually(main: Callable[[Far], Awaitable[None]]) -> None:
    async def run(loop: VirtualLoop) -> None:
        await main(Far(loop))

    simulate(run)


@pytest.mark.parametrize("wait_s", [0, 20, 26.9, 27, 30, 60])
def test_a_poll_of_any_wait_is_answered_from_storage(wait_s: float) -> None:
    async def main(far: Far) -> None:
        await far.stored(b"a")
        assert await far.poll(f"wait={wait_s}") == [b"a"]
        assert far.others.patience_s == [pytest.approx(wait_s + READING_S)]

    virtually(main)


@pytest.mark.parametrize("wait_s", [5, 30])
def test_a_wait_that_a_silent_leader_used_up_does_not_begin_again_at_storage(wait_s: float) -> None:
    async def main(far: Far) -> None:
        await far.stored()
        began = far.clock.monotonic()
        assert await far.poll(f"wait={wait_s}") == []
        assert far.clock.monotonic() - began < wait_s + READING_S + 0.5

    virtually(main)


def test_a_poll_that_does_not_wait_is_answered_before_its_deadline() -> None:
    async def main(far: Far) -> None:
        await far.stored(b"a")
        assert await far.poll("", within_s=2.0) == [b"a"]
        assert far.others.patience_s == [pytest.approx(1.0)]

    virtually(main)


def test_a_long_polls_wait_extends_its_deadline() -> None:
    async def main(far: Far) -> None:
        await far.stored(b"a")
        assert await far.poll("wait=20", within_s=2.0) == [b"a"]
        assert far.others.patience_s == [pytest.approx(20.0 + READING_S)]

    virtually(main)
