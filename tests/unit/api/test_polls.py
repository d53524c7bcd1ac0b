import asyncio
import base64
import json

import pytest
from multidict import CIMultiDict

from broker.api import asked
from broker.config.sections import Config, LimitsConfig
from broker.http.budget import BudgetKind, Budgets, Usage
from broker.http.reply import ChunkedReply, Reply
from broker.http.request import Request
from broker.model import Message, Poll, PublishRequest, Snapshot
from broker.operations.table import SNAPSHOT_BYTES_MAX
from broker.wire import avro
from broker.wire.messages import PollDecoder
from broker.wire.transaction import POINTERS_MAX, encode_transaction
from broker.wire.varint import END
from tests.kit.serving import Answered, Broker, listening, topic_path

AVRO = {"Content-Type": "avro/binary"}
JSON = {"Content-Type": "application/json"}
AVRO_JSON = {"Content-Type": "avro/json"}
POLL, PUBLISH = topic_path("t", "poll"), topic_path("t", "publish")
TWO = bytes.fromhex("02040261026200")


def messages(reply: Answered) -> list[Message]:
    assert reply.status == 200, reply
    decoder = PollDecoder()
    got = decoder.feed(reply.body)
    decoder.finish()
    return got


async def poll(broker: Broker, poll: Poll, query: str = "") -> Answered:
    return await broker.call("POST", POLL + query, avro.encode_poll(poll), AVRO)


async def test_an_empty_topic_answers_one_zero(broker: Broker) -> None:
    reply = await poll(broker, Poll())
    assert reply.body == b"\x00"
    assert reply.headers["Content-Type"] == "avro/binary"
    as_json = await broker.call("POST", POLL, b"{}", JSON)
    assert as_json.body == b"[]"


async def test_polls_read_published_messages(broker: Broker) -> None:
    await broker.call("POST", PUBLISH, TWO, AVRO)
    both = messages(await poll(broker, Poll()))
    assert [m.payload for m in both] == [b"a", b"b"]
    behind = messages(await poll(broker, Poll(start=both[0].id, inclusive=False)))
    assert behind == both[1:]
    assert messages(await poll(broker, Poll(limit=1))) == both[:1]
    as_json = await broker.call("POST", POLL, b'{"limit": {"int": 1}}', AVRO_JSON)
    assert as_json.headers["Content-Type"] == "avro/json"
    assert as_json.json == [{"id": both[0].id.decode("latin-1"), "payload": "a"}]


async def test_a_poll_that_waits_holds_no_body(broker: Broker) -> None:
    budgets = Budgets()
    usage = Usage(budgets.account("a", lambda _: None))
    body = avro.encode_poll(Poll())
    usage.take(BudgetKind.BODY_BYTES, len(body))
    found = broker.dispatch.router.find("POST", POLL)
    waits = Request(
        "POST", POLL, "wait=20", CIMultiDict(AVRO), body, names=found.names, usage=usage
    )
    waiting = asyncio.create_task(broker.dispatch.answer(found, waits))
    await broker.someone_waits()
    assert waits.body == b""
    assert budgets.used[BudgetKind.BODY_BYTES] == 0
    await broker.call("POST", PUBLISH, TWO, AVRO)
    answer = await waiting
    assert isinstance(answer, Reply)
    assert [message.payload for message in PollDecoder().feed(answer.body)] == [b"a", b"b"]


async def test_as_many_polls_wait_as_the_configuration_says() -> None:
    broker = Broker(Config(limits=LimitsConfig(waiting_polls_max=1)))
    await broker.call("PUT", topic_path("t"))
    async with listening(broker) as http:
        body = avro.encode_poll(Poll())
        waiting = asyncio.create_task(http("POST", f"{POLL}?wait=20", body, AVRO))
        await broker.someone_waits()
        refused = await http("POST", f"{POLL}?wait=20", body, AVRO)
        assert (refused.status, refused.headers["Broker-Error"]) == (503, "overloaded")
        assert "Retry-After" in refused.headers
        assert (await http("POST", POLL, body, AVRO)).status == 200, (
            "a poll without a wait is not counted"
        )
        await http("POST", PUBLISH, TWO, AVRO)
        assert [message.payload for message in messages(await waiting)] == [b"a", b"b"]
    await broker.close()


@pytest.mark.slow
async def test_the_largest_snapshot_fits_into_a_poll(broker: Broker) -> None:
    await broker.call("POST", PUBLISH, TWO, AVRO)
    many = range(1, POINTERS_MAX + 1)
    largest = Snapshot(transaction_id=9, read_pointer=8, invalids=many)
    body = avro.encode_poll(Poll(snapshot=largest))
    assert len(body) < SNAPSHOT_BYTES_MAX
    got = messages(await broker.call("POST", POLL, body, AVRO))
    assert [message.payload for message in got] == [b"a", b"b"]
    in_json = json.dumps({"snapshot": encode_transaction(largest).hex()}).encode()
    refused = await broker.call("POST", POLL, in_json, JSON)
    assert (refused.status, refused.json["code"]) == (413, "body_too_large")
    assert "avro/binary" in refused.json["message"]


