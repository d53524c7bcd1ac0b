"""Stages and producers' numbers over HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.client import Client, PayloadsSealed
from broker.model import PublishRequest
from broker.wire.avro import encode_publish_request
from tests.kit.serving import Broker, Http, topic_path

JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain"}
PUBLISH, STAGES = topic_path("t", "publish"), topic_path("t", "stages")


async def payloads(broker: Broker) -> list[str]:
    page = await broker.call("GET", topic_path("t", "messages") + "?payload=full")
    return [message["payload"] for message in page.json["messages"] if message["payload"]]


async def begun(broker: Broker, *messages: bytes) -> str:
    reply = await broker.call("POST", STAGES)
    assert reply.status == 200
    stage: str = reply.json["stage"]
    for message in messages:
        stored = await broker.call("POST", f"{STAGES}/{stage}/store", message, TEXT)
        assert (stored.status, stored.body) == (200, b"")
    return stage


async def publish(broker: Broker, *stages: str, headers: Any = (), **more: Any) -> Any:
    body = json.dumps({"stages": stages, **more}).encode()
    return await broker.call("POST", f"{STAGES}/publish", body, {**JSON, **dict(headers)})


async def test_stages_are_published_in_the_order_of_the_list(broker: Broker) -> None:
    one, two = await begun(broker, b"a", b"b"), await begun(broker, b"c")
    reply = await publish(broker, two, one)
    assert (reply.status, "Idempotency-Replayed" in reply.headers) == (200, False)
    assert await payloads(broker) == ["c", "a", "b"]
    page = await broker.call("GET", topic_path("t", "messages"))
    first, last = (row["id"] for row in page.json["messages"] if row["kind"] == "reference")
    assert reply.json == {"first_id": first, "last_id": last, "count": 3, "replayed": False}
    again = await publish(broker, two, one)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.json == {**reply.json, "replayed": True}
    as_avro = await publish(broker, two, one, headers={"Accept": "avro/binary"})
    assert (as_avro.body, as_avro.headers["Broker-Count"]) == (b"", "3")


async def test_a_new_stage_says_when_its_life_ends(broker: Broker) -> None:
    reply = await broker.call("POST", STAGES)
    assert set(reply.json) == {"stage", "ends_at"}
    assert reply.json["stage"].isdecimal()


async def test_in_a_transaction_the_answer_serves_for_a_rollback(broker: Broker) -> None:
    pointer = str(broker.clock.now_ms() * 1_000_000)
    reply = await publish(broker, await begun(broker, b"a"), write_pointer=pointer)
    assert reply.json["write_pointer"] == pointer
    rolled = await broker.call("POST", topic_path("t", "rollback"), reply.body, JSON)
    assert rolled.status == 200
    page = await broker.call("GET", topic_path("t", "messages"))
    assert {m["tx_state"] for m in page.json["messages"]} == {"rolled_back"}


async def test_conflicts(broker: Broker) -> None:
    one, two = await begun(broker, b"a"), await begun(broker, b"b")
    await publish(broker, one)
    late = await broker.call("POST", f"{STAGES}/{one}/store", b"x", TEXT)
    other = await publish(broker, one, two)
    never = await publish(broker, str(int(two) + 1))
    for reply in (late, other, never):
        assert (reply.status, reply.headers["Broker-Error"]) == (409, "payloads_sealed")
    assert await payloads(broker) == ["a"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"stages": []}',
        b'{"stages": ["x"]}',
        b'{"stages": ["0"]}',
        b'{"stages": ["-1"]}',
        b'{"stages": [7]}',
        b'{"stages": ["9999999999999999999"]}',
        b'{"stages": ["7", "7"]}',
        b'{"stages": ["7"], "write_pointer": "x"}',
        b'{"stages": ["7"], "write_pointer": 1152921504606846977}',
        b'{"stages": ["7"], "write_pointer": 9223372036854775808}',
        b'{"stages": ["7"], "pointer": 8}',
        json.dumps({"stages": [str(n) for n in range(1, 5002)]}).encode(),
    ],
)
async def test_bad_lists(broker: Broker, body: bytes) -> None:
    reply = await broker.call("POST", f"{STAGES}/publish", body, JSON)
    assert (reply.status, reply.headers["Broker-Error"]) == (400, "bad_request")


async def test_bad_stores(broker: Broker) -> None:
    stage = await begun(broker)
    pointer = encode_publish_request(PublishRequest(5, [b"a"]))
    empty = encode_publish_request(PublishRequest(None, []))
    avro = {"Content-Type": "avro/binary"}
    for path, body, headers in (
        (f"{STAGES}/{stage}/store", pointer, avro),
        (f"{STAGES}/{stage}/store", empty, avro),
        (f"{STAGES}/x/store", b"a", TEXT),
        (f"{STAGES}/{stage}/store", b"a", {**TEXT, "Producer-Id": "p", "Producer-Number": "1"}),
    ):
        reply = await broker.call("POST", path, body, headers)
        assert (reply.status, reply.headers["Broker-Error"]) == (400, "bad_request")


# Producers.


def numbered(number: object, producer: str = "p") -> dict[str, str]:
    return {**TEXT, "Producer-Id": producer, "Producer-Number": str(number)}


async def test_a_number_is_published_once(broker: Broker) -> None:
    replayed = []
    for number in (0, 1, 1, 0, 5, 2):
        reply = await broker.call("POST", PUBLISH, b"%d" % number, numbered(number))
        assert reply.status == 200
        assert reply.json["replayed"] == ("Idempotency-Replayed" in reply.headers)
        is_known = number not in (0, 2) or not reply.json["replayed"]
        for name in ("first_id", "last_id", "count"):
            header = reply.headers.get(f"Broker-{name.replace('_', '-')}")
            assert (reply.json[name] is not None) == (header is not None) == is_known
        replayed.append(reply.json["replayed"])
    assert replayed == [False, False, True, True, False, True]
    assert await payloads(broker) == ["0", "1", "5"]


async def test_a_producers_number_counts_for_messages_and_stages(broker: Broker) -> None:
    await broker.call("POST", PUBLISH, b"a", numbered(3))
    stage = await begun(broker, b"b")
    again = await publish(broker, stage, headers=numbered(3) | JSON)
    assert "Idempotency-Replayed" in again.headers
    await publish(broker, stage, headers=numbered(4) | JSON)
    assert await payloads(broker) == ["a", "b"]


@pytest.mark.parametrize("number", ["", "-1", "x", "1.0", 1 << 63, "1" * 40])
async def test_bad_numbers(broker: Broker, number: object) -> None:
    reply = await broker.call("POST", PUBLISH, b"a", numbered(number))
    assert (reply.status, reply.headers["Broker-Error"]) == (400, "bad_request")
    assert await payloads(broker) == []


async def test_one_of_the_two_headers_alone_is_refused(broker: Broker) -> None:
    for name in ("Producer-Id", "Producer-Number"):
        reply = await broker.call("POST", PUBLISH, b"a", {**TEXT, name: "1"})
        assert reply.status == 400
    too_long = await broker.call("POST", PUBLISH, b"a", numbered(1, "p" * 256))
    assert too_long.status == 400


# The client.


async def test_the_client_stages_and_numbers(http: Http) -> None:
    async with Client(http.url) as client:
        ids = []
        for part in (["a", "b"], ["c"]):
            async with client.stage("default/t") as stage:
                await stage.store(part, idempotency_key="1")
                await stage.store(part, idempotency_key="1")
                await stage.store("d")
            ids.append(stage.id)
        assert await client.poll("default/t") == []
        assert not (await client.publish_stages("default/t", ids, producer=("p", 1))).replayed
        assert (await client.publish_stages("default/t", ids, producer=("p", 1))).replayed
        assert (await client.publish("default/t", "x", producer=("p", 1))).replayed
        assert not (await client.publish("default/t", "y", producer=("p", 2))).replayed
        found = [message.payload for message in await client.poll("default/t")]
        assert found == [b"a", b"b", b"d", b"c", b"d", b"y"]
        with pytest.raises(PayloadsSealed):
            await stage.store("late")


async def test_the_client_takes_a_transaction_back(http: Http, broker: Broker) -> None:
    pointer = broker.clock.now_ms() * 1_000_000
    async with Client(http.url) as client:
        async with client.stage("default/t") as stage:
            await stage.store("a")
        published = await client.publish_stages("default/t", [stage.id], pointer=pointer)
        await client.rollback("default/t", published)
        page = await client.browse("default/t")
        assert {row.tx_state for row in page.messages} == {"rolled_back"}
