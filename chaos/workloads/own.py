"""The product's own transaction service in the words of its model: publishers and readers stand before either.

A refused look is one without an answer, so it is asked again. A commit that is *not in progress* may have been
carried out by an earlier call whose answer was lost; so a fresh snapshot is asked before anything is rolled back.
"""

from __future__ import annotations

from broker.client import Client
from broker.errors import BrokerError, OutcomeUnknown, TransactionNotInProgress
from broker.model import Snapshot
from chaos.transactions_model import Begun, NotInProgress


class OwnTransactionService:
    """The service that the cluster's nodes lead.

    Args:
        client: reaches the cluster; its owner closes it.
        timeout_s: how long a transaction may take.
    """

    def __init__(self, client: Client, *, timeout_s: float) -> None:
        self._calls = client.transactions
        self._timeout_s = timeout_s
        self._begun: set[int] = set()

    async def begin(self) -> Begun:
        """Begin a transaction. Raises BrokerError."""
        snapshot = await self._calls.start(timeout_s=self._timeout_s, client="chaos")
        pointer = snapshot.transaction_id
        if pointer in self._begun:
            raise AssertionError(f"the write pointer {pointer} was given twice")
        self._begun.add(pointer)
        return Begun(pointer, snapshot)

    async def look(self) -> Snapshot:
        """Return what a transaction that began now would see. Raises OutcomeUnknown."""
        try:
            return await self._calls.snapshot()
        except BrokerError as error:
            raise OutcomeUnknown(f"no snapshot: {error.message}") from error

    async def commit(self, pointer: int) -> None:
        """Commit a transaction. Raises NotInProgress, BrokerError."""
        try:
            await self._calls.can_commit(pointer)
            await self._calls.commit(pointer)
        except TransactionNotInProgress as error:
            seen = await self.look()
            if seen.is_visible(pointer):
                return
            if not seen.is_invalid(pointer):
                raise OutcomeUnknown("a snapshot has it in progress again") from error
            raise NotInProgress(error.message) from error

    async def abort(self, pointer: int) -> None:
        """Abort a transaction that has undone its writes. Raises BrokerError."""
        await self._calls.abort(pointer)

    async def invalidate(self, pointer: int) -> None:
        """Hide the writes of a transaction for good. Raises BrokerError."""
        await self._calls.invalidate(pointer)

    async def end_all(self) -> None:
        """Make invalid what is in progress of the transactions that began here. Raises BrokerError."""
        for pointer in (await self.look()).in_progress:
            if pointer in self._begun:
                await self._calls.invalidate(pointer)
