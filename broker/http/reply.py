"""Replies as values; the one place that makes a reply from an error; and the sending of replies.

A small reply is one write. Other replies are sent piece by piece: aiohttp takes the next piece only after the client has
read most of the last one. So a connection holds one piece and a buffer. The bytes that a reply holds until the client
reads them are counted (see ``budget``). ``Connection`` cuts clients that read too slowly.

The status line can't report an error that happens after it was sent. Then the connection is cut without the last
chunk, so consumers know that bytes are missing.
"""

from __future__ import annotations

import asyncio
import math
import re
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, Protocol

import orjson
from aiohttp import HttpVersion11, web

from broker.errors import BadRequest, BrokerError, CursorMoved, UnavailableError
from broker.http.body import GZIP_WINDOW
from broker.http.budget import BudgetKind, Usage
from broker.long_work import Pace
from broker.operations.media_types import AVRO_JSON, JSON, PLAIN
from broker.operations.parameters import REPLAYED_HEADER

_OF_JSON = (JSON, AVRO_JSON)

RETRY_AFTER_S = 1.0
TEXT_CHARACTERS_MAX = 2000

GZIP_BYTES_MIN: Final = 1024
GZIP_LEVEL: Final = 1
THREAD_BYTES_MIN: Final = 64 * 1024
"""From this size on, a thread compresses: on the loop it would delay other requests."""
PIECE_BYTES_MAX: Final = 256 * 1024
ENCODING: Final = "Content-Encoding"

_ZERO_WEIGHT = re.compile(r"q\s*=\s*0(\.0{0,3})?")

Piece = bytes | memoryview
"""A piece of a streamed body: bytes, or a view of memory that is sent without a copy."""

Headers = tuple[tuple[str, str], ...]


_QUOTED: Final = re.compile(r":?\s*\bb['\"]")


@dataclass(slots=True, eq=False, repr=False)
class Reply:
    """A whole answer. An empty ``content_type`` means that the header is absent.

    ``close`` ends the connection after the answer. ``chunked`` sends the body in HTTP chunks, for consumers that
    expect them; the body must not be empty then.
    """

    status: int = 200
    body: bytes = b""
    content_type: str = ""
    headers: Headers = ()
    _: KW_ONLY
    close: bool = False
    chunked: bool = False

    def with_headers(self, *headers: tuple[str, str]) -> Reply:
        """Return this reply with more headers."""
        return Reply(
            self.status,
            self.body,
            self.content_type,
            (*self.headers, *headers),
            close=self.close,
            chunked=self.chunked,
        )


@dataclass(slots=True, eq=False, repr=False)
class ChunkedReply:
    """An answer whose body is made while it is sent. Each item becomes one or more HTTP chunks, so no item may be empty.

    ``compressible`` bodies are gzipped if the client accepts that. If the client has gone, the sender closes the
    generator of the chunks with ``aclose``. The status is always 200: an error before the stream begins makes a Reply
    instead.
    """

    chunks: AsyncGenerator[Piece, None]
    content_type: str
    headers: Headers = ()
    _: KW_ONLY
    compressible: bool = True
    status: int = field(default=200, init=False)


Answer = Reply | ChunkedReply

EMPTY = Reply()
EMPTY_REPLAYED = Reply(headers=((REPLAYED_HEADER, "true"),))


def json_reply(value: object, status: int = 200, headers: Headers = ()) -> Reply:
    """Answer with a value as JSON."""
    return Reply(status, orjson.dumps(value), JSON, headers)


def media_type(headers: Mapping[str, str]) -> str:
    """Return the type of a request's body, without parameters, in lower case. Empty if the header is missing."""
    return headers.get("Content-Type", "").partition(";")[0].strip().lower()


def names_json(headers: Mapping[str, str]) -> bool:
    """Return whether an error should be JSON: the client names JSON in Accept, or sent JSON."""
    accepted = headers.get("Accept", "").lower()
    return media_type(headers) in _OF_JSON or any(kind in accepted for kind in _OF_JSON)


def retry_after_s(error: BrokerError) -> int:
    """Return the whole seconds for Retry-After, at least one."""
    return max(1, math.ceil(error.retry_after_s or RETRY_AFTER_S))


def error_reply(
    error: BrokerError, headers: Mapping[str, str], more: Headers = (), *, close: bool = False
) -> Reply:
    """Return the reply for an error. ``headers`` are the request's; ``more`` are added to the reply."""
    reply_headers: list[tuple[str, str]] = [
        *more,
        ("Broker-Error", error.code),
        ("Broker-Outcome", error.outcome),
    ]
    if error.http_status == 503 or (isinstance(error, UnavailableError) and error.retriable):
        reply_headers.append(("Retry-After", str(retry_after_s(error))))
    message = error.message[:TEXT_CHARACTERS_MAX]
    if names_json(headers):
        told = {
            "code": error.code,
            "message": message.encode("utf-8", "replace").decode(),
            "retriable": error.retriable,
            "outcome": error.outcome,
        }
        if isinstance(error, CursorMoved):
            told["cursor"] = error.cursor
        body = orjson.dumps(told)
        content_type = JSON
    else:
        body, content_type = message.encode("utf-8", "replace"), PLAIN
    return Reply(error.http_status, body, content_type, tuple(reply_headers), close=close)


def not_http(reason: str) -> Reply:
    """Return the reply to bytes that are no request. The parser's ``reason`` quotes them, and the reply does not.

    They may be credentials in a wrong place, and replies end in the logs of clients.
    """
    told = _QUOTED.split(" ".join(reason.split()), maxsplit=1)[0][:200]
    return error_reply(BadRequest(f"This is not an HTTP request: {told!a}"), {})


def unexpected_reply(headers: Mapping[str, str], request_id: str) -> Reply:
    """Return the reply for an unexpected exception: the outcome is unknown."""
    error = BrokerError(f"Internal error; the log has the cause under request {request_id}.")
    return error_reply(error, headers)


# --- Sending --------------------------------------------------------------------------------------


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
