"""Any server may answer in the broker's place: each answer that no broker sends has one defined effect."""

import asyncio
import json

import pytest

from broker.client import admin
from broker.client.client_request import Reply
from broker.client.tail import TailOptions
from broker.errors import (
    Forbidden,
    OutcomeUnknown,
    QuotaExceeded,
    Unauthenticated,
    Unavailable,
)
from broker.model import Message, TopicId, log_key
from broker.wire import jsontext
from tests.kit.poll_replies import page_of

PAGE = b"<html><body>Please log in</body></html>"
DEEP = b"[" * 100_000
FOREIGN = {
    "page": Reply(200, {"content-type": "text/html"}, PAGE),
    "deep": Reply(200, {"content-type": "application/json"}, DEEP),
    "object": Reply(200, {"content-type": "application/json"}, b'{"detail": []}'),
    "list": Reply(200, {"content-type": "application/json"}, b"[1]"),
    "text": Reply(200, {"content-type": "application/json"}, b"\xff\xfe{"),
    "binary": Reply(200, {"content-type": "application/octet-stream"}, bytes(range(256))),
    "none": Reply(204, {}, b""),
    "redirect": Reply(302, {"location": "http://elsewhere/"}, b""),
    "busy": Reply(429, {"content-type": "text/html"}, PAGE),
    "failed": Reply(500, {"content-type": "text/html"}, PAGE),
    "gateway": Reply(502, {"content-type": "text/html"}, PAGE),
    "late": Reply(504, {}, b"upstream request timeout"),
    "cloud": Reply(520, {}, b""),
    "bad": Reply(400, {"content-type": "text/html"}, PAGE),
    "forbidden": Reply(403, {"content-type": "application/json"}, b'{"message": "Forbidden"}'),
    "no back end": Reply(404, {"content-type": "text/html"}, PAGE),
    "no route": Reply(404, {"content-type": "text/plain"}, b"default backend - 404"),
}


ONE = page_of([Message(log_key(1, 0) + bytes(10), b"x")])


async def first(source):
    async for item in source:
        return item
    return None


