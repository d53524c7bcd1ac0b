"""Keys, headers and lifetimes through both clients, over HTTP to a broker."""

import asyncio
from contextlib import aclosing
from datetime import datetime

import pytest

from broker.client import BadRequest, Browsed, Client, Message, NewMessage, SyncClient, TailOptions
from broker.model import MESSAGE_ID_BYTES
from tests.kit.serving import Broker, Http

RAW = b"\xff\xfe"
KEYED = NewMessage("a", key="k", headers={"kind": "tick", "raw": RAW})
A = (b"a", b"k", {"kind": b"tick", "raw": RAW})
B = (b"b", None, {})


def parts(found: list[Message]) -> list[tuple[bytes, bytes | None, dict[str, bytes]]]:
    return [(each.payload, each.key, dict(each.headers)) for each in found]


async def test_all_ways_to_publish_and_to_read_keep_keys_and_headers(
    broker: Broker, http: Http
) -> None:
    pointer = broker.clock.now_ms() * 1_000_000
    async with Client(http.url) as client:
        await client.publish("t", KEYED)
        await client.publish("t", [KEYED, b"b"])
        await client.publish("t", "a", key="k", headers=KEYED.headers)
        await client.publish(
            "t", ["a", NewMessage("a", key="other")], key="k", headers=KEYED.headers
        )
        await (await client.publish_later("t", KEYED))
        transaction = client.transaction_publisher(pointer)
        await transaction.publish("t", "a", key="k", headers=KEYED.headers)
        await transaction.store("t", [KEYED, "b"])
        await transaction.publish_stored("t")
        async with client.stage("t") as stage:
            await stage.store("a", key=b"k", headers=KEYED.headers)
        await client.publish_stages("t", [stage.id])
        wanted = [A, A, B, A, A, (b"a", b"other", A[2]), A, A, A, B, A]
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
            client.publish("t", "a", key="k", headers=KEYED.headers)
            client.publish("t", [KEYED, "b"])
            client.publish_later("t", KEYED).result()
            with client.stage("t") as stage:
                stage.store(KEYED)
            client.publish_stages("t", [stage.id])
            assert parts(client.poll("t")) == [A, A, B, A, A]
            tailed = list(client.tail("t", options=TailOptions(follow=False)))
            assert parts(tailed) == [A, A, B, A, A]
            event = next(client.events("t"))
            assert parts([event]) == [A]
            assert len(event.id) == MESSAGE_ID_BYTES

    await asyncio.to_thread(use)
