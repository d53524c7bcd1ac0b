"""Removing what nobody may read any more. Reads never wait for it: they apply expiry themselves.

One sweep goes over all records, of deleted topics too, and over each topic in this order::

    floor            raised to the oldest row that may still be read, on disk before anything goes
    message rows     below the floor; above it those whose own, shorter life is over
    payload logs     dropped once no reference to them can be alive, then emptied, then forgotten
    generations      all older ones, and a deleted topic's own

A margin stands between what has expired and what is removed, so that a reader that judged a row alive
a moment ago still finds it, and a record is read again just before it is acted upon: a stale view
removes nothing. Everything goes in slices, between which other work has its turn. After a start, and
after a jump of the clock, the sweeper rests: a wrong clock is harmless until something is removed. In a
cluster each node sweeps the topics that it should lead, what is left of deleted ones included.

A payload log may go when its transaction can publish nothing more and what it published has expired:
longest life of a transaction + ttl + margin after its last store or, if nothing was ever stored, its seal.
Its control row stays until no row of the topic can refer to it: the row at the pointer is never removed,
and a ttl that is raised shows it again.

A reference without its mark (stored.py) is looked for before the rows behind the floor go.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from broker import guards
from broker.errors import BrokerError, ClockSkew, TopicNotFound
from broker.leading.claims import ahead_ms
from broker.model import (
    POINTERS_PER_MS,
    ROW_ID_MAX,
    ROW_ID_MIN,
    RowId,
    Topic,
    TopicId,
    first_row_at,
    timestamp_of,
)
from broker.storage.control import Control, State
from broker.storage.keys import LogId
from broker.topics.leader import TopicLeader
from broker.topics.leaders import Leaders

CLAIM_DEADLINE_S = 10.0


@dataclass(slots=True)
class SweepReport:
    """What one sweep did."""

    topics: int = 0
    rows: int = 0
    payload_logs: int = 0
    skipped: int = 0
    """Topics that could not be swept just now; the next sweep finds them again."""
    problem: str | None = None
    """The first of those topics, and why."""
    rested: bool = False
    """Whether it ended early because the clock is not steady."""


def floor_of(now_ms: int, ttl_ms: int, margin_ms: int) -> RowId:
    """Return the least row that may still be read, a margin aside."""
    return first_row_at(now_ms - ttl_ms - margin_ms)


def may_drop(
    control: Control, topic: Topic, *, now_ms: int, life_max_ms: int, margin_ms: int
) -> bool:
    """Whether nothing can ever show a payload log's rows again."""
    last_ms = timestamp_of(max(control.pointer, control.sealed_at, control.published))
    return now_ms > last_ms + life_max_ms + topic.ttl_ms + margin_ms


def may_forget(
    control: Control, number: int, *, floor: RowId, now_ms: int, life_max_ms: int, margin_ms: int
) -> bool:
    """Whether nobody can ask for a dropped payload log any more.

    Its number can't come again, since a store of it would be too old, and no row from ``floor`` on,
    the floor of the topic, can be its reference.
    """
    too_old = number >= 0 and now_ms > number // POINTERS_PER_MS + life_max_ms + margin_ms
    referred = control.published if control.published > ROW_ID_MIN else control.sealed_at
    was_sealed = control.published > ROW_ID_MIN or control.sealed_at > ROW_ID_MIN
    return too_old and (referred < floor or not was_sealed)


class _FirstRows(NamedTuple):
    """What the first rows of a topic showed. They change with ``seen``: generation, floor and pointer."""

    seen: tuple[int, RowId, RowId]
    row: RowId
    """The first of all."""
    end_ms: float
    """When the first of their own, shorter lives ends."""


