"""Sending answers: framing, compression, and patience with slow readers.

A reply goes out in one write. A stream goes out chunk by chunk, and the next chunk is made only when the
reader has taken enough of the last: what one connection holds is one chunk and a buffer. A reader that
takes nothing at all for a while is cut off; one that is merely slow is not.

What fails after the status line can't be told in it. Then the connection is cut without the last
chunk, and consumers know that something is missing.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Mapping
from typing import Final, Protocol

from broker.api.exchange import Exchange
from broker.api.incoming import GZIP_WINDOW
from broker.api.replies import CHUNKED, LAST_CHUNK, Answer, Piece, Reply, Stream

GZIP: Final = ("Content-Encoding", "gzip")
GZIP_BYTES_MIN: Final = 1024
GZIP_LEVEL: Final = 1
THREAD_BYTES_MIN: Final = 64 * 1024
"""From this size on, compressing would keep others waiting, so a thread does it."""

_ZERO_WEIGHT = re.compile(r"q\s*=\s*0(\.0{0,3})?")


class Packer(Protocol):
    """What zlib's compressor does; it has no name there."""

    def compress(self, data: Piece, /) -> bytes:
        """Take data, and give out what is ready."""

    def flush(self, mode: int, /) -> bytes:
        """Give out the rest."""


class ReaderStalled(ConnectionError):
    """The client took nothing of its reply for too long."""


def send_at_once(exchange: Exchange, reply: Reply, tail: bytes) -> bool:
    """Send a small reply that needs no work; False, and nothing is sent, if it is another.

    Most replies are such; what makes sending difficult begins with Outgoing.
    """
    connection = exchange.connection
    transport = connection.transport
    if (
        len(reply.body) >= GZIP_BYTES_MIN
        or reply.chunked
        or transport is None
        or transport.is_closing()
        or connection.writing_paused
        or exchange.method == "HEAD"
    ):
        return False
    transport.write(reply.head + tail + reply.body)
    return True


class Outgoing:
    """Where one answer goes. ``tail`` is the part of the head that only this request knows."""

    __slots__ = ("_exchange", "_stall_s", "_tail", "began")

    def __init__(self, exchange: Exchange, tail: bytes, stall_s: float) -> None:
        """Send to the client of ``exchange``; ``stall_s`` bounds a reader's standstill."""
        self._exchange = exchange
        self._tail = tail
        self._stall_s = stall_s
        self.began = False
        """Whether something was sent: then no other answer can be."""

    async def send(self, answer: Answer) -> None:
        """Send an answer whole.

        Raises:
            ConnectionError: the client is gone, or took nothing for too long.
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
        if len(reply.body) >= GZIP_BYTES_MIN and accepts_gzip(self._exchange.headers):
            packer = zlib.compressobj(GZIP_LEVEL, wbits=GZIP_WINDOW)
            body = await _pack(packer, reply.body, zlib.Z_FINISH)
            reply = reply.with_body(body, GZIP, chunked=reply.chunked)
        if reply.chunked and not self._takes_chunks:
            reply = reply.with_body(reply.body, chunked=False)
        body = b"" if self._exchange.method == "HEAD" else reply.framed
        await self._write(reply.head + self._tail, body)

    async def _send_stream(self, stream: Stream) -> None:
        first = await anext(stream.chunks, b"")
        packer = None
        headers = [CHUNKED] if self._takes_chunks else []
        if (
            stream.compressible
            and len(first) >= GZIP_BYTES_MIN
            and accepts_gzip(self._exchange.headers)
        ):
            packer = zlib.compressobj(GZIP_LEVEL, wbits=GZIP_WINDOW)
            headers.append(GZIP)
        head = stream.head(*headers) + self._tail
        pieces = _packed(first, stream.chunks, packer)
        del (
            first
        )  # It is let go once it is sent, though this call lasts as long as the reader likes.
        async for piece in pieces:
            if self._takes_chunks:
                await self._write(head + b"%x\r\n" % len(piece), piece, b"\r\n")
            else:
                await self._write(head, piece)
            head = b""
        await self._write(head + (LAST_CHUNK if self._takes_chunks else b""))

    @property
    def _takes_chunks(self) -> bool:
        return self._exchange.takes_chunks

    async def _write(self, *parts: Piece) -> None:
        transport = self._exchange.connection.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("The client is gone.")
        self.began = True
        # Not joined: a large part would be copied, and then be there twice while a reader is slow.
        transport.writelines(parts)
        if self._exchange.connection.writing_paused:
            await self._drain(transport)

    async def _drain(self, transport: asyncio.Transport) -> None:
        """Wait until the reader has taken most of what was written."""
        drained = asyncio.ensure_future(self._exchange.writer.drain())
        left = transport.get_write_buffer_size()
        try:
            while not (await asyncio.wait((drained,), timeout=self._stall_s))[0]:
                before, left = left, transport.get_write_buffer_size()
                if left >= before:
                    transport.abort()
                    raise ReaderStalled(f"Nothing was read for {self._stall_s:g} seconds.")
            drained.result()
        finally:
            drained.cancel()


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
