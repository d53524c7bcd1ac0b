"""Regular work for a whole rowlog, in one process at a time: count messages, sweep, drop empty shards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from broker import logs
from broker.clock import Clock
from broker.errors import BrokerError
from broker.rowlog.counters import Figures
from broker.rowlog.election import Leading
from broker.rowlog.index import Index
from broker.rowlog.meta import Meta
from broker.rowlog.repair import Repair, Report
from broker.rowlog.row_table import TableError
from broker.rowlog.subscriptions import Subscribing

log = logs.get_logger()

COUNT_S: Final = 30.0
"""How often open and dead messages are counted, for the metrics."""
COUNTED_AT_ONCE: Final = 8
COUNTED_MAX: Final = 10_000
"""How many messages of a subscription are counted at most."""


class Upkeep:
    """Counts and sweeps while its process leads."""

    def __init__(
        self,
        meta: Meta,
        index: Index,
        repair: Repair,
        setting: Subscribing,
        figures: Figures,
        clock: Clock,
    ) -> None:
        """Use the parts of a rowlog."""
        self._meta = meta
        self._index = index
        self._repair = repair
        self._setting = setting
        self._figures = figures
        self._clock = clock
        self._swept_at = clock.monotonic()

    async def run(self, leading: Leading) -> None:
        """Count and sweep at their intervals, until cancelled. Neither waits for the other."""
        async with asyncio.TaskGroup() as group:
            for step in (self._count_all, self._sweep_if_due):
                group.create_task(self._for_ever(step, leading))

    async def _for_ever(self, step: Callable[[], Awaitable[None]], leading: Leading) -> None:
        while True:
            await self._clock.sleep(COUNT_S)
            if leading.may_begin():
                await self._tried(step())

    @staticmethod
    async def _tried(work: Awaitable[None], **about: str) -> None:
        """Await work. An error is logged, and ends no other work."""
        try:
            await work
        except (TableError, BrokerError) as error:
            log.warning("rowlog upkeep failed", reason=str(error), **about)
        except Exception:  # A bug, too.
            log.exception("rowlog upkeep failed", **about)

    async def _count_all(self) -> None:
        """Count all subscriptions, some side by side: one may lie in a region that hangs."""
        places = asyncio.Semaphore(COUNTED_AT_ONCE)

        async def count(name: str) -> None:
            async with places:
                await self._tried(self._count(name), subscription=name)

        await asyncio.gather(*(count(each.id) for each in (await self._meta.setup()).current))

    async def _count(self, name: str) -> None:
        dead = await self._index.count_dead(name, COUNTED_MAX)
        self._figures.set("dead_messages", name, dead)
        await self.depth(name, COUNTED_MAX)

    async def _sweep_if_due(self) -> None:
        sweep_s = (await self._meta.setup()).settings.sweep_ms / 1000
        if sweep_s and self._clock.monotonic() >= self._swept_at + sweep_s:
            self._swept_at = self._clock.monotonic()
            await self._repair.sweep(Report(), mend=True)
            await self._setting.drop_drained()

    async def depth(self, subscription: str, limit: int) -> tuple[int, float]:
        """Return how many messages are open, counted up to ``limit``, and the age of the oldest, seconds."""
        count, oldest = await self._index.count(subscription, limit)
        age = max(self._clock.now_ms() - oldest, 0) / 1000 if oldest else 0.0
        self._figures.set("open_messages", subscription, count)
        self._figures.set("oldest_open_seconds", subscription, age)
        return count, age
