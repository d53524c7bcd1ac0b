"""The one thread that writes to a LevelDB table, and its behaviour when a write fails.

All changes that wait become one round: one write batch, one sync, whatever rows they are of::

    callers ── changes ──►  queue  ──►  compare heads, build the batch  ──►  write + sync
                                                                               │
    futures, resolved by one call into the event loop per round  ◄─────────────┘

*Any* error of a write leaves the outcome of the whole round unknown, and the database object useless:
later synced writes on it can be lost at the next crash although they were reported as done. So the
writer acknowledges nothing more; readers keep the dead object, up to the last confirmed write; and when a
probe file beside the database can be written and synced again, the database is closed and opened anew::

    open ── write error ──► failed ── probe succeeds, opened anew ──► open
                             │  ▲
                             └──┘ probe fails; changes are refused

A change belongs to the life of the database in which it was asked for. An error ends the life; the next
begins, for the callers, when they were told of the error. A change of an ended life is refused, even if
the database is open anew before its turn comes: its caller built it on a write whose outcome is unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from broker.errors import BrokerError, OutcomeUnknown, StorageCorrupt, StorageFull, Unavailable
from broker.storage.leveldb.pending_calls import Pending, WriteResult
from broker.storage.leveldb.round import Postponed, RecentHeads, Round, WritableDatabase

ROUND_BYTES_MAX = 16 << 20
"""A round takes no further change once its batch has grown to this."""

Fault = Callable[[int, str], None]
"""A test's hook: called with the number of the write and "before" or "after"; it may raise OSError."""

Observe = Callable[[float, int], None]
"""Told the seconds of each write and how many changes it carried, in the writer's thread."""

Apply = Callable[[Round], Any]
"""Adds one change to a round, or raises before it has added anything; returns the caller's result."""


class Life:
    """From one opening of the database to the first error after it."""

    has_ended = False


class Change(NamedTuple):
    """A change that waits for a round."""

    apply: Apply
    future: asyncio.Future[Any]
    life: Life


