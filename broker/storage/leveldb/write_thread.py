"""The writes of a LevelDB table: one thread makes them all. And its behaviour when a write fails.

All waiting changes become one round, for any rows: one write batch and one sync::

    callers ── changes ──►  queue  ──►  compare heads, build the batch  ──►  write + sync
                                                                               │
    futures, resolved by one call into the event loop per round  ◄─────────────┘

After *any* error of a write the outcome of the whole round is unknown, and the writer must not use the database
object again: later synced writes on it can be lost at the next crash although LevelDB reported them as done. So
the writer acknowledges no more changes. Readers keep the old object, which shows all confirmed writes. When the
writer can write and sync a probe file beside the database again, it closes and reopens the database::

    open ── write error ──► failed ── probe succeeds, reopened ──► open
                             │  ▲
                             └──┘ probe fails; changes are refused

A change belongs to the life of the database in which its caller submitted it. An error ends the life. For the
callers the next life begins when they get the error. The writer refuses a change of an ended life, even if the
database is open again before its turn comes, because the caller built it on a write with an unknown outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from broker.errors import (
    BodyTooLarge,
    BrokerError,
    OutcomeUnknown,
    StorageCorrupt,
    StorageFull,
    Unavailable,
)
from broker.long_work import ShortWork
from broker.storage.leveldb.database import text_of
from broker.storage.leveldb.layout import cells_prefix, has_cells
from broker.storage.leveldb.pending_calls import Pending, WriteResult
from broker.storage.leveldb.round import (
    ChangeRequest,
    Postponed,
    RecentHeads,
    Round,
    WritableDatabase,
)
from broker.storage.table import HEAD, Space

BYTES_MAX: Final = 64 << 20
"""LevelDB would take more. But a change is in memory several times; requests have lower limits anyway."""
ROUND_BYTES_MAX = 16 << 20
"""A round takes no more changes after its batch has reached this size."""

Fault = Callable[[int, str], None]
"""A hook for tests, called with the number of the write and "before" or "after". It may raise OSError."""

Lost = Callable[[], str | None]
"""Returns why the database's directory is no longer the one that was opened; None: it is."""

Observe = Callable[[float, int], None]
"""Called after each write, in the writer's thread, with its seconds and its number of changes."""

Apply = Callable[[Round], Any]
"""Adds one change to a round and returns the caller's result. If it raises, it has added nothing."""


class Life:
    """The time from one opening of the database to the first error after it."""

    has_ended = False


class Change(NamedTuple):
    """A change that waits for a round."""

    apply: Apply
    future: asyncio.Future[Any]
    life: Life


