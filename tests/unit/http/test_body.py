import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator

import pytest
from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol
from broker.api.incoming import BodyReader, Budget, Inflater

from broker.config import Config, LimitsConfig, ServerConfig
from broker.errors import BadRequest, BodyTooLarge, Overloaded
from broker.testing.serving import Broker, Http, RawHttp, eventually, listening, topic_path

TEXT = {"Content-Type": "text/plain"}
PUBLISH = topic_path("t", "publish")
HEAD = f"POST {PUBLISH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n".encode()
LIMITS = LimitsConfig(
    body_bytes_max=100_000, body_inflated_bytes_max=200_000, queued_bytes_max=200_000
)


class Watched(Budget):
    """A budget that remembers how much it held after each step."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self.heights: list[int] = []

    def take(self, size: int) -> None:
        super().take(size)
        self.heights.append(self.held)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker with small bounds."""
    broker = Broker(Config(limits=LIMITS, server=ServerConfig(body_stall_s=0.2)))
    await broker.call("PUT", topic_path("t"))
    yield broker
    await broker.close()
    assert broker.server.body_bytes == 0


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def published(broker: Broker) -> list[int]:
    page = (await broker.call("GET", topic_path("t", "messages"))).json
    return [message["size"] for message in page["messages"]]


async def test_bodies_in_one_piece_in_many_and_in_chunks(broker: Broker) -> None:
    async with listening(broker) as http:
        for body in (b"x", b"x" * 70_000, chunks(b"x" * 30_000, b"y" * 30_000, b"z")):
            async with http.session.post(http.url + PUBLISH, data=body, headers=TEXT) as reply:
                assert reply.status == 200
    assert await published(broker) == [1, 70_000, 60_001]


async def test_a_length_over_the_bound_is_refused_before_the_body(broker: Broker) -> None:
    async with listening(broker) as http, RawHttp(http.port) as raw:
        await raw.send(HEAD + b"Content-Length: 100001\r\n\r\n")
        reply = await raw.reply()
        assert (reply.status, reply.headers["Connection"]) == (413, "close")
        assert reply.headers["Broker-Error"] == "body_too_large"
    assert await published(broker) == []


async def test_chunks_over_the_bound_are_refused(broker: Broker) -> None:
    async with listening(broker) as http, RawHttp(http.port) as raw:
        await raw.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(101):
            await raw.send(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
        reply = await raw.reply()
        assert (reply.status, reply.headers["Broker-Error"]) == (413, "body_too_large")
    assert await published(broker) == []


async def test_a_client_that_waits_for_it_is_told_to_go_on(broker: Broker) -> None:
    async with listening(broker) as http, RawHttp(http.port) as raw:
        await raw.send(HEAD + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        assert await raw.line() == b"HTTP/1.1 100 Continue\r\n"
        assert await raw.line() == b"\r\n"
        await raw.send(b"abc")
        assert (await raw.reply()).status == 200


async def test_a_body_that_stands_still_is_given_up(broker: Broker) -> None:
    async with listening(broker) as http, RawHttp(http.port) as raw:
        await raw.send(HEAD + b"Content-Length: 3\r\n\r\na")
        reply = await raw.reply()
        assert (reply.status, reply.headers["Connection"]) == (400, "close")
        assert b"stood still" in reply.body


@pytest.mark.parametrize("bad", [b"zz\r\nabc\r\n", b"3\r\nabcd\r\n0\r\n\r\n"])
async def test_bad_chunks_are_malformed(broker: Broker, bad: bytes) -> None:
    async with listening(broker) as http, RawHttp(http.port) as raw:
        await raw.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + bad)
        assert (await raw.reply()).status == 400


async def test_a_client_that_goes_in_the_middle_leaves_nothing(broker: Broker) -> None:
    async with listening(broker) as http:
        async with RawHttp(http.port) as raw:
            await raw.send(HEAD + b"Content-Length: 3\r\n\r\na")
            await eventually(lambda: broker.server.busy, lambda: "no request began")
        await eventually(lambda: not broker.server.busy, lambda: broker.server.busy)
    assert await published(broker) == []


async def test_gzip_is_unpacked(broker: Broker) -> None:
    packed = {**TEXT, "Content-Encoding": "gzip"}
    async with listening(broker) as http:
        body = gzip.compress(b"x" * 150_000)
        assert (await http("POST", PUBLISH, body, packed)).status == 200
        two_members = gzip.compress(b"ab") + gzip.compress(b"cde")
        assert (await http("POST", PUBLISH, two_members, packed)).status == 200
        assert (
            await http("POST", PUBLISH, b"id", {**TEXT, "Content-Encoding": "identity"})
        ).status == 200
    assert await published(broker) == [150_000, 5, 2]


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        ("gzip", b"no gzip at all", 400),
        ("gzip", gzip.compress(b"x" * 5000)[:-3], 400),
        ("gzip", gzip.compress(b"x" * 200_001), 413),
        ("gzip", gzip.compress(bytes(90_000_000), 9), 413),
        ("deflate", zlib.compress(b"x"), 400),
        ("br", b"x", 400),
    ],
    ids=["no gzip", "cut", "too large", "bomb", "deflate", "br"],
)
async def test_what_is_not_unpacked(
    broker: Broker, encoding: str, body: bytes, status: int
) -> None:
    async with listening(broker) as http:
        reply = await http("POST", PUBLISH, body, {**TEXT, "Content-Encoding": encoding})
        assert reply.status == status
    assert await published(broker) == []


