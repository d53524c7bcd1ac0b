import asyncio
from collections.abc import AsyncIterator

import pytest

from benchmarks.load import LoadFailed, ask, drive, http_request, pace, skim

ANSWERS = {
    b"/empty": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"/body": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
    b"/broken": b"HTTP/1.1 500 No\r\nContent-Length: 4\r\n\r\nwhy?",
    b"/large": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"".join(b"%x\r\n%b\r\n" % (size, b"\n\r" * (size // 2)) for size in (60_000, 2, 1_500_000))
    + b"0\r\n\r\n",
}


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while head := await reader.readuntil(b"\r\n\r\n"):
        writer.write(ANSWERS[head.split()[1]])
        await writer.drain()


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async def quietly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(quietly, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_answers_are_read_whole(port: int) -> None:
    assert await ask(port, http_request("GET", "/empty")) == b""
    assert await ask(port, http_request("GET", "/body")) == b"abc"


async def test_large_answers_are_skimmed_one_after_the_other(port: int) -> None:
    connection = await skim(port)
    for _ in range(2):
        assert await connection.exchange(http_request("GET", "/large")) == 1_560_002
    connection.close()


async def test_load_counts_answers(port: int) -> None:
    senders = [[http_request("GET", "/empty"), http_request("GET", "/body")]] * 3
    load = await drive(port, senders, units=10, seconds=0.2)
    assert load.units == 10 * len(load.latencies_ns) > 0
    assert min(load.latencies_ns) > 0


async def test_an_error_ends_the_load(port: int) -> None:
    with pytest.raises(LoadFailed, match=r"status 500.*why\?"):
        await drive(port, [[http_request("GET", "/broken")]], units=1, seconds=5)
    connection = await skim(port)
    with pytest.raises(LoadFailed, match="not a chunked answer"):
        await connection.exchange(http_request("GET", "/body"))
    connection.close()


async def test_a_paced_load_sends_by_the_clock_to_all_ports_in_turn(port: int) -> None:
    senders = [(port, [http_request("GET", "/empty")]), (port, [http_request("GET", "/body")])]
    load = await pace(senders, rate=1000, units=10, seconds=0.2)
    again = await pace(senders, rate=1000, units=10, seconds=0.2)
    # The number of requests depends on the clock, not on the answers. Both loads send at the same moments.
    assert load.units == again.units == 10 * len(load.latencies_ns) > 0
    assert min(load.latencies_ns) > 0


async def test_an_error_ends_a_paced_load(port: int) -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await pace([(port, [http_request("GET", "/broken")])], rate=100, units=1, seconds=5)
    assert raised.group_contains(LoadFailed, match="status 500")
