"""Send answers: framing, compression, and limits for slow clients.

A small reply is sent in one write. Other replies are sent piece by piece. The next piece is made or written only after
the client has read enough of the last one. So a connection holds one piece and a buffer. The bytes that a reply holds
until the client reads them are counted (see ``budget``).

The node cuts the connection of a client that reads too little within ``stall_s``: nothing, or less than a rate that
the slowest line reaches. The status line can't report an error that happens after it was sent. Then the connection is
cut without the last chunk, so consumers know that bytes are missing.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from broker.http.budget import BudgetKind, Hold
from broker.http.inflater import GZIP_WINDOW
from broker.http.reply import CHUNKED, LAST_CHUNK, Answer, ChunkedReply, Piece, Reply
from broker.long_work import Pace

if TYPE_CHECKING:
    from broker.http.inbound import Connection

GZIP: Final = ("Content-Encoding", "gzip")
GZIP_BYTES_MIN: Final = 1024
GZIP_LEVEL: Final = 1
THREAD_BYTES_MIN: Final = 64 * 1024
"""From this size on, a thread compresses: on the loop it would delay other requests."""
PIECE_BYTES_MAX: Final = 256 * 1024
TAKEN_BYTES_A_SECOND_MIN: Final = 512
"""The least bytes per second that a client must read, on average over ``stall_s``."""

_ZERO_WEIGHT = re.compile(r"q\s*=\s*0(\.0{0,3})?")


class Packer(Protocol):
    """The interface of zlib's compressor, whose type has no public name."""

    def compress(self, data: Piece, /) -> bytes:
        """Take data and return the compressed bytes that are ready."""

    def flush(self, mode: int, /) -> bytes:
        """Return the rest."""


class SlowReaderLimits(NamedTuple):
    """How slowly a client may read: after ``stall_s`` it must have read at this rate."""

    stall_s: float
    bytes_a_second_min: int = TAKEN_BYTES_A_SECOND_MIN


class ReaderStalled(ConnectionError):
    """The client read nothing or almost nothing of its reply for too long."""


def send_at_once(connection: Connection, reply: Reply, tail: bytes, method: str) -> bool:
    """Send a small reply that needs no further work. For any other reply, send nothing and return False.

    Most replies are such. ``Outgoing`` sends all others.
    """
    transport = connection.transport
    if (
        len(reply.body) >= GZIP_BYTES_MIN
        or reply.chunked
        or transport is None
        or transport.is_closing()
        or connection.writing_paused
        or method == "HEAD"
    ):
        return False
    transport.write(reply.head + tail + reply.body)
    return True