class Writer:
    """The writes of one table, and their thread. The table itself adds the reads."""

    def __init__(  # noqa: PLR0913 - The parts of one table, and two hooks.
        self,
        database: WritableDatabase,
        *,
        probe_interval_s: float,
        deadline_s: float,
        lost: Lost = lambda: None,
        failure: BaseException | None = None,
        observe: Observe | None = None,
        fault: Fault | None = None,
    ) -> None:
        """Start the thread. Must be called on the event loop that will wait for the results.

        Args:
            database: the open database.
            probe_interval_s: how long to wait between two attempts to reopen it after an error.
            deadline_s: how long a write may hang; after that its outcome is unknown, as after an error.
            failure: why the database takes no changes yet; None: it takes them.
            lost: looks whether the database's directory is still the one that was opened.
            observe: called after each write.
            fault: a hook for tests.
        """
        self._database = database
        self._lost = lost
        self._probe_interval_s = probe_interval_s
        self.deadline_s = deadline_s
        self._observe = observe
        self._fault = fault
        self._loop = asyncio.get_running_loop()
        self._pending = Pending(deadline_s, self._hung)
        self._queue: queue.SimpleQueue[Change | None] = queue.SimpleQueue()
        self._waiting: list[Change] = []
        self._writes = 0
        self._is_ending = False
        self._life = Life()
        self.recent = RecentHeads()
        """Heads that are on disk. The event loop may read them too."""
        self.failure: BaseException | None = failure
        """The write error since which no change is written; None: the database takes changes."""
        self._thread = threading.Thread(target=self._run, name="leveldb-writer", daemon=True)
        self._thread.start()

    # --- On the event loop ----------------------------------------------------------------------

    async def change(
        self,
        space: Space,
        row: bytes,
        expected: bytes | None,
        puts: Mapping[bytes, bytes],
        deletes: Sequence[bytes] = (),
        *,
        clear: bool = False,
    ) -> bool:
        """Change cells of a row if its head is as expected. See the port.

        Raises ValueError for a change that the port does not allow, and BodyTooLarge.
        """
        if HEAD not in puts or HEAD in deletes:
            raise ValueError("a change must put the head, and must not delete it")
        if not has_cells(space) and (len(puts) > 1 or deletes):
            raise ValueError(f"a row in {space} has no cell except its head")
        _bound(sum(map(len, puts.values())))
        cleared = [cells_prefix(space, row)] if clear and has_cells(space) else []
        if cleared:
            await self.will_clear(*cleared)
        request = ChangeRequest(space, row, expected, puts, deletes, clear)
        with ShortWork():
            changed: bool = await self.submit(lambda round_: round_.change(request))
        if changed and cleared:
            self.cleared(cleared)
        return changed

    async def put(self, space: Space, heads: Mapping[bytes, bytes]) -> None:
        """Put heads of rows without comparing them; on disk on return. Raises BodyTooLarge."""
        _bound(max(map(len, heads.values()), default=0))
        await self.submit(lambda round_: round_.put(space, heads))

    async def delete(self, space: Space, rows: Sequence[bytes]) -> None:
        """Remove whole rows; on disk on return."""
        self.cleared(await self.submit(lambda round_: round_.delete(space, rows)))

    async def will_clear(self, prefix: bytes) -> None:
        """Prepare to clear the cells of a row: those whose keys begin with ``prefix``."""

    def cleared(self, prefixes: Sequence[bytes]) -> None:
        """Note that cells of rows were cleared."""

    def submit(self, apply: Apply) -> asyncio.Future[Any]:
        """Queue a change; the future has its outcome when it is on disk.

        Raises:
            StorageFull: a write failed, and the database is not reopened yet.
            StorageCorrupt: a write failed, and the database can't be reopened.
            Unavailable: the table is closed.
        """
        if self._is_ending:
            raise Unavailable("the table is closed")
        if self.failure is not None:
            raise _refusal(self.failure)
        return self._enqueue(apply)

    def probe(self) -> asyncio.Future[bool]:
        """Try now to reopen the database if a write failed; the future tells whether it takes changes.

        Raises Unavailable if the table is closed.
        """
        if self._is_ending:
            raise Unavailable("the table is closed")
        return self._enqueue(_is_writable)

    def _enqueue(self, apply: Apply) -> asyncio.Future[Any]:
        future = self._pending.add()
        self._queue.put(Change(apply, future, self._life))
        return future

    def _hung(self) -> BaseException:
        """End the life, because a write hangs. The write may still succeed later."""
        self._life.has_ended = True
        self._life = Life()
        hung = TimeoutError(f"a write has not ended for {self.deadline_s:g} s")
        self.failure = hung
        # The write may have ended in this moment. Then the thread waits for a change, and none is taken any more.
        self._queue.put(Change(_is_writable, self._loop.create_future(), self._life))
        return OutcomeUnknown(f"it may have been written or not: {hung}")

    def _next_life(self) -> None:
        if self._life.has_ended:
            self._life = Life()

    async def end(self) -> bool:
        """Write the waiting changes, then end the thread. Return False if the thread hangs."""
        if not self._is_ending:
            self._is_ending = True
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
                changes = self._try_reopen(changes)
            if changes:
                self._write(changes)

    def _take(self) -> tuple[list[Change], bool]:
        """Wait for a change; return all waiting changes, and whether the table is closing."""
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
                self._check_there()
                if self._fault is not None:
                    self._fault(self._writes, "after")
        except Exception as error:  # noqa: BLE001 - After any error the outcome is unknown.
            self._fail(changes, error)
            answers = [_unknown(answer, error) for answer in answers]
            self._pending.tell(answers, self._next_life)
        else:
            seconds = time.perf_counter() - started
            round_.confirm()
            self._pending.tell(answers)
            if self._observe is not None:
                self._observe(seconds, len(answers))

    def _check_there(self) -> None:
        """Raise OSError if the directory is lost: the write went into a file that the next start can't find."""
        reason = self._lost()
        if reason is not None:
            raise FileNotFoundError(errno.ENOENT, reason)

    def _build(self, changes: list[Change]) -> tuple[Round, list[WriteResult]]:
        """Apply the changes to a round; those that don't fit wait for the next round."""
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
            except Exception as error:  # noqa: BLE001 - The caller gets it; the change added nothing.
                answers.append(WriteResult(future, None, error))
            if round_.batch.approximate_size() > ROUND_BYTES_MAX:
                self._waiting = changes[index + 1 :]
                break
        return round_, answers

    def _fail(self, changes: list[Change], error: BaseException) -> None:
        """End the lives of these changes, so that no change of theirs is written later."""
        for change in changes:
            change.life.has_ended = True
        self.failure = error
        self.recent.forget()

    def _try_reopen(self, changes: list[Change]) -> list[Change]:
        """Try to reopen the database. Return the changes to write: all of them, or none if it fails."""
        self.recent.forget()
        failure = self._reopen()
        self.failure = failure
        if failure is None:
            return changes
        refusal = _refusal(failure)
        self._pending.tell([_refused(change, refusal) for change in changes])
        return []

    def _reopen(self) -> BaseException | None:
        """Reopen the database; return None, or the error if that fails."""
        try:
            self._check_there()
            self._database.reopen()
        except (OSError, Unavailable, StorageCorrupt) as error:
            return error
        self.recent.forget()  # Readers may have added heads of the old database meanwhile.
        return None


def _bound(size: int) -> None:
    if size > BYTES_MAX:
        raise BodyTooLarge(f"A change has {size} bytes; the store takes at most {BYTES_MAX}.")


_ENDED = "an earlier write failed, and this change was queued before that; it is not written"


def _refusal(error: BaseException) -> BrokerError:
    if isinstance(error, StorageCorrupt):
        return error
    return StorageFull(f"a write failed, and the store takes no changes since: {text_of(error)}")


def _is_writable(_: Round) -> bool:
    return True


def _refused(change: Change, error: BrokerError) -> WriteResult:
    if change.apply is _is_writable:
        return WriteResult(change.future, False)
    return WriteResult(change.future, None, error)


def _unknown(answer: WriteResult, error: BaseException) -> WriteResult:
    """Return the result of a change after its round failed: a refusal stays, all others are unknown."""
    if answer.error is not None or answer.result is False:
        return answer
    message = f"a write failed: {text_of(error)}"
    return answer._replace(error=StorageFull(message, outcome="unknown"))
