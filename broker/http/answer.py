"""The results of a request: an answer read whole, a streamed answer, or no answer.

Two questions decide the meaning of a lost connection::

    was a byte of the request handed to the socket?     no: NotSent, the request may be repeated
    did an earlier answer say ``Connection: close``?    yes: NotSent, too; the server did not process
                                                        the requests behind that one
                                                        (RFC 9112, 9.6)

In all other cases without a whole answer, the result is NoAnswer: it is unknown whether the server executed the
request. The caller decides what follows from that.

If the reader of a streamed answer does not read, the connection takes at most one buffer from the socket.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from copy import copy
from typing import Any, Final, NamedTuple, Protocol

STREAM_BUFFER_BYTES: Final = 256 * 1024
"""How many bytes of a streamed answer are taken from the socket before the reader asks for them."""


class NotSent(Exception):
    """The server has certainly not received the request, or will not process it."""


class NoAnswer(Exception):
    """The request was sent, at least in part, and no whole answer came."""


class HttpAnswer(NamedTuple):
    """One whole HTTP answer. The names of ``headers`` are in lower case. ``url`` is the address that was asked."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str = ""


def json_of(body: bytes) -> Any:
    """Return the JSON value in the body of an answer. Any server may have sent it.

    Raises:
        ValueError: it is no JSON, or it is nested too deeply.
    """
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


class PieceSource(Protocol):
    """The source of a streamed answer: its connection."""

    def pause(self) -> None:
        """Stop reading from the socket for now."""

    def resume(self) -> None:
        """Read again after ``pause``."""

    def close(self) -> None:
        """Close the connection."""

    def give_up(self, reason: object) -> None:
        """Close the connection because the server failed: the answer fails with NoAnswer and this reason."""


class Streamed:
    """An answer that is read while it arrives. ``status`` and ``headers`` are set once it has begun."""

    def __init__(self, connection: PieceSource, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for the answer's head from ``connection``."""
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.began: asyncio.Future[None] = loop.create_future()
        self._connection = connection
        self._loop = loop
        self._chunks: deque[bytes] = deque()
        self._bytes = 0
        self.ended = False
        """True if the whole answer has arrived, even if it is not read yet."""
        self._failed: NoAnswer | None = None
        self._wanted: asyncio.Future[None] | None = None

    async def chunk(self, silence_s: float | None = None) -> bytes:
        """Wait for the next bytes and return them. Empty bytes mean the end.

        Raises:
            NoAnswer: the answer was cut off, or no byte came for ``silence_s``.
        """
        while not self._chunks:
            if self._failed is not None:
                raise copy(self._failed)  # The traceback of the kept error would lead back here.
            if self.ended:
                return b""
            self._wanted = self._loop.create_future()
            try:
                async with asyncio.timeout(silence_s):
                    await self._wanted
            except TimeoutError:
                self._connection.give_up(f"nothing came for {silence_s:g} s")
        return self._take()

    def close(self) -> None:
        """Stop reading. If the answer has not ended, close its connection, which can't be used again."""
        if self.ended:
            self._take()
        else:
            self._connection.close()

    def _take(self) -> bytes:
        chunks, self._chunks = self._chunks, deque()
        size, self._bytes = self._bytes, 0
        if size >= STREAM_BUFFER_BYTES:
            self._connection.resume()  # It may call ``feed`` at once.
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    # Called by the connection.

    def feed(self, body: bytes) -> None:
        """Add a piece of the body."""
        self._chunks.append(body)
        self._bytes += len(body)
        if self._bytes >= STREAM_BUFFER_BYTES:
            self._connection.pause()
        self._wake()

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Set the status and the headers."""
        self.status, self.headers = status, headers
        if not self.began.done():
            self.began.set_result(None)

    def end(self) -> None:
        """Note that the whole answer has arrived."""
        self.ended = True
        self._wake()

    def fail(self, error: NoAnswer | NotSent) -> None:
        """Note that no more bytes will come, and why."""
        if not self.began.done():
            self.began.set_exception(error)
        elif not self.ended:
            self._failed = NoAnswer(*error.args)
        self._wake()

    def _wake(self) -> None:
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)
