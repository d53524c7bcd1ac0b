import asyncio
import gzip
from collections.abc import AsyncGenerator, Callable

import pytest

from broker import long_work
from broker.api.router import Router
from broker.config.sections import Config, ServerConfig
from broker.errors import Unavailable
from broker.http import inbound
from broker.http.inbound import Connection
from broker.http.reply import ChunkedReply, accepts_gzip
from broker.http.request import Request
from broker.model import Message, Poll, PublishRequest
from broker.wire import avro
from broker.wire.messages import PollDecoder
from tests.kit.bench import settle
from tests.kit.serving import Broker, Http, RawHttp, eventually, listening, topic_path

AVRO = {"Content-Type": "avro/binary"}
POLL, PUBLISH = topic_path("t", "poll"), topic_path("t", "publish")
EVERYTHING = avro.encode_poll(Poll())
PAYLOADS = [b"%06d" % n + b"x" * 1000 for n in range(10_000)]


@pytest.fixture
async def full(broker: Broker) -> Broker:
    """A topic of ten megabytes."""
    body = avro.encode_publish_request(PublishRequest(None, PAYLOADS))
    assert (await broker.call("POST", PUBLISH, body, AVRO)).status == 200
    return broker


def read(body: bytes) -> list[Message]:
    decoder = PollDecoder()
    got = decoder.feed(body)
    decoder.finish()
    return got


async def raw_poll(raw: RawHttp, *headers: str, version: str = "1.1") -> None:
    lines = [
        f"POST {POLL} HTTP/{version}",
        "Host: localhost",
        "Content-Type: avro/binary",
        *headers,
    ]
    lines.append(f"Content-Length: {len(EVERYTHING)}")
    await raw.send("\r\n".join(lines).encode() + b"\r\n\r\n" + EVERYTHING)