class Sweeper:
    """Sweeps topics that this node may lead."""

    def __init__(self, leaders: Leaders) -> None:
        """Sweep under the bounds of the leaders' settings."""
        self._leaders = leaders
        self._around = leaders.around
        settings = leaders.around.settings
        self._rows_max = settings.sweep_rows_max
        self._life_max_ms = settings.transaction_life_max_s * 1000
        self._has_compared = False
        """Whether this sweep has compared the clocks."""
        self._swept: dict[TopicId, tuple[int, RowId]] = {}
        """Generation and pointer of topics when they were last swept to the end, in this process."""
        self._first: dict[TopicId, _FirstRows] = {}
        """Of topics that nobody leads."""

    @property
    def _margin_ms(self) -> int:
        return self._around.settings.sweep_margin_ms if guards.holds("sweep-margin") else 0

    async def sweep(self) -> SweepReport:
        """Sweep every topic that this node should lead; stop at one's end if the clock jumps."""
        report = SweepReport()
        self._has_compared = False
        steady_ms = self._around.clock.steady_ms()
        for topic, _ in await self._leaders.registry.all():
            steady_before_ms, steady_ms = steady_ms, self._around.clock.steady_ms()
            if steady_ms < steady_before_ms and guards.holds("sweep-margin"):
                report.rested = True
                break
            if not self._around.tenure.place(topic).here:
                self._forget(topic)
                continue
            try:
                await self.sweep_topic(topic, report)
            except TopicNotFound:
                continue
            except BrokerError as error:
                # Reported; whatever it was, the next sweep begins from what is stored.
                report.skipped += 1
                report.problem = report.problem or f"{topic}: {error.message}"
                if isinstance(error, ClockSkew):
                    break
        return report

    async def sweep_topic(self, topic: TopicId, report: SweepReport) -> None:
        """Sweep one topic. Raises BrokerError if that can't be done just now."""
        record = await self._leaders.registry.read(topic)
        if record is None:
            return
        report.topics += 1
        rows_before = report.rows
        if record.deleted:
            self._forget(topic)
        else:
            await self._sweep_live(record.topic(topic), report)
        below = record.generation + 1 if record.deleted else record.generation
        await self._sweep_generations(topic, below, report)
        if report.rows > rows_before:
            await self._around.store.compact(LogId(topic, record.generation))

    def _forget(self, topic: TopicId) -> None:
        self._swept.pop(topic, None)
        self._first.pop(topic, None)

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
        state = self._leaders.states.get(topic.id)
        leader = state.leader if state is not None else None
        if leader is None:
            due = any(self._is_due(found, topic, now_ms) for _, found in payload_logs)
            if not due and not await self._has_work(log, control, floor, now_ms):
                return
            deadline = self._around.clock.monotonic() + CLAIM_DEADLINE_S
            leader = await self._leaders.lead(topic.id, deadline)
        if leader.topic.generation != topic.generation:
            return
        await self._compare_clocks(leader)
        for payload_log, found in payload_logs:
            if found.state is State.SEALED and payload_log.number is not None:
                await leader.payloads.mark_published(payload_log.number)
        pointer = leader.hold.control.pointer
        await self._sweep_messages(leader, now_ms, report)
        for payload_log, found in payload_logs:
            await self._sweep_payload_log(leader, payload_log, found, report)
        self._swept[topic.id] = (topic.generation, pointer)
        self._first.pop(topic.id, None)

    async def _compare_clocks(self, leader: TopicLeader) -> None:
        """Compare this clock with the storage's, once a sweep: by one that is ahead too much would go.

        Claims do so, too, but the last one may be long ago. Raises ClockSkew.
        """
        if self._has_compared:
            return
        clock = self._around.clock
        sent_ms = clock.now_ms()
        server_ms = await leader.guarded(self._around.store.server_ms(leader.hold))
        if server_ms is not None:
            self._has_compared = True
            self._leaders.claims.judge_clock(ahead_ms(server_ms, sent_ms, clock.now_ms()))

    def _is_over(self, control: Control, topic: Topic, now_ms: int) -> bool:
        return may_drop(
            control,
            topic,
            now_ms=now_ms,
            life_max_ms=self._life_max_ms,
            margin_ms=self._margin_ms,
        )

    def _is_due(self, control: Control, topic: Topic, now_ms: int) -> bool:
        """Whether there is something to do about a payload log."""
        return control.state in {State.SEALED, State.DROPPED} or self._is_over(
            control, topic, now_ms
        )

    async def _has_work(self, log: LogId, control: Control, floor: RowId, now_ms: int) -> bool:
        """Whether a topic that nobody leads is worth a claim.

        It is if its floor can rise; if a floor was raised before this process looked, so that a crash
        may have left rows behind it; or if a row among the first ones is at the end of its own life.
        """
        first = await self._first_rows(log, control)
        if min(floor, control.pointer) > control.floor and first.row < floor:
            return True
        swept = self._swept.get(log.topic) == (log.generation, control.pointer)
        if not swept and control.floor > ROW_ID_MIN:
            return True
        return first.end_ms < now_ms - self._margin_ms

    async def _first_rows(self, log: LogId, control: Control) -> _FirstRows:
        """Look at the first rows of a topic that nobody leads: once, as long as it stays as it is."""
        seen = (log.generation, control.floor, control.pointer)
        known = self._first.get(log.topic)
        if known is not None and known.seen == seen:
            return known
        page = await self._around.store.scan(
            log,
            ROW_ID_MIN,
            control.pointer,
            rows_max=self._rows_max,
            bytes_max=self._around.settings.page_bytes_max,
        )
        # The row at the pointer is never removed.
        ends_ms = (
            timestamp_of(row.id) + row.lifetime_ms
            for row in page.rows
            if row.lifetime_ms is not None and row.id < control.pointer
        )
        row = page.rows[0].id if page.rows else ROW_ID_MAX
        first = self._first[log.topic] = _FirstRows(seen, row, min(ends_ms, default=math.inf))
        return first

    async def _sweep_messages(self, leader: TopicLeader, now_ms: int, report: SweepReport) -> None:
        store = self._around.store
        # The ttl may have been raised since the record was read: whoever changes it tells the leader.
        ttl_ms = leader.topic.ttl_ms
        await leader.raise_floor(floor_of(now_ms, ttl_ms, self._margin_ms))
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
        store, number, topic = self._around.store, log.number, leader.topic
        assert number is not None
        now_ms = self._around.clock.now_ms()

        def is_over(control: Control) -> bool:
            return self._is_over(control, topic, now_ms)

        if control.state is not State.DROPPED:
            if not is_over(control) or not await leader.drop_payloads(number, is_over):
                return
            report.payload_logs += 1
        more = True
        while more:
            swept = await store.sweep_payloads(leader.hold, number, self._rows_max)
            report.rows += swept.rows
            more = swept.more
        seen = await store.head(log)
        if seen is not None and may_forget(
            seen,
            number,
            floor=leader.hold.control.floor,
            now_ms=now_ms,
            life_max_ms=self._life_max_ms,
            margin_ms=self._margin_ms,
        ):
            await leader.forget_payloads(number)
