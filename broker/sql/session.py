"""A SQLAlchemy session as the deciding participant of a transaction. ``broker.sql.record`` says why this is right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Engine, event
from sqlalchemy.exc import DBAPIError

from broker.client.transaction_aware import ParticipantFailed, Topical
from broker.escapes import escaping_logger
from broker.model import Snapshot
from broker.sql.work import run

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from broker.sql.record import SqlRecord

log: Final = escaping_logger(__name__)


class Participant:
    """A plain session as the deciding participant."""

    name = "the SQL session"

    def __init__(self, record: SqlRecord, session: Session) -> None:
        self._record = record
        self._session = session
        self._number = 0
        self._committed = False

    def start_tx(self, transaction: Snapshot) -> None:
        """Watch the session for a commit inside of the block, which would have no record. Raises ValueError."""
        if not isinstance(self._session.get_bind(clause=self._record.decisions), Engine):
            raise ValueError(  # noqa: TRY004 - The session has the right type; its bind is wrong.
                "The session is bound to a connection, so its commit may have no effect. Bind it to an engine."
            )
        self._number, self._committed = transaction.transaction_id, False
        event.listen(self._session, "after_commit", self._note_commit)

    def _note_commit(self, session: Session) -> None:
        if not session.in_nested_transaction():
            self._committed = True

    def _stop_watching(self) -> None:
        if event.contains(self._session, "after_commit", self._note_commit):
            event.remove(self._session, "after_commit", self._note_commit)

    def update_tx(self, transaction: Snapshot) -> None:
        """Ignore the new pointer: the record is written at the end."""

    def changes(self) -> Sequence[bytes]:
        """Return nothing: the database finds conflicts."""
        return ()

    def commit_tx(self) -> bool:
        """Flush all changes to the database, uncommitted."""
        if self._committed:
            raise ParticipantFailed(
                "The SQL session was committed inside of the transaction. Its changes up to this commit stay."
            )
        self._session.flush()
        return True

    def decide_tx(self, transaction: Snapshot, published: Sequence[Topical]) -> None:
        """Commit with a record. Raises ParticipantFailed, or an error that leaves the outcome unknown."""
        self._stop_watching()
        try:
            self._record.write(self._session, transaction, published)
            self._session.flush()
        except Exception as error:  # Also of the program's own listeners. The commit has not begun.
            raise ParticipantFailed(f"The database did not take the record: {error!r}") from error
        try:
            self._session.commit()
        except Exception as error:
            if self._is_decided():
                return
            is_cut_off = isinstance(error, DBAPIError) and error.connection_invalidated
            if is_cut_off or isinstance(error, OSError):
                raise  # The commit may still be in progress in the server. A TimeoutError is an OSError, too.
            raise ParticipantFailed(f"The database did not commit: {error}") from error

    def _is_decided(self) -> bool:
        """Return whether a commit that raised an error has left a record. Raises an error if that is unknown."""
        self._session.rollback()  # It raises an error if the connection is lost.
        return run(self._engine, self._record.get, self._number) is not None

    def post_commit(self) -> None:
        """Delete the record; if that fails, recovery does it."""
        try:
            run(self._engine, self._record.forget, self._number, self._number)
        except Exception as error:  # noqa: BLE001 - The transaction is committed, so nothing may be raised.
            log.warning(
                "transaction %d is committed; its record stays until recovery: %s: %s",
                self._number,
                type(error).__name__,
                error,
            )

    def rollback_tx(self) -> bool:
        """Roll the session back. Uncommitted changes are certainly undone, even if the connection fails."""
        self._stop_watching()
        try:
            self._session.rollback()
        except Exception as error:  # noqa: BLE001 - Listeners of the program may raise anything.
            log.info("a rollback failed; the database rolls back by itself: %r", error)
            self._session.invalidate()
        return not self._committed

    @property
    def _engine(self) -> Engine:
        engine = self._session.get_bind(clause=self._record.decisions)
        assert isinstance(engine, Engine), "checked by start_tx"
        return engine


class AsyncParticipant:
    """An AsyncSession as the deciding participant. It does the same, in the session's own greenlet."""

    def __init__(self, record: SqlRecord, session: Any) -> None:
        self.name = Participant.name
        self._session = session
        self._plain = Participant(record, session.sync_session)

    async def _run(self, method: Any, *arguments: Any) -> Any:
        return await self._session.run_sync(lambda _: method(*arguments))

    async def start_tx(self, transaction: Snapshot) -> None:
        """As ``Participant``."""
        self._plain.start_tx(transaction)

    def update_tx(self, transaction: Snapshot) -> None:
        """As ``Participant``."""

    def changes(self) -> Sequence[bytes]:
        """As ``Participant``."""
        return ()

    async def commit_tx(self) -> bool:
        """As ``Participant``."""
        return bool(await self._run(self._plain.commit_tx))

    async def decide_tx(self, transaction: Snapshot, published: Sequence[Topical]) -> None:
        """As ``Participant``."""
        await self._run(self._plain.decide_tx, transaction, published)

    async def post_commit(self) -> None:
        """As ``Participant``."""
        await self._run(self._plain.post_commit)

    async def rollback_tx(self) -> bool:
        """As ``Participant``."""
        return bool(await self._run(self._plain.rollback_tx))
