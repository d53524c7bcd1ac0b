import json

import pytest

from broker.config import Config, LimitsConfig
from broker.model import PublishRequest, RollbackRange
from broker.testing.serving import Broker, Http, topic_path
from broker.wire.avro import (
    decode_publish_response,
    encode_publish_request,
    encode_publish_response,
)

AVRO = {"Content-Type": "avro/binary"}
JSON = {"Content-Type": "application/json"}
PUBLISH, STORE, ROLLBACK = (topic_path("t", a) for a in ("publish", "store", "rollback"))
TWO = bytes.fromhex("02040261026200")


def pointer_now(broker: Broker) -> int:
    return broker.clock.now_ms() * 1_000_000


async def payloads(broker: Broker, topic: str = "t") -> list[str | None]:
    page = await broker.call("GET", topic_path(topic, "messages") + "?payload=full")
    return [message["payload"] for message in page.json["messages"]]


async def test_a_publish_without_a_transaction_answers_nothing(broker: Broker) -> None:
    reply = await broker.call("POST", PUBLISH, TWO, AVRO)
    assert (reply.status, reply.body, reply.headers.get("Content-Type")) == (200, b"", None)
    assert await payloads(broker) == ["a", "b"]


@pytest.mark.parametrize("pointer", [{"long": 0}, 0, None])
async def test_publish_in_json(broker: Broker, pointer: object) -> None:
    under = {"long": pointer_now(broker)} if isinstance(pointer, dict) else pointer
    under = pointer_now(broker) if under == 0 else under
    body = {"transactionWritePointer": under, "messages": ["a\u00ff"]}
    reply = await broker.call("POST", PUBLISH, json.dumps(body).encode(), JSON)
    if under is None:
        assert reply.body == b""
        return
    assert reply.headers["Content-Type"] == "application/json"
    assert set(reply.json) == {"transactionWritePointer", "rollbackRange"}
    assert (await broker.call("POST", ROLLBACK, reply.body, JSON)).status == 200
    page = await broker.call("GET", topic_path("t", "messages"))
    assert [m["tx_state"] for m in page.json["messages"]] == ["rolled_back"]


async def test_missing_pointer_in_json_is_none(broker: Broker) -> None:
    assert (await broker.call("POST", PUBLISH, b'{"messages":["x"]}', JSON)).status == 200
    assert await payloads(broker) == ["x"]


@pytest.mark.parametrize("kind", ["text/plain", "application/octet-stream"])
async def test_a_body_as_it_is_is_one_message(broker: Broker, kind: str) -> None:
    body = "ein ganzer Satz, mit Umlauten: äöü".encode()
    reply = await broker.call("POST", PUBLISH, body, {"Content-Type": kind})
    assert (reply.status, reply.body) == (200, b"")
    assert await payloads(broker) == [body.decode()]


async def test_a_transactional_publish_answers_what_its_rollback_needs(broker: Broker) -> None:
    pointer = pointer_now(broker)
    body = encode_publish_request(PublishRequest(pointer, [b"m2"]))
    reply = await broker.call("POST", PUBLISH, body, AVRO)
    assert reply.headers["Content-Type"] == "avro/binary"
    assert decode_publish_response(reply.body).pointer == pointer
    # The type of a rollback's body is not looked at, as in the original.
    for headers in ({}, {"Content-Type": "text/html"}, AVRO):
        rolled = await broker.call("POST", ROLLBACK, reply.body, headers)
        assert (rolled.status, rolled.body) == (200, b"")


async def test_store_then_reference(broker: Broker) -> None:
    pointer = pointer_now(broker)
    stored = encode_publish_request(PublishRequest(pointer, [b"s1", b"s2"]))
    reference = encode_publish_request(PublishRequest(pointer, []))
    assert (await broker.call("POST", STORE, stored, AVRO)).status == 200
    first = await broker.call("POST", PUBLISH, reference, AVRO)
    again = await broker.call("POST", PUBLISH, reference, AVRO)
    assert first.status == again.status == 200
    assert first.body == again.body
    late = await broker.call("POST", STORE, stored, AVRO)
    assert (late.status, late.headers["Broker-Error"]) == (409, "payloads_sealed")


async def test_an_idempotency_key_answers_as_before(broker: Broker) -> None:
    keyed = {**AVRO, "Idempotency-Key": "k-1"}
    first = await broker.call("POST", PUBLISH, TWO, keyed)
    again = await broker.call("POST", PUBLISH, TWO, keyed)
    assert first.headers.get("Idempotency-Replayed") is None
    assert again.headers.get("Idempotency-Replayed") == "true"
    assert await payloads(broker) == ["a", "b"]
    other = await broker.call("POST", PUBLISH, bytes.fromhex("0202026300"), keyed)
    assert (other.status, other.headers["Broker-Error"]) == (422, "idempotency_key_reused")


