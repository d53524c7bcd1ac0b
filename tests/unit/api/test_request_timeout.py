"""``Request-Timeout``: the sender limits the time of its request."""

import asyncio

import pytest

from broker.clock import SystemClock
from broker.config.sections import Config, ServerConfig, TopicsConfig
from broker.storage.log import Logs
from broker.storage.memory.table import MemoryTable
from broker.storage.records import Records
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
