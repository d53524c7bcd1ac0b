"""Sending answers: framing, compression, and patience with slow readers.

A small reply goes out in one write. Others go out piece by piece, and the next piece is made, or written,
only when the reader has taken enough of the last: one connection holds a piece and a buffer. What a reply
makes the node hold until it is read is counted (see ``budget``).

A reader that takes too little within ``stall_s`` is cut off: nothing at all, or less than a rate that the
slowest line has. What fails after the status line can't be told in it. Then the connection is cut without the
last chunk, and consumers know that something is missing.
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

if TYPE_CHECKING:
    from broker.http.inbound import Connection

GZIP: Final = ("Content-Encoding", "gzip")
GZIP_BYTES_MIN: Final = 1024
GZIP_LEVEL: Final = 1
THREAD_BYTES_MIN: Final = 64 * 1024
"""From this size on, compressing would keep others waiting, so a thread does it."""
PIECE_BYTES_MAX: Final = 256 * 1024
TAKEN_BYTES_A_SECOND_MIN: Final = 512
"""The least that a reader must take, on average over the time that it may stand still."""

_ZERO_WEIGHT = re.compile(r"q\s*=\s*0(\.0{0,3})?")


class Packer(Protocol):
    """What zlib's compressor does; it has no name there."""

    def compress(self, data: Piece, /) -> bytes:
        """Take data, and give out what is ready."""

    def flush(self, mode: int, /) -> bytes:
        """Give out the rest."""


class SlowReaderLimits(NamedTuple):
    """How slow a reader may be: how long it may take nothing, and how little it may take."""

    stall_s: float
    bytes_a_second_min: int = TAKEN_BYTES_A_SECOND_MIN


class ReaderStalled(ConnectionError):
    """The client took nothing, or next to nothing, of its reply for too long."""


def send_at_once(connection: Connection, reply: Reply, tail: bytes, method: str) -> bool:
    """Send a small reply that needs no work; False, and nothing is sent, if it is another.

    Most replies are such; what makes sending difficult begins with Outgoing.
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
    """Where one answer goes. ``tail`` is the part of the head that only this request knows."""

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
        """Send to the client of a request with this method and these headers."""
        self._connection = connection
        self._method = method
        self._headers = headers
        self._tail = tail
        self._hold = hold
        self._slow = slow
        self.began = False
        """Whether something was sent: then no other answer can be."""

    async def send(self, answer: Answer) -> None:
        """Send an answer whole.

        Raises:
            ConnectionError: the client is gone, or took too little for too long.
            Overloaded: too many bytes of replies are unread, and those of this connection most of all.
            Exception: what the maker of a stream raised.
        """
        if isinstance(answer, Reply):
            await self._send_reply(answer)
            return
        try:
            await self._send_stream(answer)
        finally:
            await answer.chunks.aclose()

    async def _send_reply(self, reply: Reply) -> None:
        self._hold.take(BudgetKind.REPLY_BYTES, len(reply.body))
        if len(reply.body) >= GZIP_BYTES_MIN and accepts_gzip(self._headers):
            packer = zlib.compressobj(GZIP_LEVEL, wbits=GZIP_WINDOW)
            body = await _pack(packer, reply.body, zlib.Z_FINISH)
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
        self._hold.give(BudgetKind.REPLY_BYTES)

    async def _send_stream(self, stream: ChunkedReply) -> None:
        first = await anext(stream.chunks, b"")
        packer = None
        headers = [CHUNKED] if self._takes_chunks else []
        if stream.compressible and len(first) >= GZIP_BYTES_MIN and accepts_gzip(self._headers):
            packer = zlib.compressobj(GZIP_LEVEL, wbits=GZIP_WINDOW)
            headers.append(GZIP)
        head = stream.head(*headers) + self._tail
        pieces = _packed(first, stream.chunks, packer)
        del (
            first
        )  # It is let go once it is sent, though this call lasts as long as the reader likes.
        async for piece in pieces:
            self._hold.take(BudgetKind.REPLY_BYTES, len(piece))
            if self._takes_chunks:
                await self._write(head + b"%x\r\n" % len(piece), piece, b"\r\n")
            else:
                await self._write(head, piece)
            self._hold.give(BudgetKind.REPLY_BYTES)
            head = b""
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
        """Wait until the reader has taken most of what was written."""
        connection, slow = self._connection, self._slow
        left = connection.unsent_bytes
        while not await connection.drained(slow.stall_s):
            before, left = left, connection.unsent_bytes
            if before - left < slow.stall_s * slow.bytes_a_second_min:
                connection.force_close()
                raise ReaderStalled(f"Too little was read for {slow.stall_s:g} seconds.")


def _cut(body: Piece) -> Iterator[Piece]:
    """Yield a body in pieces, without copying it."""
    if len(body) <= PIECE_BYTES_MAX:
        if body:
            yield body
        return
    view = memoryview(body)
    for at in range(0, len(view), PIECE_BYTES_MAX):
        yield view[at : at + PIECE_BYTES_MAX]


async def _packed(
    piece: Piece, rest: AsyncIterator[Piece], packer: Packer | None
) -> AsyncIterator[Piece]:
    """Yield the pieces of a body that are to be sent, none of them empty; ``piece`` is the first."""
    while piece:
        if packer is None:
            yield piece
        elif packed := await _pack(packer, piece, zlib.Z_SYNC_FLUSH):
            yield packed
        piece = await anext(rest, b"")
    if packer is not None:
        yield packer.flush(zlib.Z_FINISH)


async def _pack(packer: Packer, data: Piece, mode: int) -> bytes:
    if len(data) < THREAD_BYTES_MIN:
        return packer.compress(data) + packer.flush(mode)
    return await asyncio.to_thread(lambda: packer.compress(data) + packer.flush(mode))


def accepts_gzip(headers: Mapping[str, str]) -> bool:
    """Whether the client names gzip and does not rule it out with ``q=0``."""
    sent = headers.get("Accept-Encoding")
    if sent is None or "gzip" not in sent.lower():
        return False
    for part in sent.lower().split(","):
        coding, _, weight = part.partition(";")
        if coding.strip() == "gzip":
            return not _ZERO_WEIGHT.fullmatch(weight.strip())
    return False
