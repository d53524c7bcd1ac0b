"""Send answers: framing, compression, and limits for slow clients.

A small reply is one write. Other replies are sent piece by piece: aiohttp takes the next piece only after the client has
read most of the last one. So a connection holds one piece and a buffer. The bytes that a reply holds until the client
reads them are counted (see ``budget``). ``Connection`` cuts clients that read too slowly.

The status line can't report an error that happens after it was sent. Then the connection is cut without the last
chunk, so consumers know that bytes are missing.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Final, Protocol

from aiohttp import HttpVersion11, web

from broker.http.budget import BudgetKind, Usage
from broker.http.inflater import GZIP_WINDOW
from broker.http.reply import Answer, ChunkedReply, Piece, Reply
from broker.long_work import Pace

GZIP_BYTES_MIN: Final = 1024
GZIP_LEVEL: Final = 1
THREAD_BYTES_MIN: Final = 64 * 1024
"""From this size on, a thread compresses: on the loop it would delay other requests."""
PIECE_BYTES_MAX: Final = 256 * 1024
ENCODING: Final = "Content-Encoding"

_ZERO_WEIGHT = re.compile(r"q\s*=\s*0(\.0{0,3})?")


class Packer(Protocol):
    """The interface of zlib's compressor, whose type has no public name."""

    def compress(self, data: Piece, /) -> bytes:
        """Take data and return the compressed bytes that are ready."""

    def flush(self, mode: int, /) -> bytes:
        """Return the rest."""


def response_of(
    http: web.BaseRequest, answer: Answer, lines: Sequence[tuple[str, str]]
) -> web.StreamResponse:
    """Return aiohttp's response for an answer. A small reply is a whole ``Response``: aiohttp sends it in one write."""
    if not isinstance(answer, Reply) or len(answer.body) >= GZIP_BYTES_MIN:
        return web.StreamResponse(status=answer.status, headers=lines)
    response = web.Response(status=answer.status, body=answer.body, headers=lines)
    if answer.chunked and http.version == HttpVersion11:
        response.enable_chunked_encoding()
    return response


async def send(
    http: web.BaseRequest, answer: Answer, response: web.StreamResponse, usage: Usage
) -> None:
    """Send a whole answer as this response, which ``response_of`` has made.

    Raises:
        ConnectionError: the client is gone, or read too little for too long.
        Overloaded: too many bytes of replies are unread, and this connection has the most of them.
        Exception: the error of a stream's maker.
    """
    if isinstance(answer, ChunkedReply):
        try:
            await _send_stream(http, answer, response, usage)
        finally:
            await answer.chunks.aclose()
    elif isinstance(response, web.Response):
        await response.prepare(http)
        await response.write_eof()
    else:
        await _send_reply(http, answer, response, usage)


async def _send_reply(
    http: web.BaseRequest, reply: Reply, response: web.StreamResponse, usage: Usage
) -> None:
    size, body = len(reply.body), reply.body
    usage.take(BudgetKind.REPLY_BYTES, size)
    if size >= GZIP_BYTES_MIN and accepts_gzip(http.headers):
        response.headers[ENCODING] = "gzip"
        packer = zlib.compressobj(GZIP_LEVEL, wbits=GZIP_WINDOW)
        body = await _compress(packer, body, zlib.Z_FINISH)
    if not (reply.chunked and http.version == HttpVersion11):
        response.content_length = len(body)
    await response.prepare(http)
    if http.method != "HEAD":
        for piece in _cut(body):
            await response.write(piece)
    await response.write_eof()
    usage.give(BudgetKind.REPLY_BYTES, size)


async def _send_stream(
    http: web.BaseRequest, stream: ChunkedReply, response: web.StreamResponse, usage: Usage
) -> None:
    if http.method == "HEAD":
        await response.prepare(http)
        await response.write_eof()
        return
    pace, first = Pace(), await anext(stream.chunks, b"")
    packer = None
    if stream.compressible and len(first) >= GZIP_BYTES_MIN and accepts_gzip(http.headers):
        packer = zlib.compressobj(GZIP_LEVEL, wbits=GZIP_WINDOW)
        response.headers[ENCODING] = "gzip"
    await response.prepare(http)
    pieces = _compressed(first, stream.chunks, packer)
    del first  # Free the first piece once it is sent: this call may last long.
    async for piece in pieces:
        usage.take(BudgetKind.REPLY_BYTES, len(piece))
        for part in _cut(piece):
            await response.write(part)
        # Only what was taken here: the maker of the stream counts what it holds itself.
        usage.give(BudgetKind.REPLY_BYTES, len(piece))
        await pace.step()  # The pieces may all be ready.
    await response.write_eof()


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
