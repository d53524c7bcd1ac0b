"""Removing what nobody may read any more. Reads never wait for it: they apply expiry themselves.

One sweep goes over all records, of deleted topics too, and over each topic in this order::

    floor            raised to the oldest row that may still be read, on disk before anything goes
    message rows     below the floor; above it those whose own, shorter life is over
    payload logs     dropped once no reference to them can be alive, then emptied, then forgotten
    generations      all older ones, and a deleted topic's own

A margin stands between what has expired and what is removed, so that a reader that judged a row alive
a moment ago still finds it, and a record is read again just before it is acted upon: a stale view
removes nothing. Everything goes in slices, between which other work has its turn. After a start, and
after a jump of the clock, the sweeper rests: a wrong clock is harmless until something is removed.

A payload log may go when its transaction can publish nothing more and what it published has expired:
longest life of a transaction + ttl + margin after its last store or, if nothing was ever stored, its seal.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker import guards
from broker.errors import BrokerError, TopicNotFound
from broker.model import ROW_ID_MIN, RowId, Topic, TopicId, first_row_at, timestamp_of
from broker.storage.control import Control, State
from broker.storage.keys import LogId
from broker.topics.leader import TopicLeader
from broker.topics.leaders import Leaders

CLAIM_DEADLINE_S = 10.0
POINTERS_PER_MS = 1_000_000


@dataclass(slots=True)
class SweepReport:
    """What one sweep did."""

    topics: int = 0
    rows: int = 0
    payload_logs: int = 0
    skipped: int = 0
    """Topics that could not be swept just now; the next sweep finds them again."""


def floor_of(now_ms: int, ttl_ms: int, margin_ms: int) -> RowId:
    """Return the least row that may still be read, a margin aside."""
    return first_row_at(now_ms - ttl_ms - margin_ms)


def may_drop(
    control: Control, topic: Topic, *, now_ms: int, life_max_ms: int, margin_ms: int
) -> bool:
    """Whether nothing can ever show a payload log's rows again."""
    last_ms = timestamp_of(max(control.pointer, control.sealed_at, control.published))
    return now_ms > last_ms + life_max_ms + topic.ttl_ms + margin_ms


def may_forget(number: int, *, now_ms: int, life_max_ms: int, margin_ms: int) -> bool:
    """Whether a dropped payload log's number can't come again: a store of it would be too old."""
    return number >= 0 and now_ms > number // POINTERS_PER_MS + life_max_ms + margin_ms


class Sweeper:
    """Sweeps topics that this node may lead."""

    def __init__(self, leaders: Leaders) -> None:
        """Sweep under the bounds of the leaders' settings."""
        self._leaders = leaders
        self._around = leaders.around
        settings = leaders.around.settings
        self._rows_max = settings.sweep_rows_max
        self._life_max_ms = settings.transaction_life_max_s * 1000

    @property
    def _margin_ms(self) -> int:
        return self._around.settings.sweep_margin_ms if guards.holds("sweep-margin") else 0

    async def sweep(self) -> SweepReport:
        """Sweep every topic once."""
        report = SweepReport()
        for topic, _ in await self._leaders.registry.all():
            try:
                await self.sweep_topic(topic, report)
            except TopicNotFound:
                continue
            except BrokerError:
                # Counted and reported; whatever it was, the next sweep begins from what is stored.
                report.skipped += 1
        return report

    async def sweep_topic(self, topic: TopicId, report: SweepReport) -> None:
        """Sweep one topic. Raises BrokerError if that can't be done just now."""
        record = await self._leaders.registry.read(topic)
        if record is None:
            return
        report.topics += 1
        rows_before = report.rows
        if not record.deleted:
            await self._sweep_live(record.topic(topic), report)
        below = record.generation + 1 if record.deleted else record.generation
        await self._sweep_generations(topic, below, report)
        if report.rows > rows_before:
            await self._around.store.compact(LogId(topic, record.generation))

    async def _sweep_generations(self, topic: TopicId, below: int, report: SweepReport) -> None:
        more = True
        while more:
            swept = await self._around.store.sweep_generations(topic, below, self._rows_max)
            report.rows += swept.rows
            more = swept.more

    async def _sweep_live(self, topic: Topic, report: SweepReport) -> None:
        log = LogId(topic.id, topic.generation)
        control = await self._around.store.head(log)
        if control is None or control.generation != topic.generation:
            return
        now_ms = self._around.clock.now_ms()
        floor = floor_of(now_ms, topic.ttl_ms, self._margin_ms)
        payload_logs = await self._around.store.payload_logs(topic.id, topic.generation)
        leader = self._leaders.state(topic.id).leader
        if leader is None:
            if not payload_logs and not await self._has_work(log, control, floor):
                return
            deadline = self._around.clock.monotonic() + CLAIM_DEADLINE_S
            leader = await self._leaders.lead(topic.id, deadline)
        if leader.topic.generation != topic.generation:
            return
        await self._sweep_messages(leader, floor, now_ms, report)
        for payload_log, found in payload_logs:
            await self._sweep_payload_log(leader, payload_log, found, report)

    async def _has_work(self, log: LogId, control: Control, floor: RowId) -> bool:
        """Whether a topic that nobody writes to is worth a claim."""
        if control.pointer < floor and control.floor >= floor:
            return False
        page = await self._around.store.scan(
            log, ROW_ID_MIN, control.pointer, rows_max=1, bytes_max=1
        )
        return bool(page.rows) and (page.rows[0].id < floor or page.rows[0].lifetime_ms is not None)

    async def _sweep_messages(
        self, leader: TopicLeader, floor: RowId, now_ms: int, report: SweepReport
    ) -> None:
        store = self._around.store
        if floor > leader.hold.control.floor:
            await leader.guarded(store.raise_floor(leader.hold, floor))
        window_ms = self._around.settings.idempotency_window_ms + self._margin_ms
        more = True
        while more:
            swept = await store.sweep_log(
                leader.hold,
                now_ms - self._margin_ms,
                self._rows_max,
                side_before=first_row_at(now_ms - window_ms),
            )
            report.rows += swept.rows
            more = swept.more

    async def _sweep_payload_log(
        self, leader: TopicLeader, log: LogId, control: Control, report: SweepReport
    ) -> None:
        store, number = self._around.store, log.number
        assert number is not None
        ages = {
            "now_ms": self._around.clock.now_ms(),
            "life_max_ms": self._life_max_ms,
            "margin_ms": self._margin_ms,
        }
        if control.state is not State.DROPPED:
            if not may_drop(control, leader.topic, **ages):
                return
            await leader.drop_payloads(number)
            report.payload_logs += 1
        more = True
        while more:
            swept = await store.sweep_payloads(leader.hold, number, self._rows_max)
            report.rows += swept.rows
            more = swept.more
        if may_forget(number, **ages):
            await leader.forget_payloads(number)
