"""Who takes part in a transaction, and what a transaction service has to do: the two protocols.

A **participant** (``TransactionAware``) holds changes back until ``commit_tx``, and can take them back until the
transaction is committed. Methods may be plain or ``async``; plain ones run in the thread that runs the block, so
in a program for asyncio they must be quick. The order of the calls is that of ``transaction_context``.

At most one participant of a transaction may be **deciding** (``DecidingAware``): its changes can be committed, but
neither prepared nor taken back afterwards, as those of a SQL database. It commits last, and by that decides the
transaction: see ``broker.sql.record``.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from broker.client.publish_request import EncodedMessage
from broker.model import Snapshot, TopicId

T = TypeVar("T")


class TransactionAware(Protocol):
    """A participant. What a method raises ends the transaction, as does False where a truth is asked for."""

    @property
    def name(self) -> str:
        """What errors call it."""

    def start_tx(self, transaction: Snapshot) -> Awaitable[None] | None:
        """The transaction begins, or has begun."""

    def update_tx(self, transaction: Snapshot) -> Awaitable[None] | None:
        """After a checkpoint: go on under this write pointer."""

    def changes(self) -> Awaitable[Collection[bytes]] | Collection[bytes]:
        """Return the keys of what it changes: two transactions that change the same key conflict."""

    def commit_tx(self) -> Awaitable[bool] | bool:
        """Persist the changes, so that they can still be taken back. Return whether that is done."""

    def post_commit(self) -> Awaitable[None] | None:
        """The transaction is committed."""

    def rollback_tx(self) -> Awaitable[bool] | bool:
        """Take back what was persisted. Return whether all is undone for certain."""


class Topical(NamedTuple):
    """Messages of one topic, in their order."""

    topic: TopicId
    messages: Sequence[EncodedMessage]


@runtime_checkable
class DecidingAware(Protocol):
    """A participant whose own commit decides the transaction."""

    def decide_tx(
        self, transaction: Snapshot, published: Sequence[Topical]
    ) -> Awaitable[None] | None:
        """Commit, for good, together with a record of the transaction and of what it has published.

        Raises:
            ParticipantFailed: it is certainly not committed, and never will be.
            Exception: any other says that it may be committed: then nothing is undone, and the record decides.
        """


class AnyTransactionService(Protocol):
    """What a transaction needs of a service, ours or another one. Methods may be plain or ``async``.

    An error whose ``outcome`` is ``"refused"`` (TransactionConflict, TransactionNotInProgress, Unavailable) says that
    the call has certainly had no effect. Every other exception says that it may have had one.
    """

    def start(
        self, *, long: bool = False, timeout_s: float | None = None, client: str = ""
    ) -> Awaitable[Snapshot] | Snapshot:
        """Start a transaction, short or long; ``client`` tells people whose it is."""

    def can_commit(self, transaction_id: int, changes: Collection[bytes]) -> Awaitable[None] | None:
        """Take the keys of what the transaction changes. Raises TransactionConflict, TransactionNotInProgress."""

    def commit(
        self, transaction_id: int, write_pointer: int | None = None
    ) -> Awaitable[None] | None:
        """Commit. Raises TransactionConflict, TransactionNotInProgress."""

    def abort(self, transaction_id: int) -> Awaitable[None] | None:
        """End a transaction whose changes are all undone: its pointers become visible."""

    def invalidate(self, transaction_id: int) -> Awaitable[bool] | bool:
        """Hide a transaction's changes for good. Return whether it was in progress."""

    def checkpoint(self, transaction_id: int) -> Awaitable[Snapshot] | Snapshot:
        """Return the transaction with a further write pointer."""

    def snapshot(self) -> Awaitable[Snapshot] | Snapshot:
        """Return what a transaction that begins now would see: all that was answered before the call is in it."""


class ParticipantFailed(RuntimeError):
    """A participant could not persist its changes, and said so; its cause has the reason, if there is one."""


class Undoable:
    """Two plain callables as a participant: ``do`` persists, ``undo`` takes it back.

    Args:
        do: called when the transaction commits. Returning False, or raising, ends the transaction.
        undo: called if the transaction fails after ``do`` was called, also if ``do`` has raised: it undoes what is
            there of it. Returning False, or raising, says that something is left; then the transaction is made
            invalid.
        name: what errors call it.
        changes: the keys of what it changes.

    Both may be ``async``.
    """

    def __init__(
        self,
        do: Callable[[], Any],
        undo: Callable[[], Any],
        *,
        name: str = "a pair of callables",
        changes: Collection[bytes] = (),
    ) -> None:
        self.name = name
        self._do = do
        self._undo = undo
        self._changes = changes
        self._done = 0

    def start_tx(self, transaction: Snapshot) -> None:
        """Begin with nothing done."""
        self._done = 0

    def update_tx(self, transaction: Snapshot) -> None:
        """Take no note of the pointer."""

    def changes(self) -> Collection[bytes]:
        """Return the keys that it was made with."""
        return self._changes

    async def commit_tx(self) -> bool:
        """Call ``do``, at a checkpoint, too."""
        self._done += 1
        return await told(self._do()) is not False

    def post_commit(self) -> None:
        """Do nothing."""

    async def rollback_tx(self) -> bool:
        """Call ``undo`` as often as ``do`` was called."""
        undone = True
        while self._done:
            undone = await told(self._undo()) is not False and undone
            self._done -= 1
        return undone


async def told(value: Awaitable[T] | T) -> T:
    """Return what a method gave, which may be a promise of it."""
    return await value if inspect.isawaitable(value) else value
