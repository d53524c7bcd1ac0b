"""Read a request's body, within bounds of size and time.

Most bodies have arrived in one piece before they are read, and then reading costs one length check. Other bodies
come in pieces, with or without a Content-Length, and may be compressed::

    Content-Length over the bound?        413, before a byte is read
    piece by piece                        over the bound: 413; too slow: 400
    Content-Encoding: gzip                inflated step by step, over its own bound: 413
    over a budget                         413 or 503, or the largest holder is cut (see ``budget``)

The reader counts each byte in the request's usage before it keeps the byte. It counts room for the output of an
inflating step before the step. The server gives the usage back at the end of the request; a handler that has decoded
the body gives it back earlier.

Only small steps run on the event loop. Larger steps run in two threads of their own, so storage never waits for bodies,
and bodies never wait for storage.

After a refusal the rest of the body is useless, so the connection ends with the reply.

A few bytes of gzip can inflate to a thousand times as many. So the reader makes room in the budget before it takes a
step, and takes the steps of large bodies in a thread. zlib lets other threads run while it inflates. Only the copying of
one step holds them up, for about 0.1 ms. A gzip may have several members, one behind the other. Each member costs about
the same, even an empty one, so their number is bounded, too. The bound is enough for tools that write one member for
every 64 KiB.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from aiohttp import StreamReader

from broker.config.sections import Config, ServerConfig
from broker.errors import BadRequest, BodyTooLarge, BrokerError
from broker.http.budget import BudgetKind, Usage
from broker.http.pieces import SLAB_BYTES, DroppedSlabs, Pieces
from broker.long_work import FairLock
from broker.shield import bare

THREADS: Final = 2
COUNTED_BYTES_MIN: Final = 1024
"""A smaller body that has arrived whole is not counted: it belongs to the fixed cost of a connection."""
LOOP_GZIP_BYTES_MAX: Final = 64 * 1024
LOOP_INFLATED_BYTES_MAX: Final = 256 * 1024
LOOP_MEMBERS_MAX: Final = 8
"""A body within these three bounds is inflated on the event loop. That takes less than 2 ms."""
FREE_CHUNKS: Final = 1000
CHUNK_BYTES_MEAN_MIN: Final = 64
"""After ``FREE_CHUNKS`` chunks, their mean size must reach this: one chunk costs as much as some hundred bytes."""
GZIP_WINDOW: Final = 31
STEP_BYTES_MAX: Final = 256 * 1024
STEP_MEMBERS_MAX: Final = 16
MEMBERS_MAX: Final = 4_096
_SLICE_BYTES: Final = 64 * 1024
"""How much input zlib gets at once. zlib copies the input that it has not used, so this bounds the copy."""
_ENCODING: Final = "Content-Encoding"
_CODING: Final = "Transfer-Encoding"

_Result = TypeVar("_Result")


class BodyReader:
    """Reads bodies. The request's usage counts the bytes read."""

    def __init__(self, config: Config) -> None:
        """Take the bounds from the configuration."""
        self._bytes_max = config.limits.body_bytes_max
        self._counted_bytes_min = min(COUNTED_BYTES_MIN, self._bytes_max)
        self._inflated_bytes_max = config.limits.body_inflated_bytes_max
        self._config = config.server
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="body")
        self._fair = FairLock(THREADS)
        self._dropped = DroppedSlabs()

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def ready(
        self,
        content: StreamReader,
        headers: Mapping[str, str],
        usage: Usage,
        bytes_max: int | None = None,
    ) -> bytes | None:
        """Return a body that has arrived whole and is not compressed, and count it. Return None for any other.

        ``bytes_max`` is the largest body of the route, if that is less than the configured maximum.

        Raises:
            BodyTooLarge, Overloaded, Cut: as ``read`` does.
        """
        if not content.is_eof() or _ENCODING in headers or _CODING in headers:
            return None
        body = content.read_nowait()
        if len(body) >= self._counted_bytes_min:
            _check_size(len(body), _least(self._bytes_max, bytes_max))
            usage.take(BudgetKind.BODY_BYTES, len(body))
        return body

    def check_told(self, headers: Mapping[str, str], bytes_max: int | None = None) -> None:
        """Refuse a body by its headers, before it is read.

        Raises:
            BadRequest: its encoding is not supported.
            BodyTooLarge: its Content-Length is over the bound.
        """
        _is_gzip(headers)
        _check_size(int(headers.get("Content-Length", 0)), _least(self._bytes_max, bytes_max))

    async def read(
        self,
        content: StreamReader,
        headers: Mapping[str, str],
        usage: Usage,
        bytes_max: int | None = None,
    ) -> bytes:
        """Read a body, and inflate it if it is compressed. ``usage`` counts its bytes.

        ``bytes_max`` is the largest body of the route, both as sent and as inflated.

        Raises:
            BadRequest: the body stalled or came too slowly; is cut off or badly framed; is not gzip although its
                header says so; or has another encoding.
            BodyTooLarge: the body is over a bound, as sent or as inflated; or this connection holds too much.
            Overloaded: a budget is used up.
            ConnectionError: the client is gone, or its connection was cut to make room.
        """
        self.check_told(headers, bytes_max)
        inflater = None
        if _is_gzip(headers):
            inflater = Inflater(_least(self._inflated_bytes_max, bytes_max))
        pieces = Pieces(self._dropped)
        try:
            body = Body(content, _CODING in headers, self._config, asyncio.get_running_loop().time)
            sent_max = _least(self._bytes_max, bytes_max)
            await self._read_all(body, sent_max, inflater, pieces, usage)
            # A cut of the connection has refused the request, perhaps after the last byte was taken.
            usage.take(BudgetKind.BODY_BYTES, 0)
            return await self._joined(pieces, usage)
        except BaseException:
            # The content keeps the error, and the error keeps this frame and with it the pieces. So clear them.
            pieces.clear()
            usage.give(BudgetKind.BODY_BYTES)
            raise

    async def _read_all(
        self, body: Body, sent_max: int, inflater: Inflater | None, pieces: Pieces, usage: Usage
    ) -> None:
        sent = 0
        while piece := await body.next():
            sent += len(piece)
            _check_size(sent, sent_max)
            usage.take(BudgetKind.BODY_BYTES, len(piece))
            if inflater is None:
                pieces.add(piece)
            else:
                await self._inflate(piece, inflater, pieces, usage)
                usage.give(BudgetKind.BODY_BYTES, len(piece))
        if inflater is not None:
            inflater.finish()

    async def _inflate(
        self, piece: bytes, inflater: Inflater, pieces: Pieces, usage: Usage
    ) -> None:
        inflater.feed(piece)
        while inflater.has_more:
            room = inflater.step_bytes_max
            usage.take(BudgetKind.BODY_BYTES, room)
            if _is_small(inflater):
                part = inflater.step()
            else:
                part = await usage.unless_ended(self._in_thread(inflater.step))
            usage.give(BudgetKind.BODY_BYTES, room - len(part))
            pieces.add(part)

    async def _joined(self, pieces: Pieces, usage: Usage) -> bytes:
        """Return all pieces as one. Joining much takes 0.5 ms per MiB, so a thread does it: it lets the loop run."""
        if pieces.size < SLAB_BYTES:
            return pieces.joined()
        usage.take(BudgetKind.BODY_BYTES, pieces.size)
        body = await usage.unless_ended(self._in_thread(pieces.joined))
        usage.give(BudgetKind.BODY_BYTES, pieces.size)
        return body

    async def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        """Call work in a thread, in the turn of its caller. If this call is cancelled, it waits for work that has begun."""
        async with self._fair:
            running = asyncio.get_running_loop().run_in_executor(self._threads, work)
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                await asyncio.wait((running,))
                running.exception()  # Retrieved here, because no caller is left.
                raise


