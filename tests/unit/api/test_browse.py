"""Look at a topic: browse, stats, range and lag."""

import base64
import json

import pytest

from broker.client import Client
from broker.model import PublishRequest, Snapshot
from broker.topics import browse
from broker.wire import avro
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
