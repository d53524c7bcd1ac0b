"""The client builds a publish request from a caller's messages, and refuses values of other types."""

from collections import OrderedDict, deque
from typing import Any

import numpy as np
import pytest

from broker.client import Message, NewMessage, SyncClient
from broker.client.publish_request import request_of
from broker.errors import BadRequest
from broker.model import PublishRequest
from broker.wire import attributes


def test_plain_messages_are_a_request_without_attributes() -> None:
    assert request_of(b"a") == PublishRequest(None, [b"a"])
    assert request_of("café", pointer=7) == PublishRequest(7, ["café".encode()])
    assert request_of([b"a", "b"]) == PublishRequest(None, [b"a", b"b"])
    assert request_of([NewMessage("a"), "b"]) == PublishRequest(None, [b"a", b"b"])


def test_a_message_has_its_own_key_headers_and_life() -> None:
    whole = NewMessage(b"a", key="k", headers={"kind": "tick", "raw": b"\xff"}, ttl_s=60)
    found = request_of([whole, b"b"])
    encoded = attributes.encode(b"k", {"kind": b"tick", "raw": b"\xff"})
    assert found == PublishRequest(None, [b"a", b"b"], attributes=[encoded, b""], ttls_s=[60, None])
    assert request_of(whole).payloads == [b"a"]


def test_key_and_headers_of_the_call_apply_to_messages_without_their_own() -> None:
    found = request_of([NewMessage(b"a", key=b""), "b"], key="k", headers={"h": "1"})
    assert found.attributes == [
        attributes.encode(b"", {"h": b"1"}),
        attributes.encode(b"k", {"h": b"1"}),
    ]
    assert found.ttls_s == ()


def test_too_many_headers_are_refused() -> None:
    with pytest.raises(BadRequest, match="100 headers"):
        request_of(b"a", headers={str(number): b"" for number in range(101)})


RECEIVED = Message(bytes(20), b"m")
NONE = [
    ({"a": 1}, "messages: give bytes or text, a NewMessage, .* not dict {'a': 1}. json.dumps"),
    (OrderedDict(a=1), "not OrderedDict .* json.dumps"),
    ({b"a"}, "not set .* list"),
    (frozenset([b"a"]), "not frozenset .* list"),
    (deque([b"a"]), "not deque .* list"),
    (iter([b"a"]), "not list_iterator .* list"),
    ((each for each in [b"a"]), "not generator .* list"),
    (range(3), "not range .* list"),
    (map(str, [1]), "not map .* list"),
    (bytearray(b"ab"), "not bytearray .* bytes"),
    (memoryview(b"ab"), "not memoryview .* bytes"),
    (np.array([1, 2]), "not ndarray .* list"),
    (RECEIVED, "not Message .* NewMessage"),
    (None, r"not NoneType None\.$"),
    (5, r"not int 5\. str"),
    (1.5, "not float 1.5"),
    (True, "not bool True"),
]
INSIDE = [
    ([b"a", "b", {"a": 1}], r"messages\[2\]: give bytes or text, not dict {'a': 1}. json.dumps"),
    ([b"a", None], r"messages\[1\]: .* not NoneType None\.$"),
    ([[b"a"]], r"messages\[0\]: .* not list"),
    ((5,), r"messages\[0\]: .* not int 5"),
    ([RECEIVED], r"messages\[0\]: .* NewMessage\(it.payload, it.key, it.headers\)"),
    ([bytearray(b"a")], r"messages\[0\]: .* bytes"),
    ([NewMessage("a"), {}], r"messages\[1\]: .* not dict"),
    ([NewMessage({"a": 1})], r"messages\[0\]: .* not dict"),  # type: ignore[arg-type]
    ([NewMessage("a", key=5)], r"messages\[0\], key: give bytes or text, not int 5"),  # type: ignore[arg-type]
    ([NewMessage("a", headers=[("a", "b")])], r"messages\[0\], headers: give a dict"),  # type: ignore[arg-type]
    ([NewMessage("a", headers={"n": 1})], r"messages\[0\], header 'n': give bytes or text"),  # type: ignore[dict-item]
    ([NewMessage("a", headers={b"n": b""})], r"messages\[0\], the name of a header: give text"),  # type: ignore[dict-item]
    ([NewMessage("a", ttl_s="1d")], r"messages\[0\], ttl_s: give whole seconds"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("messages", "told"), NONE + INSIDE)
async def test_no_method_publishes_a_value_that_is_no_message(
    make_client, transport, messages, told
):
    async with make_client() as client:
        doors = [
            lambda: client.publish("t", messages),
            lambda: client.publish("t", messages, idempotency_key="k"),
            lambda: client.store("t", messages, pointer=7),
            lambda: client.transaction_publisher(7).publish("t", messages),
            lambda: client.transaction_publisher(7).store("t", messages),
            lambda: client.stage("t").store(messages),
        ]
        for door in doors:
            with pytest.raises(TypeError, match=told):
                await door()
    assert transport.requests == []


HALF = "\ud800"
HALVES: list[tuple[Any, str]] = [
    (HALF, "messages?"),
    (["a", HALF], r"messages\[1\]"),
    (NewMessage("a", key=HALF), "key"),
    (NewMessage("a", headers={"n": HALF}), "header 'n'"),
    (NewMessage("a", headers={HALF: "v"}), "headers"),
]


@pytest.mark.parametrize(("messages", "told"), HALVES)
async def test_text_that_is_half_of_a_character_is_a_bad_request(
    make_client, transport, messages, told
):
    async with make_client() as client:
        doors = [
            lambda: client.publish("t", messages),
            lambda: client.publish("t", messages, idempotency_key="k"),
            lambda: client.store("t", messages, pointer=7),
            lambda: client.transaction_publisher(7).publish("t", messages),
            lambda: client.stage("t").store(messages),
        ]
        if not isinstance(messages, list):
            doors.append(lambda: client.publish_later("t", messages))
        for door in doors:
            with pytest.raises(BadRequest, match=f"{told}.*not valid Unicode"):
                await door()
    assert transport.requests == []


@pytest.mark.parametrize("wait_s", [float("nan"), float("inf"), -1])
async def test_a_wait_that_no_timer_ends_is_refused(make_client, transport, wait_s):
    async with make_client() as client:
        with pytest.raises(BadRequest, match="wait_s"):
            await client.poll("t", wait_s=wait_s)
        with pytest.raises(ValueError, match="wait_s"):
            client.subscriber("t", "s", print, wait_s=wait_s)
    assert transport.requests == []


@pytest.mark.parametrize("message", [{"a": 1}, [b"a"], (b"a",), None, 5, bytearray(b"a"), RECEIVED])
async def test_publish_later_takes_one_message(make_client, transport, message):
    async with make_client() as client:
        with pytest.raises(TypeError, match="message: give bytes or text"):
            await client.publish_later("t", message)
        assert client.later.counts.accepted == 0
    assert transport.requests == []


@pytest.mark.slow
def test_the_blocking_client_refuses_the_same_values() -> None:
    with SyncClient("http://127.0.0.1:9") as client:
        for publish in (client.publish, client.publish_later):
            with pytest.raises(TypeError, match=r"json\.dumps"):
                publish("t", {"a": 1})  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"json\.dumps"):
            client.transaction_publisher(7).publish("t", {"a": 1})  # type: ignore[arg-type]


@pytest.mark.parametrize("messages", [[], ()])
def test_no_messages_are_refused(messages) -> None:
    with pytest.raises(BadRequest, match="the list is empty"):
        request_of(messages, pointer=7)
