"""The transactions workload: publishers with and without transactions, readers with and without snapshots.

The transaction service is a model (``chaos.transactions_model``) outside the cluster. It is slow at times,
and loses answers, but it is never wrong. So the broker alone causes any wrong or missing row in a read.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from typing_extensions import override

from broker.client import Client, Snapshot
from chaos.transactions_model import ModelService
from chaos.workloads import publishers, readers, transaction_clients
from chaos.workloads.client_process import TopicTarget
from chaos.workloads.finals import overview, read_everywhere
from chaos.workloads.log import created
from chaos.workloads.own import OwnTransactionService
from chaos.workloads.workload import WorkloadSurroundings

TOPICS_MIN: Final = 2
"""A transaction may span topics."""


class TransactionsWorkload:
    """Transactions over some topics, among plain publishers and readers."""

    name = "transactions"

    def __init__(self) -> None:
        """Begin without topics and without a service."""
        self.targets: list[TopicTarget] = []
        self._service: ModelService | None = None

    async def prepare(self, around: WorkloadSurroundings) -> None:
        """Create the topics. Raises BrokerError."""
        self._service = ModelService(
            around.clock,
            random.Random(around.chance.random()),
            timeout_s=around.scale.transaction_s,
            slow_s=around.scale.transaction_s / 4,
        )
        self.targets = await created(around, self.name, max(TOPICS_MIN, around.scale.topics))

    @property
    def service(self) -> transaction_clients.WorkloadService:
        """Return the transaction service, after ``prepare``."""
        assert self._service is not None, "prepared first"
        return self._service

    async def run(self, around: WorkloadSurroundings, stop: asyncio.Event) -> None:
        """Publish, commit, roll back and read until ``stop`` is set."""
        service, targets = self.service, self.targets
        publishing = [
            transaction_clients.publisher(around, f"transactional-{number}", targets, service, stop)
            for number in range(around.scale.publishers)
        ]
        reading = []
        for target in targets:
            publishing.append(publishers.single(around, f"plain-{target.name}", target, stop))
            reading += [
                transaction_clients.follower(around, f"follower-{target.name}", target, service),
                transaction_clients.auditor(around, f"auditor-{target.name}", target, service),
                readers.waiting(around, f"waiting-{target.name}", target),
                readers.browsing(around, f"browsing-{target.name}", target),
            ]
        await readers.work(publishing, reading)

    async def finish(self, around: WorkloadSurroundings) -> None:
        """End all transactions, then read everything without and with a snapshot."""
        snapshot = await self._end_all(around)
        await read_everywhere(around, self.targets)
        await read_everywhere(around, self.targets, snapshot=snapshot)
        for target in self.targets:
            await overview(around, target)

    async def _end_all(self, around: WorkloadSurroundings) -> Snapshot:
        """End all transactions, and return a snapshot that is later than all of them."""
        assert self._service is not None, "prepared first"
        self._service.end_all()
        return self._service.model.look(around.clock.now_ms())


class OwnTransactionsWorkload(TransactionsWorkload):
    """The same workload with the product's own transaction service, which the faults also hit."""

    name = "own-transactions"

    def __init__(self) -> None:
        """Begin without topics and without a service."""
        super().__init__()
        self._own: OwnTransactionService | None = None
        self._client: Client | None = None

    @override
    async def prepare(self, around: WorkloadSurroundings) -> None:
        self._client = around.client("transactions", deadline_s=around.scale.deadline_s)
        self._own = OwnTransactionService(self._client, timeout_s=around.scale.transaction_s)
        self.targets = await created(around, self.name, max(TOPICS_MIN, around.scale.topics))

    @property
    @override
    def service(self) -> transaction_clients.WorkloadService:
        assert self._own is not None, "prepared first"
        return self._own

    @override
    async def _end_all(self, around: WorkloadSurroundings) -> Snapshot:
        assert self._own is not None, "prepared first"
        assert self._client is not None, "prepared first"
        await self._own.end_all()
        snapshot = await self._own.look()
        await self._client.close()
        return snapshot