@dataclass(slots=True, eq=False)
class Body:
    """The body of one request, as aiohttp reads it from the socket, and how long to wait for its pieces.

    The client has a credit of ``body_stall_s`` seconds. Waiting uses the credit up. Each byte restores the time that it may
    take at the lowest rate, but the credit never exceeds ``body_stall_s``. So a body that stalls fails after that time, and
    a body that trickles fails, too, even if much came before. ``body_deadline_s`` bounds the whole body. The time that this
    node needs to inflate does not use the credit. ``now`` returns monotonic seconds.
    """

    content: StreamReader
    in_chunks: bool
    config: ServerConfig
    now: Callable[[], float]
    _number: int = field(default=0, init=False)
    _size: int = field(default=0, init=False)
    _left_s: float = field(init=False)
    _until: float = field(init=False)

    def __post_init__(self) -> None:
        """Start the time now."""
        self._left_s = self.config.body_stall_s
        self._until = self.now() + self.config.body_deadline_s

    async def next(self) -> bytes:
        """Return the next piece, empty at the end. Raises BadRequest, ConnectionError."""
        began = self.now()
        left_s = self.left_s(began)
        try:
            async with asyncio.timeout(left_s):
                piece = await (self._chunk() if self.in_chunks else self.content.readany())
        except TimeoutError as error:
            raise BadRequest(self._why(left_s)) from bare(error)
        except (ConnectionError, BrokerError):
            raise
        except Exception as error:
            # aiohttp reports its errors here.
            raise BadRequest(f"The body can't be read: {error}.") from error
        self.came(len(piece), self.now() - began)
        return piece

    async def _chunk(self) -> bytes:
        """Return the next piece of a body in chunks. Raises BadRequest if they are too small."""
        piece, is_end = await self.content.readchunk()
        while is_end and not piece:  # The end of a chunk whose bytes are read.
            piece, is_end = await self.content.readchunk()
        self._number += 1
        self._size += len(piece)
        if self._number > FREE_CHUNKS and self._size < self._number * CHUNK_BYTES_MEAN_MIN:
            raise BadRequest(
                f"The chunks of this body are too small: send at least {CHUNK_BYTES_MEAN_MIN} bytes in each."
            )
        return piece

    def left_s(self, now: float) -> float:
        """Return how long to wait for the next piece. At 0 or below, the time is over."""
        return min(self._left_s, self._until - now)

    def came(self, size: int, waited_s: float) -> None:
        """Count a piece and the time waited for it."""
        restored_s = size / self.config.body_bytes_per_s_min
        self._left_s = min(self.config.body_stall_s, self._left_s - waited_s + restored_s)

    def _why(self, left_s: float) -> str:
        if left_s < self._left_s:
            return f"The body did not arrive whole within {self.config.body_deadline_s:g} seconds."
        return (
            f"The body stalled for {self.config.body_stall_s:g} seconds, or came more slowly than "
            f"{self.config.body_bytes_per_s_min} bytes a second."
        )