class Outgoing:
    """Sends one answer. ``tail`` is the end of the head, which belongs to this request."""

    __slots__ = ("_connection", "_headers", "_hold", "_method", "_slow", "_tail", "began")

    def __init__(
        self,
        connection: Connection,
        method: str,
        headers: Mapping[str, str],
        tail: bytes,
        hold: Hold,
        slow: SlowReaderLimits,
    ) -> None:
        """Keep the parts. ``method`` and ``headers`` are the request's."""
        self._connection = connection
        self._method = method
        self._headers = headers
        self._tail = tail
        self._hold = hold
        self._slow = slow
        self.began = False
        """True if bytes were sent: then no other answer can be sent."""

    async def send(self, answer: Answer) -> None:
        """Send a whole answer.

        Raises:
            ConnectionError: the client is gone, or read too little for too long.
            Overloaded: too many bytes of replies are unread, and this connection has the most of them.
            Exception: the error of a stream's maker.
        """
        if isinstance(answer, Reply):
            await self._send_reply(answer)
            return
        try:
            await self._send_stream(answer)
        finally:
            await answer.chunks.aclose()

    async def _send_reply(self, reply: Reply) -> None:
        size = len(reply.body)
        self._hold.take(BudgetKind.REPLY_BYTES, size)
        if len(reply.body) >= GZIP_BYTES_MIN and accepts_gzip(self._headers):
            packer = zlib.compressobj(GZIP_LEVEL, wbits=GZIP_WINDOW)
            body = await _compress(packer, reply.body, zlib.Z_FINISH)
            reply = reply.with_body(body, GZIP, chunked=reply.chunked)
        if reply.chunked and not self._takes_chunks:
            reply = reply.with_body(reply.body, chunked=False)
        head = reply.head + self._tail
        if self._method == "HEAD":
            await self._write(head)
            return
        before, after = reply.frame
        for piece in _cut(reply.body):
            await self._write(head + before, piece)
            head = before = b""
        await self._write(head + after)
        self._hold.give(BudgetKind.REPLY_BYTES, size)

    async def _send_stream(self, stream: ChunkedReply) -> None:
        if self._method == "HEAD":
            headers = [CHUNKED] if self._takes_chunks else []
            await self._write(stream.head(*headers) + self._tail)
            return
        pace, first = Pace(), await anext(stream.chunks, b"")
        packer = None
        headers = [CHUNKED] if self._takes_chunks else []
        if stream.compressible and len(first) >= GZIP_BYTES_MIN and accepts_gzip(self._headers):
            packer = zlib.compressobj(GZIP_LEVEL, wbits=GZIP_WINDOW)
            headers.append(GZIP)
        head = stream.head(*headers) + self._tail
        pieces = _compressed(first, stream.chunks, packer)
        del first  # Free the first piece once it is sent: this call may last long.
        async for piece in pieces:
            self._hold.take(BudgetKind.REPLY_BYTES, len(piece))
            if self._takes_chunks:
                await self._write(head + b"%x\r\n" % len(piece), piece, b"\r\n")
            else:
                await self._write(head, piece)
            # Only what was taken here: the maker of the stream counts what it holds itself.
            self._hold.give(BudgetKind.REPLY_BYTES, len(piece))
            head = b""
            await pace.step()  # The pieces may all be ready.
        await self._write(head + (LAST_CHUNK if self._takes_chunks else b""))

    @property
    def _takes_chunks(self) -> bool:
        return self._connection.minor > 0

    async def _write(self, *parts: Piece) -> None:
        self.began = True
        self._connection.write(*parts)
        if self._connection.writing_paused:
            await self._drain()

    async def _drain(self) -> None:
        """Wait until the client has read most of the written bytes. Raises ConnectionError."""
        connection, slow = self._connection, self._slow
        left = connection.untaken_bytes
        while not await connection.drained(slow.stall_s):
            before, left = left, connection.untaken_bytes
            if before - left < slow.stall_s * slow.bytes_a_second_min:
                connection.force_close()
                raise ReaderStalled(f"The client read too little for {slow.stall_s:g} seconds.")


def _cut(body: Piece) -> Iterator[Piece]:
    """Yield a body in pieces, without copying it."""
    if len(body) <= PIECE_BYTES_MAX:
        if body:
            yield body
        return
    view = memoryview(body)
    for at in range(0, len(view), PIECE_BYTES_MAX):
        yield view[at : at + PIECE_BYTES_MAX]


async def _compressed(
    piece: Piece, rest: AsyncIterator[Piece], packer: Packer | None
) -> AsyncIterator[Piece]:
    """Yield the pieces of a body, compressed if there is a packer. No piece is empty. ``piece`` is the first one."""
    while piece:
        if packer is None:
            yield piece
        elif packed := await _compress(packer, piece, zlib.Z_SYNC_FLUSH):
            yield packed
        piece = await anext(rest, b"")
    if packer is not None:
        yield packer.flush(zlib.Z_FINISH)


async def _compress(packer: Packer, data: Piece, mode: int) -> bytes:
    if len(data) < THREAD_BYTES_MIN:
        return packer.compress(data) + packer.flush(mode)
    return await asyncio.to_thread(lambda: packer.compress(data) + packer.flush(mode))


def accepts_gzip(headers: Mapping[str, str]) -> bool:
    """Return whether the client accepts gzip: it names it, without ``q=0``."""
    sent = headers.get("Accept-Encoding")
    if sent is None or "gzip" not in sent.lower():
        return False
    for part in sent.lower().split(","):
        coding, _, weight = part.partition(";")
        if coding.strip() == "gzip":
            return not _ZERO_WEIGHT.fullmatch(weight.strip())
    return False
