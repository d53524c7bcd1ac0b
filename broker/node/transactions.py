"""The transaction service for a node's own parts: the node's, its cluster's, or one at another address."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from broker.api.own_service import DEADLINE_S, OwnService
from broker.client import Client
from broker.clock import Clock
from broker.config.sections import Config
from broker.errors import NotFound, OutcomeUnknown
from broker.model import Snapshot
from broker.topics.inversion import Source
from broker.topics.overdue import in_time
from broker.topics.registry import TopicRegistry
from broker.topics.reserved import TRANSACTIONS


class ServiceElsewhere:
    """A service at another address, over HTTP. Call ``close`` at the end.

    A call ends at its request's ``deadline``, and after DEADLINE_S at the latest.
    """

    def __init__(self, url: str, clock: Clock) -> None:
        """Call the service at ``url``. It may list several nodes, with commas between them."""
        self._clock = clock
        self._client = Client(url, deadline_s=DEADLINE_S)
        self._service = self._client.transactions

    async def snapshot(self, deadline: float | None = None) -> Snapshot:
        """Return a snapshot as of now."""
        async with in_time(self._clock, deadline):
            return await self._service.snapshot()

    async def list(
        self, *, limit: int | None = None, deadline: float | None = None
    ) -> dict[str, Any]:
        """Return the transactions in progress."""
        async with in_time(self._clock, deadline):
            return await self._service.list(limit=limit)

    async def show(self, transaction_id: int, deadline: float | None = None) -> dict[str, Any]:
        """Return one transaction as the service knows it. Raises NotFound."""
        async with in_time(self._clock, deadline):
            return await self._service.show(transaction_id)

    async def truncate_invalid(self, ids: Collection[int], deadline: float | None = None) -> int:
        """Forget invalid transactions; return how many were known. Raises OutcomeUnknown at the deadline."""
        async with in_time(self._clock, deadline, _unknown):
            return await self._service.truncate(ids=ids)

    async def close(self) -> None:
        """Close its connections."""
        await self._client.close()


def _unknown() -> OutcomeUnknown:
    return OutcomeUnknown("The transaction service did not answer before the request's deadline.")


def asked_service(config: Config, clock: Clock) -> OwnService | ServiceElsewhere:
    """Return the service that the configuration names."""
    url = config.transactions.transactions_url
    return OwnService(clock) if url is None else ServiceElsewhere(url, clock)


def sweep_source(service: OwnService | ServiceElsewhere, registry: TopicRegistry) -> Source:
    """Return the source of snapshots for sweeps. It does not start this broker's own service if that was never used."""
    if isinstance(service, ServiceElsewhere):
        return service.snapshot

    async def snapshot() -> Snapshot:
        if await registry.read(TRANSACTIONS) is None:
            raise NotFound("No transaction was ever begun.")
        return await service.snapshot()

    return snapshot
