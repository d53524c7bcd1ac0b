"""The two protocols of a transaction: its participants, and the transaction service.

A **participant** (``TransactionAware``) holds changes back until ``commit_tx``, and can undo them until the
transaction is committed. Methods may be plain or ``async``. Plain ones run in the thread that runs the block, so in
an asyncio program they must be quick. ``transaction_context`` has the order of the calls.

At most one participant of a transaction may be **deciding** (``DecidingAware``). It can commit its changes, but it can
neither prepare them nor undo them after a commit; a SQL database is an example. It commits last, and this commit
decides the transaction: see ``broker.sql.record``.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

from broker import user_code
from broker.client.publish_request import EncodedMessage
from broker.model import Snapshot, TopicId

T = TypeVar("T")


class TransactionAware(Protocol):
    """A participant. If a method raises an error, or returns False for a bool, the transaction fails."""

    @property
    def name(self) -> str:
        """The participant's name in errors."""

    def start_tx(self, transaction: Snapshot) -> Awaitable[None] | None:
        """The transaction has begun; or the participant joins a transaction in progress."""

    def update_tx(self, transaction: Snapshot) -> Awaitable[None] | None:
        """Continue under the write pointer of this transaction, after a checkpoint."""

    def changes(self) -> Awaitable[Collection[bytes]] | Collection[bytes]:
        """Return the keys that it changes. Two transactions that change the same key conflict."""

    def commit_tx(self) -> Awaitable[bool] | bool:
        """Persist the changes, so that they can still be undone. Return whether that is done."""

    def post_commit(self) -> Awaitable[None] | None:
        """The transaction is committed."""

    def rollback_tx(self) -> Awaitable[bool] | bool:
        """Undo the persisted changes. Return whether all of them are certainly undone."""


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
        """Commit for good, together with a record of the transaction and of its published messages.

        Raises:
            ParticipantFailed: it is not committed, and never will be.
            Exception: with any other error it may be committed: then nothing is undone, and the record decides.
        """


class AnyTransactionService(Protocol):
    """The methods of a transaction service, ours or another one. They may be plain or ``async``.

    If the ``outcome`` of an error is ``"refused"`` (TransactionConflict, TransactionNotInProgress, Unavailable), the
    call had no effect. After any other exception it may have had one.
    """

    def start(
        self, *, long: bool = False, timeout_s: float | None = None, client: str = ""
    ) -> Awaitable[Snapshot] | Snapshot:
        """Start a transaction, short or long. ``client`` is a text that names its owner for people."""

    def can_commit(self, transaction_id: int, changes: Collection[bytes]) -> Awaitable[None] | None:
        """Check the keys that the transaction changes. Raises TransactionConflict, TransactionNotInProgress."""

    def commit(
        self, transaction_id: int, write_pointer: int | None = None
    ) -> Awaitable[None] | None:
        """Commit. Raises TransactionConflict, TransactionNotInProgress."""

    def abort(self, transaction_id: int) -> Awaitable[None] | None:
        """End a transaction whose changes are all undone: its pointers become visible."""

    def invalidate(self, transaction_id: int) -> Awaitable[bool] | bool:
        """Make a transaction invalid: its changes stay hidden for good. Return whether it was in progress."""

    def checkpoint(self, transaction_id: int) -> Awaitable[Snapshot] | Snapshot:
        """Return the transaction with a further write pointer."""

    def snapshot(self) -> Awaitable[Snapshot] | Snapshot:
        """Return the snapshot of a transaction that begins now. It includes every earlier commit that was answered."""


class ParticipantFailed(RuntimeError):
    """A participant reported that it could not persist its changes. The cause, if any, has the reason."""


class Undoable:
    """Makes a participant of two callables: ``do`` persists, ``undo`` undoes that.

    Args:
        do: called when the transaction commits. If it returns False or raises an error, the transaction fails.
        undo: called if the transaction fails after ``do`` was called, also if ``do`` raised an error: it must undo
            a partial ``do``. If it returns False or raises an error, changes are left; then the transaction
            becomes invalid.
        name: the participant's name in errors.
        changes: the keys that it changes.

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
        """Ignore the new pointer."""

    def changes(self) -> Collection[bytes]:
        """Return the keys given to the constructor."""
        return self._changes

    async def commit_tx(self) -> bool:
        """Call ``do``; a checkpoint calls it, too."""
        self._done += 1
        return await resolved(self._do()) is not False

    def post_commit(self) -> None:
        """Do nothing."""

    async def rollback_tx(self) -> bool:
        """Call ``undo`` as often as ``do`` was called."""
        undone = True
        while self._done:
            undone = await resolved(self._undo()) is not False and undone
            self._done -= 1
        return undone


async def asked(method: Callable[..., Awaitable[T] | T], *arguments: Any) -> T:
    """Call a method of a participant, plain or asynchronous. Raises its errors, see ``Ended.checked``."""
    made = user_code.call(method, *arguments)
    value: Any = made.value
    try:
        if inspect.isawaitable(value):
            made = await user_code.run(lambda: value)
        return cast("T", made.checked())
    finally:
        del made  # The traceback of its error keeps this frame.


def name_of(aware: TransactionAware) -> str:
    """Return a participant's name for errors; that of its type if its own can't be had."""
    named = user_code.call(lambda: f"{aware.name}")
    return user_code.storable(named.value or type(aware).__name__)


async def resolved(value: Awaitable[T] | T) -> T:
    """Return the result of a method that may be plain or asynchronous."""
    return await value if inspect.isawaitable(value) else value
