"""Commits of Tephra's clients with an unknown outcome, unknown to this node or to the client.

Tephra's client repeats a call for half a minute after any error of Thrift, be it a lost connection or an error of the
application. If the first commit was done, the transaction is *not in progress* at the repeated one. Then the client's
``TransactionContext`` rolls back a committed transaction. No answer of its protocol prevents that. So this module does
the following::

    the service does not know          it asks for snapshots until one shows the outcome: visible = done, invalid =
                                       not done, in progress = commit again; the client waits meanwhile
    the client may not know            its connection ended with the answer in flight: when it repeats the commit on
                                       another connection, a snapshot shows the outcome, and it gets its answer again
    the client did not wait            a second commit of the same transaction joins the one in flight

A client that received the answer and commits again gets *not in progress*, as from Tephra. On one connection a client
sends no call before it has its last answer, so only the last call of a connection is in doubt. This node does not know
the commits of other nodes: if a client repeats its commit at another node after this one died, it gets *not in
progress*.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from typing import Final

from broker.clock import Clock
from broker.errors import OutcomeUnknown, TransactionNotInProgress, UnavailableError
from broker.model import Snapshot
from broker.shield import begin, result_of
from broker.transactions.service_calls import AskedService, ServiceCall

REMEMBERED_MAX: Final = 10_000
"""How many commits in doubt are remembered. The oldest are forgotten first."""
PAUSE_S: Final = 0.2


class Commits:
    """Commits so that each has one outcome. Use it in the event loop."""

    def __init__(self, service: AskedService, clock: Clock, deadline_s: float) -> None:
        """Keep the parts. After ``deadline_s`` in doubt, the client gets the error that the outcome is unknown."""
        self._service = service
        self._clock = clock
        self._deadline_s = deadline_s
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._in_doubt: dict[int, None] = {}
        """Commits that may be done although their clients do not know it, oldest first."""

    async def commit(self, transaction: int, write_pointer: int | None) -> None:
        """Commit, and find out the outcome. The commit goes on if its caller is cancelled.

        Raises:
            TransactionNotInProgress, TransactionConflict, BadRequest, UnavailableError: the commit was not done.
            OutcomeUnknown: no snapshot showed the outcome before the deadline.
        """
        if transaction not in self._under_way:
            commit = self._commit(transaction, write_pointer)
            self._under_way[transaction] = begin(commit, lambda: self._under_way.pop(transaction))
        await result_of(self._under_way[transaction])

    def put_in_doubt(self, transaction: int) -> None:
        """Remember a commit that may be done although its client does not know it."""
        self._in_doubt.pop(transaction, None)
        self._in_doubt[transaction] = None
        while len(self._in_doubt) > REMEMBERED_MAX:
            del self._in_doubt[next(iter(self._in_doubt))]

    async def _commit(self, transaction: int, write_pointer: int | None) -> None:
        until = self._clock.monotonic() + self._deadline_s
        call = ServiceCall("commit_transaction", {"write_pointer": write_pointer}, transaction)
        while True:
            try:
                await self._service.ask(call)
            except (OutcomeUnknown, TransactionNotInProgress, UnavailableError) as error:
                if error.outcome == "unknown":
                    self.put_in_doubt(transaction)
                elif transaction not in self._in_doubt:
                    raise
            else:
                break
            snapshot = await self._snapshot(transaction, until)
            if snapshot.is_visible(transaction):
                break
            if not is_in_progress(snapshot, transaction):
                self._in_doubt.pop(transaction, None)
                raise TransactionNotInProgress(f"Transaction {transaction} is not in progress.")
            await self._pause(transaction, until, "it is in progress")
        self._in_doubt.pop(transaction, None)

    async def _snapshot(self, transaction: int, until: float) -> Snapshot:
        """Return a new snapshot. Raises OutcomeUnknown if the service gives none before the deadline."""
        while True:
            try:
                return await self._service.snapshot()
            except (UnavailableError, OutcomeUnknown) as error:
                await self._pause(transaction, until, error.message)

    async def _pause(self, transaction: int, until: float, why: str) -> None:
        if self._clock.monotonic() + PAUSE_S >= until:
            raise OutcomeUnknown(
                f"It is unknown whether transaction {transaction} was committed: {why}"
            )
        await self._clock.sleep(PAUSE_S)


def is_in_progress(snapshot: Snapshot, transaction: int) -> bool:
    """Return whether a snapshot shows a transaction in progress."""
    at = bisect_left(snapshot.in_progress, transaction)
    return at < len(snapshot.in_progress) and snapshot.in_progress[at] == transaction
