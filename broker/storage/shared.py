"""One read for all callers that wait together. Each needs a read that began after it asked.

Few reads are under way at once; meanwhile callers gather, and share the next one. So reads
batch themselves under load as commits do, and a lone one waits for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

AT_ONCE = 2

Result = TypeVar("Result")


class SharedRead(Generic[Result]):
    """Calls ``read`` for its callers, as rarely as their needs allow."""

    __slots__ = ("_next", "_read", "_turns")

    def __init__(self, read: Callable[[], Awaitable[Result]]) -> None:
        """Begin with nothing under way."""
        self._read = read
        self._next: asyncio.Task[Result] | None = None
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def __call__(self) -> Result:
        """Return what a read that begins after this call returns, or raise as it does."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._in_turn())
            self._next.add_done_callback(_look_at)
        return await asyncio.shield(self._next)

    async def _in_turn(self) -> Result:
        async with self._turns:
            self._next = None  # A caller from here on came after this read began.
            return await self._read()


def _look_at(done: asyncio.Task[Result]) -> None:
    """Look at how it ended, since all callers may be gone."""
    if not done.cancelled():
        done.exception()
