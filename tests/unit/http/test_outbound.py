import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import NamedTuple

import pytest

from broker.http.answer import NoAnswer, NotSent
from broker.http.outbound import STREAM_BUFFER_BYTES, OutboundConnection, Streamed, header_lines
from broker.http.pool import open_connection
from tests.kit.serving import eventually


class Ask(NamedTuple):
    method: str = "POST"
    path: str = "/p?q=1"
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes = b"body"


Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def one_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head + await reader.readexactly(length)


@asynccontextmanager
async def connected(script: Script, **options: int) -> AsyncIterator[OutboundConnection]:
    """A connection to a server that runs ``script`` for each connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{port}/pre"
    connection = await open_connection(OutboundConnection(url, {"A": "b"}, **options), 5)
    try:
        yield connection
    finally:
        connection.close()
        server.close()
        await server.wait_closed()


async def whole(streamed: Streamed, silence_s: float = 5) -> bytes:
    read = []
    while chunk := await streamed.chunk(silence_s):
        read.append(chunk)
    return b"".join(read)


CHUNKED = b"HTTP/1.1 200 OK\r\nX: y\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_header_is_one_line() -> None:
    assert header_lines({"A": "b", "C": "d"}) == b"A: b\r\nC: d\r\n"
    assert header_lines({}) == b""
    for value in ("b\r\nC: d", "b\n", "b\r", "\u017c\udcff\r\nC: d"):
        with pytest.raises(ValueError, match="line break"):
            header_lines({"A": value})


def test_a_header_is_sent_on_as_it_was_read() -> None:
    for sent in (b"d", "a=\u017c".encode(), b"\xe9", bytes(range(0x80, 0x100))):
        # The broker's server decodes requests like this.
        read = sent.decode("utf-8", "surrogateescape")
        assert header_lines({"A": read}) == b"A: " + sent + b"\r\n"
    # No other character ends a line in bytes, even if it does in text.
    lines = header_lines({"A": "".join(map(chr, range(0x80, 0xD800)))})
    assert lines.count(b"\n") == lines.count(b"\r") == 1


async def test_a_whole_answer() -> None:
    seen = []

    async def script(reader, writer):
        seen.append(await one_request(reader))
        writer.write(b"HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nno")
        await reader.read()

    async with connected(script) as connection:
        reply = await connection.exchange(Ask(headers={"C": "d"}), 5)
        assert (reply.status, reply.body) == (404, b"no")
        assert connection.answered
        assert connection.usable
    (request,) = seen
    assert request.startswith(b"POST /pre/p?q=1 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nA: b\r\nC: d\r\n" in request


async def test_a_target_is_sent_on_as_it_was_read() -> None:
    seen = []

    async def script(reader, writer):
        seen.append(await one_request(reader))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await reader.read()

    async with connected(script) as connection:
        await connection.exchange(Ask(path="/\u017c?q=\udcff"), 5)
    assert seen[0].startswith("POST /pre/\u017c?q=".encode() + b"\xff HTTP/1.1\r\n")


async def test_a_request_that_cannot_be_sent_leaves_its_connection_unchanged() -> None:
    async def script(reader, writer):
        await one_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nz")
        await reader.read()

    async with connected(script) as connection:
        for send in (connection.exchange, connection.stream):
            with pytest.raises(ValueError, match="line break"):
                await send(Ask(headers={"A": "b\r\nC: d"}), 5)
        assert connection.requests_in_flight == 0
        assert (await connection.exchange(Ask(), 5)).body == b"z"


async def test_an_answer_is_read_as_it_comes_and_the_connection_serves_the_next_one() -> None:
    go_on = asyncio.Event()

    async def script(reader, writer):
        await one_request(reader)
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + b"3\r\nabc\r\n")
        await go_on.wait()
        writer.write(b"2\r\nde\r\n0\r\n\r\n")
        await one_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nz")
        await reader.read()

    async with connected(script) as connection:
        streamed = await connection.stream(Ask(), 5)
        assert (streamed.status, streamed.headers["x"]) == (200, "y")
        assert await streamed.chunk(5) == b"abc"
        assert not streamed.ended
        go_on.set()
        assert await streamed.chunk(5) == b"de"
        assert await streamed.chunk(5) == b""
        assert streamed.ended
        streamed.close()
        assert (await connection.exchange(Ask(), 5)).body == b"z"


async def test_a_stream_that_is_cut_is_no_answer() -> None:
    async def script(reader, writer):
        await one_request(reader)
        writer.write(CHUNKED + b"3\r\nabc\r\n")

    async with connected(script) as connection:
        streamed = await connection.stream(Ask(), 5)
        assert await streamed.chunk(5) == b"abc"
        with pytest.raises(NoAnswer):
            await streamed.chunk(5)
        assert not connection.usable


async def test_a_stream_that_never_begins_is_no_answer() -> None:
    async def script(reader, writer):
        await one_request(reader)

    async with connected(script) as connection:
        with pytest.raises(NoAnswer):
            await connection.stream(Ask(), 5)


async def test_silence_in_a_stream_has_a_bound() -> None:
    async def script(reader, writer):
        await one_request(reader)
        writer.write(CHUNKED)
        await reader.read()

    async with connected(script) as connection:
        streamed = await connection.stream(Ask(), 5)
        with pytest.raises(NoAnswer, match="nothing came"):
            await streamed.chunk(0.01)
        assert not connection.usable


async def test_a_reader_that_stops_stops_the_sender(monkeypatch) -> None:
    paused = asyncio.Event()
    size = 64 * 1024 * 1024
    pause = OutboundConnection.pause
    monkeypatch.setattr(OutboundConnection, "pause", lambda self: (pause(self), paused.set()))

    async def script(reader, writer):
        await one_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        writer.write(bytes(size))
        await reader.read()

    async with connected(script) as connection:
        streamed = await connection.stream(Ask(), 5)
        async with asyncio.timeout(10):
            await paused.wait()
        got = len(await streamed.chunk(5))
        assert STREAM_BUFFER_BYTES <= got < STREAM_BUFFER_BYTES * 4
        while chunk := await streamed.chunk(10):
            got += len(chunk)
        assert got == size


async def test_a_stream_without_a_reader_ends_its_connection() -> None:
    async def script(reader, writer):
        await one_request(reader)
        writer.write(CHUNKED + b"3\r\nabc\r\n")
        await reader.read()

    async with connected(script) as connection:
        streamed = await connection.stream(Ask(), 5)
        streamed.close()
        assert not connection.usable
        with pytest.raises(NotSent):
            await connection.exchange(Ask(), 5)


async def test_a_cancelled_stream_closes_the_connection() -> None:
    arrived = asyncio.Event()

    async def script(reader, writer):
        await one_request(reader)
        arrived.set()
        await reader.read()

    async with connected(script) as connection:
        task = asyncio.create_task(connection.stream(Ask(), 5))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not connection.usable


async def test_requests_behind_a_closing_answer_were_not_processed() -> None:
    async def script(reader, writer):
        await one_request(reader)
        await one_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")

    async with connected(script) as connection:
        first = asyncio.ensure_future(connection.exchange(Ask(), 5))
        second = asyncio.ensure_future(connection.exchange(Ask(), 5))
        assert (await first).status == 200
        with pytest.raises(NotSent):
            await second


async def test_a_refused_connection_sends_nothing() -> None:
    async def script(reader, writer):
        pass

    async with connected(script):
        server = await asyncio.start_server(script, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        with pytest.raises(NotSent):
            await open_connection(OutboundConnection(f"http://127.0.0.1:{port}", {}), 5)


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
async def test_a_name_that_no_machine_can_have_is_not_reached(host: str) -> None:
    with pytest.raises(NotSent, match="label"):
        await open_connection(OutboundConnection(f"http://{host}:80", {}), 5)


# --- Misbehaving servers --------------------------------------------------------------------------


def answering(*parts: bytes, then_close: bool = False) -> Script:
    """Answer the first request with these parts, each in its own write."""

    async def script(reader, writer):
        await one_request(reader)
        for part in parts:
            writer.write(part)
            await writer.drain()
        if not then_close:
            await reader.read()

    return script


def for_ever(first: bytes, again: bytes) -> Script:
    """Answer the first request with bytes, and then with others until the connection ends."""

    async def script(reader, writer):
        await one_request(reader)
        writer.write(first)
        while True:
            writer.write(again)
            await writer.drain()

    return script


OK = b"HTTP/1.1 200 OK\r\n"
ENDLESS = {
    "a head": (for_ever(OK, b"X: y\r\n" * 1_000), "in a row outside head and body"),
    "a value": (for_ever(OK + b"X: ", b"y" * 10_000), "in a row outside head and body"),
    "a reason": (for_ever(b"HTTP/1.1 200 ", b"y" * 10_000), "in a row outside head and body"),
    "line ends": (for_ever(b"", b"\r\n" * 10_000), "in a row outside head and body"),
    "interim answers": (for_ever(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), "interim"),
    "hints": (
        for_ever(b"", b"HTTP/1.1 103 Early Hints\r\nLink: " + b"y" * 9_000 + b"\r\n\r\n"),
        "interim",
    ),
    "trailers": (
        for_ever(CHUNKED + b"1\r\na\r\n0\r\n", b"X: y\r\n" * 1_000),
        "in a row outside head and body",
    ),
    "an extension": (for_ever(CHUNKED + b"1;", b"x" * 10_000), "in a row outside head and body"),
    "a body": (for_ever(OK + b"\r\n", bytes(10_000)), "more than 1000000 bytes"),
    "a chunk": (
        for_ever(CHUNKED + b"8000000000000000\r\n", bytes(10_000)),
        "more than 1000000 bytes",
    ),
    "chunks": (for_ever(CHUNKED, b"2\r\nab\r\n" * 1_000), "more than 1000000 bytes"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("script", "told"), ENDLESS.values(), ids=ENDLESS)
async def test_an_answer_without_an_end_is_no_answer(script: Script, told: str) -> None:
    async with connected(script, reply_bytes_max=1_000_000) as connection:
        async with asyncio.timeout(10):
            with pytest.raises(NoAnswer, match=told):
                await connection.exchange(Ask(), 60)
        assert not connection.usable


NO_ANSWERS = {
    "garbage": b"\x00\xff\x16\x03\x01" * 100,
    "another protocol": b"SSH-2.0-OpenSSH\r\n\r\n",
    "an upgrade": b"HTTP/1.1 101 Up\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    "a length that is none": OK + b"Content-Length: -1\r\n\r\n",
    "a length that is twice": OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a length and chunks": OK + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a length over 64 bits": OK + b"Content-Length: 18446744073709551616\r\n\r\n",
    "a large length": OK + b"Content-Length: 18446744073709551615\r\n\r\n",
    "a chunk over 64 bits": CHUNKED + b"10000000000000000\r\n",
    "a chunk that is none": CHUNKED + b"-1\r\n",
    "a coding": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a coding alone": OK + b"Transfer-Encoding: gzip\r\n\r\nab",
    "a head of one piece": OK
    + b"".join(b"X%d: y\r\n" % i for i in range(9_000))
    + b"Content-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("sent", NO_ANSWERS.values(), ids=NO_ANSWERS)
async def test_bytes_that_are_no_http_are_no_answer(sent: bytes) -> None:
    async with connected(answering(sent)) as connection:
        async with asyncio.timeout(10):
            with pytest.raises(NoAnswer):
                await connection.exchange(Ask(), 60)
        assert not connection.usable


@pytest.mark.parametrize("kind", sorted(NO_ANSWERS.keys() - {"a large length"}))
async def test_bytes_that_are_no_http_are_no_stream(kind: str) -> None:
    async def read() -> bytes:
        return await whole(await connection.stream(Ask(), 60), 60)

    async with connected(answering(NO_ANSWERS[kind])) as connection:
        async with asyncio.timeout(10):
            with pytest.raises(NoAnswer):
                await read()
        assert not connection.usable


async def test_a_head_that_comes_slowly_ends_when_the_time_is_over() -> None:
    async with connected(answering(OK, b"X: y\r\n")) as connection:
        with pytest.raises(NoAnswer, match="no answer in"):
            await connection.exchange(Ask(), 0.05)
        assert not connection.usable


async def test_an_answer_that_no_request_waits_for_ends_the_connection() -> None:
    answer = OK + b"Content-Length: 1\r\n\r\n"
    async with connected(answering(answer + b"a" + answer + b"b")) as connection:
        assert (await connection.exchange(Ask(), 5)).body == b"a"
        assert not connection.usable


async def test_half_an_answer_that_no_request_waits_for_is_not_taken_for_the_next_one() -> None:
    go_on = asyncio.Event()

    async def script(reader, writer):
        await one_request(reader)
        writer.write(OK + b"Content-Length: 1\r\n\r\na")
        await go_on.wait()
        writer.write(OK + b"Content-Length: 1\r\n")
        await reader.read()

    async with connected(script) as connection:
        assert (await connection.exchange(Ask(), 5)).body == b"a"
        assert connection.usable
        go_on.set()
        await eventually(lambda: not connection.usable, lambda: "it is still in use")


async def test_trailers_are_no_headers() -> None:
    sent = CHUNKED + b"1\r\na\r\n0\r\nX: other\r\nZ: z\r\n\r\n"
    async with connected(answering(sent)) as connection:
        reply = await connection.exchange(Ask(), 5)
        assert (reply.headers["x"], reply.headers.get("z"), reply.body) == ("y", None, b"a")
        assert connection.usable


@pytest.mark.parametrize("version", [b"HTTP/1.0", b"HTTP/1.1"])
async def test_a_body_may_end_with_the_connection(version: bytes) -> None:
    sent = version + b" 200 OK\r\nX: y\r\n\r\n"
    async with connected(answering(sent, b"ab", b"c", then_close=True)) as connection:
        assert (await connection.exchange(Ask(), 5)).body == b"abc"
        assert not connection.usable
    async with connected(answering(sent, b"ab", b"c", then_close=True)) as connection:
        streamed = await connection.stream(Ask(), 5)
        assert await whole(streamed) == b"abc"
        assert streamed.ended


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_has_its_end(status: int) -> None:
    sent = b"HTTP/1.1 %d No\r\nX: y\r\n\r\n" % status
    async with connected(answering(sent)) as connection:
        assert (await connection.exchange(Ask(), 5)).status == status
        assert connection.usable


async def test_an_answer_of_many_pieces_is_put_together() -> None:
    async def script(reader, writer):
        for _ in range(2):
            await one_request(reader)
            writer.write(CHUNKED + b"".join(b"2\r\n%02d\r\n" % i for i in range(100)))
            writer.write(b"0\r\n\r\n")
        await reader.read()

    async with connected(script) as connection:
        for _ in range(2):
            body = (await connection.exchange(Ask(), 5)).body
            assert body == b"".join(b"%02d" % i for i in range(100))
            assert type(body) is bytes


async def test_a_large_body_arrives() -> None:
    seen = []

    async def script(reader, writer):
        seen.append(await one_request(reader))
        writer.write(OK + b"Content-Length: 0\r\n\r\n")
        await reader.read()

    body = bytes(range(256)) * 4_096
    async with connected(script) as connection:
        assert (await connection.exchange(Ask(body=body), 10)).status == 200
    assert seen[0].endswith(b"\r\n\r\n" + body)
