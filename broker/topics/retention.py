"""Removing what may not be read any more. Reads never wait for it: they apply expiry themselves.

One sweep goes over all records, of deleted topics too, and over each topic in this order::

    floor          raised to the page that holds the oldest message that may still be read
    pages          below the floor: their entries go with one change a page; their heads stay
    lifetimes      entries whose own, shorter life is over become stubs, one change a page
    marks          whose window has passed
    invalid        what invalid transactions published is rolled back (inversion.py)
    payload logs   dropped once no reference to them can be alive, emptied, and a margin later forgotten
    generations    all older ones, and a deleted topic's own, with their cursors

A margin stands between what has expired and what is removed, so that a reader that judged a message alive a moment
ago still finds it, and a record is read again just before it is acted upon: a stale view removes nothing. What was
*purged* needs no margin, since readers go on from the floor; its payload logs and marks stay. Everything goes in
slices, between which other work has its turn. After a start, and after a jump of the clock, the sweeper rests: a
wrong clock is harmless until something is removed. In a cluster each node sweeps the topics that it should lead, what
is left of deleted ones included.

A payload log may go when its transaction can publish nothing more and what it published has expired: longest life of
a transaction + ttl + margin after its last store. Its number tells when its transaction began, so those that can't be
due yet are not read at all. A stage may go when its own life has passed, if it was not published, else as a
transaction's. So stages are looked at twice: when their life has passed, and at the end.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from broker.coordination.claims import Written, read_clock
from broker.errors import BrokerError, ClockSkew, TopicNotFound, Unavailable
from broker.model import (
    ROW_ID_MIN,
    RowId,
    Topic,
    TopicId,
    first_row_at,
)
from broker.slices import Slice
from broker.storage import sweep as sweeping
from broker.storage.head import NO_END
from broker.storage.keys import LogId
from broker.storage.marks import PRODUCER_LIFE_MS, MarksBefore, forget_marks, sweep_marks
from broker.storage.root import Root, RootState
from broker.storage.sweep import LifetimeEnds
from broker.topics import stages
from broker.topics.cursors import forget_cursors
from broker.topics.expiry import PayloadLifetimes, due_through, floor_of, may_drop, may_forget
from broker.topics.inversion import Inverting, Source
from broker.topics.leader import TopicLeader
from broker.topics.leaders import Leaders

CLAIM_DEADLINE_S = 10.0
MARKS_AT_ONCE = 500  # More would hold the event loop for too long.


@dataclass(slots=True)
class SweepReport:
    """What one sweep did."""

    topics: int = 0
    rows: int = 0
    """Messages that were removed, and marks."""
    payload_logs: int = 0
    inverted: int = 0
    """Invalid transactions of which messages were rolled back, once for each topic."""
    skipped: int = 0
    """Topics that could not be swept just now; the next sweep finds them again."""
    problem: str | None = None
    """The first of those topics, and why."""
    ended_early: bool = False
    """Whether it ended before the last topic, because the clock jumped."""


class Sweeper:
    """Sweeps topics that this node may lead."""

    def __init__(self, leaders: Leaders, source: Source | None = None) -> None:
        """Sweep under the bounds of the leaders' settings; ``source`` tells what is invalid, None: nothing does."""
        self._inverting = None if source is None else Inverting(leaders, source)
        self._leaders = leaders
        self._around = leaders.around
        settings = leaders.around.settings
        self._rows_max = settings.sweep_rows_max
        self._pages_max = max(settings.sweep_rows_max // 100, 1)
        self._has_compared = False
        """Whether this sweep has compared the clocks."""
        self._ends: dict[TopicId, LifetimeEnds] = {}
        self._cleared: dict[TopicId, int] = {}
        """Of topics: the generation below which everything was found removed, in this process."""
        self._marks_until_ms: dict[TopicId, int] = {}
        """When the marks of a topic are looked at again."""
        self._stages_looked_at: dict[TopicId, tuple[int, int]] = {}
        """Of topics: the generation, and from which number on its stages were looked at when their life had passed."""

    @property
    def _margin_ms(self) -> int:
        return self._around.settings.sweep_margin_ms

    @property
    def _lives(self) -> PayloadLifetimes:
        settings = self._around.settings
        return PayloadLifetimes(
            settings.transaction_life_max_s * 1000, settings.stage_life_s * 1000, self._margin_ms
        )

    async def sweep(self) -> SweepReport:
        """Sweep every topic that this node should lead; stop at one's end if the clock jumps."""
        report = SweepReport()
        self._has_compared = False
        if self._inverting is not None:
            await self._inverting.begin()
        steady_ms, piece = self._around.clock.steady_ms(), Slice()
        for topic in await self._leaders.registry.all():
            await piece.go_on()
            steady_before_ms, steady_ms = steady_ms, self._around.clock.steady_ms()
            if self._must_rest(steady_before_ms, steady_ms):
                report.ended_early = True
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
                if isinstance(error, ClockSkew) and self._leaders.claims.clocks.is_wrong:
                    break  # Else it is the clock of the server where that topic lies.
        return report

    @staticmethod
    def _must_rest(steady_before_ms: float, steady_ms: float) -> bool:
        """Whether the clock jumped since the topic before: what it says now may be wrong."""
        return steady_ms < steady_before_ms

    async def sweep_topic(self, topic: TopicId, report: SweepReport) -> None:
        """Sweep one topic. Raises BrokerError if that can't be done just now."""
        record = await self._leaders.registry.read(topic)
        if record is None:
            return
        report.topics += 1
        if record.deleted:
            self._forget(topic)
        else:
            await self._sweep_live(record.topic(topic), report)
            if self._inverting is not None:
                report.inverted += await self._inverting.clean(record.topic(topic))
        below = record.generation + 1 if record.deleted else record.generation
        await self._sweep_generations(topic, below, report)

    def _forget(self, topic: TopicId) -> None:
        self._ends.pop(topic, None)
        self._marks_until_ms.pop(topic, None)
        self._stages_looked_at.pop(topic, None)
        if self._inverting is not None:
            self._inverting.forget(topic)

    # A live topic. Its leader is told of changes; the record that was read may be old.

    async def _sweep_live(self, topic: Topic, report: SweepReport) -> None:
        now_ms = self._around.clock.now_ms()
        due = await self._due_payload_logs(topic, now_ms)
        leader = await self._leader_of(topic, now_ms, has_due=bool(due))
        if leader is None or leader.topic.generation != topic.generation:
            return
        await self._compare_clocks(leader)
        await self._leaders.claims.clocks.compare(is_led_here=True)
        now_ms = self._around.clock.now_ms()  # The one before was not compared.
        await leader.raise_floor(floor_of(leader.topic, now_ms, self._margin_ms))
        more = True
        while more:
            went, more = await leader.guarded(
                sweeping.clear_below_floor(self._around.logs.resolver, leader.hold, self._pages_max)
            )
            report.rows += went
            await asyncio.sleep(0)  # Other work has its turn, whatever the store.
        await self._end_lives(leader, now_ms)
        await self._sweep_marks(leader, now_ms, report)
        for log, root in due:
            await self._sweep_payload_log(leader, log, root, report)

    async def _leader_of(self, topic: Topic, now_ms: int, *, has_due: bool) -> TopicLeader | None:
        """Return the leader here; a topic that nobody leads is claimed if there is work."""
        state = self._leaders.states.get(topic.id)
        leader = state.leader if state is not None else None
        if leader is not None or not (has_due or await self._has_work(topic, now_ms)):
            return leader
        deadline = self._around.clock.monotonic() + CLAIM_DEADLINE_S
        return await self._leaders.lead(topic.id, deadline)

    async def _has_work(self, topic: Topic, now_ms: int) -> bool:
        """Whether a topic that nobody leads is worth a claim: something in its pages is to be removed."""
        log = LogId(topic.id, topic.generation)
        ends = await self._around.logs.ends(log)
        if ends is None or ends.tail is None:
            return False
        if ends.root.gone < ends.root.floor:
            return True
        first = await self._around.logs.page_at(log, ends.root.floor, ends.root)
        if first is None:
            return False
        _, head = first
        bound = floor_of(topic, now_ms, self._margin_ms)
        if head.pointer < bound and (head.is_sealed or head.cells):
            return True
        end_ms = min(head.first_end_ms, ends.tail.first_end_ms)
        known = self._ends.get(topic.id)
        if known is not None and known.pages and known.generation == topic.generation:
            end_ms = min(end_ms, *known.pages.values())
        return end_ms != NO_END and end_ms < now_ms - self._margin_ms

    async def _compare_clocks(self, leader: TopicLeader) -> None:
        """Compare this clock with the storage's, once a sweep: by one that is ahead too much would go.

        Claims do so, too, but the last one may be long ago.

        Raises:
            ClockSkew: it is too far off.
            Unavailable: they can't be compared now.
        """
        if self._has_compared:
            return
        clock = self._around.clock
        sent = read_clock(clock)
        server_ms = await leader.guarded(leader.hold.server_ms())
        if server_ms is None:
            return
        written = Written(sent, server_ms, clock.now_ms())
        self._has_compared = await self._leaders.claims.clocks.judge(written)
        if not self._has_compared:
            raise Unavailable("Comparing the clocks took too long.")

    async def _end_lives(self, leader: TopicLeader, now_ms: int) -> None:
        topic = leader.topic
        known = self._ends.get(topic.id)
        if known is None or known.generation != topic.generation:
            known = self._ends[topic.id] = LifetimeEnds(topic.generation)
        resolver = self._around.logs.resolver
        await leader.guarded(sweeping.look_for_ends(resolver, leader.hold, known))
        await leader.guarded(sweeping.end_lives(leader.hold, known, now_ms - self._margin_ms))

    async def _sweep_marks(self, leader: TopicLeader, now_ms: int, report: SweepReport) -> None:
        """Remove marks whose window has passed: all are looked at, so not at every sweep."""
        topic = leader.topic.id
        if now_ms < self._marks_until_ms.get(topic, 0):
            return
        window_ms = self._around.settings.idempotency_window_ms
        before = MarksBefore(
            keys=first_row_at(now_ms - window_ms - self._margin_ms),
            producers=first_row_at(
                now_ms - leader.topic.ttl_ms - PRODUCER_LIFE_MS - self._margin_ms
            ),
        )
        after: bytes | None = b""
        while after is not None:
            went, after = await sweep_marks(
                self._around.logs.resolver,
                leader.hold.log,
                leader.hold.marks.marked,
                before,
                after,
                min(self._rows_max, MARKS_AT_ONCE),
            )
            report.rows += went
        self._marks_until_ms[topic] = now_ms + window_ms // 2

    # Payload logs.

    async def _due_payload_logs(self, topic: Topic, now_ms: int) -> list[tuple[LogId, Root]]:
        """Return payload logs that may go; those that began too late for it are not read."""
        through = due_through(topic, now_ms=now_ms, lives=self._lives)
        due = await self._due_between(topic, -1, through, now_ms)
        return due + await self._due_stages(topic, now_ms)

    async def _due_stages(self, topic: Topic, now_ms: int) -> list[tuple[LogId, Root]]:
        """Return stages that may go: those whose life passed since the last look, and those that expired."""
        lives = self._lives
        ended_ms = now_ms - lives.stage_ms - lives.margin_ms
        ended = stages.newest_begun_by(ended_ms)
        expired = stages.newest_begun_by(ended_ms - topic.ttl_ms)
        generation, looked_at = self._stages_looked_at.get(topic.id, (topic.generation, expired))
        looked_at = min(looked_at, expired) if generation == topic.generation else expired
        due = await self._due_between(topic, ended - 1, looked_at - 1, now_ms)
        # What may go now is looked at again until it has gone.
        newest = max((one.number or 0 for one, _ in due), default=ended - 1)
        self._stages_looked_at[topic.id] = topic.generation, newest + 1
        return due + await self._due_between(topic, expired - 1, -1, now_ms)

    async def _due_between(
        self, topic: Topic, after: int, through: int, now_ms: int
    ) -> list[tuple[LogId, Root]]:
        """Return payload logs numbered ``(after, through]`` that may go."""
        due: list[tuple[LogId, Root]] = []
        payload_logs = self._around.payload_logs
        while found := await payload_logs.roots(topic.id, topic.generation, through, after):
            for log, root in found:
                if await self._is_over(log, root, topic, now_ms):
                    due.append((log, root))
            after = found[-1][0].number or 0
        return due

    async def _is_over(self, log: LogId, root: Root, topic: Topic, now_ms: int) -> bool:
        if root.state is RootState.DROPPED:
            return True
        number = log.number or 0
        if (
            number < 0
            and root.state is not RootState.OPEN
            and now_ms <= (self._lives.end_ms(number) + topic.ttl_ms)
        ):
            return False  # It was published, or may have been: its messages may live.
        tail = await self._around.payload_logs.tail(log, root)
        return may_drop(number, root, tail, topic, now_ms=now_ms, lives=self._lives)

    async def _sweep_payload_log(
        self, leader: TopicLeader, log: LogId, root: Root, report: SweepReport
    ) -> None:
        now_ms = self._around.clock.now_ms()
        number = log.number
        assert number is not None
        if root.state is not RootState.DROPPED:
            tail = await self._around.payload_logs.tail(log, root)

            def is_over(now: Root) -> bool:
                return now.state is not RootState.DROPPED and may_drop(
                    number, now, tail, leader.topic, now_ms=now_ms, lives=self._lives
                )

            if not await leader.payloads.drop(number, is_over):
                return
            report.payload_logs += 1
            report.rows += await self._around.payload_logs.empty(log)
            return
        report.rows += await self._around.payload_logs.empty(log)
        floor = leader.hold.root.floor
        if may_forget(root, number, floor=floor, now_ms=now_ms, lives=self._lives):
            await leader.payloads.forget(number)

    async def _sweep_generations(self, topic: TopicId, below: int, report: SweepReport) -> None:
        if self._cleared.get(topic, 1) >= below:
            return
        resolver = self._around.logs.resolver
        for generation in range(self._cleared.get(topic, 1), below):
            after: RowId | None = ROW_ID_MIN
            while after is not None:
                went, after = await sweeping.clear_generation(
                    resolver, topic, generation, after, self._pages_max
                )
                report.rows += went
            report.rows += await forget_marks(resolver, LogId(topic, generation))
        while found := await self._around.payload_logs.of_generations(topic, below):
            for log in found:
                await self._around.payload_logs.forget(log)
        await forget_cursors(self._leaders.registry.records, topic, below)
        self._cleared[topic] = below
