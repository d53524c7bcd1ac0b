"""Room on the disk, given back after the cells of pages have gone.

LevelDB drops deleted keys when it merges the files in which they lie. In a topic that is not written to any
more, that is never. So the ranges of keys that went are merged on purpose: some time later, a stretch of
pages at a time, in a thread of its own, with a pause of nine times as long after each, so that all this
takes a tenth of a processor at most. (1.3 GB in 80,000 cells: 2.8 s of processor time.)

After a restart the ranges of before are left to LevelDB's own merging.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from broker.errors import BrokerError

LINGER_S = 60.0
"""How long pages are gathered."""
PAGES_MAX = 32
"""Pages in one stretch: 64 MiB."""
BYTES_MIN = 1 << 20
"""A stretch that takes less on disk is left to LevelDB."""
_PAUSE = 9.0
_ID_BYTES = 10

Pause = Callable[[float], Awaitable[None]]


class CompactableDatabase(Protocol):
    """The database, as far as this needs it."""

    def approximate_bytes(self, start: bytes, stop: bytes) -> int:
        """Return roughly how much a range of keys takes on disk."""

    def compact(self, start: bytes, stop: bytes) -> None:
        """Rewrite a range of keys without those that were deleted."""


class Compaction:
    """Merges what went. All methods are for the event loop."""

    def __init__(self, database: CompactableDatabase, pause: Pause = asyncio.sleep) -> None:
        """Start with nothing to do."""
        self._database = database
        self._pause = pause
        self._gone: set[bytes] = set()
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "leveldb-compact")

    def gone(self, prefixes: Iterable[bytes]) -> None:
        """Note the prefixes (layout.cells_prefix) of pages whose cells were deleted."""
        self._gone.update(prefixes)
        if self._gone and self._task is None:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._gone:
            await self._pause(LINGER_S)
            prefixes, self._gone = sorted(self._gone), set()
            for first, last in stretches(prefixes):
                await self._merge(first, last + b"\xff")
        self._task = None

    async def _merge(self, start: bytes, stop: bytes) -> None:
        loop = asyncio.get_running_loop()
        started = time.perf_counter()
        # An error shows at the next write or read, too, and there it has a caller.
        with contextlib.suppress(BrokerError):
            size = await loop.run_in_executor(
                self._thread, self._database.approximate_bytes, start, stop
            )
            if size >= BYTES_MIN:
                await loop.run_in_executor(self._thread, self._database.compact, start, stop)
                await self._pause(_PAUSE * (time.perf_counter() - started))

    async def close(self) -> None:
        """Let a stretch that is under way end, and begin no other."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._thread.shutdown(wait=False)


def stretches(prefixes: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the first and the last of runs of sorted prefixes of one log, PAGES_MAX long at most."""
    run: list[bytes] = []
    for prefix in prefixes:
        if run and (len(run) == PAGES_MAX or run[-1][:-_ID_BYTES] != prefix[:-_ID_BYTES]):
            yield run[0], run[-1]
            run = []
        run.append(prefix)
    if run:
        yield run[0], run[-1]
