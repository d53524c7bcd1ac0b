"""A message may be given as ``{"json": …}``: it is stored as compact JSON in UTF-8."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.cli.transfer.formats import _message
from broker.client import BadRequest, Client, NewMessage
from tests.kit.openapi import Answered
from tests.kit.serving import Broker, Http, topic_path

JSON = {"Content-Type": "application/json", "Accept": "application/json"}
VALUE: Any = {"order": 7, "lines": ["é", None, True, 1.5], "big": (1 << 63) + 1, "nested": {}}
TEXT = '{"order":7,"lines":["é",null,true,1.5],"big":9223372036854775809,"nested":{}}'


async def publish(broker: Broker, body: bytes, action: str = "publish") -> Answered:
    return await broker.call("POST", topic_path("t", action), body, JSON)


async def seen(broker: Broker) -> list[tuple[str, Any]]:
    polled = await broker.call("POST", topic_path("t", "poll"), b"{}", JSON)
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
        reply = await publish(broker, json.dumps(body, indent=2).encode())
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
    assert (await publish(broker, json.dumps(body).encode())).status == 200
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
    reply = await publish(broker, body)
    if not told:
        assert reply.status in (200, 400)
        return
    assert (reply.status, reply.json["code"]) == (400, "bad_request")
    assert reply.json["message"].startswith(told)


async def test_an_object_that_is_no_message_names_the_way(broker: Broker) -> None:
    reply = await publish(broker, b'{"user": "alice"}')
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
