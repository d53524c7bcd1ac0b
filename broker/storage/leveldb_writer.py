"""The one thread that writes to a LevelDB store, and what it does when a write fails.

All changes that wait become one round: one write batch, one sync, whatever log they are of. A log's
control row is written once per round, at the end, so several batches of one log that share a sync are
one atomic write::

    callers ── changes ──►  queue  ──►  check holds, build the batch  ──►  write + sync
                                                                             │
    futures, resolved by one call into the event loop per round  ◄───────────┘

*Any* error of a write leaves the outcome of the whole round unknown, and the database object useless:
later synced writes on it can be lost at the next crash although they were reported as done. So the
writer acknowledges nothing more; readers keep the dead object, up to what was confirmed; and when a
probe file beside the database can be written and synced again, the database is closed and opened anew.
All holds are done by then: whoever wants to write claims again::

    open ── write error ──► failed ── probe succeeds, opened anew ──► open
                             │  ▲
                             └──┘ probe fails; changes are refused
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from broker import guards
from broker.errors import BrokerError, OutcomeUnknown, StorageCorrupt, StorageFull, Unavailable
from broker.storage.control import Deleted, StaleGeneration
from broker.storage.leveldb_holds import Holds
from broker.storage.leveldb_round import Database, Round

ROUND_BYTES_MAX = 16 << 20
"""A round takes no further change once its batch has grown to this."""

Fault = Callable[[int, str], None]
"""A test's hook: called with the number of the write and "before" or "after"; it may raise OSError."""


Apply = Callable[[Round], Any]
"""Adds one change to a round, or raises before it has added anything; returns the caller's result."""


class Change(NamedTuple):
    """One caller's wish."""

    apply: Apply
    future: asyncio.Future[Any]
    synced: bool


class Outcome(NamedTuple):
    """What becomes of a change."""

    future: asyncio.Future[Any]
    result: Any
    error: BaseException | None


