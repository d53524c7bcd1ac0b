"""Recovery: make the broker follow the records of a SQL database. ``broker.sql.record`` says why this is right."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.client.transaction_aware import AnyTransactionService, ParticipantFailed, Topical
from broker.client.transaction_commit import Commit
from broker.client.transaction_fate import TransactionFate, ask
from broker.client.values import Browsed, Start
from broker.errors import BrokerError, NotFound, OutcomeUnknown, TopicNotFound, TopicRecreated
from broker.escapes import escaping_logger
from broker.model import POINTERS_PER_MS, Snapshot
from broker.sql.work import SqlWork

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from broker.client.aio import Client
    from broker.sql.record import RecordOwner, SqlRecord

log: Final = escaping_logger(__name__)

ROUNDS_MAX: Final = 10
"""The maximum number of steps of recovery for one record."""

SKEW_MS: Final = 60_000
"""A generous limit of the difference between the clocks of the service and of a topic's leader."""

_ALL: Final = 1 << 62


class Recovered(NamedTuple):
    """The result of one recovery, as numbers of records."""

    committed: int = 0
    """Records whose transaction is committed, by this recovery or before it."""
    republished: int = 0
    """Records whose messages were published again, because their transaction had become invalid."""


class _Renewal:
    """The deciding participant of a transaction that publishes the messages of a record again."""

    name = "the record of a transaction"

    def __init__(self, record: SqlRecord, work: SqlWork, old: RecordOwner) -> None:
        self._record = record
        self._work = work
        self._old = old
        self._new = 0

    def start_tx(self, transaction: Snapshot) -> None:
        """Remember the transaction that the record will name."""
        self._new = transaction.transaction_id

    def update_tx(self, transaction: Snapshot) -> None:
        """Do nothing: there is no checkpoint."""

    def changes(self) -> Sequence[bytes]:
        """Return nothing."""
        return ()

    def commit_tx(self) -> bool:
        """Persist nothing before the decision."""
        return True

    async def decide_tx(self, transaction: Snapshot, published: Sequence[Topical]) -> None:
        """Name this transaction in the record. Raises ParticipantFailed if another recovery was first."""
        if not await self._work(self._record.change, self._old, transaction):
            raise ParticipantFailed("Another recovery has taken the record.")

    async def post_commit(self) -> None:
        """Delete the record; if that fails, the next recovery does it."""
        try:
            await self._work(self._record.forget, self._old.number, self._new)
        except Exception as error:  # noqa: BLE001 - The transaction is committed, so nothing may be raised.
            log.warning("transaction %d is committed; its record stays: %r", self._new, error)

    def rollback_tx(self) -> bool:
        """Return True: nothing was persisted."""
        return True


class Recovery:
    """One recovery of all records."""

    def __init__(
        self,
        record: SqlRecord,
        client: Client,
        engine: Engine | AsyncEngine,
        service: AnyTransactionService | None,
    ) -> None:
        self._record = record
        self._client = client
        self._work = SqlWork(engine)
        self._service = client.transactions if service is None else service
        self._rng = random.Random()  # noqa: S311 - Jitter is no secret.

    async def run(self) -> Recovered:
        """Process one record after the other. If one fails, continue with the others."""
        committed, republished, left = 0, 0, 0
        first: tuple[int, Exception] | None = None
        for decision in await self._work(self._record.all):
            try:
                renewed = await self._follow(decision.number)
            except Exception as error:  # noqa: BLE001 - A damaged record, or a service of others, may raise anything.
                log.warning("the record of transaction %d stays: %r", decision.number, error)
                first, left = first or (decision.number, error), left + 1
            else:
                republished += renewed
                committed += not renewed
        try:
            if first is not None:
                raise OutcomeUnknown(
                    f"{left} records stay for the next recovery, for example that of transaction {first[0]}: {first[1]}"
                ) from first[1]
        finally:
            del first  # The error's traceback keeps this frame.
        return Recovered(committed, republished)

    async def _follow(self, number: int) -> bool:
        """Make the broker follow one record. Return whether its messages were published again."""
        renewed = False
        for _ in range(ROUNDS_MAX):
            decision = await self._work(self._record.get, number)
            if decision is None:
                return renewed
            pointers = {decision.transaction_id, decision.write_pointer}
            found = await ask(self._service, pointers, asyncio.sleep, self._rng)
            if found is TransactionFate.COMMITTED and await self._was_rolled_back(decision):
                found = TransactionFate.INVALID
            if found is TransactionFate.COMMITTED:
                await self._work(self._record.forget, number, decision.transaction_id)
                return renewed
            if found is TransactionFate.IN_PROGRESS:
                await self._commit(decision)
            elif found is TransactionFate.INVALID:
                renewed = await self._renew(decision) or renewed
            else:
                break
        raise OutcomeUnknown(f"The outcome of the transaction of record {number} is unknown.")

    async def _was_rolled_back(self, decision: RecordOwner) -> bool:
        """Return whether a transaction that looks committed was invalid, and the service has forgotten (pruned) it.

        The service forgets it only after all messages of the transaction are rolled back. If a topic has none of them
        any more, they have expired, and no message is left to show.
        """
        pointers = await self._work(self._record.pointers, decision)
        for topic, _ in await self._work(self._record.published, decision.number):
            try:
                row = await self._row(topic, pointers)
            except (TopicNotFound, TopicRecreated, NotFound):
                continue  # The topic was deleted; or it is a broker of another kind, which never prunes.
            if row is not None:
                return row.tx_state == "rolled_back"
        return False

    async def _row(self, topic: str, pointers: Collection[int]) -> Browsed | None:
        """Return a message in a topic of the transaction with these pointers, or None.

        If there is none, this reads to the end of the topic: only the service knows how late a transaction may publish.
        """
        place: Start = max(0, min(pointers) // POINTERS_PER_MS - SKEW_MS)
        while place is not None:
            page = await self._client.browse(topic, start=place, full=False)
            for row in page.messages:
                if row.write_pointer in pointers:
                    return row
            place = page.next
        return None

    async def _is_deleted(self, topic: str) -> bool:
        """Return whether a topic of a record was deleted. Then it would have no messages after a publish in time, either."""
        try:
            await self._client.topic(topic)
        except TopicNotFound:
            log.warning("messages of a record are dropped: topic %s was deleted", topic)
            return True
        return False

    async def _commit(self, decision: RecordOwner) -> None:
        """Commit a transaction; the caller asks for its outcome again. Raises OutcomeUnknown if the service does not tell."""
        transaction = Snapshot(
            transaction_id=decision.transaction_id,
            read_pointer=0,
            write_pointer=decision.write_pointer,
        )
        committing = Commit(self._service, transaction, asyncio.sleep, self._rng, decided=True)
        try:
            await committing.run()
        except BrokerError as error:
            if committing.unknown:
                raise
            log.info("a decided transaction was not committed in time: %s", error)
        if committing.interrupted is not None:
            raise committing.interrupted

    async def _renew(self, decision: RecordOwner) -> bool:
        """Publish the messages of a record again. Return whether this recovery did it."""
        published = await self._work(self._record.published, decision.number)
        renewal = _Renewal(self._record, self._work, decision)
        transaction = self._client.transaction(
            aware=[renewal],
            service=self._service,
            label=f"recovery of {decision.number}",
            buffer_bytes_max=_ALL,
        )
        try:
            async with transaction as tx:
                for topic, found in published:
                    if not await self._is_deleted(topic):
                        await tx.publish(topic, found)
        except ParticipantFailed:
            return False
        except OutcomeUnknown:
            if transaction.state != "decided":
                raise
        return True
