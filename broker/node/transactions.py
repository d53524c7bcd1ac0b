"""The transaction service for a node's own parts: the node's, its cluster's, or one at another address."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from broker.api.own_service import DEADLINE_S, OwnService
from broker.client import Client
from broker.clock import Clock
from broker.config.sections import Config
from broker.errors import NotFound
from broker.model import Snapshot
from broker.topics.inversion import Source
from broker.topics.registry import TopicRegistry
from broker.topics.reserved import TRANSACTIONS


class ServiceElsewhere:
    """A service at another address, over HTTP. Call ``close`` at the end."""

    def __init__(self, url: str) -> None:
        """Call the service at ``url``. It may list several nodes, with commas between them."""
        self._client = Client(url, deadline_s=DEADLINE_S)
        self._service = self._client.transactions

    async def snapshot(self) -> Snapshot:
        """Return a snapshot as of now."""
        return await self._service.snapshot()

    async def list(self, *, limit: int | None = None) -> dict[str, Any]:
        """Return the transactions in progress."""
        return await self._service.list(limit=limit)

    async def show(self, transaction_id: int) -> dict[str, Any]:
        """Return one transaction as the service knows it. Raises NotFound."""
        return await self._service.show(transaction_id)

    async def truncate_invalid(self, ids: Collection[int]) -> int:
        """Forget invalid transactions; return how many were known."""
        return await self._service.truncate(ids=ids)

    async def close(self) -> None:
        """Close its connections."""
        await self._client.close()


def asked_service(config: Config, clock: Clock) -> OwnService | ServiceElsewhere:
    """Return the service that the configuration names."""
    url = config.transactions.transactions_url
    return OwnService(clock) if url is None else ServiceElsewhere(url)


def sweep_source(service: OwnService | ServiceElsewhere, registry: TopicRegistry) -> Source:
    """Return the source of snapshots for sweeps. It does not start this broker's own service if that was never used."""
    if isinstance(service, ServiceElsewhere):
        return service.snapshot

    async def snapshot() -> Snapshot:
        if await registry.read(TRANSACTIONS) is None:
            raise NotFound("No transaction was ever begun.")
        return await service.snapshot()

    return snapshot
