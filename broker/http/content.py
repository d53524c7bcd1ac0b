"""The body of one request, from the connection that it comes on to the reader that asks for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

UNREAD_BYTES_MAX: Final = 128 * 1024
"""When so much of a body is unread, its socket is not read any further."""


class Content:
    """Bytes that come in pieces. ``told`` is the length that the head tells; None: none is told."""

    __slots__ = ("_ended", "_error", "_pieces", "_room", "_unread", "_waiting", "told")

    def __init__(self, told: int | None, room: Callable[[], None]) -> None:
        """Begin empty; ``room`` is called when a full one was read."""
        self.told = told
        self._room = room
        self._pieces: deque[bytes] = deque()
        self._unread = 0
        self._ended = False
        self._error: Exception | None = None
        self._waiting: asyncio.Future[None] | None = None

    @property
    def is_full(self) -> bool:
        """Whether so much is unread that no more should come."""
        return self._unread >= UNREAD_BYTES_MAX

    @classmethod
    def whole(cls, body: bytes) -> Content:
        """Return a body that has come."""
        content = cls(len(body), lambda: None)
        content.add(body)
        content.end()
        return content

    def add(self, piece: bytes) -> None:
        """Take what has come."""
        if piece:
            self._pieces.append(piece)
            self._unread += len(piece)
            self._wake()

    def end(self) -> None:
        """Take note that all has come."""
        self._ended = True
        self._wake()

    def fail(self, error: Exception) -> None:
        """Take note that no more comes, though more should."""
        if not self._ended and self._error is None:
            self._error = error
            self._wake()

    async def readany(self) -> bytes:
        """Wait for a piece; empty at the end. Raises what ``fail`` was given."""
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self._ended:
                return b""
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        piece = self._pieces.popleft()
        was_full, self._unread = self.is_full, self._unread - len(piece)
        if was_full and not self.is_full:
            self._room()
        return piece

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
