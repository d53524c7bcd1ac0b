"""One read for all callers that wait together. Each caller needs a read that began after its call.

At most AT_ONCE reads are in flight. Callers that come meanwhile wait, and share the next read. So under load
one read serves a batch of callers, as in a group commit. A lone caller does not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from broker.shield import begin, result_of

AT_ONCE = 2

Result = TypeVar("Result")


class SharedRead(Generic[Result]):
    """Calls ``read`` for its callers, with as few calls as possible."""

    __slots__ = ("_next", "_read", "_turns")

    def __init__(self, read: Callable[[], Awaitable[Result]]) -> None:
        """Begin with no read in flight."""
        self._read = read
        self._next: asyncio.Task[Result] | None = None
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def __call__(self) -> Result:
        """Return the result of a read that begins after this call, or raise its error."""
        if self._next is None:
            self._next = begin(self._in_turn())
        return await result_of(self._next)

    async def _in_turn(self) -> Result:
        async with self._turns:
            self._next = None  # A later caller must not share this read: it begins now.
            return await self._read()