async def test_pointers_of_a_snapshot_are_counted(broker: Broker) -> None:
    budgets = Budgets()
    usage = Usage(budgets.account("::1", lambda _: None))
    snapshot = Snapshot(transaction_id=9, read_pointer=8, invalids=range(10_000))
    body = avro.encode_poll(Poll(snapshot=snapshot))
    waits = Request("POST", POLL, "", CIMultiDict(AVRO), body, usage=usage)
    await asked.read(waits, avro.decode_poll)
    assert budgets.used[BudgetKind.ITEMS] == 10_000 // 8


async def test_polls_in_plain_json(broker: Broker) -> None:
    await broker.call("POST", PUBLISH, json.dumps(["café", {"base64": "/w=="}]).encode(), JSON)
    reply = await broker.call("POST", POLL, b"{}", JSON)
    assert reply.headers["Content-Type"] == "application/json"
    text, other = reply.json
    page = (await broker.call("GET", topic_path("t", "messages"))).json["messages"]
    for got, seen in zip(reply.json, page, strict=True):
        for name in ("id", "time", "timestamp_ms", "encoding", "payload"):
            assert got[name] == seen[name]
    assert (text["payload"], text["encoding"], text["key"], text["headers"]) == (
        "café",
        "text",
        None,
        {},
    )
    assert (other["payload"], other["encoding"]) == ("/w==", "base64")

    async def polled(**fields: object) -> list[str]:
        got = await broker.call("POST", POLL, json.dumps(fields).encode(), JSON)
        return [message["payload"] for message in got.json]

    assert await polled(limit=1) == ["café"]
    assert await polled(start=text["id"], inclusive=False) == ["/w=="]
    assert await polled(start=text["id"].upper()) == ["café", "/w=="]
    for start in (text["timestamp_ms"], text["time"], str(text["timestamp_ms"]), None):
        assert await polled(start=start, snapshot=None) == ["café", "/w=="]
    assert await polled(start=text["timestamp_ms"] + 60_000) == []


async def test_polls_in_json_take_the_same_snapshots_as_browsing(broker: Broker) -> None:
    pointer = broker.clock.now_ms() * 1_000_000
    held = json.dumps({"messages": ["held"], "write_pointer": str(pointer)}).encode()
    await broker.call("POST", PUBLISH, held, JSON)
    as_of = {
        "transaction_id": str(pointer + 1),
        "read_pointer": str(pointer - 1),
        "in_progress": [str(pointer)],
    }
    snapshot = Snapshot(transaction_id=pointer + 1, read_pointer=pointer - 1, in_progress=[pointer])
    encoded = encode_transaction(snapshot)
    for form in (as_of, encoded.hex(), base64.b64encode(encoded).decode()):
        reply = await broker.call("POST", POLL, json.dumps({"snapshot": form}).encode(), JSON)
        assert (reply.json, reply.headers["Broker-Blocked-By"]) == ([], str(pointer))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ('{"startFrom": null}', "'startFrom' is called start in application/json"),
        ('{"transaction": null}', "'transaction' is called snapshot"),
        ('{"from": 1}', "'from': there is no such field; did you mean start?"),
        ('{"limt": 1}', "'limt': there is no such field; did you mean limit?"),
        ('{"limit": 0}', "limit: must be at least 1"),
        ('{"limit": 1.5}', "limit: must be a whole number or null, not 1.5"),
        ('{"limit": true}', "limit: must be a whole number or null, not True"),
        ('{"inclusive": 1}', "inclusive: must be true or false"),
        ('{"start": "yesterday"}', "start: 'yesterday' is neither a message id"),
        ('{"start": "%s"}' % ("zz" * 20), "start: A message id has 40 hex digits"),
        ('{"start": -1}', "start: -1 is not a time in ms since 1970"),
        ('{"start": 1795467053}', "start: 1795467053 looks like seconds"),
        ('{"start": [1]}', "start: must be a message id"),
        ('{"snapshot": 7}', "snapshot: "),
        ('{"snapshot": "ff"}', "snapshot: "),
        ("[]", "The body must be a JSON object with start, inclusive, limit, snapshot"),
        ("", "The body is not valid JSON"),
    ],
)
async def test_polls_in_json_that_are_refused(broker: Broker, body: str, told: str) -> None:
    reply = await broker.call("POST", POLL, body.encode(), JSON)
    assert (reply.status, reply.json["code"]) == (400, "bad_request")
    assert reply.json["message"].startswith(told)


@pytest.mark.slow
async def test_a_long_reply_is_many_chunks_of_whole_blocks(broker: Broker) -> None:
    payloads = [b"%06d" % n + b"x" * 250 for n in range(6_000)]
    body = avro.encode_publish_request(PublishRequest(None, payloads))
    assert (await broker.call("POST", PUBLISH, body, AVRO)).status == 200
    got = messages(await poll(broker, Poll()))
    assert [m.payload for m in got] == payloads
    as_json = await broker.call("POST", POLL, b"{}", JSON)
    assert [m["payload"].encode() for m in as_json.json] == payloads
    as_json = await broker.call("POST", POLL, b"{}", AVRO_JSON)
    assert [m["payload"].encode() for m in as_json.json] == payloads