@pytest.mark.parametrize("key", ["", "a b", "ä", "x" * 256, "a\tb"])
async def test_a_key_of_other_characters_is_malformed(broker: Broker, key: str) -> None:
    reply = await broker.call("POST", PUBLISH, TWO, {**AVRO, "Idempotency-Key": key})
    assert reply.status == 400


async def test_ttl_of_messages(broker: Broker) -> None:
    assert (await broker.call("POST", f"{PUBLISH}?ttl=60", TWO, AVRO)).status == 200
    page = await broker.call("GET", topic_path("t", "messages"))
    assert all(m["expires_at"] < "9999" for m in page.json["messages"])
    for ttl in ("0", "-1", "1.5", "x", "", "604801", "2147483648"):
        reply = await broker.call("POST", f"{PUBLISH}?ttl={ttl}", TWO, AVRO)
        assert (reply.status, reply.headers["Broker-Error"]) == (400, "bad_request"), ttl


@pytest.mark.parametrize("action", ["publish", "store"])
async def test_malformed_bodies_leave_nothing_behind(broker: Broker, action: str) -> None:
    for body in (b"", b"\x02", b"\x02\x04\x02a", b"\x05", b"\xff" * 40, b"\x02\x01\x02\x00"):
        reply = await broker.call("POST", topic_path("t", action), body, AVRO)
        assert (reply.status, reply.headers["Broker-Error"]) == (400, "bad_request")
    assert await payloads(broker) == []


async def test_publish_without_messages_or_transaction_is_malformed(broker: Broker) -> None:
    assert (await broker.call("POST", PUBLISH, b"\x02\x00", AVRO)).status == 400
    assert (await broker.call("POST", STORE, TWO, AVRO)).status == 400


async def test_a_rollback_needs_a_pointer(broker: Broker) -> None:
    reply = await broker.call("POST", ROLLBACK, bytes.fromhex("0200000000"))
    assert (reply.status, reply.headers["Broker-Error"]) == (400, "bad_request")


async def test_a_transaction_past_its_longest_life_is_refused(broker: Broker) -> None:
    for action in ("publish", "store"):
        body = {"transactionWritePointer": 1, "messages": ["x"]}
        reply = await broker.call("POST", topic_path("t", action), json.dumps(body).encode(), JSON)
        assert (reply.status, reply.json["code"]) == (422, "transaction_too_old")


@pytest.mark.parametrize("pointer", [-1, -(1 << 63)])
async def test_a_negative_pointer_is_older_than_any_transaction_may_live(
    http: Http, pointer: int
) -> None:
    begun = await http("POST", topic_path("t", "stages"))
    stages = {"stages": [begun.json["stage"]], "write_pointer": pointer}
    rows = RollbackRange(pointer, bytes(10), bytes(10))
    for action, body, headers in (
        ("publish", encode_publish_request(PublishRequest(pointer, [b"a"])), AVRO),
        ("publish", encode_publish_request(PublishRequest(pointer, [])), AVRO),
        ("store", encode_publish_request(PublishRequest(pointer, [b"a"])), AVRO),
        ("rollback", encode_publish_response(rows), {}),
        ("stages/publish", json.dumps(stages).encode(), JSON),
    ):
        reply = await http("POST", topic_path("t", action), body, headers)
        told = (reply.status, reply.headers["Broker-Error"], reply.headers["Broker-Outcome"])
        assert told == (422, "transaction_too_old", "refused"), action


async def test_too_many_messages_are_refused() -> None:
    broker = Broker(Config(limits=LimitsConfig(messages_per_request_max=2)))
    await broker.call("PUT", topic_path("t"))
    assert (await broker.call("POST", PUBLISH, TWO, AVRO)).status == 200
    three = bytes.fromhex("0206026102620263") + b"\x00"
    reply = await broker.call("POST", PUBLISH, three, AVRO)
    assert (reply.status, reply.headers["Broker-Error"]) == (413, "too_many_messages")
    await broker.close()


async def test_topics_that_are_not_there(broker: Broker) -> None:
    for action, body in (("publish", TWO), ("rollback", bytes.fromhex("00020000000000")[:6])):
        reply = await broker.call("POST", topic_path("no", action), body, AVRO)
        assert reply.status in (404, 400)
    reply = await broker.call("POST", topic_path("no", "publish"), TWO, AVRO)
    assert (reply.status, reply.headers["Broker-Error"]) == (404, "topic_not_found")
