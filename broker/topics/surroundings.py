"""Group the parts that all leaders of one node share: storage, clock, bounds, and the node's identity."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

from broker.clock import Clock
from broker.coordination.claims import Written
from broker.coordination.tenure import EVERYTHING, Tenure
from broker.metrics import Metrics
from broker.model import LogKey
from broker.storage.log import Logs
from broker.storage.payloads import PayloadLogs
from broker.topics.cache import CacheBudget
from broker.topics.dedupe import AnsweredKeys, KeyBudget
from broker.topics.log_keys import LogKeys, first_timestamp_ms
from broker.topics.mark_window import MarkWindow
from broker.topics.open_logs import OpenLogs
from broker.topics.queue_budget import QueueBudget
from broker.topics.settings import TopicSettings
from broker.topics.told_once import GapsPassed, IdsAhead

OtherClocks = Callable[[], Awaitable[Sequence[Written]]]


class Surroundings:
    """The parts that all leaders of a node share."""

    __slots__ = (
        "browsing",
        "cache",
        "clock",
        "gaps",
        "ids_ahead",
        "instance",
        "is_alone",
        "keys",
        "logs",
        "metrics",
        "open_logs",
        "other_clocks",
        "owner",
        "payload_logs",
        "queue",
        "record_bytes",
        "settings",
        "skewed",
        "tenure",
    )

    def __init__(  # noqa: PLR0913 - Each is named by its callers.
        self,
        logs: Logs,
        clock: Clock,
        settings: TopicSettings,
        *,
        owner: str,
        instance: int | None = None,
        tenure: Tenure = EVERYTHING,
        metrics: Metrics | None = None,
        skewed: Callable[[int], None] | None = None,
        other_clocks: OtherClocks | None = None,
    ) -> None:
        """``owner`` names this incarnation of this node, and ``instance`` is its number among the nodes of its cluster.

        ``tenure`` says which topics the node may claim. ``skewed`` is called when two witnesses find this clock
        too far off, with the ms by which it is ahead of the storage's (negative: behind). ``other_clocks`` asks
        the other nodes for their time.
        """
        self.logs = logs
        self.payload_logs = PayloadLogs(logs, owner)
        self.clock = clock
        self.settings = settings
        self.owner = owner
        self.instance = instance
        self.is_alone = logs.table.is_alone
        """True if no other process writes to the store: all that this node read or wrote stays true, no read is stale,
        all instance numbers are this node's, and its clock is the only one."""
        self.tenure = tenure
        self.metrics = metrics or Metrics(owner)
        self.skewed = skewed or _ignored
        self.other_clocks = other_clocks or _no_clocks
        self.cache = CacheBudget(settings.cache_bytes_max)
        self.record_bytes = 0
        """The memory of the records of the topics in use."""
        self.keys = KeyBudget(settings.idempotency_keys_bytes_max)
        self.queue = QueueBudget(settings.queued_bytes_max)
        self.open_logs = OpenLogs(settings.payload_logs_open_max)
        self.ids_ahead = IdsAhead()
        self.gaps = GapsPassed()
        self.browsing: AbstractAsyncContextManager[object] = (
            asyncio.Lock() if self.is_alone else nullcontext()
        )
        """A browse holds this while it reads a store of this process, because the event loop stands still during
        the copies of such a read. In a cluster it is no lock: reads wait for servers, and a server that hangs must
        not block reads from the others."""

    def log_keys(self, pointer_ms: int) -> LogKeys:
        """Return the ids of a log whose pointer has this timestamp."""
        first_ms = first_timestamp_ms(self.clock.now_ms(), pointer_ms)
        return LogKeys(
            first_ms=first_ms,
            monotonic_ms=self.clock.monotonic() * 1000,
            lead_ms_max=self.settings.id_lead_ms_max,
            instance=None if self.is_alone else self.instance,
        )

    def answered_keys(self, pointer: LogKey) -> AnsweredKeys:
        """Return an empty memory of keys, for a log that is claimed now, and ends at ``pointer``."""
        keys_max = self.settings.idempotency_keys_max
        return AnsweredKeys(pointer=pointer, keys_max=keys_max, budget=self.keys)

    def mark_window(self, pointer: LogKey) -> MarkWindow:
        """Return the window of the marks of a log that is claimed now, and ends at ``pointer``."""
        return MarkWindow(self.clock, pointer, self.settings.idempotency_window_ms)


async def _no_clocks() -> Sequence[Written]:
    """Return no clocks: there are no other nodes."""
    return ()


def _ignored(_: int) -> None:
    """Do nothing: no caller asked for a notice."""
