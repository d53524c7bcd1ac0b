"""HTTP load at a low cost: a small protocol on raw connections.

The load generator must not limit the rate. A connection sends a prepared request, and at the last byte of the answer
it sends the next. Nearly all answers are empty and arrive in one piece. Three comparisons of bytes recognize such an
answer. httptools parses all others. Of large chunked answers only the framing is read. The status of every answer is
checked.
"""

from __future__ import annotations

import asyncio
import random
import time
from array import array
from collections.abc import Iterator, Sequence
from itertools import chain, cycle, islice
from typing import NamedTuple, cast

import httptools
from typing_extensions import override

HOST = "127.0.0.1"
_LAST_ANSWERS_S = 30.0
PACED_CONNECTIONS = 8
_SEED = 5
_SKIM_BYTES = 1 << 20
_HEAD_END = b"\r\n\r\n"


class LoadFailed(Exception):
    """An answer was not that of a successful request."""


class Load(NamedTuple):
    """The result of a run: ``units`` acknowledged (messages) in ``seconds``, and each request's time."""

    units: int
    seconds: float
    latencies_ns: Sequence[int]


class Wire(asyncio.Protocol):
    """One keep-alive connection. It calls ``answered`` with the size of each answer's body."""

    def __init__(self, *, keep_body: bool = False) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._keep_body = keep_body
        self._pieces: list[bytes] = []
        self._size = 0
        self._waiting: asyncio.Future[int] | None = None
        self.body = b""

    async def exchange(self, request: bytes) -> int:
        """Send a request and return the size of the answer's body."""
        return await self.begin(request)

    def begin(self, request: bytes) -> asyncio.Future[int]:
        """Send a request; the future gets the size of the answer's body."""
        self._waiting = asyncio.get_running_loop().create_future()
        self.write(request)
        return self._waiting

    def write(self, request: bytes) -> None:
        """Send a request."""
        assert self._transport is not None, "not connected"
        self._transport.write(request)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def answered(self, size: int) -> None:
        """Take the end of an answer."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(size)

    def failed(self, error: Exception) -> None:
        """Fail the request in flight."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.failed(LoadFailed(f"the server closed the connection ({exc})"))

    @override
    def data_received(self, data: bytes) -> None:
        if data[-4:] == b"\r\n\r\n" and data[9:12] == b"200" and b"ength: 0\r\n" in data:
            self.answered(0)
        else:
            self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """Count, or keep, a piece of an answer's body."""
        self._size += len(body)
        if self._keep_body or self._parser.get_status_code() != 200:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        """Check and report an answer."""
        size, self._size = self._size, 0
        self.body, self._pieces = b"".join(self._pieces), []
        status = self._parser.get_status_code()
        if status == 200:
            self.answered(size)
        else:
            self.failed(LoadFailed(f"status {status}: {self.body[:300]!r}"))


class Skimmer(asyncio.BufferedProtocol):
    """A connection for large chunked answers: it reads the framing, and skips the content.

    It receives bytes into one buffer, and copies them nowhere else::

        head CRLF CRLF | size CRLF bytes CRLF | size CRLF bytes CRLF | 0 CRLF CRLF
    """

    def __init__(self) -> None:
        self._buffer = bytearray(_SKIM_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._skip = 0
        self._in_head = True
        self._size = 0
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[int] | None = None

    async def exchange(self, request: bytes) -> int:
        """Send a request and return the size of the answer's body. Raises LoadFailed."""
        assert self._transport is not None, "not connected"
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiting

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._failed(f"the server closed the connection ({exc})")

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._filled :]

    @override
    def buffer_updated(self, nbytes: int) -> None:
        end, at = self._filled + nbytes, 0
        while True:
            if self._skip:
                step = min(self._skip, end - at)
                self._skip -= step
                at += step
            if at == end:
                break
            line_end = self._buffer.find(_HEAD_END if self._in_head else b"\r\n", at, end)
            if line_end < 0:
                break
            at = self._framing(at, line_end)
        self._buffer[: end - at] = self._buffer[at:end]
        self._filled = end - at

    def _framing(self, at: int, end: int) -> int:
        """Parse a head or a chunk's size; return the place after it."""
        if self._in_head:
            head = bytes(self._buffer[at:end])
            if head[9:12] != b"200" or b"chunked" not in head.lower():
                self._failed(f"not a chunked answer: {head!r}")
            self._in_head = False
            return end + len(_HEAD_END)
        size = int(self._buffer[at:end], 16)
        self._size += size
        self._skip = size + 2
        if size == 0:
            total, self._size, self._in_head = self._size, 0, True
            if self._waiting is not None and not self._waiting.done():
                self._waiting.set_result(total)
        return end + 2

    def _failed(self, why: str) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(LoadFailed(why))


