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
from chaos.workloads.workload import WorkloadStage

TOPICS_MIN: Final = 2
"""A transaction may span topics."""


class TransactionsWorkload:
    """Transactions over some topics, among plain publishers and readers."""

    name = "transactions"

    def __init__(self) -> None:
        """Begin without topics and without a service."""
        self.targets: list[TopicTarget] = []
        self._service: ModelService | None = None

    async def prepare(self, stage: WorkloadStage) -> None:
        """Create the topics. Raises BrokerError."""
        self._service = ModelService(
            stage.clock,
            random.Random(stage.chance.random()),
            timeout_s=stage.scale.transaction_s,
            slow_s=stage.scale.transaction_s / 4,
        )
        self.targets = await created(stage, self.name, max(TOPICS_MIN, stage.scale.topics))

    @property
    def service(self) -> transaction_clients.WorkloadService:
        """Return the transaction service, after ``prepare``."""
        assert self._service is not None, "prepared first"
        return self._service

    async def run(self, stage: WorkloadStage, stop: asyncio.Event) -> None:
        """Publish, commit, roll back and read until ``stop`` is set."""
        service, targets = self.service, self.targets
        publishing = [
            transaction_clients.publisher(stage, f"transactional-{number}", targets, service, stop)
            for number in range(stage.scale.publishers)
        ]
        reading = []
        for target in targets:
            publishing.append(publishers.single(stage, f"plain-{target.name}", target, stop))
            reading += [
                transaction_clients.follower(stage, f"follower-{target.name}", target, service),
                transaction_clients.auditor(stage, f"auditor-{target.name}", target, service),
                readers.waiting(stage, f"waiting-{target.name}", target),
                readers.browsing(stage, f"browsing-{target.name}", target),
            ]
        await readers.work(publishing, reading)

    async def finish(self, stage: WorkloadStage) -> None:
        """End all transactions, then read everything without and with a snapshot."""
        snapshot = await self._end_all(stage)
        await read_everywhere(stage, self.targets)
        await read_everywhere(stage, self.targets, snapshot=snapshot)
        for target in self.targets:
            await overview(stage, target)

    async def _end_all(self, stage: WorkloadStage) -> Snapshot:
        """End all transactions, and return a snapshot that is later than all of them."""
        assert self._service is not None, "prepared first"
        self._service.end_all()
        return self._service.model.look(stage.clock.now_ms())


class OwnTransactionsWorkload(TransactionsWorkload):
    """The same workload with the product's own transaction service, which the faults also hit."""

    name = "own-transactions"

    def __init__(self) -> None:
        """Begin without topics and without a service."""
        super().__init__()
        self._own: OwnTransactionService | None = None
        self._client: Client | None = None

    @override
    async def prepare(self, stage: WorkloadStage) -> None:
        self._client = stage.client("transactions", deadline_s=stage.scale.deadline_s)
        self._own = OwnTransactionService(self._client, timeout_s=stage.scale.transaction_s)
        self.targets = await created(stage, self.name, max(TOPICS_MIN, stage.scale.topics))

    @property
    @override
    def service(self) -> transaction_clients.WorkloadService:
        assert self._own is not None, "prepared first"
        return self._own

    @override
    async def _end_all(self, stage: WorkloadStage) -> Snapshot:
        assert self._own is not None, "prepared first"
        assert self._client is not None, "prepared first"
        await self._own.end_all()
        snapshot = await self._own.look()
        await self._client.close()
        return snapshot
