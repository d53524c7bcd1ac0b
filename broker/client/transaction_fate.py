"""Learn the outcome of a transaction from a fresh snapshot of its service.

::

    a pointer of it is invalid                            INVALID        its messages are skipped for good
    a pointer of it is in progress                        IN_PROGRESS    it may be committed
    all of them are at or below the read pointer          COMMITTED      provided that no client aborted it
    otherwise                                             UNKNOWN

An aborted transaction looks like a committed one. So a caller must not ask about a transaction that it may have aborted.
The transaction's client asks only while it has not aborted. Recovery (``broker.sql.recovery``) asks about a transaction
that a database has decided, and no client aborts such a one. An operator must not abort it either (``broker tx abort``):
then it would count as committed.

A pointer above the read pointer that is neither in progress nor invalid is unknown to the service. A commit and an abort
raise the read pointer to the transaction's last pointer. An invalidated transaction and its checkpoints may stay above the read
pointer, but they are invalid. So the snapshot is stale, or the service has lost its state. Such a snapshot proves nothing.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from broker import retries, user_code
from broker.client.transaction_aware import AnyTransactionService, asked
from broker.escapes import escaping_logger
from broker.model import Snapshot

log: Final = escaping_logger(__name__)

ASKED_MAX: Final = 4
"""The number of attempts to learn the outcome from a service that does not answer."""

PAUSE_MIN_S: Final = 0.05
PAUSE_MAX_S: Final = 2.0

Pause = Callable[[float], Awaitable[None]]


class TransactionFate(enum.Enum):
    """The outcome of a transaction."""

    COMMITTED = "committed"
    INVALID = "invalid"
    IN_PROGRESS = "in progress"
    UNKNOWN = "unknown"


def pointers_of(transaction: Snapshot) -> set[int]:
    """Return all write pointers that a transaction has had."""
    return {
        transaction.transaction_id,
        transaction.write_pointer,
        *transaction.checkpoint_pointers,
    }


def fate(snapshot: Snapshot, pointers: Collection[int]) -> TransactionFate:
    """Return the outcome of the transaction with these pointers."""
    if any(snapshot.is_invalid(pointer) for pointer in pointers):
        return TransactionFate.INVALID
    in_progress = set(snapshot.in_progress)
    if any(pointer in in_progress for pointer in pointers):
        return TransactionFate.IN_PROGRESS
    if all(pointer <= snapshot.read_pointer for pointer in pointers):
        return TransactionFate.COMMITTED
    return TransactionFate.UNKNOWN


async def ask(
    service: AnyTransactionService, pointers: Collection[int], pause: Pause, rng: random.Random
) -> TransactionFate:
    """Ask the service for the outcome of a transaction, again if it does not answer or the outcome is unknown."""
    for attempt in range(1, ASKED_MAX + 1):
        try:
            found = fate(await asked(service.snapshot), pointers)
            if found is not TransactionFate.UNKNOWN:
                return found
        except Exception as error:  # noqa: BLE001 - The service may be of the caller's.
            told = user_code.text_of(error)
            log.info("the transaction service did not tell the outcome of a transaction: %s", told)
        if attempt < ASKED_MAX:
            await pause(retries.jittered_s(attempt, PAUSE_MIN_S, PAUSE_MAX_S, rng))
    return TransactionFate.UNKNOWN
