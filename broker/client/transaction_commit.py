"""The commit of one transaction, followed to a known outcome if possible.

::

    service.commit ─▶ answered: committed
        │      └────▶ refused, and no earlier attempt is unknown: raise the error, the caller rolls back
        └ unknown, or "not in progress"
                 └──▶ a fresh snapshot (transaction_fate):   committed    done
                                                             invalid      TransactionNotInProgress: roll back
                                                             in progress  commit again
                                                             no answer    OutcomeUnknown: change nothing

*Not in progress* alone proves nothing. If the service receives two commits, it answers the second one with it; the
duplicate may come from another program that sends a request twice, such as a proxy. If the transaction is visible in
the snapshot, all consumers see its messages, so it counts as committed. A conflict does prove that the transaction is
not committed: the service answers it only to a transaction in progress, and an earlier attempt that is still in flight
will meet the same conflict.

A cancelled commit has an unknown outcome. This module follows it to its end; the caller then raises the cancellation
from ``interrupted``. A second cancellation ends the attempts to learn the outcome.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from typing import Final

from broker import retries
from broker.client.transaction_aware import AnyTransactionService, asked
from broker.client.transaction_fate import (
    PAUSE_MAX_S,
    PAUSE_MIN_S,
    Pause,
    TransactionFate,
    ask,
    pointers_of,
)
from broker.errors import BrokerError, OutcomeUnknown, TransactionConflict, TransactionNotInProgress
from broker.model import Snapshot

COMMITS_MAX: Final = 10
"""The maximum number of commits of a transaction that is still in progress after a commit."""


class Commit:
    """One commit.

    Args:
        service: a transaction service.
        transaction: the transaction, with its last write pointer.
        pause: waits so many seconds.
        rng: the jitter of pauses.
        decided: whether a database has decided that the transaction is committed. Then no refusal is final.

    Attributes:
        interrupted: a cancellation during the commit, for the caller to raise.
        unknown: whether the outcome of the commit could not be learned.
    """

    def __init__(
        self,
        service: AnyTransactionService,
        transaction: Snapshot,
        pause: Pause,
        rng: random.Random,
        *,
        decided: bool = False,
    ) -> None:
        self.interrupted: asyncio.CancelledError | None = None
        self.unknown = False
        self._service = service
        self._transaction = transaction
        self._pause = pause
        self._rng = rng
        self._decided = decided
        self._gives_up = False

    async def run(self) -> None:
        """Commit.

        Raises:
            TransactionNotInProgress, TransactionConflict, BrokerError of outcome "refused": it is not committed.
            OutcomeUnknown: ``unknown`` is set; or the database has decided, and recovery does the rest.
        """
        pointers, sure = pointers_of(self._transaction), not self._decided
        for attempt in range(COMMITS_MAX):
            if attempt:
                await self._between(attempt)
            if self._gives_up:
                break
            try:
                await self._commit()
            except (Exception, asyncio.CancelledError) as error:
                if is_refusal(error, sure=sure):
                    raise
                sure, failure = False, error
                self._note(error)
            else:
                return
            found = await self._ask(pointers)
            if found is TransactionFate.COMMITTED:
                return
            if found is TransactionFate.INVALID:
                raise self._invalid() from failure
            if found is TransactionFate.UNKNOWN:
                break
        self.unknown = True
        raise self._not_answered()

    async def _commit(self) -> None:
        transaction = self._transaction
        await asked(self._service.commit, transaction.transaction_id, transaction.write_pointer)

    async def _ask(self, pointers: Collection[int]) -> TransactionFate:
        while not self._gives_up:
            try:
                return await ask(self._service, pointers, self._pause, self._rng)
            except asyncio.CancelledError as error:
                self._note(error)
        return TransactionFate.UNKNOWN

    async def _between(self, attempt: int) -> None:
        try:
            await self._pause(retries.jittered_s(attempt, PAUSE_MIN_S, PAUSE_MAX_S, self._rng))
        except asyncio.CancelledError as error:
            self._note(error)

    def _note(self, error: BaseException) -> None:
        """Keep a cancellation. After a second one, the outcome stays unknown."""
        if isinstance(error, asyncio.CancelledError):
            self._gives_up = self.interrupted is not None
            self.interrupted = self.interrupted or error

    def _invalid(self) -> BrokerError:
        """Return the error for a commit of a transaction that has become invalid."""
        transaction_id = self._transaction.transaction_id
        if self._decided:
            return OutcomeUnknown(
                f"The database has committed, but transaction {transaction_id} has become invalid. Recovery publishes "
                "its messages again."
            )
        return TransactionNotInProgress(
            f"Transaction {transaction_id} has become invalid; it is not committed."
        )

    def _not_answered(self) -> BrokerError:
        rest = "Recovery does the rest." if self._decided else "Nothing was undone or aborted."
        return OutcomeUnknown(
            f"It is unknown whether transaction {self._transaction.transaction_id} is committed: the transaction "
            f"service does not say. {rest}"
        )


def is_refusal(error: BaseException, *, sure: bool) -> bool:
    """Return whether an error proves that the transaction is not committed.

    Args:
        error: the error of a commit.
        sure: whether no earlier commit has an unknown outcome.
    """
    if isinstance(error, TransactionConflict | TransactionNotInProgress):
        return isinstance(error, TransactionConflict)
    return sure and isinstance(error, BrokerError) and error.outcome == "refused"
