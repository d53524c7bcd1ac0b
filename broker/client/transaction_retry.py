"""Run work in a transaction, and run it again in a fresh one after a conflict.

Two failures are retried: a conflict, after which no change of the transaction is left, and a refusal to begin a
transaction for now. After any other failure the transaction may have had an effect, or would fail again. If a
participant of the caller could not undo its changes, a conflict is not retried, either: it would do its work twice.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from broker import retries, user_code
from broker.errors import BrokerError, TransactionConflict

if TYPE_CHECKING:
    from broker.client.transaction_block import Transaction
    from broker.client.transaction_context import TransactionContext
    from broker.client.transaction_sync import SyncTransaction

T = TypeVar("T")

ATTEMPTS_MAX: Final = 20
DELAY_MIN_S: Final = 0.01
DELAY_MAX_S: Final = 2.0


class _TransactionAttempts:
    """The attempts at one piece of work."""

    def __init__(self, attempts_max: int) -> None:
        self._attempts_max = attempts_max
        self.context: TransactionContext | None = None
        """That of the last attempt's transaction."""

    def pause_s(self, error: Exception, attempts: int) -> float | None:
        """Return the pause before the next attempt; None: there is none."""
        context = self.context
        if not isinstance(error, BrokerError) or context is None or attempts >= self._attempts_max:
            return None
        if not _is_worth_it(error, context):
            return None
        longest_s = retries.doubled_s(attempts, DELAY_MIN_S, DELAY_MAX_S)
        return random.uniform(0, longest_s)  # noqa: S311 - Jitter is no secret.


async def repeat(
    begin: Callable[[], Transaction],
    work: Callable[[Transaction], Awaitable[T]],
    attempts_max: int,
) -> T:
    """Run work with retries; see ``Client.in_transaction``."""
    user_code.check_takes(work, 1, "work")
    attempts = _TransactionAttempts(attempts_max)

    async def attempt() -> T:
        transaction = begin()
        attempts.context = transaction.context
        async with transaction:
            return await work(transaction)

    return await retries.repeat(attempt, attempts.pause_s, asyncio.sleep)


def repeat_blocking(
    begin: Callable[[], SyncTransaction], work: Callable[[SyncTransaction], T], attempts_max: int
) -> T:
    """Run work with retries; see ``SyncClient.in_transaction``."""
    user_code.check_plain(work, 1, "work")
    attempts, count = _TransactionAttempts(attempts_max), 0
    while True:
        transaction = begin()
        attempts.context = transaction.context
        try:
            with transaction:
                return work(transaction)
        except BrokerError as error:
            count += 1
            seconds = attempts.pause_s(error, count)
            if seconds is None:
                raise
        threading.Event().wait(seconds)


def _is_worth_it(error: BrokerError, context: TransactionContext) -> bool:
    """Return whether a fresh transaction may succeed, and no change of this one is left."""
    not_begun = context.state == "new" and error.outcome == "refused" and error.retriable
    conflicted = context.conflicted and isinstance(error, TransactionConflict)
    return not_begun or (conflicted and not context.left)
