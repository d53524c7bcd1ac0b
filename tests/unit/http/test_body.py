"""Bodies over real sockets: which are read, which are refused, and how much is held meanwhile."""

import gzip
import zlib
from collections.abc import AsyncIterator

import pytest

from broker.config.sections import Config, LimitsConfig, ServerConfig
from broker.http.budget import Bounds, BudgetKind, Budgets
from tests.kit.serving import Broker, RawHttp, eventually, listening, topic_path

TEXT = {"Content-Type": "text/plain"}
PUBLISH = topic_path("t", "publish")
HEAD = f"POST {PUBLISH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n".encode()
LIMITS = LimitsConfig(
    body_bytes_max=100_000, body_inflated_bytes_max=200_000, queued_bytes_max=200_000
)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker with small bounds."""
    broker = Broker(Config(limits=LIMITS))
    await broker.call("PUT", topic_path("t"))
    yield broker
    await broker.close()
    assert held(broker) == 0


def held(broker: Broker) -> int:
    return broker.server.budgets.used[BudgetKind.BODY_BYTES]


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


async def test_a_client_that_expects_100_continue_gets_it(broker: Broker) -> None:
    async with listening(broker) as http, RawHttp(http.port) as raw:
        await raw.send(HEAD + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        assert await raw.line() == b"HTTP/1.1 100 Continue\r\n"
        assert await raw.line() == b"\r\n"
        await raw.send(b"abc")
        assert (await raw.reply()).status == 200


async def test_a_client_of_http_1_0_gets_no_100_continue(broker: Broker) -> None:
    head = HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Content-Length: 3\r\n"
    async with listening(broker) as http, RawHttp(http.port) as raw:
        await raw.send(head + b"Expect: 100-continue\r\n\r\n")
        await eventually(lambda: broker.server.busy, lambda: "the head was not read")
        await raw.send(b"abc")
        assert await raw.line() == b"HTTP/1.0 200 OK\r\n"


@pytest.mark.slow
async def test_a_stalled_body_is_refused() -> None:
    broker = Broker(Config(server=ServerConfig(body_stall_s=0.2)))
    async with listening(broker) as http, RawHttp(http.port) as raw:
        await raw.send(HEAD + b"Content-Length: 3\r\n\r\na")
        reply = await raw.reply()
        assert (reply.status, reply.headers["Connection"]) == (400, "close")
        assert b"stalled" in reply.body
    await broker.close()


@pytest.mark.parametrize("bad", [b"zz\r\nabc\r\n", b"3\r\nabcd\r\n0\r\n\r\n"])
async def test_bad_chunks_are_malformed(broker: Broker, bad: bytes) -> None:
    async with listening(broker) as http, RawHttp(http.port) as raw:
        await raw.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + bad)
        assert (await raw.reply()).status == 400


async def test_a_client_that_leaves_in_the_middle_publishes_nothing(broker: Broker) -> None:
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
        identity = {**TEXT, "Content-Encoding": "identity"}
        assert (await http("POST", PUBLISH, b"id", identity)).status == 200
        both = {**TEXT, "Content-Encoding": "Identity , X-Gzip"}
        assert (await http("POST", PUBLISH, gzip.compress(b"xyz"), both)).status == 200
    assert await published(broker) == [150_000, 5, 2, 3]


async def test_codings_in_several_lines_count_together(broker: Broker) -> None:
    async with listening(broker) as http, RawHttp(http.port) as raw:
        packed = gzip.compress(b"abc")
        lines = b"Content-Encoding: identity\r\nContent-Encoding: gzip\r\n"
        told = b"Content-Length: %d\r\n\r\n" % len(packed)
        await raw.send(HEAD + lines + told + packed)
        assert (await raw.reply()).status == 200
        await raw.send(HEAD + lines + b"Content-Encoding: gzip\r\n" + told + packed)
        assert (await raw.reply()).status == 400
    assert await published(broker) == [3]


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        ("gzip", b"no gzip at all", 400),
        ("gzip", gzip.compress(b"x" * 5000)[:-3], 400),
        ("gzip", gzip.compress(b"x" * 200_001), 413),
        ("gzip", gzip.compress(bytes(90_000_000), 9), 413),
        ("deflate", zlib.compress(b"x"), 400),
        ("br", b"x", 400),
        ("gzip, gzip", gzip.compress(gzip.compress(b"x")), 400),
        ("gzip, br", b"x", 400),
    ],
    ids=["no gzip", "cut", "too large", "bomb", "deflate", "br", "gzip twice", "gzip and br"],
)
async def test_bodies_that_are_not_unpacked_are_refused(
    broker: Broker, encoding: str, body: bytes, status: int
) -> None:
    async with listening(broker) as http:
        reply = await http("POST", PUBLISH, body, {**TEXT, "Content-Encoding": encoding})
        assert reply.status == status
    assert await published(broker) == []


async def test_a_too_large_body_gets_no_100_continue(
    broker: Broker,
) -> None:
    async with listening(broker) as http, RawHttp(http.port) as raw:
        await raw.send(HEAD + b"Content-Length: 100001\r\nExpect: 100-continue\r\n\r\n")
        assert (await raw.line()).startswith(b"HTTP/1.1 413 ")


async def test_requests_without_messages_have_small_bodies() -> None:
    broker = Broker()
    async with listening(broker) as http, RawHttp(http.port) as raw:
        path = topic_path("t")
        for size, status in ((1 << 19, 400), ((1 << 19) + 1, 413)):
            assert (await http("PUT", path, bytes(size))).status == status
        assert (await http("POST", topic_path("t", "poll"), bytes(33 << 20))).status == 413
        packed = gzip.compress(bytes(33 << 20))
        told = {"Content-Encoding": "gzip", "Content-Type": "avro/binary"}
        assert (await http("POST", topic_path("t", "poll"), packed, told)).status == 413
        await raw.send(b"GET /ping HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048577\r\n\r\n")
        assert (await raw.reply()).status == 413
    await broker.close()


async def test_of_too_many_bodies_the_largest_holder_is_cut(broker: Broker) -> None:
    broker.server.budgets = Budgets({BudgetKind.BODY_BYTES: Bounds(200_000, 200_000, 200_000)})
    async with (
        listening(broker) as http,
        RawHttp(http.port) as one,
        RawHttp(http.port) as two,
        RawHttp(http.port) as three,
    ):
        for raw, size in ((one, 80_000), (two, 90_000)):
            await raw.send(HEAD + b"Content-Length: 100000\r\n\r\n" + b"x" * size)
        await eventually(lambda: held(broker) == 170_000, lambda: held(broker))
        await three.send(HEAD + b"Content-Length: 50000\r\n\r\n" + b"x" * 50_000)
        assert (await three.reply()).status == 200
        assert (await two.reply()).status == 503
        await one.send(b"x" * 20_000)
        assert (await one.reply()).status == 200
    assert await published(broker) == [50_000, 100_000]


async def test_unfinished_bodies_do_not_block_a_publish(broker: Broker) -> None:
    """Two connections hold as much as their caller may; a publish of the same caller still succeeds."""
    broker.server.budgets = Budgets({BudgetKind.BODY_BYTES: Bounds(250_000, 410_000, 500_000)})
    packed = gzip.compress(bytes(200_000))
    head = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    async with listening(broker) as http, RawHttp(http.port) as one, RawHttp(http.port) as two:
        for number, raw in enumerate((one, two), 1):
            await raw.send(head + packed[:-1])
            await eventually(lambda: held(broker) == number * 200_000, lambda: held(broker))  # noqa: B023
        reply = await http("POST", PUBLISH, b"x" * 50_000, TEXT)
        assert reply.status == 200
        assert held(broker) == 200_000
    assert await published(broker) == [50_000]


async def test_a_small_bound_holds_for_a_body_that_arrives_at_once() -> None:
    tight = Broker(Config(limits=LimitsConfig(body_bytes_max=3, body_inflated_bytes_max=3)))
    async with listening(tight) as http:
        assert (await http("POST", PUBLISH, b"abcd", TEXT)).status == 413
    await tight.close()
