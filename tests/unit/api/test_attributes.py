"""Messages with keys, headers and lifetimes, and JSON values as messages, over HTTP and through both clients."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from datetime import datetime
from typing import Any

import pytest

from broker.client import BadRequest, Browsed, Client, NewMessage, SyncClient, TailOptions
from broker.http.reply import ChunkedReply
from broker.model import MESSAGE_ID_BYTES, Message, Poll, PublishRequest
from broker.transfer.jsonlines import _message
from broker.wire import attributes, avro, messages
from broker.wire.messages import PollDecoder
from tests.kit.openapi import Answered
from tests.kit.serving import Broker, Http, topic_path

AVRO = {"Content-Type": "avro/binary"}
WHOLE = {"Content-Type": "avro/message"}
JSON = {"Content-Type": "application/json"}
POLL, PUBLISH, STORE = (topic_path("t", action) for action in ("poll", "publish", "store"))
KEYED = attributes.encode(b"k", {"kind": b"tick"})
TWO = PublishRequest(None, [b"a", b"b"], attributes=[KEYED, b""])


async def publish(broker: Broker, request: PublishRequest, path: str = PUBLISH) -> Answered:
    return await broker.call("POST", path, messages.encode_publish_request(request), WHOLE)


async def poll(broker: Broker, accept: str | None = "avro/message") -> list[Message]:
    headers = AVRO if accept is None else AVRO | {"Accept": accept}
    reply = await broker.call("POST", POLL, avro.encode_poll(Poll()), headers)
    assert reply.status == 200, reply
    assert reply.headers["Content-Type"] == (accept or "avro/binary")
    decoder = messages.PagesDecoder() if accept else PollDecoder()
    found = decoder.feed(reply.body)
    decoder.finish()
    return found


def parts(found: list[Message]) -> list[tuple[bytes, bytes | None, dict[str, bytes]]]:
    return [(each.payload, each.key, dict(each.headers)) for each in found]


A, B = (b"a", b"k", {"kind": b"tick"}), (b"b", None, {})


async def test_keys_and_headers_are_returned_on_request(broker: Broker) -> None:
    assert (await publish(broker, TWO)).status == 200
    assert parts(await poll(broker)) == [A, B]
    assert parts(await poll(broker, None)) == [(b"a", None, {}), B]


async def test_a_poll_of_an_empty_topic_has_an_empty_reply(broker: Broker) -> None:
    assert await poll(broker) == []


async def test_stored_and_staged_messages_keep_keys_and_headers(broker: Broker) -> None:
    pointer = broker.clock.now_ms() * 1_000_000
    assert (await publish(broker, TWO._replace(pointer=pointer), STORE)).status == 200
    reference = await publish(broker, PublishRequest(pointer, []))
    assert avro.decode_publish_response(reference.body).pointer == pointer
    begun = await broker.call("POST", topic_path("t", "stages"))
    stage = begun.json["stage"]
    assert (await publish(broker, TWO, topic_path("t", f"stages/{stage}/store"))).status == 200
    body = json.dumps({"stages": [stage]}).encode()
    assert (await broker.call("POST", topic_path("t", "stages/publish"), body, JSON)).status == 200
    assert parts(await poll(broker)) == [A, B, A, B]


async def test_a_long_reply_comes_in_pages(broker: Broker) -> None:
    several = PublishRequest(
        None, [b"%06d" % n + b"x" * 250 for n in range(4_000)], attributes=[KEYED, b""] * 2_000
    )
    assert (await publish(broker, several)).status == 200
    assert parts(await poll(broker)) == [
        (payload, b"k", {"kind": b"tick"}) if place % 2 == 0 else (payload, None, {})
        for place, payload in enumerate(several.payloads)
    ]


async def test_the_original_form_leaves_out_keys_and_headers(broker: Broker) -> None:
    await publish(broker, TWO)
    body = avro.encode_poll(Poll())
    reply = await broker.call("POST", POLL, body, AVRO)
    decoder = PollDecoder()
    found = decoder.feed(reply.body)
    assert [each.payload for each in found] == [b"a", b"b"]
    assert decoder.rest == b""
    other = await broker.call("POST", POLL, body, AVRO | {"Accept": "*/*"})
    assert other.body == reply.body


async def test_a_message_may_have_its_own_ttl(broker: Broker) -> None:
    wanted = PublishRequest(None, [b"own", b"request's", b"own"], ttls_s=[60, None, 30])
    await publish(broker, wanted, f"{PUBLISH}?ttl=100")
    page = await broker.call("GET", topic_path("t", "messages"))
    first = page.json["messages"][0]["expires_at"]
    assert len({each["expires_at"] for each in page.json["messages"]}) == 3
    assert [each["id"] for each in page.json["messages"]] == [
        each.id.hex() for each in await poll(broker)
    ]
    assert first
    for ttl_s in (0, -1, 1 << 30):
        refused = await publish(broker, wanted._replace(ttls_s=[ttl_s, None, None]))
        assert (refused.status, refused.headers["Broker-Error"]) == (400, "bad_request")
        assert "ttl: must be between 1" in refused.body.decode()


async def test_the_same_key_with_other_headers_is_refused(broker: Broker) -> None:
    once = WHOLE | {"Idempotency-Key": "once"}
    body = messages.encode_publish_request(TWO)
    for expected in (None, "true"):
        reply = await broker.call("POST", PUBLISH, body, once)
        assert (reply.status, reply.headers.get("Idempotency-Replayed")) == (200, expected)
    other = messages.encode_publish_request(TWO._replace(attributes=[b"", KEYED]))
    assert (await broker.call("POST", PUBLISH, other, once)).status == 422


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        (POLL, avro.encode_poll(Poll()), "Only avro/binary content type is supported"),
        (PUBLISH, b"\x02\x02\x02a\x04", "messages: the union has no branch 2"),
        (PUBLISH, b"\x02\x02\x02a\x00", "messages: the body ends in the middle of this field"),
    ],
)
async def test_a_malformed_body_is_refused(
    broker: Broker, path: str, body: bytes, error: str
) -> None:
    reply = await broker.call("POST", path, body, WHOLE)
    assert (reply.status, reply.headers["Broker-Error"]) == (400, "bad_request")
    assert error in reply.body.decode()


async def test_browse_and_events_show_keys_and_headers(broker: Broker) -> None:
    raw = attributes.encode(b"\xff", {"text": b"x", "raw": b"\xfe"})
    await publish(broker, PublishRequest(None, [b"a", b"b"], attributes=[raw, b""]))
    beside = [
        {"key": {"base64": "/w=="}, "headers": {"text": "x", "raw": {"base64": "/g=="}}},
        {"key": None, "headers": {}},
    ]
    page = await broker.call("GET", topic_path("t", "messages"))
    shown = page.json["messages"]
    assert [{name: row[name] for name in ("key", "headers")} for row in shown] == beside
    answer = await broker.answer("GET", topic_path("t", "events"))
    assert isinstance(answer, ChunkedReply)
    told: list[dict[str, object]] = []
    async with aclosing(answer.chunks) as chunks:
        while len(told) < 2:
            lines = bytes(await anext(chunks)).splitlines()
            told += [json.loads(line[5:]) for line in lines if line.startswith(b"data:")]
    assert [{name: row[name] for name in ("key", "headers")} for row in told] == beside


# --- Through both clients -------------------------------------------------------------------------

RAW = b"\xff\xfe"
WITH_KEY = NewMessage("a", key="k", headers={"kind": "tick", "raw": RAW})
READ_A = (b"a", b"k", {"kind": b"tick", "raw": RAW})


async def test_all_ways_to_publish_and_to_read_keep_keys_and_headers(
    broker: Broker, http: Http
) -> None:
    pointer = broker.clock.now_ms() * 1_000_000
    async with Client(http.url) as client:
        await client.publish("t", WITH_KEY)
        await client.publish("t", [WITH_KEY, b"b"])
        await client.publish("t", "a", key="k", headers=WITH_KEY.headers)
        await client.publish(
            "t", ["a", NewMessage("a", key="other")], key="k", headers=WITH_KEY.headers
        )
        await (await client.publish_later("t", WITH_KEY))
        transaction = client.transaction_publisher(pointer)
        await transaction.publish("t", "a", key="k", headers=WITH_KEY.headers)
        await transaction.store("t", [WITH_KEY, "b"])
        await transaction.publish_stored("t")
        async with client.stage("t") as stage:
            await stage.store("a", key=b"k", headers=WITH_KEY.headers)
        await client.publish_stages("t", [stage.id])
        wanted = [
            READ_A,
            READ_A,
            B,
            READ_A,
            READ_A,
            (b"a", b"other", READ_A[2]),
            READ_A,
            READ_A,
            READ_A,
            B,
            READ_A,
        ]
        polled = await client.poll("t")
        assert parts(polled) == wanted
        assert [m async for m in client.tail("t", options=TailOptions(follow=False))] == polled
        async with aclosing(client.events("t")) as events:
            assert [await anext(events) for _ in wanted] == polled
        browsed = (await client.browse("t")).messages
        shown = [row for row in browsed if row.kind != "reference"]
        assert [(row.payload, row.key, dict(row.headers)) for row in shown] == wanted
        assert all(row.key is None and not row.headers for row in browsed if row not in shown)


async def test_keyed_messages_sent_together_keep_their_order(broker: Broker, http: Http) -> None:
    async with Client(http.url) as client:
        several = [NewMessage(str(n), key=str(n)) if n % 2 else str(n) for n in range(500)]
        await asyncio.gather(*(client.publish("t", each) for each in several))
        for each in several:
            await client.publish_later("t", each)
        await client.flush()
        found = await client.poll("t")
    numbers = [b"%d" % n for n in range(500)] * 2
    assert [m.payload for m in found] == numbers
    assert [m.key for m in found] == [n if int(n) % 2 else None for n in numbers]


async def test_a_message_may_have_its_own_lifetime(broker: Broker, http: Http) -> None:
    async with Client(http.url) as client:
        await client.publish("t", [NewMessage("short", ttl_s=60), "topic's"])
        await client.publish("t", [NewMessage("short", ttl_s=60), "call's"], ttl_s=90)
        await client.publish("t", NewMessage("short", ttl_s=60))
        await (await client.publish_later("t", NewMessage("short", ttl_s=60)))
        with pytest.raises(BadRequest, match="ttl"):
            await client.publish("t", NewMessage("long", ttl_s=1 << 30))
        rows = (await client.browse("t")).messages
    lives = [(row.payload, _life_s(row)) for row in rows]
    short = (b"short", 60)
    ttl_s = lives[1][1]
    assert ttl_s > 90
    assert lives == [short, (b"topic's", ttl_s), short, (b"call's", 90), short, short]


def _life_s(row: Browsed) -> float:
    assert row.expires_at is not None
    return datetime.fromisoformat(row.expires_at).timestamp() - row.timestamp_ms / 1000


async def test_an_impossible_header_is_refused_before_it_is_sent(http: Http) -> None:
    async with Client(http.url) as client:
        for headers, text in (
            ({"": "x"}, "a name has 1 to 255 bytes"),
            ({"h": bytes(20_000)}, "16384 bytes of key and headers"),
        ):
            with pytest.raises(BadRequest, match=text):
                await client.publish("t", "a", headers=headers)
            with pytest.raises(BadRequest, match=text):
                await client.publish_later("t", NewMessage("a", headers=headers))


async def test_the_blocking_client_keeps_keys_and_headers(http: Http) -> None:
    def use() -> None:
        with SyncClient(http.url) as client:
            client.publish("t", "a", key="k", headers=WITH_KEY.headers)
            client.publish("t", [WITH_KEY, "b"])
            client.publish_later("t", WITH_KEY).result()
            with client.stage("t") as stage:
                stage.store(WITH_KEY)
            client.publish_stages("t", [stage.id])
            assert parts(client.poll("t")) == [READ_A, READ_A, B, READ_A, READ_A]
            tailed = list(client.tail("t", options=TailOptions(follow=False)))
            assert parts(tailed) == [READ_A, READ_A, B, READ_A, READ_A]
            event = next(client.events("t"))
            assert parts([event]) == [READ_A]
            assert len(event.id) == MESSAGE_ID_BYTES

    await asyncio.to_thread(use)


# --- JSON values: a message is their compact text in UTF-8 ------------------------------------------

JSON_TOLD = {"Content-Type": "application/json", "Accept": "application/json"}
VALUE: Any = {"order": 7, "lines": ["é", None, True, 1.5], "big": (1 << 63) + 1, "nested": {}}
TEXT = '{"order":7,"lines":["é",null,true,1.5],"big":9223372036854775809,"nested":{}}'


async def publish_json(broker: Broker, body: bytes, action: str = "publish") -> Answered:
    return await broker.call("POST", topic_path("t", action), body, JSON_TOLD)


async def seen(broker: Broker) -> list[tuple[str, Any]]:
    polled = await broker.call("POST", topic_path("t", "poll"), b"{}", JSON_TOLD)
    return [(each["payload"], each["key"]) for each in polled.json]


async def test_a_json_value_is_a_message(broker: Broker) -> None:
    bodies = [
        {"messages": [{"json": VALUE}, "text", {"value": {"json": [1]}, "key": "k"}]},
        [{"json": None}],
        {"json": "text"},
        {"value": {"json": False}, "key": "alone"},
        {"messages": [{"json": 1}] * 300},
    ]
    for body in bodies:
        reply = await publish_json(broker, json.dumps(body, indent=2).encode())
        assert reply.status == 200, reply
    found = await seen(broker)
    assert found[:6] == [
        (TEXT, None),
        ("text", None),
        ("[1]", "k"),
        ("null", None),
        ('"text"', None),
        ("false", "alone"),
    ]
    assert found[6:] == [("1", None)] * 300


async def test_a_large_json_value_is_a_message(broker: Broker) -> None:
    value = {"text": "é" * 100_000, "numbers": list(range(500))}
    body = {"messages": ["before", {"json": value}, "behind"]}
    assert (await publish_json(broker, json.dumps(body).encode())).status == 200
    found = await seen(broker)
    assert [text for text, _ in found[::2]] == ["before", "behind"]
    assert json.loads(found[1][0]) == value


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"messages": [{"json": 1, "key": "k"}]}', "messages[0]: no other field"),
        (b'{"messages": [{"value": {"json": 1, "base64": ""}}]}', "messages[0].value: no other"),
        (b'{"messages": [{"json": 1e999}]}', "messages[0].json: is not a JSON value"),
        (b'{"messages": ["a", {"json": "\\ud800"}]}', "messages[1].json: has text that is not"),
        (b'{"messages": [{"value": "x", "key": {"json": 1}}]}', "messages[0].key: must be text"),
        (b'{"messages": [{"json": {"a": 1, "a": 2}}]}', "The body has an object in which a name"),
        (b'{"messages": [{"json": ' + b"[" * 900 + b"]" * 900 + b"}]}", ""),
    ],
)
async def test_a_value_that_is_no_json_is_refused(broker: Broker, body: bytes, told: str) -> None:
    reply = await publish_json(broker, body)
    if not told:
        assert reply.status in (200, 400)
        return
    assert (reply.status, reply.json["code"]) == (400, "bad_request")
    assert reply.json["message"].startswith(told)


async def test_an_object_that_is_no_message_names_the_way(broker: Broker) -> None:
    reply = await publish_json(broker, b'{"user": "alice"}')
    assert '{"json": …}' in reply.json["message"]


async def test_the_client_publishes_json(broker: Broker, http: Http) -> None:
    async with Client(http.url, namespace="default") as client:
        await client.publish("t", NewMessage.of_json(VALUE, key="k"))
        with pytest.raises(TypeError, match=r"json\.dumps"):
            await client.publish("t", {"a": 1})  # type: ignore[arg-type]
    assert await seen(broker) == [(TEXT, "k")]
    for wrong in (float("inf"), {1, 2}, "\ud800"):
        with pytest.raises(BadRequest):
            NewMessage.of_json(wrong)


def test_a_line_of_an_import_may_have_json() -> None:
    assert _message({"value": {"json": VALUE}}).payload == TEXT.encode()
    with pytest.raises(ValueError, match="value: must be text"):
        _message({"value": {"json": 1, "x": 2}})
    with pytest.raises(ValueError, match=r"value\.json"):
        _message({"value": {"json": float("nan")}})
