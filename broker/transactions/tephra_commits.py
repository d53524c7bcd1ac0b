"""Commits of Tephra's clients whose outcome is not known, on this side or on theirs.

Tephra's client takes every error of Thrift for one that it may repeat: a lost connection and an error of the
application alike, for half a minute. A commit that was done before is then *not in progress*, and the client's
``TransactionContext`` rolls back what is committed. No answer that its protocol has would keep it from that. So::

    the service does not know          a snapshot is asked until one tells: visible = done, invalid = not done,
                                       in progress = commit again; the client waits meanwhile
    the client may not have heard      its connection ended with the answer: when it repeats the commit on another
                                       one, a snapshot tells, and it is answered again
    the client did not wait            a commit of the same transaction joins the one under way

A client that heard the answer and commits once more is told *not in progress*, as by Tephra. On one connection a client
sends nothing before it has its last answer, so only the last call of a connection is in doubt. What other nodes know is
not known here: a client that repeats its commit at another node, after this one died, is told *not in progress*.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from typing import Final, Protocol

from broker.clock import Clock
from broker.errors import OutcomeUnknown, TransactionNotInProgress, UnavailableError
from broker.model import Snapshot

REMEMBERED_MAX: Final = 10_000
"""How many commits are remembered whose answer may not have arrived; the oldest are forgotten first."""
PAUSE_S: Final = 0.2


class CommitService(Protocol):
    """What of the service is needed here."""

    async def commit(self, transaction_id: int, write_pointer: int | None = None) -> None:
        """Commit. Raises as ``Transactions.commit``."""

    async def snapshot(self) -> Snapshot:
        """Return a snapshot as of now."""


class Commits:
    """Commits, each of which has one outcome. Used in the event loop."""

    def __init__(self, transactions: CommitService, clock: Clock, deadline_s: float) -> None:
        """``deadline_s``: how long a commit may be in doubt before the client is told so."""
        self._transactions = transactions
        self._clock = clock
        self._deadline_s = deadline_s
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._in_doubt: dict[int, None] = {}
        """Commits that may have been done although their clients did not hear of it, oldest first."""

    async def commit(self, transaction: int, write_pointer: int | None) -> None:
        """Commit, and find out what became of it. It goes on when its caller goes.

        Raises:
            TransactionNotInProgress, TransactionConflict, BadRequest, UnavailableError: it was not done.
            OutcomeUnknown: no snapshot told within the deadline.
        """
        task = self._under_way.get(transaction)
        if task is None:
            task = asyncio.ensure_future(self._commit(transaction, write_pointer))
            self._under_way[transaction] = task
            task.add_done_callback(lambda _: self._under_way.pop(transaction))
        await asyncio.shield(task)

    def not_heard(self, transaction: int) -> None:
        """Note that a commit was done whose answer may not have arrived."""
        self._in_doubt.pop(transaction, None)
        self._in_doubt[transaction] = None
        while len(self._in_doubt) > REMEMBERED_MAX:
            del self._in_doubt[next(iter(self._in_doubt))]

    async def _commit(self, transaction: int, write_pointer: int | None) -> None:
        until = self._clock.monotonic() + self._deadline_s
        while True:
            try:
                await self._transactions.commit(transaction, write_pointer)
            except OutcomeUnknown:
                self.not_heard(transaction)
            except (TransactionNotInProgress, UnavailableError):
                if transaction not in self._in_doubt:
                    raise
            else:
                break
            snapshot = await self._snapshot(transaction, until)
            if snapshot.is_visible(transaction):
                break
            if not is_in_progress(snapshot, transaction):
                del self._in_doubt[transaction]
                raise TransactionNotInProgress(f"Transaction {transaction} is not in progress.")
            await self._pause(transaction, until, "it is in progress")
        self._in_doubt.pop(transaction, None)

    async def _snapshot(self, transaction: int, until: float) -> Snapshot:
        """Return a fresh snapshot. Raises OutcomeUnknown if none is had in time."""
        while True:
            try:
                return await self._transactions.snapshot()
            except (UnavailableError, OutcomeUnknown) as error:
                await self._pause(transaction, until, error.message)

    async def _pause(self, transaction: int, until: float, why: str) -> None:
        if self._clock.monotonic() + PAUSE_S >= until:
            raise OutcomeUnknown(
                f"It is unknown whether transaction {transaction} was committed: {why}"
            )
        await self._clock.sleep(PAUSE_S)


def is_in_progress(snapshot: Snapshot, transaction: int) -> bool:
    """Whether a snapshot shows a transaction in progress."""
    at = bisect_left(snapshot.in_progress, transaction)
    return at < len(snapshot.in_progress) and snapshot.in_progress[at] == transaction
