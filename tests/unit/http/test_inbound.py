import asyncio
import gc
import weakref

import pytest

from broker.config.sections import Config, ServerConfig
from broker.http.budget import Bounds, BudgetKind, Budgets
from broker.model import Poll
from broker.wire import avro
from tests.kit.bench import settle
from tests.kit.serving import (
    Broker,
    Http,
    RawHttp,
    eventually,
    listening,
    topic_path,
)

PING = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF = b"GET /ping HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"x" * 4000


def request(target: str, body: bytes, *headers: str) -> bytes:
    head = [f"POST {target} HTTP/1.1", "Host: localhost", *headers, f"Content-Length: {len(body)}"]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


PUBLISH = request(topic_path("t", "publish"), b"one", "Content-Type: text/plain")
WAITING = request(
    topic_path("t", "poll") + "?wait=60", avro.encode_poll(Poll()), "Content-Type: avro/binary"
)


def held(broker: Broker) -> int:
    return broker.server.budgets.used[BudgetKind.HEAD_BYTES]


async def test_of_too_many_begun_heads_the_largest_is_cut(broker: Broker, http: Http) -> None:
    broker.server.budgets = Budgets({BudgetKind.HEAD_BYTES: Bounds(9000, 10_000, 10_000)})
    async with RawHttp(http.port) as large, RawHttp(http.port) as small, RawHttp(http.port) as last:
        await large.send(HALF + b"x" * 3000)
        await eventually(lambda: held(broker) > 7000, lambda: held(broker))
        await small.send(HALF[:2500])
        await eventually(lambda: held(broker) > 9500, lambda: held(broker))
        await last.send(HALF)
        refused = await large.reply()
        assert (refused.status, refused.headers["Broker-Error"]) == (503, "overloaded")
        for raw in (small, last):
            await raw.send(b"\r\n\r\n")
            assert (await raw.reply()).body == b"OK.\n"
        assert held(broker) == 0


async def test_large_bodies_do_not_count_as_heads(broker: Broker, http: Http) -> None:
    for _ in range(5):
        reply = await http(
            "POST",
            topic_path("t", "publish"),
            b"x" * 3_000_000,
            {"Content-Type": "text/plain"},
        )
        assert reply.status == 200
    assert not broker.server.heads
    assert held(broker) == 0


@pytest.mark.slow
async def test_requests_behind_a_waiting_request_are_bounded_and_answered(
    broker: Broker, http: Http
) -> None:
    async with RawHttp(http.port) as raw:
        await raw.send(WAITING)
        await broker.someone_waits()
        many = 20_000
        sending = asyncio.ensure_future(raw.send(PING * many))
        await eventually(lambda: held(broker) >= 64 * 1024, lambda: held(broker))
        assert held(broker) <= 512 * 1024
        await broker.call("POST", topic_path("t", "publish"), b"x", {"Content-Type": "text/plain"})
        assert (await raw.reply()).status == 200
        for _ in range(many):
            assert (await raw.reply()).body == b"OK.\n"
        await sending
    await eventually(lambda: held(broker) == 0, lambda: held(broker))


async def test_a_valid_request_before_garbage_is_answered(http: Http) -> None:
    async with RawHttp(http.port) as raw:
        await raw.send(PUBLISH)
        assert (await raw.reply()).status == 200
        await raw.send(b"\x00\x01garbage")
        refused = await raw.reply()
        assert (refused.status, refused.headers["Broker-Error"]) == (400, "bad_request")
        assert await raw.rest() == b""


async def test_a_request_that_comes_with_garbage_is_answered_or_has_no_effect(
    broker: Broker, http: Http
) -> None:
    """aiohttp drops the requests of one read of the socket if what follows them is none."""
    async with RawHttp(http.port) as raw:
        await raw.send(PUBLISH + b"\x00\x01garbage")
        statuses = [(await raw.reply()).status]
        if statuses == [200]:
            statuses.append((await raw.reply()).status)
        assert statuses[-1] == 400
        assert await raw.rest() == b""
    page = (await broker.call("GET", topic_path("t", "messages"))).json
    assert len(page["messages"]) == statuses.count(200)


async def test_accepted_requests_are_answered_after_the_client_stops_sending(
    broker: Broker, http: Http
) -> None:
    async with RawHttp(http.port) as raw:
        await raw.send(WAITING)
        await broker.someone_waits()
        raw.half_close()
        async with asyncio.timeout(30):
            assert (await raw.reply()).status == 200
            assert await raw.rest() == b""
    async with RawHttp(http.port) as raw:
        await raw.send(PUBLISH + PING + PUBLISH)
        raw.half_close()
        assert [(await raw.reply()).status for _ in range(3)] == [200, 200, 200]
        assert await raw.rest() == b""


