"""Messages as a JSON list, in pieces, and their payloads as text or base64."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.api.messages import plainjson
from broker.api.messages.message_list import MESSAGES_AT_ONCE, ItemForm, JsonList, shown
from broker.http.reply import ChunkedReply
from broker.model import Message, PublishRequest, TopicId
from broker.topics.pages import PIECE_BYTES_MAX
from broker.wire import attributes, avro, avrojson
from broker.wire.avrojson import PART_BYTES
from tests.kit.serving import Broker, topic_path

AVRO = {"Content-Type": "avro/binary"}
FORMS = {
    "plain": plainjson.POLLED,
    "avro": ItemForm(avrojson.encode_items, avrojson.item_in_pieces),
}
PAYLOADS = {
    "ascii": b"a" * 300_000,
    "characters cut": b"x" + "é☃𐍈".encode() * 20_000,
    "control characters": b"\x01" * (2 * PART_BYTES),
    "quotes": b'"\\' * 100_000,
    "no text at its end": b"a" * 200_000 + b"\xff",
    "a character cut at its end": b"a" * PART_BYTES + "é".encode()[:1],
    "no text at all": bytes(range(256)) * 500,
    "one more than a part": b"b" * (PART_BYTES + 1),
    "a part": b"b" * PART_BYTES,
}


def message(payload: bytes, key: bytes | None = None) -> Message:
    return Message(bytes(19) + b"\x05", payload, key, {"h": b"\xff"} if key else {})


async def written(form: Any, *parts: list[Message]) -> bytes:
    out = JsonList(form)
    pieces = [piece for part in parts async for piece in out.pieces(part)]
    assert max(map(len, pieces), default=0) <= PIECE_BYTES_MAX
    return b"".join([*pieces, out.end()])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("payload", PAYLOADS)
async def test_a_large_message_is_the_same_json_in_pieces(form: str, payload: str) -> None:
    large = message(PAYLOADS[payload], b"k")
    some = [message(b"a"), large, message(b"b"), large, large]
    assert await written(FORMS[form], some) == b"[" + FORMS[form].together(some) + b"]"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [0, 1, 2, MESSAGES_AT_ONCE, MESSAGES_AT_ONCE + 1, 1000])
async def test_a_long_list_is_the_same_json_in_pieces(form: str, count: int) -> None:
    some = [message(b"%d" % number * 100) for number in range(count)]
    whole = json.loads(b"[" + FORMS[form].together(some) + b"]")
    half = count // 2
    assert json.loads(await written(FORMS[form], some)) == whole
    assert json.loads(await written(FORMS[form], some[:half], [], some[half:])) == whole


async def test_each_step_encodes_a_bounded_number_of_messages() -> None:
    asked: list[int] = []

    def together(messages: Any) -> bytes:
        asked.append(len(messages))
        return plainjson.POLLED.together(messages)

    await written(ItemForm(together, plainjson.POLLED.apart), [message(b"a")] * 1000)
    assert max(asked) == MESSAGES_AT_ONCE
    assert sum(asked) == 1000


async def test_large_events_come_in_pieces(broker: Broker) -> None:
    payloads = [b"a", *PAYLOADS.values(), b"b"]
    beside = [attributes.encode(b"k", {"h": b"\xff"})] * len(payloads)
    request = PublishRequest(None, payloads, attributes=beside)
    await broker.topics.publish(TopicId("default", "t"), request)
    answer = await broker.answer("GET", topic_path("t", "events"))
    assert isinstance(answer, ChunkedReply)
    sent = b""
    while sent.count(b"\n\n") <= len(payloads):  # A comment comes before the events.
        piece = await anext(answer.chunks)
        assert len(piece) <= PIECE_BYTES_MAX
        sent += piece
    await answer.chunks.aclose()
    assert sent.endswith(b"\n\n")
    events = [event.split(b"\ndata: ") for event in sent.split(b"\n\n")[1:-1]]
    told = [(head.removeprefix(b"id: ").decode(), json.loads(data)) for head, data in events]
    assert [_payload(each) for _, each in told] == payloads
    for identifier, each in told:
        assert f"{each['id']}@1" == identifier
        assert (each["key"], each["headers"]) == ("k", {"h": {"base64": "/w=="}})


def _payload(shown: dict[str, Any]) -> bytes:
    if shown["encoding"] == "base64":
        return base64.b64decode(shown["payload"])
    return str(shown["payload"]).encode()


async def _answer(broker: Broker, target: str) -> tuple[Any, int]:
    """Return the answer to a request, and the number of its pieces."""
    answer = await broker.answer("GET", target)
    assert isinstance(answer, ChunkedReply)
    pieces = [bytes(piece) async for piece in answer.chunks]
    assert max(map(len, pieces)) <= PIECE_BYTES_MAX
    return json.loads(b"".join(pieces)), len(pieces)


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_a_browse_of_large_and_of_many_messages_comes_in_pieces(
    broker: Broker, order: str
) -> None:
    payloads = [*PAYLOADS.values(), *[b"%d" % number for number in range(500)]]
    for some in (payloads[:5], payloads[5:]):
        body = avro.encode_publish_request(PublishRequest(None, some))
        assert (await broker.call("POST", topic_path("t", "publish"), body, AVRO)).status == 200
    page, pieces = await _answer(
        broker, topic_path("t", f"messages?payload=full&limit=1000&order={order}")
    )
    assert pieces > 10
    assert page["next"] is None
    found = [_payload(each) for each in page["messages"]]
    assert found == (payloads if order == "asc" else payloads[::-1])
    assert [each["size"] for each in page["messages"]] == [len(payload) for payload in found]
    previews, _ = await _answer(broker, topic_path("t", f"messages?limit=1000&order={order}"))
    for each, preview in zip(page["messages"], previews["messages"], strict=True):
        assert preview["truncated"] == (each["size"] > 1024)
        assert preview["size"] == each["size"]
        if each["encoding"] == preview["encoding"]:
            assert each["payload"].startswith(preview["payload"].rstrip("="))


def test_text_is_text_and_the_rest_base64() -> None:
    assert shown("grüße\n".encode()) == ("text", "grüße\n")
    assert shown(b"") == ("text", "")
    assert shown(b"\xff\x00") == ("base64", "/wA=")


def test_a_cut_never_goes_through_a_character() -> None:
    assert shown("aä".encode(), 2) == ("text", "a")
    assert shown("aä".encode(), 3) == ("text", "aä")
    assert shown(b"\xe4\xb8", None) == ("base64", "5Lg=")


@given(st.binary(max_size=40), st.integers(1, 50))
def test_the_shown_text_is_a_prefix(payload: bytes, bytes_max: int) -> None:
    encoding, text = shown(payload, bytes_max)
    told = text.encode() if encoding == "text" else base64.b64decode(text)
    assert payload.startswith(told)
    assert told == payload or len(payload) > bytes_max
