"""The commit of one transaction, to a known end if there is any.

::

    service.commit ─▶ an answer: committed
        │      └────▶ refused, and no earlier attempt is unknown: raised, the caller rolls back
        └ unknown, or "not in progress"
                 └──▶ a fresh snapshot (transaction_fate):   committed    done
                                                             invalid      TransactionNotInProgress: roll back
                                                             in progress  commit again
                                                             no answer    OutcomeUnknown: all stays as it is

*Not in progress* says nothing by itself: of two commits that both arrive, the second one is answered so, and it may be
another program that sent a request twice, such as a proxy. If the transaction is visible then, its messages are seen by
all, so it counts as committed. A conflict does say something: it is the answer to a transaction that is still in
progress, and an earlier attempt that is still on its way will meet the same conflict.

A cancelled commit is one of unknown outcome. It is brought to its end, and the cancellation then goes on by
``interrupted``. A second cancellation ends the asking.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from typing import Final

from broker.client.transaction_aware import AnyTransactionService, told
from broker.client.transaction_fate import Pause, TransactionFate, ask, pause_s, pointers_of
from broker.errors import BrokerError, OutcomeUnknown, TransactionConflict, TransactionNotInProgress
from broker.model import Snapshot

COMMITS_MAX: Final = 10
"""How often a transaction that is still in progress after a commit is committed again."""


class Commit:
    """One commit.

    Args:
        service: a transaction service.
        transaction: which, with its last write pointer.
        pause: waits so many seconds.
        rng: jitter of pauses.
        decided: whether a database has decided that the transaction is committed. Then no refusal is the last word.

    Attributes:
        interrupted: the cancellation that came meanwhile, for the caller to raise.
        unknown: whether the service did not say how the commit ended.
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

    async def run(self) -> None:
        """Commit.

        Raises:
            TransactionNotInProgress, TransactionConflict, BrokerError of outcome "refused": certainly not committed.
            OutcomeUnknown: ``unknown`` is set, or the database has decided and recovery does the rest.
        """
        pointers, sure = pointers_of(self._transaction), not self._decided
        for attempt in range(COMMITS_MAX):
            if attempt:
                await self._between(attempt)
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
        await told(self._service.commit(transaction.transaction_id, transaction.write_pointer))

    async def _ask(self, pointers: Collection[int]) -> TransactionFate:
        try:
            return await ask(self._service, pointers, self._pause, self._rng)
        except asyncio.CancelledError as error:
            if self.interrupted is not None:
                return TransactionFate.UNKNOWN
            self._note(error)
        return await self._ask(pointers)

    async def _between(self, attempt: int) -> None:
        try:
            await self._pause(pause_s(attempt, self._rng))
        except asyncio.CancelledError as error:
            self._note(error)

    def _note(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError) and self.interrupted is None:
            self.interrupted = error

    def _invalid(self) -> BrokerError:
        """Return the error for a commit that came too late."""
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
        rest = (
            "Recovery does the rest." if self._decided else "Nothing of it was undone or aborted."
        )
        return OutcomeUnknown(
            f"It is unknown whether transaction {self._transaction.transaction_id} is committed: the transaction "
            f"service does not say. {rest}"
        )


def is_refusal(error: BaseException, *, sure: bool) -> bool:
    """Return whether an error says that the transaction is certainly not committed.

    Args:
        error: what a commit raised.
        sure: whether no commit before it has an unknown outcome.
    """
    if isinstance(error, TransactionConflict | TransactionNotInProgress):
        return isinstance(error, TransactionConflict)
    return sure and isinstance(error, BrokerError) and error.outcome == "refused"
