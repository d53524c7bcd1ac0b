"""What comes back for a request: an answer read whole, one that is read as it comes, or none.

Two questions decide what a lost connection means::

    was a byte of the request handed to the socket?     no: NotSent, the request may be repeated
    did an earlier answer say ``Connection: close``?    yes: NotSent, too; the server has not looked
                                                        at what came after that request
                                                        (RFC 9112, 9.6)

Anything else that gets no whole answer is NoAnswer: it is unknown whether the request was carried out.
What that means to the caller is judged elsewhere.

Of a streamed answer that its reader does not read, no more than a buffer is taken from the socket.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

STREAM_BUFFER_BYTES: Final = 256 * 1024
"""Of an answer that is read as it comes: what is taken from the socket before it is asked for."""


class NotSent(Exception):
    """The server has certainly seen nothing of the request, or will not look at it."""


class NoAnswer(Exception):
    """The request was sent, wholly or in part, and no whole answer came."""


class HttpAnswer(NamedTuple):
    """One HTTP answer, read to its end. The names of ``headers`` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class PieceSource(Protocol):
    """Where the pieces of a streamed answer come from: its connection."""

    def pause(self) -> None:
        """Take nothing from the socket for now."""

    def resume(self) -> None:
        """Go on after ``pause``."""

    def close(self) -> None:
        """Close it."""

    def give_up(self, reason: object) -> None:
        """Close it by the server's fault: the answer ends as unanswered, for that reason."""


class Streamed:
    """An answer that is read as it comes. ``status`` and ``headers`` are there once it has begun."""

    def __init__(self, connection: PieceSource, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for the answer's head from ``connection``."""
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.began: asyncio.Future[None] = loop.create_future()
        self._connection = connection
        self._loop = loop
        self._chunks: deque[bytes] = deque()
        self._bytes = 0
        self._ended = False
        self._failed: NoAnswer | None = None
        self._wanted: asyncio.Future[None] | None = None

    @property
    def ended(self) -> bool:
        """Whether all of it has arrived, though it may not have been read."""
        return self._ended

    async def chunk(self, silence_s: float | None = None) -> bytes:
        """Return what has arrived, as soon as there is something; no bytes are the end.

        Raises:
            NoAnswer: it was cut off, or nothing came for ``silence_s``.
        """
        while not self._chunks:
            if self._failed is not None:
                raise self._failed
            if self._ended:
                return b""
            self._wanted = self._loop.create_future()
            try:
                async with asyncio.timeout(silence_s):
                    await self._wanted
            except TimeoutError:
                self._connection.give_up(f"nothing came for {silence_s:g} s")
        return self._take()

    def close(self) -> None:
        """Read no further; the connection of an answer that has not ended is of no more use."""
        if self._ended:
            self._take()
        else:
            self._connection.close()

    def _take(self) -> bytes:
        chunks, self._chunks = self._chunks, deque()
        if self._bytes >= STREAM_BUFFER_BYTES:
            self._connection.resume()
        self._bytes = 0
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    # What the connection tells.

    def feed(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._chunks.append(body)
        self._bytes += len(body)
        if self._bytes >= STREAM_BUFFER_BYTES:
            self._connection.pause()
        self._wake()

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Take the head."""
        self.status, self.headers = status, headers
        if not self.began.done():
            self.began.set_result(None)

    def end(self) -> None:
        """Be told that all of it is there."""
        self._ended = True
        self._wake()

    def fail(self, error: NoAnswer | NotSent) -> None:
        """Be told that nothing more will come."""
        if not self.began.done():
            self.began.set_exception(error)
        elif not self._ended:
            self._failed = NoAnswer(*error.args)
        self._wake()

    def _wake(self) -> None:
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)
