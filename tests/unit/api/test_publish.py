"""Publish, store, rollback, stages and producers' numbers over HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.client import Client, PayloadsSealed
from broker.config.sections import Config, LimitsConfig
from broker.model import PublishRequest, RollbackRange
from broker.wire.avro import (
    decode_publish_response,
    encode_publish_request,
    encode_publish_response,
)
from tests.kit.serving import Broker, Http, topic_path

AVRO = {"Content-Type": "avro/binary"}
JSON = {"Content-Type": "application/json"}
AVRO_JSON = {"Content-Type": "avro/json"}
PUBLISH, STORE, ROLLBACK = (topic_path("t", a) for a in ("publish", "store", "rollback"))
TWO = bytes.fromhex("02040261026200")


def pointer_now(broker: Broker) -> int:
    return broker.clock.now_ms() * 1_000_000


async def payloads(broker: Broker, topic: str = "t") -> list[str | None]:
    page = await broker.call("GET", topic_path(topic, "messages") + "?payload=full")
    return [message["payload"] for message in page.json["messages"]]


async def test_a_publish_without_a_transaction_has_an_empty_answer(broker: Broker) -> None:
    reply = await broker.call("POST", PUBLISH, TWO, AVRO)
    assert (reply.status, reply.body, reply.headers.get("Content-Type")) == (200, b"", None)
    assert await payloads(broker) == ["a", "b"]


async def test_every_publish_answers_with_the_ids_that_consumers_see(broker: Broker) -> None:
    for kind, body in (
        ("avro/binary", TWO),
        ("avro/json", b'{"messages": ["a", "b"]}'),
        ("application/json", b'["a", "b"]'),
        ("text/plain", b"c"),
    ):
        reply = await broker.call("POST", PUBLISH, body, {"Content-Type": kind})
        count = 1 if kind == "text/plain" else 2
        page = await broker.call("GET", f"{topic_path('t', 'messages')}?order=desc&limit={count}")
        ids = [message["id"] for message in page.json["messages"]]
        headers = [reply.headers[f"Broker-{name}"] for name in ("First-Id", "Last-Id", "Count")]
        assert headers == [ids[-1], ids[0], str(count)]
        if kind.startswith("avro"):
            assert reply.body == b""
        else:
            told = {"first_id": ids[-1], "last_id": ids[0], "count": count, "replayed": False}
            assert reply.json == told


async def test_the_answer_of_a_plain_publish(http: Http) -> None:
    reply = await http("POST", PUBLISH, TWO, AVRO)
    assert int(reply.headers["Content-Length"]) == 0
    assert (reply.headers["Broker-Count"], len(reply.headers["Broker-Last-Id"])) == ("2", 40)


async def test_publish_in_plain_json(broker: Broker) -> None:
    messages = ["café", "日本", {"base64": "/w=="}, {"value": "x"}, {"value": {"base64": "AA=="}}]
    body = json.dumps({"messages": messages, "write_pointer": None}, ensure_ascii=False).encode()
    assert (await broker.call("POST", PUBLISH, body, JSON)).json["count"] == 5
    assert await payloads(broker) == ["café", "日本", "/w==", "x", "\x00"]


@pytest.mark.parametrize(
    "body",
    ['["x"]', '"x"', '{"value": "x"}', '{"base64": "eA=="}', '{"value": {"base64": "eA=="}}'],
)
async def test_a_list_or_one_message_is_a_publish_too(broker: Broker, body: str) -> None:
    assert (await broker.call("POST", PUBLISH, body.encode(), JSON)).json["count"] == 1
    assert await payloads(broker) == ["x"]


async def test_keys_headers_and_lifetimes_in_plain_json(broker: Broker) -> None:
    whole = {"value": "c", "key": "k", "headers": {"é": "ü", "raw": {"base64": "/w=="}}, "ttl": 60}
    messages = ["a", {"value": "b", "key": {"base64": "/w=="}, "headers": {}, "ttl": None}, whole]
    pointer = pointer_now(broker)
    in_json = json.dumps(messages).encode()
    stored = json.dumps({"messages": messages, "write_pointer": str(pointer)}).encode()
    refer = json.dumps({"messages": [], "write_pointer": str(pointer)}).encode()
    for target, body in ((PUBLISH, in_json), (STORE, stored), (PUBLISH, refer)):
        assert (await broker.call("POST", target, body, JSON)).status == 200
    polled = (await broker.call("POST", topic_path("t", "poll"), b"{}", JSON)).json
    assert [(m["payload"], m["key"], m["headers"]) for m in polled] == [
        ("a", None, {}),
        ("b", {"base64": "/w=="}, {}),
        ("c", "k", whole["headers"]),
    ] * 2
    page = await broker.call("GET", topic_path("t", "messages"))
    lives = [row["expires_at"] for row in page.json["messages"] if row["kind"] != "reference"]
    for first, second, third in (lives[:3], lives[3:]):
        assert first == second > third
    # Avro's JSON is the original's form; it has no keys and headers.
    avro_json = (await broker.call("POST", topic_path("t", "poll"), b"{}", AVRO_JSON)).json
    assert [set(message) for message in avro_json] == [{"id", "payload"}] * 6


async def test_a_message_key_is_part_of_an_idempotent_body(broker: Broker) -> None:
    keyed = {**JSON, "Idempotency-Key": "k-1"}
    body = b'{"value": "a", "key": "k"}'
    assert not (await broker.call("POST", PUBLISH, body, keyed)).json["replayed"]
    again = b'{"messages": [{"key": {"base64": "aw=="}, "value": "a"}]}'
    assert (await broker.call("POST", PUBLISH, again, keyed)).json["replayed"]
    other = await broker.call("POST", PUBLISH, b'["a"]', keyed)
    assert (other.status, other.json["code"]) == (422, "idempotency_key_reused")


async def test_a_message_lives_no_longer_than_its_topic(broker: Broker) -> None:
    reply = await broker.call("POST", PUBLISH, b'["a", {"value": "b", "ttl": 604801}]', JSON)
    assert (reply.status, reply.json["code"]) == (400, "bad_request")
    assert "604800 seconds" in reply.json["message"]
    assert await payloads(broker) == []


async def test_a_transaction_in_plain_json(broker: Broker) -> None:
    pointer = pointer_now(broker)
    body = json.dumps({"messages": ["a", "b"], "write_pointer": str(pointer)}).encode()
    reply = await broker.call("POST", PUBLISH, body, JSON)
    assert set(reply.json) == {"first_id", "last_id", "count", "replayed", "write_pointer"}
    assert (await broker.call("POST", ROLLBACK, reply.body, JSON)).status == 200
    page = await broker.call("GET", topic_path("t", "messages"))
    assert [m["tx_state"] for m in page.json["messages"]] == ["rolled_back"] * 2
    stored = json.dumps({"messages": ["c"], "write_pointer": str(pointer)}).encode()
    assert (await broker.call("POST", STORE, stored, JSON)).status == 200
    refer = json.dumps({"messages": [], "write_pointer": str(pointer)}).encode()
    first = await broker.call("POST", PUBLISH, refer, JSON)
    again = await broker.call("POST", PUBLISH, refer, JSON)
    page = await broker.call("GET", topic_path("t", "messages"))
    row = page.json["messages"][-2]
    assert (row["kind"], row["id"]) == ("reference", first.json["first_id"])
    assert first.json["count"] == 1
    assert again.json == {**first.json, "replayed": True}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (
            {"transactionWritePointer": 1, "messages": []},
            "'transactionWritePointer' is called write_pointer",
        ),
        ({"mesages": ["x"]}, "'mesages': there is no such field; did you mean messages?"),
        (
            {"mesages": ["x" * 3_000_000]},
            "'mesages': there is no such field; did you mean messages?",
        ),
        ({"user": "alice"}, "'user': there is no such field; there are messages, write_pointer."),
        ({"write_pointer": 1}, "messages: must be a list"),
        ({"messages": "x"}, "messages: must be a list"),
        ({"messages": None}, "messages: must be a list"),
        (7, "The body must be an object"),
        (None, "The body must be an object"),
        ({"write_pointer": 1.5, "messages": []}, "write_pointer: must be a whole number"),
        ({"write_pointer": True, "messages": []}, "write_pointer: must be a whole number"),
        ({"write_pointer": "01", "messages": []}, "write_pointer: must be a whole number"),
        ({"write_pointer": 1 << 63, "messages": []}, "write_pointer: must be a whole number"),
        (
            {"write_pointer": (1 << 53) + 1, "messages": []},
            "write_pointer: 9007199254740993 is a number that no double",
        ),
        (["a", 7], "messages[1]: must be text, or"),
        (["a", None], "messages[1]: must be text, or"),
        (["a", ["b"]], "messages[1]: must be text, or"),
        (["a", "\ud800"], "messages[1]: is not valid Unicode"),
        ([{"value": "\ud800"}], "messages[0].value: is not valid Unicode"),
        ([{}], "messages[0].value: is missing"),
        ([{"value": None}], "messages[0].value: must be text, or"),
        ([{"value": {"a": 1}}], "messages[0].value: must be text, or"),
        ([{"payload": "x"}], "messages[0]: 'payload': there is no such field; did you mean value?"),
        ([{"value": "x", "tl": 5}], "messages[0]: 'tl': there is no such field; did you mean ttl?"),
        ([{"base64": "eA==", "key": "k"}], "messages[0]: no other field may stand beside base64"),
        ([{"base64": 7}], "messages[0].base64: must be a string"),
        ([{"base64": "eA"}], "messages[0].base64: is not base64"),
        ([{"base64": "eA==\n"}], "messages[0].base64: is not base64"),
        ([{"base64": "-_=="}], "messages[0].base64: is not base64"),
        ([{"base64": "é==="}], "messages[0].base64: is not base64"),
        ([{"value": "x", "key": 7}], "messages[0].key: must be text, or"),
        ([{"value": "x", "headers": ["a"]}], "messages[0].headers: must be an object"),
        (["", {"value": "x", "headers": {"a": 1}}], "messages[1].headers.a: must be text, or"),
        ([{"value": "x", "headers": {"": "1"}}], "messages[0].headers: a name has 1 to 255 bytes"),
        (
            [{"value": "x", "headers": {"\ud800": "1"}}],
            "messages[0].headers: '\\ud800' is not valid",
        ),
        (
            [{"value": "x", "headers": {f"{n}": "" for n in range(101)}}],
            "messages[0].headers: a message may",
        ),
        ([{"value": "x", "ttl": 0}], "messages[0].ttl: must be whole seconds"),
        ([{"value": "x", "ttl": -1}], "messages[0].ttl: must be whole seconds"),
        ([{"value": "x", "ttl": 1 << 31}], "messages[0].ttl: must be whole seconds"),
        ([{"value": "x", "ttl": 1.5}], "messages[0].ttl: must be whole seconds"),
        ([{"value": "x", "ttl": True}], "messages[0].ttl: must be whole seconds"),
        ([{"value": "x", "ttl": "6y"}], "messages[0].ttl: '6y' is not a duration"),
        ({"value": "x", "ttl": "6y"}, "the message.ttl: '6y' is not a duration"),
    ],
)
async def test_malformed_plain_json_is_refused(broker: Broker, value: object, told: str) -> None:
    for action in (PUBLISH, STORE):
        reply = await broker.call("POST", action, json.dumps(value).encode(), JSON)
        assert (reply.status, reply.json["code"]) == (400, "bad_request")
        assert reply.json["message"].startswith(told)
    assert await payloads(broker) == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"hello",
        b'["\xff"]',
        b'{"messages": ["a"], "messages": ["b"]}',
        b'[{"value": "a", "value": "b"}]',
        b'[{"value": "a", "ttl": NaN}]',
    ],
)
async def test_invalid_json_is_refused(broker: Broker, body: bytes) -> None:
    reply = await broker.call("POST", PUBLISH, body, JSON)
    assert (reply.status, reply.json["code"]) == (400, "bad_request")
    assert reply.json["message"].startswith("The body ")


async def test_deep_json_is_refused(broker: Broker) -> None:
    reply = await broker.call("POST", PUBLISH, b"[" * 100_000, JSON)
    assert (reply.status, reply.json["outcome"]) in {(400, "refused"), (413, "refused")}


@pytest.mark.slow
async def test_the_number_of_messages_in_json_is_bounded(broker: Broker) -> None:
    many = [f"{number}, and {{more}} of [it]" for number in range(100_000)]
    reply = await broker.call("POST", PUBLISH, json.dumps(many).encode(), JSON)
    assert reply.json["count"] == 100_000
    one_more = await broker.call("POST", PUBLISH, json.dumps([*many, ""]).encode(), JSON)
    assert (one_more.status, one_more.json["code"]) == (413, "too_many_messages")
    # Small texts that decode to large values are refused before they are decoded.
    body = b"[" + b'{"value":""},' * 900_000 + b'""]'
    endless = await broker.call("POST", PUBLISH, body, JSON)
    assert (endless.status, endless.json["code"]) == (413, "too_many_messages")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"write_pointer": None}, "write_pointer: must be that of a publish in a transaction"),
        ({"write_pointer": "+1"}, "write_pointer: must be a whole number"),
        ({"first_id": None}, "first_id: must be a message id"),
        ({"last_id": "ab"}, "last_id: A message id has 40 hex digits"),
        ({"rollbackRange": {}}, "'rollbackRange' is called first_id and last_id"),
        ({"lastid": ""}, "'lastid': there is no such field; did you mean last_id?"),
    ],
)
async def test_rollbacks_in_json_that_are_refused(
    broker: Broker, change: dict[str, object], told: str
) -> None:
    body = {"write_pointer": str(pointer_now(broker)), "first_id": "0" * 40, "last_id": "0" * 40}
    reply = await broker.call("POST", ROLLBACK, json.dumps({**body, **change}).encode(), JSON)
    assert (reply.status, reply.json["code"]) == (400, "bad_request")
    assert reply.json["message"].startswith(told)


@pytest.mark.parametrize("pointer", [{"long": 0}, 0, None])
async def test_publish_in_avros_json(broker: Broker, pointer: object) -> None:
    under = {"long": pointer_now(broker)} if isinstance(pointer, dict) else pointer
    under = pointer_now(broker) if under == 0 else under
    body = {"transactionWritePointer": under, "messages": ["a\u00ff"]}
    reply = await broker.call("POST", PUBLISH, json.dumps(body).encode(), AVRO_JSON)
    if under is None:
        assert reply.body == b""
        return
    assert reply.headers["Content-Type"] == "avro/json"
    assert set(reply.json) == {"transactionWritePointer", "rollbackRange"}
    assert (await broker.call("POST", ROLLBACK, reply.body, AVRO_JSON)).status == 200
    page = await broker.call("GET", topic_path("t", "messages"))
    assert [m["tx_state"] for m in page.json["messages"]] == ["rolled_back"]


async def test_missing_pointer_in_json_is_none(broker: Broker) -> None:
    assert (await broker.call("POST", PUBLISH, b'{"messages":["x"]}', AVRO_JSON)).status == 200
    assert await payloads(broker) == ["x"]


@pytest.mark.parametrize("kind", ["text/plain", "application/octet-stream"])
async def test_a_raw_body_is_one_message(broker: Broker, kind: str) -> None:
    body = "ein ganzer Satz, mit Umlauten: äöü".encode()
    reply = await broker.call("POST", PUBLISH, body, {"Content-Type": kind})
    assert (reply.status, reply.json["count"]) == (200, 1)
    assert await payloads(broker) == [body.decode()]


async def test_a_transactional_publish_answers_with_its_rollback(broker: Broker) -> None:
    pointer = pointer_now(broker)
    body = encode_publish_request(PublishRequest(pointer, [b"m2"]))
    reply = await broker.call("POST", PUBLISH, body, AVRO)
    assert reply.headers["Content-Type"] == "avro/binary"
    assert decode_publish_response(reply.body).pointer == pointer
    # Like the original, a rollback ignores the type of its body.
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
    for name in ("Broker-First-Id", "Broker-Last-Id", "Broker-Count"):
        assert first.headers[name] == again.headers[name]
    in_json = await broker.call("POST", PUBLISH, b'["a", "b"]', {**JSON, "Idempotency-Key": "k-1"})
    assert in_json.json == {
        "first_id": first.headers["Broker-First-Id"],
        "last_id": first.headers["Broker-Last-Id"],
        "count": 2,
        "replayed": True,
    }
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
        body = {"write_pointer": 1, "messages": ["x"]}
        reply = await broker.call("POST", topic_path("t", action), json.dumps(body).encode(), JSON)
        assert (reply.status, reply.json["code"]) == (422, "transaction_too_old")


@pytest.mark.parametrize("pointer", [-1, -(1 << 63)])
async def test_a_negative_pointer_is_older_than_any_transaction_may_live(
    http: Http, pointer: int
) -> None:
    begun = await http("POST", topic_path("t", "stages"))
    stages = {"stages": [begun.json["stage"]], "write_pointer": str(pointer)}
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


async def test_a_missing_topic_is_not_found(broker: Broker) -> None:
    for action, body in (("publish", TWO), ("rollback", bytes.fromhex("00020000000000")[:6])):
        reply = await broker.call("POST", topic_path("no", action), body, AVRO)
        assert (reply.status, reply.headers["Broker-Error"]) == (404, "topic_not_found")


# --- Stages and producers' numbers -----------------------------------------------------------------

TEXT = {"Content-Type": "text/plain"}
STAGES = topic_path("t", "stages")


async def shown_payloads(broker: Broker) -> list[str]:
    return [payload for payload in await payloads(broker) if payload]


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
    assert await shown_payloads(broker) == ["c", "a", "b"]
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
    assert await shown_payloads(broker) == ["a"]


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
    assert await shown_payloads(broker) == ["0", "1", "5"]


async def test_a_producers_number_counts_for_messages_and_stages(broker: Broker) -> None:
    await broker.call("POST", PUBLISH, b"a", numbered(3))
    stage = await begun(broker, b"b")
    again = await publish(broker, stage, headers=numbered(3) | JSON)
    assert "Idempotency-Replayed" in again.headers
    await publish(broker, stage, headers=numbered(4) | JSON)
    assert await shown_payloads(broker) == ["a", "b"]


@pytest.mark.parametrize("number", ["", "-1", "x", "1.0", 1 << 63, "1" * 40])
async def test_bad_numbers(broker: Broker, number: object) -> None:
    reply = await broker.call("POST", PUBLISH, b"a", numbered(number))
    assert (reply.status, reply.headers["Broker-Error"]) == (400, "bad_request")
    assert await shown_payloads(broker) == []


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
