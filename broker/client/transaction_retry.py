"""Run work in a transaction, and run it again in a fresh one after a conflict.

Two failures are retried: a conflict, after which no change of the transaction is left, and a refusal to begin a
transaction for now. After any other failure the transaction may have had an effect, or would fail again. If a
participant of the caller could not undo its changes, a conflict is not retried, either: it would do its work twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tenacity import (
    AsyncRetrying,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from broker.errors import BrokerError, TransactionConflict

if TYPE_CHECKING:
    from broker.client.transaction_block import Transaction
    from broker.client.transaction_context import TransactionContext
    from broker.client.transaction_sync import SyncTransaction

T = TypeVar("T")

ATTEMPTS_MAX: Final = 20
DELAY_MIN_S: Final = 0.01
DELAY_MAX_S: Final = 2.0


class _AgainError(Exception):
    """Raised internally, with the error as its cause, for a failure that is worth a retry."""


async def repeat(
    begin: Callable[[], Transaction],
    work: Callable[[Transaction], Awaitable[T]],
    attempts_max: int,
) -> T:
    """Run work with retries; see ``Client.in_transaction``."""

    async def attempt() -> T:
        transaction = begin()
        try:
            async with transaction:
                return await work(transaction)
        except BrokerError as error:
            if _is_worth_it(error, transaction.context):
                raise _AgainError from error
            raise

    return await _unwrapped_async(AsyncRetrying(**_plan(attempts_max)), attempt)


def repeat_blocking(
    begin: Callable[[], SyncTransaction], work: Callable[[SyncTransaction], T], attempts_max: int
) -> T:
    """Run work with retries; see ``SyncClient.in_transaction``."""

    def attempt() -> T:
        transaction = begin()
        try:
            with transaction:
                return work(transaction)
        except BrokerError as error:
            if _is_worth_it(error, transaction.context):
                raise _AgainError from error
            raise

    try:
        return Retrying(**_plan(attempts_max))(attempt)
    except _AgainError as again:
        raise _cause(again) from None


async def _unwrapped_async(retrying: AsyncRetrying, attempt: Callable[[], Awaitable[T]]) -> T:
    try:
        return await retrying(attempt)
    except _AgainError as again:
        raise _cause(again) from None


def _plan(attempts_max: int) -> dict[str, Any]:
    return {
        "retry": retry_if_exception_type(_AgainError),
        "stop": stop_after_attempt(attempts_max),
        "wait": wait_random_exponential(multiplier=DELAY_MIN_S, max=DELAY_MAX_S),
        "reraise": True,
    }


def _is_worth_it(error: BrokerError, context: TransactionContext) -> bool:
    """Return whether a fresh transaction may succeed, and no change of this one is left."""
    not_begun = context.state == "new" and error.outcome == "refused" and error.retriable
    conflicted = context.conflicted and isinstance(error, TransactionConflict)
    return not_begun or (conflicted and not context.left)


def _cause(again: _AgainError) -> BaseException:
    assert again.__cause__ is not None, "it is always raised from an error"
    return again.__cause__
