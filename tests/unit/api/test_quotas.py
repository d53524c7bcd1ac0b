"""Quotas at a node's door: what passes, what is refused with 429, and what each refusal leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from multidict import CIMultiDict
from typing_extensions import override

from broker.access.gate import OpenGate
from broker.access.meter import Meter
from broker.access.quotas import QuotaKind, Quotas
from broker.access.stored_bytes import StoredBytes
from broker.clock import SystemClock
from broker.errors import QuotaExceeded
from broker.http.budget import Usage
from broker.http.reply import ChunkedReply
from broker.model import TopicId
from broker.principal import Principal, Remote
from tests.kit.openapi import Answered
from tests.kit.serving import Broker, Http, eventually, listening, topic_path

TEXT = {"Content-Type": "text/plain"}
ALICE, BOB = {"X-Test-Principal": "alice"}, {"X-Test-Principal": "bob"}


class NamingGate(OpenGate):
    """A gate that believes a header."""

    is_open = False

    @override
    def identify(self, headers: Mapping[str, str], remote: Remote) -> Principal:
        return Principal(headers.get("X-Test-Principal", ""))


class HandClock(SystemClock):
    """A clock that a test moves. ``sleep`` moves it, too."""

    def __init__(self) -> None:
        self.at = 1000.0
        super().__init__()
        self.slept: list[float] = []

    @override
    def monotonic(self) -> float:
        return self.at

    @override
    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.at += seconds


class Metered:
    """A broker with quotas, which a test may change, and a clock of its own for them."""

    def __init__(self) -> None:
        self.quotas = Quotas()
        self.nodes = 1
        self.clock = HandClock()
        self.meter = Meter(lambda: self.quotas, self.clock, lambda: self.nodes)
        self.broker = Broker(gate=NamingGate(), meter=self.meter)

    def set(self, who: str, **limits: int) -> None:
        kinds = {QuotaKind(kind): limit for kind, limit in limits.items()}
        self.quotas = Quotas({**self.quotas.limits, who: kinds})

    async def publish(self, body: bytes = b"a", who: Mapping[str, str] = ALICE) -> Answered:
        return await self.broker.call("POST", topic_path("t", "publish"), body, {**TEXT, **who})

    async def poll(self, who: Mapping[str, str] = ALICE) -> Answered:
        sent = {"Content-Type": "application/json", **who}
        return await self.broker.call("POST", topic_path("t", "poll"), b"{}", sent)

    async def stored(self) -> int:
        stats = await self.broker.call("GET", topic_path("t", "stats"), headers=BOB)
        return int(stats.json["published"])


@pytest.fixture
async def metered() -> AsyncIterator[Metered]:
    made = Metered()
    assert (await made.broker.call("PUT", topic_path("t"), headers=BOB)).status == 200
    yield made
    await made.broker.close()


def refused(reply: Answered, kind: str) -> int:
    """Return the seconds of Retry-After of a refusal for this kind."""
    assert (reply.status, reply.headers["Broker-Error"]) == (429, "quota_exceeded"), reply.body
    assert reply.headers["Broker-Outcome"] == "refused"
    assert kind.encode() in reply.body
    return int(reply.headers["Retry-After"])


async def test_requests_pass_at_their_rate_and_others_are_not_touched(metered: Metered) -> None:
    metered.set("alice", publish_requests_s=2)
    assert [(await metered.publish()).status for _ in range(3)] == [200, 200, 429]
    assert (await metered.publish(who=BOB)).status == 200
    assert refused(await metered.publish(), "publish_requests_s") == 1
    metered.clock.at += 0.5
    assert [(await metered.publish()).status for _ in range(2)] == [200, 429]
    assert await metered.stored() == 4
    assert (
        b'broker_quota_refused_total{kind="publish_requests_s",node="test"} 3.0'
        in (await metered.broker.call("GET", "/metrics")).body
    )


async def test_a_large_body_passes_a_full_bucket_and_is_paid_for_later(metered: Metered) -> None:
    metered.set("alice", publish_bytes_s=100)
    assert (await metered.publish(b"x" * 1000)).status == 200
    assert refused(await metered.publish(b"x"), "publish_bytes_s") == 9
    metered.clock.at += 9.0
    assert (await metered.publish(b"x" * 50)).status == 429
    metered.clock.at += 0.5
    assert (await metered.publish(b"x" * 50)).status == 200


async def test_a_refused_publish_is_charged_for_nothing(metered: Metered) -> None:
    metered.set("alice", publish_bytes_s=100, publish_requests_s=2)
    assert (await metered.publish(b"x" * 100)).status == 200
    for _ in range(5):
        refused(await metered.publish(b"x"), "publish_bytes_s")
    metered.clock.at += 0.011  # One byte; the second request of this second is left.
    assert (await metered.publish(b"x")).status == 200


async def test_the_rate_of_a_principal_is_divided_among_the_nodes(metered: Metered) -> None:
    metered.set("alice", publish_requests_s=8)
    metered.nodes = 4
    assert [(await metered.publish()).status for _ in range(3)] == [200, 200, 429]


async def test_a_topic_has_a_rate_for_all_its_publishers_together(metered: Metered) -> None:
    metered.set("topic:default/*", publish_requests_s=2)
    metered.nodes = 4  # The leader counts alone.
    assert [(await metered.publish(who=who)).status for who in (ALICE, BOB, ALICE)] == [
        *(200, 200, 429)
    ]


async def test_a_reader_pays_for_a_page_after_it_got_it(metered: Metered) -> None:
    metered.set("alice", read_bytes_s=100)
    await metered.publish(b"x" * 1000, BOB)
    page = await metered.poll()
    assert page.status == 200
    again_s = refused(await metered.poll(), "read_bytes_s")
    assert again_s == pytest.approx((len(page.body) - 100) / 100, abs=1)
    assert (await metered.poll(BOB)).status == 200
    metered.clock.at += again_s
    assert (await metered.poll()).status == 200


async def test_a_large_page_is_charged_as_it_is_sent(metered: Metered) -> None:
    metered.set("alice", read_bytes_s=1000)
    for _ in range(5):
        await metered.publish(b"x" * 100_000, BOB)
    page = await metered.poll()
    assert len(page.body) > 500_000
    assert refused(await metered.poll(), "read_bytes_s") >= 500
    assert metered.clock.slept == []


async def test_an_event_stream_pauses_at_its_rate(metered: Metered) -> None:
    metered.set("alice", read_bytes_s=100)
    for _ in range(10):
        await metered.publish(b"x" * 100, BOB)
    target = topic_path("t", "events")
    answer = await metered.broker.answer("GET", target, CIMultiDict(ALICE))
    assert isinstance(answer, ChunkedReply)
    began, size = metered.clock.at, 0
    for _ in range(5):
        size += len(await anext(answer.chunks))
        assert metered.clock.at == began, "the first piece is paid for before the second one"
        if size > 1000:
            break
    await metered.publish(b"more", BOB)
    assert b"more" in await anext(answer.chunks)
    assert metered.clock.at - began == pytest.approx((size - 100) / 100)
    await answer.chunks.aclose()


async def test_property_bytes_bound_the_properties_of_one_topic(metered: Metered) -> None:
    metered.set("alice", property_bytes=30)
    body = json.dumps({"ttl": 1000, "note": "x" * 30}).encode()
    sent = {"Content-Type": "application/json", **ALICE}
    refused(await metered.broker.call("PUT", topic_path("u"), body, sent), "property_bytes")
    assert (await metered.broker.call("GET", topic_path("u"), headers=BOB)).status == 404
    assert (await metered.broker.call("PUT", topic_path("u"), b'{"ttl":1}', sent)).status == 200


# --- Where something is created -------------------------------------------------------------------

JSON = {"Content-Type": "application/json"}


async def test_topics_are_counted_for_the_principal_that_created_them(metered: Metered) -> None:
    metered.set("alice", topics=2)
    call = metered.broker.call
    for name in "uv":
        assert (await call("PUT", topic_path(name), headers=ALICE)).status == 200
    assert refused(await call("PUT", topic_path("w"), headers=ALICE), "topics") == 60
    assert (await call("GET", topic_path("w"), headers=BOB)).status == 404
    assert (await call("PUT", topic_path("u"), headers=ALICE)).status == 409  # It exists.
    assert (await call("PUT", topic_path("x"), headers=BOB)).status == 200
    changed = await call("PUT", topic_path("u", "properties"), b'{"ttl":5}', {**JSON, **BOB})
    assert changed.status == 200  # Its owner stays.
    refused(await call("PUT", topic_path("w"), headers=ALICE), "topics")
    assert (await call("DELETE", topic_path("u"), headers=BOB)).status == 200
    assert (await call("PUT", topic_path("w"), headers=ALICE)).status == 200
    refused(await call("PUT", topic_path("u"), headers=ALICE), "topics")


async def test_cursors_of_a_topic_are_bounded(metered: Metered) -> None:
    metered.set("topic:default/t", cursors=1)
    body, call = b'{"after":null,"expected":null}', metered.broker.call
    first = await call("PUT", topic_path("t", "cursors/a"), body, {**JSON, **ALICE})
    assert first.status == 200
    refused(await call("PUT", topic_path("t", "cursors/b"), body, {**JSON, **ALICE}), "cursors")
    version = json.dumps({"after": None, "expected": first.json["version"]}).encode()
    moved = await call("PUT", topic_path("t", "cursors/a"), version, {**JSON, **ALICE})
    assert moved.status == 200


async def test_stages_are_counted_for_as_long_as_they_live(metered: Metered) -> None:
    metered.set("alice", stages=2)
    target, call = topic_path("t", "stages"), metered.broker.call
    assert [(await call("POST", target, headers=ALICE)).status for _ in range(3)] == [200, 200, 429]
    assert (await call("POST", target, headers=BOB)).status == 200
    metered.clock.at += metered.broker.topics.around.settings.stage_life_s
    assert (await call("POST", target, headers=ALICE)).status == 200


async def test_transactions_in_progress_and_invalid_pointers_are_bounded(metered: Metered) -> None:
    metered.set("alice", open_transactions=2, invalid_pointers=1)
    path, call = "/v1/transactions", metered.broker.call
    begun = [await call("POST", path, headers=ALICE) for _ in range(3)]
    assert [each.status for each in begun] == [200, 200, 429]
    refused(begun[2], "open_transactions")
    assert (await call("POST", path, headers=BOB)).status == 200
    identifier = begun[0].json["transaction_id"]
    assert (await call("POST", f"{path}/{identifier}/invalidate", headers=ALICE)).status == 200
    refused(await call("POST", path, headers=ALICE), "invalid_pointers")
    assert (await call("POST", path, headers=BOB)).status == 200


async def test_a_topic_that_is_full_takes_no_more(metered: Metered) -> None:
    metered.set("topic:default/t", stored_bytes=250)
    published = [(await metered.publish(b"x" * 100)).status for _ in range(4)]
    assert published == [200, 200, 200, 429]
    assert refused(await metered.publish(who=BOB), "stored_bytes") == 60
    assert await metered.stored() == 3


async def test_the_size_of_a_topic_is_taken_again_after_a_minute(metered: Metered) -> None:
    """So a topic that was purged, or whose messages have expired, takes more again."""
    stored = StoredBytes(metered.broker.topics)
    clock, topic, usage = HandClock(), TopicId("default", "t"), Usage(None)
    metered.broker.topics.around.clock = clock
    for _ in range(2):
        await metered.publish(b"x" * 100)
    await stored.take(topic, 100, 250, usage)
    with pytest.raises(QuotaExceeded):
        await stored.take(topic, 1, 250, usage)
    clock.at += 60  # The last bytes were counted, and never published.
    await stored.take(topic, 1, 250, usage)


# --- Over sockets ---------------------------------------------------------------------------------


@asynccontextmanager
async def clients(metered: Metered, number: int) -> AsyncIterator[list[Http]]:
    """Yield clients with a connection each."""
    async with listening(metered.broker) as first:
        others = [Http(first.port) for _ in range(number - 1)]
        for each in others:
            await each.__aenter__()
        yield [first, *others]
        for each in others:
            await each.__aexit__()


async def test_waits_of_one_principal_are_bounded(metered: Metered) -> None:
    metered.set("alice", waits=1)
    target, sent = topic_path("t", "poll?wait=20"), {"Content-Type": "application/json"}
    async with clients(metered, 3) as (first, second, third):
        waiting = asyncio.create_task(first("POST", target, b"{}", {**sent, **ALICE}))
        await metered.broker.someone_waits()
        refused(await second("POST", target, b"{}", {**sent, **ALICE}), "waits")
        other = asyncio.create_task(third("POST", target, b"{}", {**sent, **BOB}))
        await eventually(lambda: metered.broker.topics.waiting_polls == 2, lambda: "one waits")
        await metered.publish(who=BOB)
        assert (await waiting).status == (await other).status == 200
        again = asyncio.create_task(
            second("POST", topic_path("t", "poll?wait=0.001"), b"{}", {**sent, **ALICE})
        )
        assert (await again).status == 200


async def test_connections_of_one_principal_are_bounded(metered: Metered) -> None:
    metered.set("alice", connections=2)
    async with clients(metered, 4) as (first, second, third, fourth):
        for each in first, second:
            assert (await each("GET", topic_path("t"), headers=ALICE)).status == 200
        reply = await third("GET", topic_path("t"), headers=ALICE)
        refused(reply, "connections")
        assert reply.headers["Connection"] == "close"
        assert (await fourth("GET", topic_path("t"), headers=BOB)).status == 200
        assert (await first("GET", topic_path("t"), headers=BOB)).status == 200  # It is Bob's now.
        assert (await third("GET", topic_path("t"), headers=ALICE)).status == 200


async def test_requests_in_flight_of_one_principal_are_bounded(metered: Metered) -> None:
    metered.set("alice", in_flight=1)
    target, sent = topic_path("t", "poll?wait=20"), {"Content-Type": "application/json"}
    async with clients(metered, 2) as (first, second):
        waiting = asyncio.create_task(first("POST", target, b"{}", {**sent, **ALICE}))
        await metered.broker.someone_waits()
        refused(await second("GET", topic_path("t"), headers=ALICE), "in_flight")
        assert (await second("GET", topic_path("t"), headers=BOB)).status == 200
        await metered.publish(who=BOB)
        assert (await waiting).status == 200
        assert (await second("GET", topic_path("t"), headers=ALICE)).status == 200


async def test_a_body_over_the_rate_is_refused_before_it_is_read(metered: Metered) -> None:
    metered.set("alice", publish_bytes_s=100)
    async with clients(metered, 1) as (http,):
        assert (await metered.publish(b"x" * 200)).status == 200
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        writer.write(
            f"POST {topic_path('t', 'publish')} HTTP/1.1\r\nHost: localhost\r\n"
            "X-Test-Principal: alice\r\nContent-Type: text/plain\r\n"
            "Content-Length: 1000000\r\n\r\n".encode()
        )
        assert b" 429 " in await reader.readline()
        writer.close()
        await writer.wait_closed()


# --- The records ----------------------------------------------------------------------------------


async def test_quotas_are_set_listed_and_removed(broker: Broker) -> None:
    path, sent = "/v1/access/quotas", {"Content-Type": "application/json"}
    assert (await broker.call("GET", path)).json == {"quotas": []}
    for who, limits in (("topic:ns%2Ft", {"cursors": 3}), ("alice", {"waits": 5, "topics": None})):
        body = json.dumps({"limits": limits}).encode()
        for changed in (True, False):
            reply = await broker.call("PUT", f"{path}/{who}", body, sent)
            assert reply.json["changed"] is changed
    assert (await broker.call("GET", path)).json == {
        "quotas": [
            {"who": "alice", "limits": {"waits": 5, "topics": None}},
            {"who": "topic:ns/t", "limits": {"cursors": 3}},
        ]
    }
    for changed in (True, False):
        assert (await broker.call("DELETE", f"{path}/alice")).json["changed"] is changed
    assert len((await broker.call("GET", path)).json["quotas"]) == 1


@pytest.mark.parametrize(
    ("who", "limits"),
    [("alice", {"speed": 1}), ("alice", {"waits": 0}), ("topic:a", {"waits": 1})],
)
async def test_a_quota_that_can_not_be_is_refused(
    broker: Broker, who: str, limits: dict[str, int]
) -> None:
    body = json.dumps({"limits": limits}).encode()
    reply = await broker.call(
        "PUT", f"/v1/access/quotas/{who}", body, {"Content-Type": "application/json"}
    )
    assert reply.status == 400
