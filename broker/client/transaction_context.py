"""One transaction over several participants: Tephra's order of calls, and the right end after every failure.

::

    start       service.start, then start_tx on each participant, in the order in which they were added;
                after a failure: service.abort
    finish      1 changes of each    2 service.can_commit    3 commit_tx on each, our publisher last
                  (a deciding participant: decide_tx)        4 service.commit          5 post_commit on each
                after a failure of 1 to 4: abort. A failure of 5 is raised; the transaction stays committed
    abort       rollback_tx on all, also after an error; all True: service.abort, else service.invalidate
    checkpoint  commit_tx on each, service.checkpoint, update_tx on each; after a failure: abort

The first error is raised; the others become its notes. A cancellation is raised in any case, with that error as its
cause, so that the caller's task ends. Two outcomes may be unknown, and each has a rule:

* **A publish**: rollback_tx of the publisher returns False, so the transaction becomes invalid and is never aborted.
  An aborted transaction's pointer is visible. So would be messages whose publish got no answer.
* **A commit**: nothing is rolled back before a fresh snapshot shows its outcome (``transaction_commit``).

A cancelled call has an unknown outcome. This object first brings the transaction to its end, and then raises the
cancellation. A cancellation meanwhile ends the call that it meets, as any other error does.

A deciding participant (a SQL database, ``broker.sql.record``) commits after all others have persisted. From then on
the transaction is never rolled back: the participant's own record decides, and recovery reads it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final, Literal

from broker import user_code
from broker.client.transaction_aware import (
    AnyTransactionService,
    DecidingAware,
    ParticipantFailed,
    Topical,
    TransactionAware,
    asked,
    name_of,
)
from broker.client.transaction_commit import Commit
from broker.client.transaction_fate import Pause, TransactionFate, ask
from broker.errors import BrokerError, OutcomeUnknown, TransactionConflict, TransactionNotInProgress
from broker.model import Snapshot

State = Literal["new", "in_progress", "committed", "aborted", "invalid", "unknown", "decided"]
"""``decided``: the deciding participant has committed, and the service not yet; recovery does the rest."""

_FAILURE: Final = (Exception, asyncio.CancelledError, SystemExit, KeyboardInterrupt)


class TransactionContext:
    """Runs transactions over the same participants, one after the other.

    Args:
        service: a transaction service, ours (``client.transactions``) or another one.
        awares: the participants, in the order of their calls.
        last: a participant that comes after all others, also after those that are added later.
        long: as for ``TransactionService.start``, as are ``timeout_s``, ``client`` and ``name``.
        pause: waits so many seconds between attempts.

    Attributes:
        transaction: the present or last transaction, as the service returned it; None before the first.
        state: the state of the transaction.
        conflicted: whether it ended by a conflict.
        left: the names of participants, other than ``last``, whose changes may not be undone.
    """

    def __init__(  # noqa: PLR0913 - All by name.
        self,
        service: AnyTransactionService,
        awares: Sequence[TransactionAware] = (),
        *,
        last: TransactionAware | None = None,
        long: bool = False,
        timeout_s: float | None = None,
        client: str = "",
        name: str = "",
        pause: Pause = asyncio.sleep,
    ) -> None:
        self.transaction: Snapshot | None = None
        self.state: State = "new"
        self.conflicted = False
        self.left: list[str] = []
        self._service = service
        self._awares: list[TransactionAware] = []
        self._last = last
        self._wanted: dict[str, Any] = {"long": long, "timeout_s": timeout_s, "client": client}
        if name:  # Other services have no names.
            self._wanted["name"] = name
        self._pause = pause
        self._rng = random.Random()  # noqa: S311 - Jitter is no secret.
        self._interrupted: asyncio.CancelledError | None = None
        for aware in awares:
            self._append(aware)

    # --- Participants -----------------------------------------------------------------------------

    async def add(self, aware: TransactionAware) -> None:
        """Add a participant; during a transaction, call its ``start_tx`` at once. Adding it again is a no-op.

        Raises:
            ValueError: there is a deciding participant already.
        """
        if self._append(aware) and self.state == "in_progress":
            await asked(aware.start_tx, self._present())

    def remove(self, aware: TransactionAware) -> None:
        """Remove a participant. Raises ValueError during a transaction, or if it was not added."""
        if self.state == "in_progress":
            raise ValueError("A participant can't be removed during a transaction.")
        self._awares.remove(aware)

    def _append(self, aware: TransactionAware) -> bool:
        if any(aware is other for other in self._awares):
            return False
        if isinstance(aware, DecidingAware) and self.decider is not None:
            raise ValueError(
                "A transaction has at most one deciding participant: there is one already."
            )
        self._awares.append(aware)
        return True

    @property
    def decider(self) -> DecidingAware | None:
        """The participant whose commit decides, if there is one."""
        return next((each for each in self._awares if isinstance(each, DecidingAware)), None)

    @property
    def participants(self) -> list[TransactionAware]:
        """All participants, in the order of their calls."""
        return self._awares if self._last is None else [*self._awares, self._last]

    # --- The course of a transaction --------------------------------------------------------------

    async def start(self) -> Snapshot:
        """Start a transaction. Raises the errors of the service and of the participants."""
        if self.state == "in_progress":
            raise ValueError("A transaction is in progress already.")
        self.state, self.conflicted, self.left = "new", False, []
        self._interrupted = None
        started = self.transaction = await self._begun()
        self.state = "in_progress"
        try:
            for aware in self.participants:
                await asked(aware.start_tx, started)
        except _FAILURE as error:
            await self._abort_service(error)
            raise
        return started

    async def _begun(self) -> Snapshot:
        """Start a transaction. If the caller is cancelled meanwhile, end it: left open, it would hold up its readers."""
        call = partial(self._service.start, **self._wanted)
        starting = asyncio.create_task(user_code.run(asked, call))
        try:
            ended: user_code.Ended[Snapshot] = await asyncio.shield(starting)
        except asyncio.CancelledError as error:
            await asyncio.wait([starting])
            if (begun := starting.result().value) is not None:
                self.transaction = begun
                await self._abort_service(error)
            raise
        finally:
            starting.cancel()
            del starting
        try:
            return ended.checked()
        finally:
            del ended  # The traceback of its error has this frame.

    async def finish(self, *, published: Callable[[], Collection[Topical]] = tuple) -> None:
        """Commit the transaction.

        Args:
            published: returns the messages that the publisher has published, for a deciding participant to record.

        Raises:
            TransactionConflict, TransactionNotInProgress: it is not committed, and its changes are undone, or invalid.
            OutcomeUnknown: see ``state``. ``unknown``: the service did not say whether it is committed. ``decided``: the
                deciding participant has committed, and recovery does the rest.
            Exception: the error of a participant. If ``state`` is ``committed``, its ``post_commit`` raised it.
        """
        transaction = self._present()
        try:
            await self._collect_and_persist(transaction)
            await self._decide(transaction, published)
            await self._commit(transaction)
        except _FAILURE as error:
            if self.state == "in_progress":
                self.conflicted = isinstance(error, TransactionConflict)
                await self._undo(error)
            if self._interrupted is not None:
                raise self._interrupted from error
            raise
        self.state = "committed"
        await self._post_commit()

    async def abort(self, cause: BaseException | None = None) -> None:
        """Roll back, then abort or invalidate. A no-op if there is no transaction.

        Args:
            cause: the reason; other errors become its notes. Without it, the first error is raised.

        Raises:
            CancelledError: the caller was cancelled meanwhile, and ``cause`` is no cancellation.
            OutcomeUnknown: it is unknown whether the transaction is invalid.
        """
        if self.state == "in_progress":
            await self._undo(cause)

    async def checkpoint(self) -> Snapshot:
        """Persist all changes so far, and continue under a further write pointer. A failure aborts the transaction."""
        transaction = self._present()
        try:
            await self._persist()
            renewed = await asked(self._service.checkpoint, transaction.transaction_id)
            self.transaction = renewed
            for aware in self.participants:
                await asked(aware.update_tx, renewed)
        except _FAILURE as error:
            await self._undo(error)
            raise
        return renewed

    # --- Committing -------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise TransactionNotInProgress if there is no transaction in progress."""
        self._present()

    def _present(self) -> Snapshot:
        """Return the transaction in progress. Raises TransactionNotInProgress."""
        if self.transaction is None or self.state != "in_progress":
            raise TransactionNotInProgress(f"There is no transaction in progress: {self.state}.")
        return self.transaction

    async def _collect_and_persist(self, transaction: Snapshot) -> None:
        changes: set[bytes] = set()
        for aware in self.participants:
            changes.update(await asked(aware.changes))
        if changes and self.decider is not None:
            raise ValueError(
                "A transaction that a SQL database decides can't have keys of changes: the service would find a "
                "conflict after the database has committed. Let the database find conflicts."
            )
        await asked(self._service.can_commit, transaction.transaction_id, changes)
        await self._persist()

    async def _persist(self) -> None:
        for aware in self.participants:
            if not await asked(aware.commit_tx):
                raise ParticipantFailed(f"{name_of(aware)} could not persist its changes.")

    async def _decide(
        self, transaction: Snapshot, published: Callable[[], Collection[Topical]]
    ) -> None:
        decider = self.decider
        if decider is None:
            return
        try:
            await asked(decider.decide_tx, transaction, list(published()))
        except ParticipantFailed:
            raise
        except _FAILURE as error:
            self.state = "unknown"
            if not isinstance(error, Exception):
                raise
            raise OutcomeUnknown(
                f"It is unknown whether transaction {transaction.transaction_id} is committed: "
                f"{user_code.text_of(error)}. Nothing was undone; recovery decides by the record in the database."
            ) from error
        self.state = "decided"

    async def _commit(self, transaction: Snapshot) -> None:
        committing = Commit(
            self._service, transaction, self._pause, self._rng, decided=self.state == "decided"
        )
        try:
            await committing.run()
        finally:
            self._interrupted = committing.interrupted
            if committing.unknown and self.state != "decided":
                self.state = "unknown"

    async def _post_commit(self) -> None:
        errors: list[BaseException] = []
        for aware in self.participants:
            try:
                await asked(aware.post_commit)
            except _FAILURE as error:
                error.add_note(f"Raised by {name_of(aware)} after the transaction was committed.")
                errors.append(error)
        if self._interrupted is not None:
            errors.insert(0, self._interrupted)
        if errors:
            raise _with_notes(errors)

    # --- Undoing ----------------------------------------------------------------------------------

    async def _undo(self, cause: BaseException | None) -> None:
        """Roll all participants back, and abort or invalidate. Raises the first one, unless it is ``cause``."""
        errors = [each for each in (cause, self._interrupted) if each is not None]
        undone = True
        for aware in self.participants:
            try:
                complete = bool(await asked(aware.rollback_tx))
            except _FAILURE as error:
                complete = False
                errors.append(error)
            if not complete:
                undone = False
                if aware is not self._last:
                    self.left.append(name_of(aware))
        if undone:
            self.state = "aborted"
            await self._tell_abort(errors)
        else:
            await self._invalidate(errors)
        if errors and (first := _with_notes(errors)) is not cause:
            raise first

    async def _abort_service(self, cause: BaseException) -> None:
        """Abort a transaction that has no changes yet."""
        errors = [cause]
        self.state = "aborted"
        await self._tell_abort(errors)
        if (first := _with_notes(errors)) is not cause:
            raise first

    async def _tell_abort(self, errors: list[BaseException]) -> None:
        transaction_id = self._id
        try:
            await asked(self._service.abort, transaction_id)
        except _FAILURE as error:
            error.add_note(
                f"Everything was undone, but the service may not know that transaction {transaction_id} is aborted: "
                "consumers may wait until its time-out."
            )
            errors.append(error)

    async def _invalidate(self, errors: list[BaseException]) -> None:
        """Make the transaction invalid. If the service does not confirm that, put an error that says so first."""
        transaction_id, failure = self._id, None
        self.state = "unknown"
        try:
            done = bool(await asked(self._service.invalidate, transaction_id))
        except asyncio.CancelledError as error:
            done = False
            errors.append(error)
        except Exception as error:  # noqa: BLE001 - The question below decides.
            done, failure = False, error
        if not done:
            try:
                found = await ask(self._service, {transaction_id}, self._pause, self._rng)
                done = found is TransactionFate.INVALID
            except _FAILURE as error:
                errors.append(error)
        if done:
            self.state = "invalid"
            return
        text = (
            f"Transaction {transaction_id} may have changes that are not undone, and it is unknown whether it is "
            "invalid. It was not aborted."
        )
        unknown = OutcomeUnknown(f"{text} {user_code.text_of(errors[0])}" if errors else text)
        unknown.__cause__ = failure or (errors[0] if errors else None)
        if errors and not isinstance(errors[0], BrokerError):
            errors.append(unknown)
        else:
            errors.insert(0, unknown)

    @property
    def _id(self) -> int:
        assert self.transaction is not None, "only a transaction that was started is undone"
        return self.transaction.transaction_id


def _with_notes(errors: Sequence[BaseException]) -> BaseException:
    """Return the first cancellation or end of the program, or else the first error.

    The first error gets the others as its notes.
    """
    first, *others = errors
    for other in others:
        notes = "".join(f" {note}" for note in getattr(other, "__notes__", ()))
        first.add_note(f"Then: {user_code.text_of(other)}{notes}")
    raised = next((each for each in errors if not isinstance(each, Exception)), first)
    if raised is not first:
        raised.__cause__ = first
    return raised