async def test_all_bodies_together_are_bounded(broker: Broker) -> None:
    async with (
        listening(broker) as http,
        RawHttp(http.port) as one,
        RawHttp(http.port) as two,
        RawHttp(http.port) as three,
    ):
        for raw in (one, two):
            await raw.send(HEAD + b"Content-Length: 100000\r\n\r\n" + b"x" * 90_000)
        await eventually(
            lambda: broker.server.body_bytes == 180_000, lambda: broker.server.body_bytes
        )
        await three.send(HEAD + b"Content-Length: 50000\r\n\r\n" + b"x" * 50_000)
        reply = await three.reply()
        assert (reply.status, reply.headers["Broker-Error"]) == (503, "overloaded")
        assert int(reply.headers["Retry-After"]) >= 1
        await one.send(b"x" * 10_000)
        assert (await one.reply()).status == 200


def test_a_budget_holds_no_more_than_it_may() -> None:
    budget = Budget(10)
    budget.take(7)
    with pytest.raises(Overloaded):
        budget.take(4)
    budget.take(3)
    assert budget.held == 10


def test_inflating_byte_by_byte() -> None:
    inflater, body = Inflater(100), bytearray()
    for byte in gzip.compress(b"hello") + gzip.compress(b"") + gzip.compress(b" you"):
        body += b"".join(inflater.inflate(bytes([byte])))
    inflater.finish()
    assert body == b"hello you"


def test_inflating_stops_at_its_bound() -> None:
    steps: list[bytes] = []
    with pytest.raises(BodyTooLarge):
        steps.extend(Inflater(1_000_000).inflate(gzip.compress(bytes(50_000_000))))
    assert len(steps) == 3
    assert {len(step) for step in steps} == {256 * 1024}


async def test_what_a_bomb_inflates_to_is_held_step_by_step() -> None:
    mib = 1 << 20
    limits = LimitsConfig(
        body_bytes_max=mib, body_inflated_bytes_max=4 * mib, queued_bytes_max=4 * mib
    )
    bodies = BodyReader(Config(limits=limits))
    bodies.budget = budget = Watched(4 * mib)
    budget.take(3 * mib)
    content = StreamReader(BaseProtocol(asyncio.get_running_loop()), 1 << 16)
    content.feed_data(gzip.compress(bytes(50 * mib)))
    content.feed_eof()
    with pytest.raises(Overloaded):
        await bodies.read(content, {"Content-Encoding": "gzip"})
    assert budget.heights == [3 * mib + step * 256 * 1024 for step in range(5)]
    assert budget.held == 3 * mib


def test_nothing_is_a_whole_gzip_but_half_a_member_is_not() -> None:
    inflater = Inflater(10)
    inflater.finish()
    assert list(inflater.inflate(gzip.compress(b"xyz")[:11])) == [b""]
    with pytest.raises(BadRequest):
        inflater.finish()


async def test_a_ready_body_is_bounded_too(broker: Broker) -> None:
    tight = Broker(Config(limits=LimitsConfig(body_bytes_max=3, body_inflated_bytes_max=3)))
    async with listening(tight) as http:
        assert (await http("POST", PUBLISH, b"abcd", TEXT)).status == 413
        assert isinstance(http, Http)
    await tight.close()
    assert asyncio.get_running_loop() is not None
