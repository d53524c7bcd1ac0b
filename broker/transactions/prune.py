"""Pruning: find the invalid transactions that the service may forget, and let it forget them.

The service takes a forgotten transaction for committed. So a pointer is pruned only if it is settled, and if in every
topic a clean-up that knew the pointer has passed. ``broker.topics.settlement`` has the proof. The steps::

    snapshot ─▶ announce for all topics ─▶ read the records of all topics ─▶ truncate below the lowest bound

A plan without the announcement and the truncation is a dry run.

The records are those of one broker or cluster. If several brokers use one service, each knows only its own topics.
Then prune only up to the lowest pointer of all their plans.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple, Protocol

from broker.clock import Clock
from broker.model import POINTER_MAX, POINTERS_PER_MS, LogKey, Snapshot, TopicId
from broker.topics import settlement
from broker.topics.registry import TopicRegistry
from broker.topics.reserved import is_reserved
from broker.topics.settlement import SettlingRecord, SnapshotView

TRUNCATED_AT_ONCE: Final = 10_000


class PruningService(Protocol):
    """The calls of the transaction service that pruning needs."""

    async def snapshot(self, deadline: float | None = None) -> Snapshot:
        """Return a snapshot as of now."""

    async def truncate_invalid(self, ids: Collection[int], deadline: float | None = None) -> int:
        """Forget invalid transactions; return how many were known."""


class Unpassed(NamedTuple):
    """The topic that limits pruning: clean-ups have passed it least far, or not at all.

    ``below`` is the pointer up to which a clean-up has passed it. The next clean-up begins at ``page``.
    """

    topic: TopicId
    generation: int
    below: int
    page: LogKey


class PruningPlan(NamedTuple):
    """The pointers that may be pruned now, and why not more.

    ``invalid`` is the number of all invalid pointers, and ``prunable`` has those that may be pruned, ascending. If
    some are left, ``oldest_left`` is the oldest of them, and one of the other fields says why it is left:

    * ``settled_ms``: it is too young until this moment;
    * ``in_progress``: this transaction began before it and has not ended;
    * ``unpassed``: no clean-up has passed this topic far enough.
    """

    invalid: int
    prunable: Sequence[int]
    oldest_left: int | None = None
    settled_ms: int | None = None
    in_progress: int | None = None
    unpassed: Unpassed | None = None


class Pruning:
    """Prunes the transactions of one service, by the records of one store."""

    def __init__(
        self,
        registry: TopicRegistry,
        service: PruningService,
        clock: Clock,
        *,
        life_ms: int,
        margin_ms: int,
    ) -> None:
        """Keep the parts. Transactions are settled by the longest life and the margin, as for the sweeper."""
        self._registry = registry
        self._service = service
        self._clock = clock
        self._life_ms = life_ms
        self._margin_ms = margin_ms

    async def plan(self, through: int = POINTER_MAX, deadline: float | None = None) -> PruningPlan:
        """Return the plan up to a pointer. Change nothing. Raises BrokerError."""
        return _cut(await self._make_plan(announce=_nothing, deadline=deadline), through)

    async def prune(
        self, through: int = POINTER_MAX, deadline: float | None = None
    ) -> tuple[PruningPlan, int]:
        """Prune up to a pointer. Return the plan, and how many transactions the service has forgotten.

        Raises:
            Unavailable: no transaction was pruned.
            OutcomeUnknown: some transactions may be pruned; prune again.
        """
        records = self._registry.records

        async def announce(bound: int) -> None:
            await settlement.announce_pruning(records, bound)

        plan = _cut(await self._make_plan(announce=announce, deadline=deadline), through)
        removed = 0
        for first in range(0, len(plan.prunable), TRUNCATED_AT_ONCE):
            some = plan.prunable[first : first + TRUNCATED_AT_ONCE]
            removed += await self._service.truncate_invalid(list(some), deadline)
        return plan, removed

    async def _make_plan(
        self, *, announce: Callable[[int], Awaitable[None]], deadline: float | None
    ) -> PruningPlan:
        now_ms = self._clock.now_ms()
        snapshot = await self._service.snapshot(deadline)
        bound = settlement.bound_of(
            snapshot, now_ms=now_ms, life_ms=self._life_ms, margin_ms=self._margin_ms
        )
        view = SnapshotView(snapshot, bound)
        if not view.settled:
            return self._plan(snapshot, view, bound, None)
        await announce(bound)
        unpassed = await self._least_passed(view)
        below = bound if unpassed is None else min(bound, unpassed.below)
        return self._plan(snapshot, view, below, unpassed)

    async def _least_passed(self, view: SnapshotView) -> Unpassed | None:
        """Return the topic that clean-ups have passed least far; None if there is no topic."""
        records = self._registry.records
        passed: dict[TopicId, SettlingRecord] = {}
        async with aclosing(settlement.passes(records)) as pages:
            async for page in pages:
                passed.update(page)
        lowest: Unpassed | None = None
        async with aclosing(self._registry.generations()) as live:
            async for topics in live:
                for topic, generation in topics:
                    if is_reserved(topic):
                        continue  # No transaction publishes there.
                    found = unpassed_of(topic, generation, passed.get(topic), view)
                    if lowest is None or found.below < lowest.below:
                        lowest = found
        return lowest

    def _plan(
        self, snapshot: Snapshot, view: SnapshotView, below: int, unpassed: Unpassed | None
    ) -> PruningPlan:
        prunable = settlement.invalid_below(snapshot, below)
        invalid = len(snapshot.invalids)
        if len(prunable) == invalid:
            return PruningPlan(invalid, prunable)
        oldest = snapshot.invalids[len(prunable)]
        plan = PruningPlan(invalid, prunable, oldest)
        if oldest < view.bound:
            return plan._replace(unpassed=unpassed)
        first = min(snapshot.in_progress[:1], default=POINTER_MAX)
        settled_ms = oldest // POINTERS_PER_MS + self._life_ms + self._margin_ms
        if first <= oldest and settled_ms < self._clock.now_ms():
            return plan._replace(in_progress=first)
        return plan._replace(settled_ms=settled_ms)


def unpassed_of(
    topic: TopicId, generation: int, record: SettlingRecord | None, view: SnapshotView
) -> Unpassed:
    """Return how far clean-ups have passed a topic, by its record."""
    if record is None or not settlement.counts(record, generation, view):
        return Unpassed(topic, generation, 0, b"" if record is None else record.start)
    return Unpassed(topic, generation, record.bound, record.start)


def _cut(plan: PruningPlan, through: int) -> PruningPlan:
    """Return the plan without the pointers above ``through``."""
    stop = bisect_right(plan.prunable, through)
    return plan if stop == len(plan.prunable) else PruningPlan(plan.invalid, plan.prunable[:stop])


async def _nothing(_: int) -> None:
    """Announce nothing, for a dry run."""