READS = {
    "poll": lambda client: client.poll("ns1/t1"),
    "topic": lambda client: client.topic("ns1/t1"),
    "topics": lambda client: client.topics("ns1"),
    "namespaces": lambda client: client.namespaces(),
    "leader": lambda client: client.leader("ns1/t1"),
    "browse": lambda client: client.browse("ns1/t1"),
    "lag": lambda client: client.lag("ns1/t1", "00" * 20),
    "range": lambda client: client.range("ns1/t1"),
    "cursors": lambda client: client.cursors.list("ns1/t1"),
    "cursor": lambda client: client.cursors.get("ns1/t1", "c"),
    "snapshot": lambda client: client.transactions.snapshot(),
    "stats": lambda client: client.stats("ns1/t1"),
    "blockers": lambda client: client.blockers("ns1/t1"),
    "transactions": lambda client: client.transactions.list(),
    "transaction": lambda client: client.transactions.show(1),
    "prune plan": lambda client: client.transactions.prune_plan(),
    "nodes": lambda client: client.ask(admin.status()),
    "leader row": lambda client: client.ask(admin.leader(TopicId("ns1", "t1"))),
    "pins": lambda client: client.ask(admin.pins()),
    "batches": lambda client: first(client.read_arrow("ns1/t1", through="00" * 20)),
    "messages": lambda client: first(client.read("ns1/t1")),
}
WRITES = {
    "publish": lambda client: client.publish("ns1/t1", b"x"),
    "list": lambda client: client.publish("ns1/t1", [b"x"]),
    "create": lambda client: client.create_topic("ns1/t1"),
    "delete": lambda client: client.delete_topic("ns1/t1"),
    "purge": lambda client: client.purge("ns1/t1", "now"),
    "store": lambda client: client.store("ns1/t1", b"x", pointer=1),
    "commit": lambda client: client.transactions.commit(1),
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("name", READS)
async def test_a_read_goes_on_until_its_deadline(make_client, transport, name, kind):
    transport.answer = lambda _: FOREIGN[kind]
    async with make_client(deadline_s=0.01) as client:
        with pytest.raises(Unavailable, match=f"status {FOREIGN[kind].status}") as error:
            await READS[name](client)
    assert "<" not in error.value.message
    assert len(transport.requests) > 1


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("name", WRITES)
async def test_an_unkeyed_write_is_unknown_and_not_repeated(make_client, transport, name, kind):
    transport.answer = lambda _: FOREIGN[kind]
    async with make_client() as client:
        with pytest.raises(OutcomeUnknown, match=f"status {FOREIGN[kind].status}"):
            await WRITES[name](client)
    assert len(transport.requests) == 1


CHANGES = {
    "can commit": lambda client: client.transactions.can_commit(1),
    "abort": lambda client: client.transactions.abort(1),
    "invalidate": lambda client: client.transactions.invalidate(1),
    "truncate": lambda client: client.transactions.truncate(ids=[1]),
    "reset": lambda client: client.transactions.reset(),
    "prune": lambda client: client.transactions.prune(),
    "drain": lambda client: client.ask(admin.drain("1")),
    "pin": lambda client: client.ask(admin.pin(TopicId("ns1", "t1"), "1")),
    "unpin": lambda client: client.ask(admin.unpin(TopicId("ns1", "t1"))),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("body", [b'{"ok": true}', b'{"error": "no"}', b""])
async def test_an_object_of_another_service_is_no_outcome_of_a_change(
    make_client, transport, name, body
):
    transport.answer = lambda _: Reply(200, {"content-type": "application/json"}, body)
    async with make_client(deadline_s=0.01) as client:
        with pytest.raises(OutcomeUnknown, match="status 200"):
            await CHANGES[name](client)
    assert len(transport.requests) > 1


@pytest.mark.parametrize("kind", FOREIGN)
async def test_a_keyed_publish_is_repeated(make_client, transport, kind):
    answers = iter([FOREIGN[kind], Reply(200, {}, b"")])
    transport.answer = lambda _: next(answers)
    async with make_client(idempotent=True) as client:
        await client.publish("ns1/t1", b"x")
    assert transport.requests[0] == transport.requests[1]


@pytest.mark.parametrize("kind", FOREIGN)
async def test_a_tail_goes_on(make_client, transport, kind):
    answers = iter([FOREIGN[kind], FOREIGN[kind], [ONE, b"\x00"], [b"\x00"]])
    transport.answer = lambda _: next(answers)
    async with make_client() as client:
        options = TailOptions(follow=False)
        received = [message async for message in client.tail("ns1/t1", options=options)]
    assert len(received) == 1


EVENT = {"id": (log_key(1, 0) + bytes(10)).hex(), "payload": "x"}
EVENTS = {"content-type": "text/event-stream"}
NOT_EVENTS = {
    **FOREIGN,
    "no json": Reply(200, EVENTS, b"data: <p>\n\n"),
    "deep event": Reply(200, EVENTS, b"data: " + DEEP + b"\n\n"),
    "other shape": Reply(200, EVENTS, b'data: {"a": 1}\n\n'),
    "no id": Reply(200, EVENTS, b"id: a\rb\n\n"),
    "no text": Reply(200, EVENTS, b"id: \xff\xff\ndata: \xff\n\n"),
}


@pytest.mark.parametrize("kind", NOT_EVENTS)
async def test_a_stream_of_events_goes_on(make_client, transport, kind):
    good = Reply(200, EVENTS, b"data: " + json.dumps(EVENT).encode() + b"\n\n")
    answers = iter([NOT_EVENTS[kind], NOT_EVENTS[kind], good])
    transport.answer = lambda _: next(answers)
    async with make_client() as client:
        message = await first(client.events("ns1/t1"))
    assert message.payload == b"x"


async def test_the_pause_after_429_is_that_of_the_server(make_client, transport):
    answers = iter([Reply(429, {"retry-after": "7"}, b"")] * 2 + [[ONE, b"\x00"]])
    transport.answer = lambda _: next(answers)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with make_client() as client:
        assert await first(client.tail("ns1/t1"))
    assert loop.time() - began == pytest.approx(14, abs=0.1)


def over_quota(again_s):
    told = {"broker-error": "quota_exceeded", "broker-outcome": "refused", "retry-after": again_s}
    return Reply(429, told, b"alice may use at most 2 of publish_requests_s in a second.")


async def test_a_quota_that_is_used_up_delays_a_publish(make_client, transport):
    """It was certainly not done, so that it is sent again without a key, too."""
    answers = iter([over_quota("7"), over_quota("2"), Reply(200, {}, b"")])
    transport.answer = lambda _: next(answers)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with make_client(deadline_s=20) as client:
        await client.publish("ns1/t1", b"a")
    assert loop.time() - began == pytest.approx(9, abs=0.1)


async def test_a_quota_that_comes_too_late_ends_a_publish_at_once(make_client, transport):
    transport.answer = lambda _: over_quota("60")
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with make_client(deadline_s=20) as client:
        with pytest.raises(QuotaExceeded, match="publish_requests_s"):
            await client.publish("ns1/t1", b"a")
    assert loop.time() - began < 0.1
    assert len(transport.requests) == 1


@pytest.mark.parametrize("status", [401, 407])
@pytest.mark.parametrize("name", ["poll", "messages", "publish", "list"])
async def test_a_proxy_that_asks_for_credentials_ends_a_call(make_client, transport, status, name):
    transport.answer = lambda _: Reply(status, {"content-type": "text/html"}, PAGE)
    async with make_client() as client:
        with pytest.raises((Forbidden, Unauthenticated), match=f"status {status}"):
            await {**READS, **WRITES}[name](client)
    assert len(transport.requests) == 1


async def test_a_list_whose_pages_do_not_go_on_is_no_brokers(make_client, transport):
    page = b'{"cursors": [], "next": "a"}'
    transport.answer = lambda _: Reply(200, {"content-type": "application/json"}, page)
    async with make_client(deadline_s=0.01) as client, asyncio.timeout(5):
        with pytest.raises(Unavailable, match="not as a broker does"):
            await client.cursors.list("ns1/t1")


@pytest.mark.parametrize("names", [b"[]," * 500_000 + b"[]", b"0," * 5_000_000 + b"0"])
async def test_an_answer_of_very_many_values_is_not_decoded(
    make_client, transport, monkeypatch, names
):
    decoded = []
    monkeypatch.setattr(jsontext.json, "loads", decoded.append)
    transport.answer = lambda _: Reply(200, {}, b"[" + names + b"]")
    async with make_client(deadline_s=0.01) as client:
        with pytest.raises(Unavailable, match="status 200"):
            await client.namespaces()
    assert not decoded
