"""The product's own transaction service, with the interface of its model, so that a workload can use either.

A refused look counts as unknown, so the workload repeats it. A commit that is refused as *not in progress*
may have been done by an earlier call whose answer was lost. So this class gets a new snapshot before the
caller rolls anything back.
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
        self._begun.add(snapshot.transaction_id)
        return Begun(snapshot.transaction_id, snapshot)

    async def look(self) -> Snapshot:
        """Return the snapshot of a transaction that begins now. Raises OutcomeUnknown."""
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
                raise OutcomeUnknown("a snapshot names it as in progress again") from error
            raise NotInProgress(error.message) from error

    async def abort(self, pointer: int) -> None:
        """Abort a transaction whose writes are rolled back. Raises BrokerError."""
        await self._calls.abort(pointer)

    async def invalidate(self, pointer: int) -> None:
        """Make a transaction invalid, which hides its writes for ever. Raises BrokerError."""
        await self._calls.invalidate(pointer)

    async def end_all(self) -> None:
        """Make all transactions that began here and are in progress invalid. Raises BrokerError."""
        for pointer in (await self.look()).in_progress:
            if pointer in self._begun:
                await self._calls.invalidate(pointer)
