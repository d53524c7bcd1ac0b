"""The threads that read, so that the event loop never waits for a disk.

A read goes to a thread even if its block is probably in memory. LevelDB can't tell whether it is. LevelDB also
holds a lock while it begins a new log. And a read of a block from a busy disk takes longer than the event loop may
block (20 ms).

Such a read costs a queue and one call back into the loop. Measured on two busy cores: 9 us for a get of 16 KiB on
the event loop, 100 us through a thread (p50), and 190 us for a range of 512 KiB. The event loop takes a cached
head, as in every proof, without thread and LevelDB: 3 us.

Callers take turns: a caller with a thousand reads delays the reads of another by one of its own.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from broker.errors import Unavailable
from broker.long_work import FairQueue
from broker.storage.leveldb.pending_calls import Pending, WriteResult

T = TypeVar("T")
_THREADS = 2
"""Python runs one thread at a time, and each switch between threads costs time. With eight pollers of 350 KB a poll
takes 1.0 ms of processor time with two threads, and 1.1 ms with four. With one thread, all reads would wait for one
slow read."""


class _Read(NamedTuple):
    function: Callable[[], Any]
    answer: Any


class Readers:
    """A few threads, and the calls that wait for them."""

    def __init__(self, deadline_s: float) -> None:
        """Start the threads. Must be called on the event loop."""
        self._deadline_s = deadline_s
        self._pending = Pending(deadline_s, self._hung, each=True)
        self._queue: FairQueue[_Read] = FairQueue()
        self._lock = threading.Lock()
        self._tokens: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """One True for each read in the queue; False ends a thread."""
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"leveldb-read-{number}", daemon=True)
            for number in range(_THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def check_open(self) -> None:
        """Raise Unavailable after the close."""
        if self._closed:
            raise Unavailable("the table is closed")

    async def read(self, function: Callable[[], T]) -> T:
        """Call a function in a thread; return its result or raise its error.

        Raises Unavailable if the disk hangs, or after the close.
        """
        self.check_open()
        future = self._pending.add()
        with self._lock:
            self._queue.put(_Read(function, future))
        self._tokens.put(True)
        result: T = await future
        return result

    def _hung(self) -> BaseException:
        return Unavailable(f"a read has not ended for {self._deadline_s:g} s")

    def _run(self) -> None:
        while self._tokens.get():
            with self._lock:
                read = self._queue.get()
            try:
                answer = WriteResult(read.answer, read.function())
            except BaseException as error:  # noqa: BLE001 - The caller gets it.
                answer = WriteResult(read.answer, None, error)
            self._pending.tell([answer])
            del read, answer  # A thread that waits for its next read keeps no page.

    def close(self) -> None:
        """End the threads after the queued reads. Must be called on the event loop."""
        self._closed = True
        for _ in self._threads:
            self._tokens.put(False)

    def join(self) -> bool:
        """Wait for each thread, at most for the deadline; return whether all have ended."""
        for thread in self._threads:
            thread.join(self._deadline_s)
        return not any(thread.is_alive() for thread in self._threads)
