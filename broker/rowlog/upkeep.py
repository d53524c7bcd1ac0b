"""Regular work for a whole rowlog, in one process at a time: count messages, sweep, drop empty shards."""

from __future__ import annotations

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

    async def run(self, leading: Leading) -> None:
        """Count and sweep at their intervals, until cancelled."""
        swept_at = self._clock.monotonic()
        while True:
            await self._clock.sleep(COUNT_S)
            if not leading.may_begin():
                continue
            try:
                setup = await self._meta.setup()
                for each in setup.current:
                    await self.depth(each.id, COUNTED_MAX)
                    count = await self._index.count_dead(each.id, COUNTED_MAX)
                    self._figures.set("dead_messages", each.id, count)
                sweep_s = setup.settings.sweep_ms / 1000
                if sweep_s and self._clock.monotonic() >= swept_at + sweep_s:
                    swept_at = self._clock.monotonic()
                    await self._repair.sweep(Report(), mend=True)
                    await self._setting.drop_drained()
            except (TableError, BrokerError) as error:
                log.warning("rowlog sweep failed", reason=str(error))

    async def depth(self, subscription: str, limit: int) -> tuple[int, float]:
        """Return how many messages are open, counted up to ``limit``, and the age of the oldest, seconds."""
        count, oldest = await self._index.count(subscription, limit)
        age = max(self._clock.now_ms() - oldest, 0) / 1000 if oldest else 0.0
        self._figures.set("open_messages", subscription, count)
        self._figures.set("oldest_open_seconds", subscription, age)
        return count, age
