"""One connection to a gateway: answers in pieces, truncated, late, and unsolicited."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from broker.storage.hbase import thrift
from broker.storage.hbase.line import Line, LineCut
from tests.unit.storage.hbase.fake import DEADLINE_S, IDL, reply

CELL = IDL.TColumnValue(family=b"e", qualifier=b"c", value=bytes(50), timestamp=7)
TRUE = reply("checkAndPut", success=True)
ROW = reply("get", success=IDL.TResult(row=b"k", columnValues=[CELL, CELL]))


class Bench:
    """A line and the socket at its other end."""

    def __init__(self, line: Line, theirs: socket.socket, left: list[Line]) -> None:
        self.line, self.theirs, self.left = line, theirs, left

    def ask(self, request: bytes = b"request", answer_s: float = DEADLINE_S) -> asyncio.Future[Any]:
        ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.line.ask(request, answer_s, lambda told, error: ended.set_result(error or told))
        return ended

    async def receive(self) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self.theirs, 1 << 16)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.theirs, data)

    async def over(self) -> None:
        await asyncio.wait_for(self.line.closed, DEADLINE_S)
        assert self.line.is_over
        assert self.left == [self.line]
        assert not self.line.is_silent()


async def told(ended: asyncio.Future[Any]) -> Any:
    return await asyncio.wait_for(ended, DEADLINE_S)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    left: list[Line] = []
    loop = asyncio.get_running_loop()
    with theirs:
        _, line = await loop.create_connection(lambda: Line(left.append), sock=ours)
        yield Bench(line, theirs, left)
        line.end()
        await line.closed


async def test_one_request_after_the_other(bench: Bench) -> None:
    for number in range(3):
        ended = bench.ask(b"%d" % number)
        assert await bench.receive() == b"%d" % number
        await bench.send(TRUE)
        assert await told(ended) is True
    assert bench.line.is_silent()
    assert not bench.left


async def test_an_answer_may_arrive_in_pieces(bench: Bench) -> None:
    ended = bench.ask()
    received = asyncio.Event()
    data_received = bench.line.data_received

    def noted(data: bytes) -> None:
        data_received(data)
        received.set()

    bench.line.data_received = noted  # type: ignore[method-assign]
    for at in range(len(ROW)):
        assert not ended.done()
        await bench.send(ROW[at : at + 1])
        async with asyncio.timeout(DEADLINE_S):
            await received.wait()
        received.clear()
    assert (await told(ended))[1] == b"k"


async def test_a_large_answer_is_not_parsed_again_with_each_piece(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []
    answer = thrift.answer
    monkeypatch.setattr(thrift, "answer", lambda data: tries.append(len(data)) or answer(data))
    cell = IDL.TColumnValue(family=b"e", qualifier=b"c", value=bytes(1 << 23), timestamp=7)
    ended = bench.ask()
    await bench.send(reply("get", success=IDL.TResult(row=b"k", columnValues=[cell])))
    assert len((await told(ended))[2][0][3]) == 1 << 23
    assert len(tries) <= 3


async def test_a_request_larger_than_the_sockets_buffer_is_sent_whole(bench: Bench) -> None:
    request = bytes(range(256)) * (1 << 14)
    ended = bench.ask(request)
    arrived = bytearray()
    async with asyncio.timeout(DEADLINE_S):
        while len(arrived) < len(request):
            arrived += await bench.receive()
    assert arrived == request
    await bench.send(TRUE)
    assert await told(ended) is True


async def test_an_answer_before_the_request_was_sent_ends_the_line(bench: Bench) -> None:
    ended = bench.ask(bytes(1 << 22))
    await bench.send(TRUE)
    assert isinstance(await told(ended), LineCut)
    await bench.over()


async def test_the_end_of_the_stream_ends_the_line(bench: Bench) -> None:
    ended = bench.ask()
    await bench.send(ROW[:-1])
    bench.theirs.close()
    assert isinstance(await told(ended), ConnectionError)
    await bench.over()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n", b"\0" * 9, TRUE + TRUE])
async def test_bytes_that_are_no_answer_end_the_line(bench: Bench, answer: bytes) -> None:
    ended = bench.ask()
    await bench.send(answer)
    assert isinstance(await told(ended), thrift.NotThrift)
    await bench.over()


async def test_an_error_of_the_gateway_does_not_end_the_line(bench: Bench) -> None:
    ended = bench.ask()
    await bench.send(reply("get", io=IDL.TIOError(message="no")))
    assert isinstance(await told(ended), thrift.GatewayError)
    assert bench.line.is_silent()


async def test_a_missing_answer_ends_the_line(bench: Bench) -> None:
    assert isinstance(await told(bench.ask(answer_s=0.01)), TimeoutError)
    await bench.over()


async def test_each_request_has_its_own_deadline(bench: Bench) -> None:
    first = bench.ask(answer_s=0.3)
    await bench.send(TRUE)
    assert await told(first) is True
    second = bench.ask(answer_s=DEADLINE_S)
    done, _ = await asyncio.wait([second], timeout=0.35)
    assert not done, "the deadline of the first request has passed"
    await bench.send(TRUE)
    assert await told(second) is True
    assert isinstance(await told(bench.ask(answer_s=0.01)), TimeoutError)


@pytest.mark.parametrize("how", ["the end", "an answer"])
async def test_unsolicited_bytes_or_an_end_between_calls_end_the_line(
    bench: Bench, how: str
) -> None:
    if how == "the end":
        bench.theirs.close()
    else:
        await bench.send(TRUE)
    assert not bench.line.is_silent(), "the line sees it before the event loop does"
    await bench.over()


async def test_ending_the_line_ends_its_request(bench: Bench) -> None:
    ended = bench.ask()
    bench.line.end()
    assert isinstance(await told(ended), LineCut)
    await bench.over()