class Writer:
    """The writer thread of one table."""

    def __init__(
        self,
        database: WritableDatabase,
        *,
        probe_interval_s: float,
        deadline_s: float,
        observe: Observe | None = None,
        fault: Fault | None = None,
    ) -> None:
        """Start the thread. Must be called on the event loop that will wait for the results.

        Args:
            database: open.
            probe_interval_s: how long to wait between two attempts to open anew after an error.
            deadline_s: how long a write may hang; then its outcome is unknown, as after an error.
            observe: told of each write.
            fault: a test's hook.
        """
        self._database = database
        self._probe_interval_s = probe_interval_s
        self.deadline_s = deadline_s
        self._observe = observe
        self._fault = fault
        self._loop = asyncio.get_running_loop()
        self._pending = Pending(deadline_s, self._hung)
        self._queue: queue.SimpleQueue[Change | None] = queue.SimpleQueue()
        self._waiting: list[Change] = []
        self._writes = 0
        self._closing = False
        self._life = Life()
        self.recent = RecentHeads()
        """Heads that are on disk. The event loop may look them up."""
        self.failure: BaseException | None = None
        """The error after which nothing is written until the database was opened anew."""
        self._thread = threading.Thread(target=self._run, name="leveldb-writer", daemon=True)
        self._thread.start()

    # --- On the event loop ----------------------------------------------------------------------

    def submit(self, apply: Apply) -> asyncio.Future[Any]:
        """Queue a change; the future tells its outcome when it is on disk.

        Raises:
            StorageFull: a write failed, and the database is not open anew yet.
            StorageCorrupt: the same, and it can't be opened anew.
            Unavailable: the table is closed.
        """
        if self._closing:
            raise Unavailable("the table is closed")
        if self.failure is not None:
            raise _refusal(self.failure)
        return self._enqueue(apply)

    def probe(self) -> asyncio.Future[bool]:
        """Try now to open anew if a write failed; the future tells whether writes are taken.

        Raises Unavailable if the table is closed.
        """
        if self._closing:
            raise Unavailable("the table is closed")
        return self._enqueue(_is_writable)

    def _enqueue(self, apply: Apply) -> asyncio.Future[Any]:
        future = self._pending.add()
        self._queue.put(Change(apply, future, self._life))
        return future

    def _hung(self) -> BaseException:
        """End the life: the writer answers nothing. Its write may yet succeed."""
        self._life.has_ended = True
        self._life = Life()
        hung = TimeoutError(f"a write has not ended for {self.deadline_s:g} s")
        self.failure = hung
        return OutcomeUnknown(f"it may have been written or not: {hung}")

    def _next_life(self) -> None:
        if self._life.has_ended:
            self._life = Life()

    async def close(self) -> bool:
        """Write the changes that wait, then end the thread; False: it hangs, and is left alone."""
        if not self._closing:
            self._closing = True
            self._queue.put(None)
        await self._loop.run_in_executor(None, self._thread.join, self.deadline_s)
        self._pending.close()
        return not self._thread.is_alive()

    # --- In the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        last = False
        while not last or self._waiting:
            changes, last_seen = self._take()
            last = last or last_seen
            if self.failure is not None:
                changes = self._while_failed(changes)
            if changes:
                self._write(changes)

    def _take(self) -> tuple[list[Change], bool]:
        """Return all changes that wait, and whether the table is closing; waits for the first."""
        changes, self._waiting = self._waiting, []
        timeout_s = self._probe_interval_s if self.failure is not None else None
        last = False
        with contextlib.suppress(queue.Empty):
            if not changes:
                first = self._queue.get(timeout=timeout_s)
                if first is None:
                    return changes, True
                changes.append(first)
            while True:
                following = self._queue.get_nowait()
                if following is None:
                    last = True
                else:
                    changes.append(following)
        return changes, last

    def _write(self, changes: list[Change]) -> None:
        round_, answers = self._build(changes)
        started = time.perf_counter()
        try:
            if not round_.is_empty:
                self._writes += 1
                if self._fault is not None:
                    self._fault(self._writes, "before")
                round_.batch.write()
                if self._fault is not None:
                    self._fault(self._writes, "after")
        except Exception as error:  # noqa: BLE001 - Whatever it is, the outcome is unknown.
            self._fail(changes, error)
            answers = [_unknown(answer, error) for answer in answers]
            self._pending.tell(answers, self._next_life)
        else:
            seconds = time.perf_counter() - started
            round_.confirm()
            self._pending.tell(answers)
            if self._observe is not None:
                self._observe(seconds, len(answers))

    def _build(self, changes: list[Change]) -> tuple[Round, list[WriteResult]]:
        """Apply the changes to a round; those that don't fit any more wait for the next."""
        round_ = Round(self._database, self.recent)
        answers: list[WriteResult] = []
        for index, (apply, future, life) in enumerate(changes):
            if life.has_ended and apply is not _is_writable:
                answers.append(WriteResult(future, None, StorageFull(_ENDED)))
                continue
            try:
                answers.append(WriteResult(future, apply(round_)))
            except Postponed:
                self._waiting = changes[index:]
                break
            except Exception as error:  # noqa: BLE001 - Its caller's; it has added nothing.
                answers.append(WriteResult(future, None, error))
            if round_.batch.approximate_size() > ROUND_BYTES_MAX:
                self._waiting = changes[index + 1 :]
                break
        return round_, answers

    def _fail(self, changes: list[Change], error: BaseException) -> None:
        """Let nothing of this life be written any more."""
        for change in changes:
            change.life.has_ended = True
        self.failure = error
        self.recent.forget()

    def _while_failed(self, changes: list[Change]) -> list[Change]:
        """Try to open anew; return the changes to go on with, having refused the others."""
        self.recent.forget()
        failure = self._reopened()
        self.failure = failure
        if failure is None:
            return changes
        refusal = _refusal(failure)
        self._pending.tell([_refused(change, refusal) for change in changes])
        return []

    def _reopened(self) -> BaseException | None:
        """Return None if the database is open anew, else why it is not."""
        try:
            self._database.reopen()
        except (OSError, Unavailable, StorageCorrupt) as error:
            return error
        self.recent.forget()  # Heads read meanwhile are of the database before.
        return None


_ENDED = "nothing that was asked for before a failed write is written after it"


def _refusal(error: BaseException) -> BrokerError:
    if isinstance(error, StorageCorrupt):
        return error
    return StorageFull(f"nothing is written since a write failed: {error}")


def _is_writable(_: Round) -> bool:
    return True


def _refused(change: Change, error: BrokerError) -> WriteResult:
    if change.apply is _is_writable:
        return WriteResult(change.future, False)
    return WriteResult(change.future, None, error)


def _unknown(answer: WriteResult, error: BaseException) -> WriteResult:
    """A definite refusal stays as it is; all else of the round is unknown."""
    if answer.error is not None or answer.result is False:
        return answer
    message = f"a write failed: {error}"
    return answer._replace(error=StorageFull(message, outcome="unknown"))