class _Sender(Wire):
    """A connection that sends without end, until its deadline."""

    def __init__(self, requests: Iterator[bytes], deadline_ns: int) -> None:
        super().__init__()
        self._requests = requests
        self._deadline_ns = deadline_ns
        self._began_ns = 0
        self.latencies = array("q")
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def send_first(self) -> None:
        """Send the first request."""
        self._began_ns = time.perf_counter_ns()
        self.write(next(self._requests))

    @override
    def answered(self, size: int) -> None:
        now_ns = time.perf_counter_ns()
        if now_ns < self._deadline_ns:
            self.latencies.append(now_ns - self._began_ns)
            self._began_ns = now_ns
            self.write(next(self._requests))
        elif not self.done.done():
            self.done.set_result(None)

    @override
    def failed(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


def http_request(
    method: str, path: str, body: bytes = b"", content_type: str = "avro/binary"
) -> bytes:
    """Return a whole request as bytes."""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def connect(port: int, *, keep_body: bool = False) -> Wire:
    """Open one connection."""
    loop = asyncio.get_running_loop()
    _, wire = await loop.create_connection(lambda: Wire(keep_body=keep_body), HOST, port)
    return wire


async def skim(port: int) -> Skimmer:
    """Open one connection for large answers."""
    _, skimmer = await asyncio.get_running_loop().create_connection(Skimmer, HOST, port)
    return skimmer


async def ask(port: int, request: bytes) -> bytes:
    """Make one request on a new connection, and return the answer's body."""
    wire = await connect(port, keep_body=True)
    try:
        await wire.exchange(request)
        return wire.body
    finally:
        wire.close()


async def drive(port: int, queues: Sequence[Sequence[bytes]], units: int, seconds: float) -> Load:
    """Send requests for ``seconds``, on one connection for each queue, one request after the other.

    One request counts as ``units``. Answers after the deadline are awaited, but not counted.

    Raises:
        LoadFailed: an answer was an error, or a connection broke.
    """
    loop = asyncio.get_running_loop()
    began_ns = time.perf_counter_ns()
    deadline_ns = began_ns + int(seconds * 1e9)
    senders: list[_Sender] = []
    for number, queue in enumerate(queues):
        # Each connection starts with another of its requests.
        requests = islice(cycle(queue), number % len(queue), None)
        sender = _Sender(requests, deadline_ns)
        await loop.create_connection(lambda sender=sender: sender, HOST, port)  # type: ignore[misc]
        senders.append(sender)
    began_ns = time.perf_counter_ns()
    for sender in senders:
        sender.send_first()
    try:
        async with asyncio.timeout(seconds + _LAST_ANSWERS_S):
            await asyncio.gather(*(sender.done for sender in senders))
    finally:
        for sender in senders:
            sender.close()
    latencies = array("q")
    for sender in senders:
        latencies.extend(sender.latencies)
    return Load(len(latencies) * units, (deadline_ns - began_ns) / 1e9, latencies)


async def pace(
    queues: Sequence[tuple[int, Sequence[bytes]]], *, rate: float, units: int, seconds: float
) -> Load:
    """Send about ``rate`` requests a second, at random moments that do not depend on the answers.

    ``queues`` are ports, each with requests. Queues take turns, and so do the PACED_CONNECTIONS of each. The moments are
    the same in every call. One request counts as ``units``.

    Raises:
        LoadFailed: an answer was an error, or a connection broke.
    """
    moments = random.Random(_SEED)
    requests = [cycle(queue) for _, queue in queues]
    wires = [[await connect(port) for _ in range(PACED_CONNECTIONS)] for port, _ in queues]
    free: list[asyncio.Queue[Wire]] = [asyncio.Queue() for _ in queues]
    for queue, mine in zip(free, wires, strict=True):
        for wire in mine:
            queue.put_nowait(wire)
    latencies = array("q")

    async def one(at: int, due_ns: int) -> None:
        wire = await free[at].get()
        await wire.exchange(next(requests[at]))
        latencies.append(time.perf_counter_ns() - due_ns)
        free[at].put_nowait(wire)

    began_ns = due_ns = time.perf_counter_ns()
    try:
        async with asyncio.timeout(seconds + _LAST_ANSWERS_S), asyncio.TaskGroup() as group:
            for at in cycle(range(len(queues))):
                due_ns += int(moments.expovariate(rate) * 1e9)
                if due_ns > began_ns + seconds * 1e9:
                    break
                await asyncio.sleep(max(due_ns - time.perf_counter_ns(), 0) / 1e9)
                group.create_task(one(at, due_ns))
    finally:
        for wire in chain.from_iterable(wires):
            wire.close()
    return Load(len(latencies) * units, seconds, latencies)
