"""One node, and a transaction service that follows Tephra's rules, for tests of the clean-up."""

from __future__ import annotations

from collections.abc import Collection

from broker.errors import Unavailable
from broker.model import Poll, Snapshot, TopicId
from broker.storage.ownpage import PageBounds
from broker.topics.retention import Sweeper
from broker.transactions.prune import Pruning
from chaos.transactions_model import TransactionModel
from tests.kit.bench import TOPIC, Bench

LIFE_S = 1000
MARGIN_MS = 60_000
TIMEOUT_MS = 10_000
SETTLED_MS = LIFE_S * 1000 + MARGIN_MS + 1
OTHER = TopicId("ns", "other")


class World:
    """One node, and a transaction service that follows Tephra's rules."""

    def __init__(self, bench: Bench) -> None:
        bench.bounds = PageBounds(cells_max=4)
        self.bench = bench
        self.model = TransactionModel(bench.clock.now_ms())
        self.is_down = False
        self.restart()

    def restart(self) -> None:
        self.bench.restart(transaction_life_max_s=LIFE_S, sweep_margin_ms=MARGIN_MS)
        self.sweeper = Sweeper(self.bench.topics.leaders, self.snapshot)
        self.pruning = Pruning(
            self.bench.topics.registry,
            self,
            self.bench.clock,
            life_ms=LIFE_S * 1000,
            margin_ms=MARGIN_MS,
        )

    # As a service.

    async def snapshot(self, deadline: float | None = None) -> Snapshot:
        if self.is_down:
            raise Unavailable("the service is down")
        return self.model.look(self.now_ms)

    async def truncate_invalid(self, ids: Collection[int], deadline: float | None = None) -> int:
        known = self.model.invalid & set(ids)
        self.model.invalid -= known
        return len(known)

    # As its users.

    @property
    def now_ms(self) -> int:
        return self.bench.clock.now_ms()

    def begin(self, timeout_ms: int = TIMEOUT_MS) -> int:
        return self.model.begin(self.now_ms, timeout_ms).pointer

    async def publish(self, pointer: int | None, topic: TopicId = TOPIC) -> None:
        await self.bench.publish(str(pointer).encode(), pointer=pointer, topic=topic)

    async def shown(self, snapshot: Snapshot | None = None, topic: TopicId = TOPIC) -> list[str]:
        """Return the messages that a consumer is shown. The cache and storage must show the same."""
        poll = Poll(snapshot=snapshot or self.model.look(self.now_ms))
        cached = await self.bench.payloads(poll, topic)
        self.bench.forget_cache()
        assert await self.bench.payloads(poll, topic) == cached
        return [payload.decode() for payload in cached]

    async def settle(self) -> None:
        await self.bench.pass_ms(SETTLED_MS)
