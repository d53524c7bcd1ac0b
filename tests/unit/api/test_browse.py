"""Look at a topic: browse, stats, range and lag; and messages as a JSON list, in pieces."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.api.messages import plainjson
from broker.api.messages.message_list import MESSAGES_AT_ONCE, ItemForm, JsonList, shown
from broker.client import Client
from broker.http.reply import ChunkedReply
from broker.model import Message, PublishRequest, Snapshot, TopicId
from broker.topics import browse
from broker.topics.pages import PIECE_BYTES_MAX
from broker.wire import attributes, avro, avrojson
from broker.wire.avrojson import PART_BYTES
from broker.wire.transaction import encode_transaction
from tests.kit.serving import Broker, Http, topic_path

AVRO = {"Content-Type": "avro/binary"}
JSON = {"Content-Type": "application/json"}
MESSAGES = topic_path("t", "messages")


async def publish(broker: Broker, *payloads: bytes, pointer: int | None = None) -> None:
    body = avro.encode_publish_request(PublishRequest(pointer, payloads))
    reply = await broker.call("POST", topic_path("t", "publish"), body, AVRO)
    assert reply.status == 200, reply


async def test_an_empty_topic_has_no_messages(broker: Broker) -> None:
    assert (await broker.call("GET", MESSAGES)).json == {"messages": [], "next": None}


async def test_the_fields_of_a_browsed_message(broker: Broker) -> None:
    await publish(broker, "grün".encode(), b"\xff" * 1500)
    first, second = (await broker.call("GET", MESSAGES)).json["messages"]
    assert first["payload"] == "grün"
    assert (first["size"], first["encoding"], first["truncated"]) == (5, "text", False)
    assert (first["kind"], first["tx_state"], first["write_pointer"]) == ("inline", "none", None)
    assert first["id"].startswith(f"{first['timestamp_ms']:016x}")
    assert (second["size"], second["encoding"], second["truncated"]) == (1500, "base64", True)
    assert base64.b64decode(second["payload"]) == b"\xff" * 1024
    full = (await broker.call("GET", f"{MESSAGES}?payload=full")).json["messages"]
    assert base64.b64decode(full[1]["payload"]) == b"\xff" * 1500


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_pages_follow_one_another(broker: Broker, order: str) -> None:
    wanted = [b"%d" % n for n in range(7)]
    await publish(broker, *wanted)
    got: list[bytes] = []
    place = ""
    while True:
        target = f"{MESSAGES}?limit=3&order={order}{place}"
        page = (await broker.call("GET", target)).json
        assert len(page["messages"]) <= 3
        got += [m["payload"].encode() for m in page["messages"]]
        if page["next"] is None:
            break
        place = f"&{'from' if order == 'asc' else 'to'}={page['next']}"
    assert got == (wanted if order == "asc" else wanted[::-1])


@pytest.mark.parametrize("is_descending", [False, True])
async def test_pages_of_whole_payloads_are_bounded_and_lose_nothing(
    broker: Broker, http: Http, monkeypatch: pytest.MonkeyPatch, *, is_descending: bool
) -> None:
    """The client asks for whole payloads. A page ends before its limit if it would be too large."""
    monkeypatch.setattr(browse, "PAGE_BYTES_MAX", 5000)
    wanted = [bytes([number]) * 2000 for number in range(7)]
    await publish(broker, *wanted)
    got: list[bytes | None] = []
    place: dict[str, bytes] = {}
    async with Client(http.url) as client:
        while True:
            page = await client.browse("t", descending=is_descending, **place)
            assert 1 <= len(page.messages) <= 3
            got += [row.payload for row in page.messages]
            if page.next is None:
                break
            place = {"stop" if is_descending else "start": page.next}
    assert got == (wanted[::-1] if is_descending else wanted)


async def test_from_and_to_bound_the_page(broker: Broker) -> None:
    await publish(broker, b"0", b"1", b"2")
    entries = (await broker.call("GET", MESSAGES)).json["messages"]
    ids = [entry["id"] for entry in entries]

    async def shown(query: str) -> list[str]:
        page = await broker.call("GET", f"{MESSAGES}?{query}")
        return [entry["payload"] for entry in page.json["messages"]]

    assert await shown(f"from={ids[1]}") == ["1", "2"]
    assert await shown(f"from={ids[1]}&to={ids[2]}") == ["1"]
    assert await shown(f"to={entries[0]['timestamp_ms']}") == []
    assert await shown(f"from={entries[0]['time']}") == ["0", "1", "2"]
    assert await shown("from=2999-01-01T00:00:00Z") == []


@pytest.mark.parametrize(
    "query",
    ["from=x", "to=-1", "limit=0", "limit=10001", "limit=x", "order=up", "payload=half", "from="],
)
async def test_malformed_parameters(broker: Broker, query: str) -> None:
    reply = await broker.call("GET", f"{MESSAGES}?{query}")
    assert (reply.status, reply.headers["Broker-Error"]) == (400, "bad_request")


async def test_a_snapshot_marks_consumable_messages(broker: Broker) -> None:
    pointer = broker.clock.now_ms() * 1_000_000
    await publish(broker, b"open", pointer=pointer)
    await publish(broker, b"plain")
    snapshot = Snapshot(transaction_id=pointer + 5, read_pointer=pointer - 1, in_progress=[pointer])
    encoded = encode_transaction(snapshot)
    parts = {
        "transaction_id": str(pointer + 5),
        "read_pointer": str(pointer - 1),
        "in_progress": [str(pointer)],
        "invalids": [],
    }
    for form in (encoded.hex(), base64.b64encode(encoded).decode(), parts):
        body = json.dumps({"snapshot": form}).encode()
        page = await broker.call("POST", MESSAGES, body, JSON)
        assert [m["consumable"] for m in page.json["messages"]] == [False, False]
        assert page.json["messages"][0]["write_pointer"] == str(pointer)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"snapshot": 1}',
        b'{"snapshot": "zz"}',
        b'{"snapshot": {}}',
        b'{"snapshot": "0a", "more": 1}',
        b'{"snapshot": ""}x',
    ],
)
async def test_malformed_snapshots(broker: Broker, body: bytes) -> None:
    assert (await broker.call("POST", MESSAGES, body, JSON)).status == 400


async def test_figures_of_a_topic(broker: Broker) -> None:
    target = topic_path("t", "stats")
    empty = (await broker.call("GET", target)).json
    assert (empty["first"], empty["last"], empty["messages"]["value"]) == (None, None, 0)
    await broker.call("POST", topic_path("t", "publish"), b"hello", {"Content-Type": "text/plain"})
    told = (await broker.call("GET", target)).json
    assert (told["namespace"], told["topic"], told["generation"]) == ("default", "t", 1)
    assert told["first"] == told["last"] != None  # noqa: E711 - Both are values, and equal.
    assert told["messages"]["value"] == told["published"] == 1
    assert (await broker.call("GET", topic_path("no", "stats"))).status == 404


async def test_a_range_of_a_topic(broker: Broker) -> None:
    target, text = topic_path("t", "range"), {"Content-Type": "text/plain"}
    for _ in range(5):
        await broker.call("POST", topic_path("t", "publish"), b"m", text)
    whole = (await broker.call("GET", target)).json
    assert (whole["messages"], whole["bytes"], whole["lost"]) == (5, 5, 0)
    assert whole["after"] == whole["earliest"] < whole["latest"] == whole["through"]
    some = (await broker.call("GET", f"{target}?messages=2&parts=2")).json
    assert (some["messages"], len(some["ends"]), some["ends"][-1]) == (2, 2, some["through"])
    behind = f"{target}?after={some['through'].upper()}&through={whole['latest']}"
    assert (await broker.call("GET", behind)).json["messages"] == 3
    for wrong in ("after=12", "through=", "messages=0", "bytes=x", "parts=0", "parts=101"):
        assert (await broker.call("GET", f"{target}?{wrong}")).status == 400
    assert (await broker.call("GET", topic_path("no", "range"))).status == 404


async def test_the_lag_behind_an_id(broker: Broker) -> None:
    lag, text = topic_path("t", "lag"), {"Content-Type": "text/plain"}
    start = bytes(20).hex()
    assert (await broker.call("GET", f"{lag}?after={start}")).json["messages"] == 0
    for _ in range(3):
        await broker.call("POST", topic_path("t", "publish"), b"m", text)
    first = (await broker.call("GET", topic_path("t", "stats"))).json["first"]["id"]
    assert (await broker.call("GET", f"{lag}?after={start}")).json["messages"] == 3
    told = (await broker.call("GET", f"{lag}?after={first.upper()}")).json
    assert told == {"after": first, "messages": 2}
    for wrong in ("", "?after=", "?after=12", "?after=xx"):
        assert (await broker.call("GET", lag + wrong)).status == 400
    assert (await broker.call("GET", topic_path("no", f"lag?after={start}"))).status == 404


# --- Messages as a JSON list -----------------------------------------------------------------------

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
