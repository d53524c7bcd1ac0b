"""Pass the body of one request from its connection to its reader."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from copy import copy
from typing import Final

UNREAD_BYTES_MAX: Final = 128 * 1024
"""The connection stops reading its socket when so many bytes of a body are unread."""


class Content:
    """A body that arrives in pieces. ``told`` is its Content-Length; None without one."""

    __slots__ = ("_ended", "_error", "_pieces", "_room", "_unread", "_waiting", "told")

    def __init__(self, told: int | None, room: Callable[[], None]) -> None:
        """Begin empty. ``room`` is called when the body was full and has room again."""
        self.told = told
        self._room = room
        self._pieces: deque[bytes] = deque()
        self._unread = 0
        self._ended = False
        self._error: Exception | None = None
        self._waiting: asyncio.Future[None] | None = None

    @property
    def is_full(self) -> bool:
        """True if so much is unread that the connection should stop reading."""
        return self._unread >= UNREAD_BYTES_MAX

    @classmethod
    def whole(cls, body: bytes) -> Content:
        """Return a body that has arrived whole."""
        content = cls(len(body), lambda: None)
        content.add(body)
        content.end()
        return content

    def add(self, piece: bytes) -> None:
        """Add a piece that has arrived."""
        if piece:
            self._pieces.append(piece)
            self._unread += len(piece)
            self._wake()

    def end(self) -> None:
        """Note that the body has arrived whole."""
        self._ended = True
        self._wake()

    def fail(self, error: Exception) -> None:
        """Note that the body is cut off, and why."""
        if not self._ended and self._error is None:
            self._error = error
            self._wake()

    async def readany(self) -> bytes:
        """Wait for a piece and return it; empty at the end. Raises the error given to ``fail``."""
        while not self._pieces:
            if self._error is not None:
                raise copy(self._error)  # The traceback of the kept error would lead back here.
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
