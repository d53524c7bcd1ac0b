"""Room for reads of large pages: a read takes it before storage is asked, and gives it back with the entries.

A page has about 2 MiB, or one large entry more. Requests of 100 bytes can ask for many such pages at once, and a page
can't be counted for its request before it was read. So the reads of a node share this room, in the order in which
they came. With the entries in hand, the reader counts them for its request at once (see ``http.budget``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from broker.errors import Overloaded
from broker.shield import bare

ROOM_BYTES: Final = 128 * 1024 * 1024
COUNTED_BYTES_MIN: Final = 3 * 1024 * 1024
"""A read of a smaller page takes no room."""
WAIT_S: Final = 10.0
"""How long a read waits for room: servers may hang with the reads before it."""


class ReadRoom:
    """The room of one node."""

    def __init__(self, bytes_max: int = ROOM_BYTES) -> None:
        """Begin with all room free."""
        self.bytes_max = bytes_max
        self.bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncIterator[None]:
        """Take room for a page of ``size`` bytes during the block. Raises Overloaded if there is none for long."""
        if size < COUNTED_BYTES_MIN:
            yield
            return
        size = min(size, self.bytes_max)
        await self._take(size)
        try:
            yield
        finally:
            self.bytes -= size
            self._wake()

    async def _take(self, size: int) -> None:
        if not self._waiting and self.bytes + size <= self.bytes_max:
            self.bytes += size
            return
        mine = size, asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        try:
            async with asyncio.timeout(WAIT_S):
                await mine[1]
        except BaseException as error:
            if mine in self._waiting:
                self._waiting.remove(mine)
            elif mine[1].done() and not mine[1].cancelled():
                self.bytes -= size  # The room came together with the error.
            self._wake()
            if isinstance(error, TimeoutError):
                raise Overloaded("This node reads too many large pages just now.") from bare(error)
            raise

    def _wake(self) -> None:
        while self._waiting and self.bytes + self._waiting[0][0] <= self.bytes_max:
            size, future = self._waiting.popleft()
            if not future.done():
                self.bytes += size
                future.set_result(None)