@dataclass(slots=True, eq=False, repr=False)
class Inflater:
    """Inflates one body, fed piece by piece. ``bytes_max`` bounds the inflated size of all members together.

    ``read`` are the bytes of all pieces, as sent.
    """

    bytes_max: int
    members: int = field(default=0, init=False)
    read: int = field(default=0, init=False)
    inflated: int = field(default=0, init=False)
    _member: Any = field(default=None, init=False)
    _piece: memoryview = field(default=memoryview(b""), init=False)
    _at: int = field(default=0, init=False)

    def feed(self, piece: bytes) -> None:
        """Take the next piece. The last piece must be used up."""
        self._piece, self._at = memoryview(piece), 0
        self.read += len(piece)

    @property
    def has_more(self) -> bool:
        """True if the piece has bytes that no step has used yet."""
        return self._at < len(self._piece)

    @property
    def step_bytes_max(self) -> int:
        """The most bytes that the next step makes: at most one byte past the bound."""
        return min(STEP_BYTES_MAX, self.bytes_max - self.inflated + 1)

    def step(self) -> bytes:
        """Return the next inflated bytes. Raises BadRequest, BodyTooLarge."""
        room, members_max = self.step_bytes_max, self.members + STEP_MEMBERS_MAX
        parts: list[bytes] = []
        while room and self.has_more and self.members < members_max:
            part = self._next(room)
            room -= len(part)
            self.inflated += len(part)
            parts.append(part)
        if self.inflated > self.bytes_max:
            raise BodyTooLarge(
                f"A body may inflate to at most {self.bytes_max:,} bytes here. This one is larger."
            )
        return b"".join(parts)

    def _next(self, room: int) -> bytes:
        if self._member is None or self._member.eof:
            if self.members == MEMBERS_MAX:
                raise BadRequest(f"The body's gzip has more than {MEMBERS_MAX:,} members. Use one.")
            self.members += 1
            self._member = zlib.decompressobj(GZIP_WINDOW)
        member = self._member
        given = self._piece[self._at : self._at + _SLICE_BYTES]
        try:
            part: bytes = member.decompress(given, room)
        except zlib.error as error:
            raise BadRequest(f"The body is not gzip: {error}.") from error
        self._at += len(given) - len(member.unused_data or member.unconsumed_tail)
        return part

    def finish(self) -> None:
        """Raise BadRequest unless the last member is whole. An empty body is whole."""
        if self._member is not None and not self._member.eof:
            raise BadRequest("The body's gzip is cut off.")


def _is_small(inflater: Inflater) -> bool:
    return (
        inflater.read <= LOOP_GZIP_BYTES_MAX
        and inflater.inflated <= LOOP_INFLATED_BYTES_MAX
        and inflater.members <= LOOP_MEMBERS_MAX
    )


def _is_gzip(headers: Mapping[str, str]) -> bool:
    """Return whether the body is gzip, by its headers. Raises BadRequest for another coding, or several."""
    if _ENCODING not in headers:
        return False
    codings = list(_codings(headers))
    if codings and codings not in (["gzip"], ["x-gzip"]):
        raise BadRequest(
            f"{_ENCODING} {', '.join(codings)!a:.80} is not supported. Use gzip once, or no encoding."
        )
    return bool(codings)


def _codings(headers: Mapping[str, str]) -> Iterable[str]:
    """Yield the codings in all lines of the header, without ``identity``."""
    for name, value in headers.items():
        if name.lower() == _ENCODING.lower():
            for coding in value.lower().split(","):
                if coding.strip() not in {"", "identity"}:
                    yield coding.strip()


def _least(configured: int, bytes_max: int | None) -> int:
    return configured if bytes_max is None else min(configured, bytes_max)


def _check_size(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise BodyTooLarge(f"A body may have at most {bytes_max:,} bytes here. This one has more.")