@pytest.mark.parametrize("count", [1, 1_000])
async def test_a_large_page_is_sent_as_it_was_read_and_a_small_one_at_once(
    broker: Broker, count: int
) -> None:
    body = avro.encode_publish_request(PublishRequest(None, [b"x" * 256] * count))
    assert (await broker.call("POST", PUBLISH, body, AVRO)).status == 200
    answer = await broker.answer("POST", POLL, CIMultiDict(AVRO), avro.encode_poll(Poll()))
    if count == 1:
        assert isinstance(answer, Reply)
        return
    assert isinstance(answer, ChunkedReply)
    page, end = [chunk async for chunk in answer.chunks]
    assert end == END
    decoder = PollDecoder()
    assert len(decoder.feed(page)) == count


@pytest.mark.parametrize("kind", ["", "text/plain", "avro/binary;x=1"])
async def test_other_types_are_refused(broker: Broker, kind: str) -> None:
    reply = await broker.call("POST", POLL, b"\x04\x01\x02\x02", {"Content-Type": kind})
    assert reply.status == 400


@pytest.mark.parametrize(
    "body", [b"", b"\x07", bytes.fromhex("0028000102"), b"\x04\x01\x00\x00\x02"]
)
async def test_malformed_polls(broker: Broker, body: bytes) -> None:
    assert (await broker.call("POST", POLL, body, AVRO)).status == 400


@pytest.mark.parametrize("wait", ["-1", "61", "nan", "inf", "x", "", "1e9", "1_0", "%201"])
async def test_malformed_waits(broker: Broker, wait: str) -> None:
    assert (await poll(broker, Poll(), f"?wait={wait}")).status == 400


@pytest.mark.parametrize("query", ["?nonsense=1&wait=0", "?wiat=1", "?wait=0&wait=0"])
async def test_parameters_that_would_be_overlooked_are_refused(broker: Broker, query: str) -> None:
    assert (await poll(broker, Poll(), query)).status == 400


async def test_a_waiting_poll_is_woken_by_the_commit(broker: Broker) -> None:
    waiting = asyncio.ensure_future(poll(broker, Poll(), "?wait=60"))
    await broker.someone_waits()
    await broker.call("POST", PUBLISH, TWO, AVRO)
    async with asyncio.timeout(30):
        assert [m.payload for m in messages(await waiting)][:1] == [b"a"]


async def test_a_wait_that_ends_names_the_blocking_transaction(broker: Broker) -> None:
    pointer = broker.clock.now_ms() * 1_000_000
    body = avro.encode_publish_request(PublishRequest(pointer, [b"held"]))
    await broker.call("POST", PUBLISH, body, AVRO)
    snapshot = Snapshot(transaction_id=pointer + 1, read_pointer=pointer - 1, in_progress=[pointer])
    async with asyncio.timeout(30):  # The answer comes at once: this snapshot can show no more.
        reply = await poll(broker, Poll(snapshot=snapshot), "?wait=60")
    assert reply.body == b"\x00"
    assert reply.headers["Broker-Blocked-By"] == str(pointer)


async def test_a_publish_that_a_snapshot_does_not_show_ends_the_wait(broker: Broker) -> None:
    pointer = broker.clock.now_ms() * 1_000_000
    snapshot = Snapshot(transaction_id=pointer - 1, read_pointer=pointer - 1)
    waiting = asyncio.ensure_future(poll(broker, Poll(snapshot=snapshot), "?wait=60"))
    await broker.someone_waits()
    body = avro.encode_publish_request(PublishRequest(pointer, [b"begun later"]))
    await broker.call("POST", PUBLISH, body, AVRO)
    async with asyncio.timeout(30):
        reply = await waiting
    assert reply.body == b"\x00"
    assert reply.headers["Broker-Blocked-By"] == str(pointer)


async def test_a_missing_topic_is_not_found(broker: Broker) -> None:
    reply = await broker.call("POST", topic_path("no", "poll"), avro.encode_poll(Poll()), AVRO)
    assert (reply.status, reply.headers["Broker-Error"]) == (404, "topic_not_found")
    told = await broker.call("POST", topic_path("no", "poll"), json.dumps({}).encode(), JSON)
    assert told.json["code"] == "topic_not_found"


async def test_an_open_message_blocks_only_polls_that_begin_at_it(broker: Broker) -> None:
    pointer = broker.clock.now_ms() * 1_000_000
    for body in (PublishRequest(pointer, [b"open"]), PublishRequest(None, [b"plain"])):
        await broker.call("POST", PUBLISH, avro.encode_publish_request(body), AVRO)
    opened, plain = messages(await poll(broker, Poll()))
    as_of = Snapshot(transaction_id=pointer + 1, read_pointer=pointer, in_progress=[pointer])
    assert messages(await poll(broker, Poll(opened.id, snapshot=as_of))) == []
    behind = Poll(opened.id, inclusive=False, snapshot=as_of)
    assert messages(await poll(broker, behind)) == [plain]
