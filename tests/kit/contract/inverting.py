"""The clean-up of invalid transactions over a store: the sweeper inverts their messages on disk before pruning."""

from __future__ import annotations

import secrets
from collections.abc import Collection

import pytest
from typing_extensions import override

from broker.clock import SystemClock
from broker.model import Poll, PublishRequest, Snapshot, TopicId
from broker.storage.log import Logs
from broker.storage.ownpage import PageBounds
from broker.storage.records import Records
from broker.storage.table import Table
from broker.topics.retention import Sweeper
from broker.topics.settings import TopicSettings
from broker.topics.surroundings import Surroundings
from broker.topics.topics import Topics
from broker.transactions.prune import Pruning
from chaos.transactions_model import TransactionModel

TOPIC = TopicId("ns", "t")
LIFE_S = 100
SETTLED_MS = LIFE_S * 1000 + 1
FAR_MS = 1 << 40
"""A bound that allows the test's clock to run ahead of the servers' clocks."""


class Ahead(SystemClock):
    """The system's clock, set forward by ``ahead_ms``."""

    ahead_ms = 0

    @override
    def now_ms(self) -> int:
        """Return the wall clock, set forward."""
        return super().now_ms() + self.ahead_ms


class Node:
    """Topics over a table, and a transaction service."""

    def __init__(self, table: Table, clock: Ahead, model: TransactionModel) -> None:
        """Begin with the stored state."""
        self.clock, self.model = clock, model
        self.logs = Logs(table, clock, bounds=PageBounds(cells_max=4), call_s=60)
        settings = TopicSettings(
            transaction_life_max_s=LIFE_S, sweep_margin_ms=0, clock_skew_ms_max=FAR_MS
        )
        self.around = Surroundings(self.logs, clock, settings, owner=secrets.token_hex(4))
        self.topics = Topics(self.around, Records(self.logs.resolver))
        self.sweeper = Sweeper(self.topics.leaders, self.snapshot)
        self.pruning = Pruning(
            self.topics.registry, self, clock, life_ms=LIFE_S * 1000, margin_ms=0
        )

    async def snapshot(self, deadline: float | None = None) -> Snapshot:
        """Return a snapshot as of now."""
        return self.model.look(self.clock.now_ms())

    async def truncate_invalid(self, ids: Collection[int], deadline: float | None = None) -> int:
        """Forget invalid transactions."""
        self.model.invalid -= set(ids)
        return len(ids)

    async def publish(self, pointer: int | None, *payloads: bytes) -> None:
        """Publish messages, or a reference."""
        await self.topics.publish(TOPIC, PublishRequest(pointer, payloads))

    async def shown(self) -> list[bytes]:
        """Return the payloads that a consumer sees."""
        stream = await self.topics.poll(TOPIC, Poll(snapshot=await self.snapshot()))
        return [bytes(message.payload) async for page in stream.messages() for message in page]


class InvertingContract:
    """The contract over each table; ``table`` is a fixture."""

    async def test_inverted_messages_stay_hidden_after_pruning(self, table: Table) -> None:
        """Sweep, restart, prune: no consumer sees a pruned transaction's messages, and no more are stored."""
        clock = Ahead()
        model = TransactionModel(clock.now_ms())
        node = Node(table, clock, model)
        await node.topics.create(TOPIC, {"ttl": "100000"})
        failed = [model.begin(clock.now_ms(), 1000).pointer for _ in range(2)]
        kept = model.begin(clock.now_ms(), 1000).pointer
        await node.topics.store(TOPIC, PublishRequest(failed[1], [b"stored"]))
        for number in range(3):
            await node.publish(failed[0], b"failed", b"failed")
            await node.publish(None, b"free")
            await node.publish(kept, b"kept")
            if number == 1:
                await node.publish(failed[1])
        model.commit(clock.now_ms(), kept)
        clock.ahead_ms = SETTLED_MS
        await node.sweeper.sweep()
        assert (await node.pruning.plan()).prunable == failed
        await node.topics.close()
        again = Node(table, clock, model)
        _, removed = await again.pruning.prune()
        assert removed == 2
        assert sorted(await again.shown()) == [b"free"] * 3 + [b"kept"] * 3
        clock.ahead_ms = 0  # A clock that went back: a publish with a pruned pointer is refused.
        with pytest.raises(Exception, match="past the longest life"):
            await again.publish(failed[0], b"late")
        await again.topics.close()
