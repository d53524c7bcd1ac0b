import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import NamedTuple

import pytest

from broker.http.address import Address
from broker.http.answer import STREAM_BUFFER_BYTES, NoAnswer, NotSent
from broker.http.asking import Connection, header_lines, open_connection


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
async def connected(script: Script) -> AsyncIterator[Connection]:
    """A connection to a server that does what ``script`` says with each connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    address = Address.of(f"http://127.0.0.1:{port}/pre")
    connection = await open_connection(address, lambda: Connection(address, {"A": "b"}), 5)
    try:
        yield connection
    finally:
        connection.close()
        server.close()
        await server.wait_closed()


CHUNKED = b"HTTP/1.1 200 OK\r\nX: y\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_header_is_one_line() -> None:
    assert header_lines({"A": "b", "C": "d"}) == b"A: b\r\nC: d\r\n"
    assert header_lines({}) == b""
    for value in ("b\r\nC: d", "b\n", "b\r", "\u017c\udcff\r\nC: d"):
        with pytest.raises(ValueError, match="line break"):
            header_lines({"A": value})


def test_a_header_is_sent_on_as_it_was_read() -> None:
    for sent in (b"d", "a=\u017c".encode(), b"\xe9", bytes(range(0x80, 0x100))):
        read = sent.decode("utf-8", "surrogateescape")  # As our server reads what it is sent.
        assert header_lines({"A": read}) == b"A: " + sent + b"\r\n"
    # No other character is a line's end in bytes, whatever it is in text.
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


async def test_what_cannot_be_sent_leaves_its_connection_as_it_was() -> None:
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


async def test_a_reader_who_stands_still_stops_the_sender(monkeypatch) -> None:
    paused = asyncio.Event()
    size = 64 * 1024 * 1024
    pause = Connection.pause
    monkeypatch.setattr(Connection, "pause", lambda self: (pause(self), paused.set()))

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


async def test_a_stream_that_nobody_reads_any_more_ends_its_connection() -> None:
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


async def test_what_was_sent_behind_an_answer_that_closes_was_not_looked_at() -> None:
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


async def test_nothing_is_sent_where_nobody_listens() -> None:
    async def script(reader, writer):
        pass

    async with connected(script):
        server = await asyncio.start_server(script, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        address = Address.of(f"http://127.0.0.1:{port}")
        with pytest.raises(NotSent):
            await open_connection(address, lambda: Connection(address, {}), 5)