class Writer:
    """The writer thread of one store."""

    def __init__(
        self,
        database: Database,
        holds: Holds,
        *,
        probe_interval_s: float,
        deadline_s: float = 30.0,
        observe: Callable[[float, int], None] | None = None,
        fault: Fault | None = None,
    ) -> None:
        """Start the thread. Must be called on the event loop that will wait for the results.

        Args:
            database: open.
            holds: who holds what.
            probe_interval_s: how long to wait between two attempts to open anew after an error.
            deadline_s: how long a write may hang; then its outcome is unknown, as after an error.
            observe: told the seconds of each write and how many changes it carried, in the thread.
            fault: a test's hook.
        """
        self._database = database
        self.holds = holds
        self._probe_interval_s = probe_interval_s
        self._observe = observe
        self._fault = fault
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[Change | None] = queue.SimpleQueue()
        self._waiting: list[Change] = []
        self._deadline_s = deadline_s
        self._unresolved: set[asyncio.Future[Any]] = set()
        self._watch: asyncio.TimerHandle | None = None
        self._resolved = 0
        self._writes = 0
        self._closing = False
        self.failure: BaseException | None = None
        """The error after which nothing is written until the database was opened anew."""
        self._thread = threading.Thread(target=self._run, name="leveldb-writer", daemon=True)
        self._thread.start()

    def submit(self, apply: Apply, *, synced: bool = True) -> asyncio.Future[Any]:
        """Queue a change; the future tells its outcome when it is on disk.

        Raises:
            StorageFull: a write failed, and the database is not open anew yet.
        """
        if self.failure is not None:
            raise self._refusal(self.failure)
        return self._enqueue(apply, synced=synced)

    def _enqueue(self, apply: Apply, *, synced: bool) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._unresolved.add(future)
        if self._watch is None:
            self._watch = self._loop.call_later(self._deadline_s, self._look, self._resolved)
        self._queue.put(Change(apply, future, synced))
        return future

    def _look(self, resolved: int) -> None:
        """Give up on what hangs: nothing was resolved for the length of a deadline."""
        self._watch = None
        if not self._unresolved:
            return
        if resolved == self._resolved:
            hung = TimeoutError(f"a write has not ended for {self._deadline_s:g} s")
            self._fail(hung)
            error = OutcomeUnknown(f"nobody knows whether it was written: {hung}")
            self._resolve([Outcome(future, None, error) for future in list(self._unresolved)])
        else:
            self._watch = self._loop.call_later(self._deadline_s, self._look, self._resolved)

    def probe(self) -> asyncio.Future[bool]:
        """Try now to open anew if a write failed; the future tells whether the store is writable."""
        return self._enqueue(_is_writable, synced=False)

    async def close(self) -> None:
        """Write what waits, then end the thread."""
        if not self._closing:
            self._closing = True
            self._queue.put(None)
        await self._loop.run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        last = False
        while not last or self._waiting:
            changes, last = self._take()
            if self.failure is not None:
                changes = self._while_failed(changes)
            if changes:
                self._write(changes)

    def _tell(self, outcomes: list[Outcome]) -> None:
        # RuntimeError: the event loop is closed, and with it went everybody who waited.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._resolve, outcomes)

    def _resolve(self, outcomes: list[Outcome]) -> None:
        self._resolved += 1
        for future, result, error in outcomes:
            self._unresolved.discard(future)
            if future.done():
                continue  # Its caller was cancelled, or it was given up.
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    def _take(self) -> tuple[list[Change], bool]:
        """Return all changes that wait, and whether the store is closing; waits for the first."""
        changes, self._waiting = self._waiting, []
        timeout_s = self._probe_interval_s if self.failure is not None else None
        last = self._closing
        with contextlib.suppress(queue.Empty):
            if not changes and not last:
                first = self._queue.get(timeout=timeout_s)
                if first is None:
                    last = True
                else:
                    changes.append(first)
            while True:
                following = self._queue.get_nowait()
                if following is None:
                    last = True
                else:
                    changes.append(following)
        return changes, last

    def _write(self, changes: list[Change]) -> None:
        round_, carried, outcomes = self._build(changes)
        started = time.perf_counter()
        try:
            if round_.close():
                self._writes += 1
                if self._fault is not None:
                    self._fault(self._writes, "before")
                round_.batch.write()
                if self._fault is not None:
                    self._fault(self._writes, "after")
        except Exception as error:  # noqa: BLE001 - whatever it is, the outcome is unknown
            self._fail(error)
            outcomes = [_unknown(outcome, error) for outcome in outcomes]
        else:
            # Holds that were given up while this hung are done: nobody relies on them any more.
            round_.confirm()
            if self._observe is not None:
                self._observe(time.perf_counter() - started, carried)
        self._tell(outcomes)

    def _build(self, changes: list[Change]) -> tuple[Round, int, list[Outcome]]:
        """Apply the changes to a round; those that don't fit any more wait for the next."""
        excluded: dict[int, BaseException] = {}
        while True:
            try:
                return self._build_without(changes, excluded)
            except _Broken as broken:
                excluded[broken.index] = broken.error

    def _build_without(
        self, changes: list[Change], excluded: dict[int, BaseException]
    ) -> tuple[Round, int, list[Outcome]]:
        synced = guards.holds("row-sync") and any(change.synced for change in changes)
        round_ = Round(self._database, self.holds, synced=synced)
        outcomes: list[Outcome] = []
        self._waiting = []
        for index, (apply, future, _) in enumerate(changes):
            if index in excluded:
                outcomes.append(Outcome(future, None, excluded[index]))
                continue
            try:
                outcomes.append(Outcome(future, apply(round_), None))
            except (BrokerError, StaleGeneration, Deleted) as error:
                outcomes.append(Outcome(future, None, error))
            except Exception as error:
                # It may have put half of its rows: the round is built again without it.
                raise _Broken(index, error) from error
            if round_.batch.approximate_size() > ROUND_BYTES_MAX:
                self._waiting = changes[index + 1 :]
                break
        return round_, len(outcomes), outcomes

    def _fail(self, error: BaseException) -> None:
        if guards.holds("leveldb-reopen"):
            self.failure = error
            self.holds.end_all()

    def _while_failed(self, changes: list[Change]) -> list[Change]:
        """Try to open anew; return the changes to go on with, having refused the others."""
        failure = self._reopened()
        if failure is None:
            self.holds.forget_confirmed()
            self.failure = None
            return changes
        self.failure = failure
        self._tell([_refused(change, self._refusal(failure)) for change in changes])
        return []

    def _reopened(self) -> BaseException | None:
        """Return None if the database is open anew, else why it is not."""
        try:
            self._database.reopen()
        except (OSError, Unavailable, StorageCorrupt) as error:
            return error
        return None

    def _refusal(self, error: BaseException) -> BrokerError:
        if isinstance(error, StorageCorrupt):
            return error
        return StorageFull(f"nothing is written since a write failed: {error}")


class _Broken(Exception):
    """Not an expected refusal: a change could not be applied."""

    def __init__(self, index: int, error: BaseException) -> None:
        self.index = index
        self.error = error
        super().__init__(index)


def _is_writable(_: Round) -> bool:
    return True


def _refused(change: Change, error: BrokerError) -> Outcome:
    if change.apply is _is_writable:
        return Outcome(change.future, False, None)
    return Outcome(change.future, None, error)


def _unknown(outcome: Outcome, error: BaseException) -> Outcome:
    """A definite refusal stays what it is; all else of the round is unknown."""
    if outcome.error is not None:
        return outcome
    message = f"a write failed: {error}"
    return outcome._replace(error=StorageFull(message, outcome="unknown"))
