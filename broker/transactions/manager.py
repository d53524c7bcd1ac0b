"""The decisions of the transaction service, with Tephra's semantics: functions of state, request and time.

::

    start ──▶ in progress ──can-commit──▶ committing ──commit──▶ visible
                   │ ▲ │                       │
                   │ └─┴──checkpoint           ├──abort (short)──────────────▶ visible: its writes are undone
                   │                           └──invalidate, abort (long)───▶ invalid
                   └──time-out──▶ invalid ──abort (short)──▶ visible

A decision returns edits and an answer, and changes nothing itself. The journal applies the edits (service_state.py): at
once in memory, and again at each replay. An answer is valid only once its edits are on disk.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, TypeVar

from broker.errors import (
    BadRequest,
    ChangesTooLarge,
    Overloaded,
    TransactionConflict,
    TransactionFenced,
    TransactionNotInProgress,
)
from broker.model import POINTER_MAX, POINTERS_PER_MS, Snapshot
from broker.shares import has_share
from broker.transactions.edits import (
    Aborted,
    Checkpointed,
    Committed,
    Committing,
    Edit,
    Invalidated,
    Named,
    Reset,
    Started,
    Truncated,
    TruncatedBefore,
)
from broker.transactions.service_settings import TransactionSettings
from broker.transactions.service_state import NameOwner, OpenTransaction, ServiceState, size_of

Result = TypeVar("Result")

TIMED_OUT_AT_ONCE: Final = 1000
"""The most timed-out transactions that one decision ends."""
TRUNCATED_AT_ONCE: Final = 4_000
"""Truncating so many pointers takes less time than the event loop may be blocked."""


class OlderInProgress(BadRequest):
    """A truncation before a moment is refused, because a transaction in progress began earlier."""


class Decision(NamedTuple, Generic[Result]):
    """The edits to make, and the answer."""

    edits: tuple[Edit, ...]
    answer: Result


def next_pointer(state: ServiceState, now_ms: int) -> int:
    """Return the next write pointer: from the time, but above the last one."""
    return max(state.last + 1, now_ms * POINTERS_PER_MS)


def begin(state: ServiceState, now_ms: int) -> Decision[None]:
    """Begin an empty state, or reset a state. Pointers go on rising."""
    return Decision((Reset(next_pointer(state, now_ms)),), None)


def start(  # noqa: PLR0913 - All by name.
    state: ServiceState,
    now_ms: int,
    settings: TransactionSettings,
    *,
    long: bool = False,
    timeout_s: float | None = None,
    client: str = "",
    name: str = "",
    epoch: int | None = None,
    of_caller: int = 0,
) -> Decision[Snapshot]:
    """Begin a transaction. With a name, first make the transaction invalid that is in progress under this name.

    A program that sends no epoch becomes the owner of the name. Its epoch is the pointer of this transaction. It sends
    the epoch with its later starts, which are refused once another program owns the name. ``of_caller`` is how many
    transactions and checkpoints of this caller are in progress.

    Raises:
        TransactionFenced: another program owns the name, or the service has forgotten the name.
        BadRequest: the time-out is not above 0, or too long; the client's name is too long.
        Overloaded: too many are in progress.
    """
    default_s = settings.long_timeout_default_s if long else settings.timeout_default_s
    max_s = settings.long_timeout_max_s if long else settings.timeout_max_s
    timeout_s = min(default_s, max_s) if timeout_s is None else timeout_s
    if not 0 < timeout_s <= max_s:
        kind = "long" if long else "short"
        raise BadRequest(
            f"timeout_s: the time-out of a {kind} transaction must be above 0 and at most {max_s:g} seconds, "
            f"not {timeout_s!r:.80}."
        )
    for field, text in (("client", client), ("name", name)):
        if len(text) > settings.client_characters_max:
            raise BadRequest(
                f"{field}: may have at most {settings.client_characters_max} characters."
            )
    pointer = next_pointer(state, now_ms)
    expires_ms = now_ms + max(int(timeout_s * 1000), 1)
    started = Started(pointer, long, now_ms, expires_ms, client)
    if not name:
        _check_room(state, settings, of_caller, long=long)
        return Decision((started,), state.snapshot(pointer, long=long))
    owner = state.names.get(name)
    _check_owner(name, owner, epoch)
    named = Named(name, pointer if epoch is None else epoch, pointer)
    former = None if owner is None else state.in_progress.get(owner.transaction)
    if former is None or (long and not former.long):
        _check_room(state, settings, of_caller, long=long)
    if former is None:
        return Decision((started, named), state.snapshot(pointer, long=long))
    ending = Invalidated((former.id,), False)
    snapshot = state.snapshot_without(former, pointer, long=long)
    return Decision((ending, started, named), snapshot)


def _check_owner(name: str, owner: NameOwner | None, epoch: int | None) -> None:
    if epoch is None or (owner is not None and owner.epoch == epoch):
        return
    why = (
        "the service has forgotten the name, because it was not used for long"
        if owner is None
        else "another program has begun a transaction under it since"
    )
    raise TransactionFenced(
        f"This program may not use the name {name!a:.80} any more: {why}. Its own transactions are over. To take the "
        "name over again, begin with a new client."
    )


def places(settings: TransactionSettings, *, long: bool) -> int:
    """Return how many transactions and checkpoints may be in progress: a quarter is kept for short transactions."""
    return settings.in_progress_max - (settings.in_progress_max // 4 if long else 0)


def _check_room(
    state: ServiceState, settings: TransactionSettings, of_caller: int, *, long: bool
) -> None:
    """Raise Overloaded if there is no room, or only room that is kept for other callers."""
    taken, most = len(state.pointers), places(settings, long=long)
    if taken >= most:
        kind = "long" if long else "short"
        raise Overloaded(
            f"{taken} transactions and checkpoints are in progress. This service takes no more {kind} "
            "ones (transactions.transactions_in_progress_max). Try again.",
            retry_after_s=1,
        )
    if not has_share(of_caller, taken, most):
        raise Overloaded(
            f"{of_caller} transactions and checkpoints of this caller are in progress, and {most - taken} places are free "
            "(transactions.transactions_in_progress_max). One address may have three times as many as are free. End "
            "some of them, and try again.",
            retry_after_s=1,
        )


def can_commit(
    state: ServiceState, transaction: int, changes: Collection[bytes], settings: TransactionSettings
) -> Decision[None]:
    """Store the keys that a transaction changed, if it conflicts with no other transaction.

    Raises:
        TransactionNotInProgress, TransactionConflict: the transaction can't commit.
        ChangesTooLarge: the change set is too large.
        Overloaded: there is no room for the change set.
    """
    found = _in_progress(state, transaction)
    keys = tuple(dict.fromkeys(changes))
    _check_changes(state, found, keys, settings)
    _check_conflict(state, found, keys)
    if keys == (found.changes or ()):
        return Decision((), None)
    return Decision((Committing(transaction, keys),), None)


def _check_changes(
    state: ServiceState,
    found: OpenTransaction,
    keys: tuple[bytes, ...],
    settings: TransactionSettings,
) -> None:
    if len(keys) > settings.changes_max:
        raise ChangesTooLarge(
            f"The change set has {len(keys)} keys. It may have at most {settings.changes_max}."
        )
    size = sum(map(len, keys))
    if size > settings.changes_bytes_max:
        raise ChangesTooLarge(
            f"The keys of the change set have {size} bytes. They may have at most {settings.changes_bytes_max}."
        )
    more = size_of(keys) - size_of(found.changes or ())
    if more > 0 and state.change_bytes + more > settings.change_sets_bytes_max:
        raise Overloaded(
            "The change sets of all transactions take too much memory. They are kept while an old transaction is in "
            "progress. Try again.",
            retry_after_s=1,
        )


def commit(
    state: ServiceState, transaction: int, write_pointer: int | None = None
) -> Decision[None]:
    """Commit a transaction: its writes become visible.

    Raises:
        TransactionNotInProgress, TransactionConflict: the transaction can't commit.
        BadRequest: the write pointer does not belong to the transaction.
    """
    found = _in_progress(state, transaction)
    if write_pointer is not None and write_pointer not in found.pointers:
        raise BadRequest(f"{write_pointer} is not a write pointer of transaction {transaction}.")
    _check_conflict(state, found, found.changes or ())
    return Decision((Committed(transaction),), None)


def abort(state: ServiceState, transaction: int) -> Decision[None]:
    """Abort a transaction whose client has undone its writes.

    A long transaction becomes invalid. A short transaction that is invalid becomes visible. Any other ended
    transaction does not change.
    """
    found = state.in_progress.get(transaction)
    if found is not None:
        edit = Invalidated((transaction,), False) if found.long else Aborted(transaction)
        return Decision((edit,), None)
    ended = state.ended.get(transaction)
    if ended is None or ended.long:
        return Decision((), None)
    return Decision((Aborted(transaction),), None)


def invalidate(state: ServiceState, transaction: int) -> Decision[bool]:
    """Make a transaction in progress invalid. Answer whether it was in progress."""
    if transaction not in state.in_progress:
        return Decision((), False)
    return Decision((Invalidated((transaction,), False),), True)


def checkpoint(
    state: ServiceState,
    now_ms: int,
    transaction: int,
    settings: TransactionSettings,
    of_caller: int = 0,
) -> Decision[Snapshot]:
    """Give a transaction another write pointer. The answer is its snapshot with that pointer.

    The snapshot has the current invalid pointers. Pointers that became invalid since the transaction began were in
    progress before, so they were not visible to it either. ``of_caller``: see ``start``.

    Raises:
        TransactionNotInProgress: the transaction is over.
        Overloaded: too many transactions and checkpoints are in progress.
    """
    found = _in_progress(state, transaction)
    _check_room(state, settings, of_caller, long=found.long)
    pointer = next_pointer(state, now_ms)
    snapshot = Snapshot(
        transaction_id=transaction,
        read_pointer=found.read_pointer,
        write_pointer=pointer,
        invalids=state.invalids,
        in_progress=found.seen,
        first_short_in_progress=found.first_short,
        long=found.long,
        checkpoint_pointers=(*found.checkpoints, pointer),
    )
    return Decision((Checkpointed(transaction, pointer),), snapshot)


def expire(
    state: ServiceState,
    now_ms: int,
    *,
    patient_ms: Callable[[float], int],
    seen_ms: Mapping[int, float] = MappingProxyType({}),
) -> Decision[int]:
    """Make transactions invalid whose time-outs have passed, at most TIMED_OUT_AT_ONCE. Answer how many.

    ``patient_ms`` is that of the clock: a time-out has not passed because the clock jumped forward. ``seen_ms`` has
    for how long this process has seen each transaction, by a clock that never jumps: a time-out has passed although the
    clock jumped back.
    """

    def has_passed(each: OpenTransaction) -> bool:
        if seen_ms.get(each.id, 0) > each.expires_ms - each.started_ms:
            return True
        if now_ms <= each.expires_ms:
            return False
        return patient_ms(each.expires_ms - each.id // POINTERS_PER_MS) > each.expires_ms

    over = [each.id for each in state.in_progress.values() if has_passed(each)]
    some = tuple(over[:TIMED_OUT_AT_ONCE])
    return Decision((Invalidated(some, True),) if some else (), len(some))


def truncate(state: ServiceState, pointers: Collection[int]) -> Decision[int]:
    """Remove pointers from the invalid list. Answer how many were in it."""
    found = sorted({pointer for pointer in pointers if state.is_invalid(pointer)})
    return Decision((Truncated(tuple(found)),) if found else (), len(found))


def truncate_before(state: ServiceState, before_ms: int) -> Decision[int]:
    """Remove pointers given before a moment from the invalid list, at most TRUNCATED_AT_ONCE. Answer how many.

    Raises:
        OlderInProgress: a transaction in progress began before that moment.
    """
    bound = min(before_ms * POINTERS_PER_MS, POINTER_MAX)
    if state.pointers and state.pointers[0] < bound:
        raise OlderInProgress(
            f"Transaction {state.pointers[0]} is in progress and began before {before_ms}. End it first, or "
            "truncate before an earlier moment."
        )
    count = min(bisect_left(state.invalids, bound), TRUNCATED_AT_ONCE)
    if count == TRUNCATED_AT_ONCE:
        bound = state.invalids[count - 1] + 1
    return Decision((TruncatedBefore(bound),) if count else (), count)


def _in_progress(state: ServiceState, transaction: int) -> OpenTransaction:
    found = state.in_progress.get(transaction)
    if found is not None:
        return found
    if state.is_invalid(transaction):
        raise TransactionNotInProgress(
            f"Transaction {transaction} is not in progress: it is invalid. It timed out, it was invalidated, or "
            "another transaction began under its name."
        )
    raise TransactionNotInProgress(f"Transaction {transaction} is not in progress.")


def _check_conflict(
    state: ServiceState, found: OpenTransaction, changes: Collection[bytes]
) -> None:
    key = state.conflict(found, changes)
    if key is not None:
        raise TransactionConflict(
            f"Transaction {found.id} conflicts: a transaction that committed after it began also changed the key "
            f"{key.hex()[:200]} (hex).",
            key=key,
        )