@pytest.mark.parametrize("cut", [PING[:9], PUBLISH[:-1]])
async def test_an_unfinished_request_has_no_effect(broker: Broker, http: Http, cut: bytes) -> None:
    async with RawHttp(http.port) as raw:
        await raw.send(cut)
        raw.half_close()
        assert await raw.rest() == b""
    await eventually(lambda: not broker.server.connections, lambda: broker.server.connections)
    await eventually(lambda: not broker.server.busy, lambda: broker.server.busy)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / ICE/1.0\r\n\r\n",
        b"GET / HTTP/0.9\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /ping HTTP/1.1\nHost: localhost\n\n",
        b"GET /ping HTTP/1.1\r\nHost: localhost\r\nA: b\r\n c\r\n\r\n",
        b"POST /ping HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
        b"POST /ping HTTP/1.1\r\nHost: localhost\r\nContent-Length: +1\r\n\r\nx",
        b"POST /ping HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"POST /ping HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        PING[:-2] + b"".join(b"A%d: %s\r\n" % (n, b"x" * 8000) for n in range(20)) + b"\r\n",
        PING[:-2] + b"".join(b"A%d: %s\r\n" % (n, b"x" * 8000) for n in range(80)),
        b"POST /ping HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding:\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nHost: localhost\r\nA b\r\n\r\n",
    ],
)
async def test_strange_heads_are_refused_at_once(
    broker: Broker, http: Http, garbage: bytes
) -> None:
    async with RawHttp(http.port) as raw:
        async with asyncio.timeout(30):
            await raw.send(garbage)
            reply = await raw.reply()
        assert (reply.status, reply.headers["Broker-Error"]) == (400, "bad_request")
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert await raw.rest() == b""
    await eventually(lambda: not broker.server.connections, lambda: broker.server.connections)
    assert (held(broker), broker.server.busy) == (0, 0)


@pytest.mark.parametrize(
    "chunks",
    [
        b"zz\r\n",
        b"1\r\nx\r\n" * 2000,
        b"5;" + b"e" * 1000,
        b"0\r\n" + b"A: b\r\n" * 2000,
        b"1\nx",
        b"5\r\nabcdeXX",
    ],
)
async def test_strange_chunks_are_refused(chunks: bytes) -> None:
    """aiohttp does not report broken chunks to the reader of a body that has begun: then the body stalls."""
    broker = Broker(Config(server=ServerConfig(body_stall_s=0.2)))
    head = f"POST {topic_path('t', 'publish')} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
    async with listening(broker) as http, RawHttp(http.port) as raw:
        async with asyncio.timeout(30):
            await raw.send(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
            await eventually(lambda: broker.server.busy, lambda: "the head was not read")
            await raw.send(chunks)
            reply = await raw.reply()
        assert (reply.status, reply.headers["Broker-Error"]) == (400, "bad_request")
        await eventually(lambda: not broker.server.busy, lambda: broker.server.busy)
    await broker.close()


async def test_broken_chunks_that_come_with_their_head_are_refused_at_once(http: Http) -> None:
    head = f"POST {topic_path('t', 'publish')} HTTP/1.1\r\nHost: localhost\r\n"
    async with RawHttp(http.port) as raw:
        await raw.send(head.encode() + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")
        reply = await raw.reply()
        assert (reply.status, reply.headers["Broker-Error"]) == (400, "bad_request")


async def test_a_head_that_comes_byte_by_byte_is_read(http: Http) -> None:
    async with RawHttp(http.port) as raw:
        for byte in b"\r\n" + PUBLISH:
            await raw.send(bytes([byte]))
        assert (await raw.reply()).status == 200
        await raw.send(b"\r\n")
        await raw.send(PING)
        assert (await raw.reply()).body == b"OK.\n"


async def test_blank_lines_are_no_request_that_a_drain_waits_for() -> None:
    broker = Broker(Config(server=ServerConfig(drain_s=30)))
    async with listening(broker) as http, RawHttp(http.port) as raw:
        await raw.send(PING)
        await raw.reply()
        for blank in (b"\r\n", b"\r", b"\n"):
            await raw.send(blank)
        await eventually(lambda: broker.server.connections, lambda: "not accepted")
        async with asyncio.timeout(10):
            broker.server.begin_drain(0.01)
            await broker.server.quiet()
    await broker.close()


@pytest.mark.parametrize("behind", [b"NO REQUEST\r\n\r\n", PING + PUBLISH[:-1]])
async def test_a_closed_connection_is_freed_without_a_collection(
    broker: Broker, http: Http, behind: bytes
) -> None:
    """aiohttp keeps requests that wait, and the error of its parser; both lead back to the connection."""
    gc.collect()
    gc.disable()
    try:
        async with RawHttp(http.port) as raw:
            await raw.send(WAITING)
            await broker.someone_waits()
            await raw.send(behind)
            await settle()
            left = [weakref.ref(each) for each in broker.server.open]
        async with asyncio.timeout(30):
            while any(each() is not None for each in left):
                await settle()
    finally:
        gc.enable()


async def test_a_connection_that_lingers_keeps_nothing_of_its_requests(
    broker: Broker, http: Http
) -> None:
    gc.collect()
    gc.disable()
    try:
        async with RawHttp(http.port) as raw:
            await settle()
            served = [weakref.ref(each) for each in broker.server.open]
            await raw.send(PING.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            assert (await raw.reply()).status == 200
            async with asyncio.timeout(30):
                while any(each() is not None for each in served):
                    await settle()
            assert len(served) == broker.server.connections == 1
    finally:
        gc.enable()