@pytest.mark.parametrize(
    ("sent", "accepted"),
    [
        ("gzip", True),
        ("deflate, gzip;q=0.5", True),
        ("GZIP", True),
        ("gzip;q=1.0", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("deflate", False),
        ("x-gzip-not", False),
        ("*", False),
        ("", False),
    ],
)
def test_which_headers_accept_gzip(sent: str, accepted: bool) -> None:
    assert accepts_gzip({"Accept-Encoding": sent}) is accepted


def test_without_the_header_gzip_is_not_accepted() -> None:
    assert not accepts_gzip({})


@pytest.mark.parametrize("accepted", ["gzip", "deflate, gzip", "deflate", "gzip;q=0", "identity"])
async def test_large_replies_are_packed_for_clients_that_accept_gzip(
    full: Broker, accepted: str
) -> None:
    async with listening(full) as http, RawHttp(http.port) as raw:
        await raw_poll(raw, f"Accept-Encoding: {accepted}")
        reply = await raw.reply()
        packed = reply.headers.get("Content-Encoding") == "gzip"
        assert packed == ("gzip" in accepted and "q=0" not in accepted)
        body = gzip.decompress(reply.body) if packed else reply.body
        assert [m.payload for m in read(body)] == PAYLOADS
        assert not packed or len(reply.body) < len(body) // 5


async def test_small_and_unstreamed_replies(http: Http) -> None:
    async with RawHttp(http.port) as raw:
        await raw.send(b"GET /ping HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n")
        assert "Content-Encoding" not in (await raw.reply()).headers
        await raw.send(
            b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n"
        )
        reply = await raw.reply()
        assert reply.headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(reply.body).startswith(b'{"openapi"')


async def test_old_http_gets_no_chunks(full: Broker) -> None:
    async with listening(full) as http:
        async with RawHttp(http.port) as raw:
            await raw_poll(raw, version="1.0")
            reply = await raw.reply()
            assert "Transfer-Encoding" not in reply.headers
            assert [m.payload for m in read(reply.body)] == PAYLOADS
        async with RawHttp(http.port) as raw:
            await raw.send(b"GET /ping HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" * 2)
            for _ in range(2):
                reply = await raw.reply()
                assert (reply.body, reply.headers["Connection"]) == (b"OK.\n", "keep-alive")


async def test_one_chunk_in_old_http(http: Http) -> None:
    async with RawHttp(http.port) as raw:
        await raw_poll(raw, version="1.0")
        assert (await raw.reply()).body == b"\x00"


@pytest.mark.slow
async def test_a_reader_that_takes_nothing_is_cut_and_a_slow_one_is_not() -> None:
    broker = Broker(Config(server=ServerConfig(reply_stall_s=0.3)))
    await broker.call("PUT", topic_path("t"))
    body = avro.encode_publish_request(PublishRequest(None, PAYLOADS * 2))
    await broker.call("POST", PUBLISH, body, AVRO)
    async with listening(broker) as http:
        async with RawHttp(http.port, receive_buffer=4096) as stuck:
            await raw_poll(stuck)
            await eventually(lambda: broker.server.busy, lambda: "no request began")
            await eventually(lambda: not broker.server.busy, lambda: "the reader was not cut")
        async with RawHttp(http.port, receive_buffer=65_536) as slow:
            await raw_poll(slow)
            assert len(read((await slow.reply()).body)) == 2 * len(PAYLOADS)
    await broker.close()


@pytest.mark.parametrize(("takes", "cut"), [(0, True), (999, True), (1000, False)])
async def test_a_reader_below_the_lowest_rate_is_cut(
    takes: int, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader takes ``takes`` bytes in ten seconds, of which the node has the kernel's account."""
    monkeypatch.setattr(inbound, "TAKEN_BYTES_A_SECOND_MIN", 100)
    broker = Broker(Config(server=ServerConfig(reply_stall_s=10.0)))
    untaken, ends = 50_000, list[str]()

    class Dripping(Connection):
        untaken_bytes = property(lambda _: untaken)

        def cut(self) -> None:
            ends.append("cut")

    async with listening(broker):
        broker.server.call_later = lambda _, look, *given: looks.append((look, given))  # type: ignore[assignment]
        looks: list[tuple[Callable[..., None], tuple[int]]] = []
        dripping = Dripping(broker.server, broker.server._web, loop=asyncio.get_running_loop())
        dripping.pause_writing()
        untaken -= takes
        look, given = looks.pop()
        look(*given)
        assert bool(ends) is cut
        assert bool(looks) is not cut
    await broker.close()


def failing(answers: list[bytes | Exception]) -> ChunkedReply:
    async def chunks() -> AsyncGenerator[bytes, None]:
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
            yield answer

    return ChunkedReply(chunks(), "avro/binary")


def serve_stream(broker: Broker, answers: list[bytes | Exception]) -> None:
    """Answer polls with this stream."""

    serve_polls(broker, lambda: failing(answers))


def serve_polls(broker: Broker, make: Callable[[], ChunkedReply]) -> None:
    """Answer polls with the replies that ``make`` returns."""

    async def handler(_: Request) -> ChunkedReply:
        return make()

    routes = broker.dispatch.router.routes
    broker.dispatch.router = Router(
        [
            route._replace(handler=handler) if route.operation.name == "poll" else route
            for route in routes
        ]
    )


@pytest.mark.parametrize("error", [Unavailable("stale"), ZeroDivisionError("surprise")])
async def test_a_failure_after_the_status_leaves_the_body_without_its_end(
    broker: Broker, error: Exception
) -> None:
    serve_stream(broker, [b"block", error])
    async with listening(broker) as http, RawHttp(http.port) as raw:
        await raw_poll(raw)
        with pytest.raises(asyncio.IncompleteReadError):
            await raw.reply()


async def test_a_failure_before_the_status_is_an_ordinary_error(broker: Broker) -> None:
    serve_stream(broker, [Unavailable("stale")])
    async with listening(broker) as http, RawHttp(http.port) as raw:
        await raw_poll(raw)
        reply = await raw.reply()
        assert (reply.status, reply.headers["Broker-Error"]) == (503, "no_leader")


async def test_a_reader_that_leaves_ends_the_generator_of_chunks(broker: Broker) -> None:
    ended = asyncio.Event()

    async def endless() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"x" * 100_000
        finally:
            ended.set()

    serve_polls(broker, lambda: ChunkedReply(endless(), "avro/binary"))
    async with listening(broker) as http:
        async with RawHttp(http.port) as raw:
            await raw_poll(raw)
            await raw.line()
        async with asyncio.timeout(30):
            await ended.wait()


async def test_every_packed_block_is_sent_at_once(broker: Broker) -> None:
    go_on = asyncio.Event()

    async def blocks() -> AsyncGenerator[bytes, None]:
        for letter in (b"x", b"y"):
            yield letter * 5000
        await go_on.wait()
        yield b"z" * 5000

    serve_polls(broker, lambda: ChunkedReply(blocks(), "avro/binary"))
    packed = {**AVRO, "Accept-Encoding": "gzip"}
    async with (
        asyncio.timeout(30),
        listening(broker) as http,
        http.session.post(http.url + POLL, data=EVERYTHING, headers=packed) as reply,
    ):
        assert reply.headers["Content-Encoding"] == "gzip"
        assert await reply.content.readexactly(10_000) == b"x" * 5000 + b"y" * 5000
        go_on.set()
        assert await reply.content.read() == b"z" * 5000


async def test_a_stream_that_is_always_ready_lets_other_tasks_run(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_work, "SLICE_S", 0.0)
    rounds: list[int] = [0]

    async def chunks() -> AsyncGenerator[bytes, None]:
        for _ in range(20):
            rounds.append(0)
            yield b"x"

    async def count_rounds() -> None:
        while True:
            await settle(1)
            rounds[-1] += 1

    serve_polls(broker, lambda: ChunkedReply(chunks(), "avro/binary"))
    counting = asyncio.create_task(count_rounds())
    async with listening(broker) as http:
        assert (await http("POST", POLL, b"\x04\x01\x02\x02", AVRO)).body == b"x" * 20
    counting.cancel()
    assert min(rounds[1:-1]) >= long_work.ROUNDS_FREE
