"""Sweep topics: remove messages that may not be read any more. Reads don't depend on it: they apply expiry themselves.

One sweep goes over all records, also of deleted topics, several side by side (sweep_rounds.py). It sweeps each topic in
this order::

    floor          raise it to the page that holds the oldest message that may still be read
    pages          remove the entries of pages below the floor, with one change a page; the heads stay
    lifetimes      turn entries into stubs if their own, shorter lifetime is over, with one change a page
    marks          remove those whose window has passed
    invalid        roll back the messages of invalid transactions (inversion.py)
    payload logs   drop those to which no live reference can exist, empty them, and forget them a margin later
    generations    remove all older ones, and a deleted topic's last one, with their cursors

The sweeper removes a message only a margin after it has expired. So a reader that judged it alive a moment ago still
finds it. The sweeper also reads a record again just before it acts on it, so a stale read removes nothing. *Purged*
messages need no margin, because readers continue from the floor; their payload logs and marks stay. The sweeper works
in slices, and other work has its turn between them. After a start, and after a jump of the clock, the sweeper rests: a
wrong clock is harmless until something is removed. And a life is over only by a clock without its jumps forward
(``Clock.patient_ms``). In a cluster each node sweeps the topics that it should lead,
including the remains of deleted ones.

A payload log may be removed when its transaction can't publish any more and its published messages have expired. That
is the longest life of a transaction + ttl + margin after its last store. The log's number tells when its transaction
began, so the sweeper does not read logs that can't be due yet. An unpublished stage may be removed when the life of a
stage has passed; a published one is treated like a transaction's log. So the sweeper checks stages twice: when their
life has passed, and at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from broker.coordination.claims import Written, read_clock
from broker.errors import BrokerError, ClockSkew, TopicNotFound, Unavailable
from broker.long_work import Pace
from broker.model import LOG_KEY_MIN, LogKey, Topic, TopicId
from broker.storage import sweep as sweeping
from broker.storage.head import NO_END
from broker.storage.keys import LogId
from broker.storage.marks import MarksBefore, forget_marks, sweep_marks
from broker.storage.root import Root, RootState
from broker.storage.sweep import LifetimeEnds
from broker.topics import stages
from broker.topics.cursors import forget_cursors
from broker.topics.expiry import PayloadLifetimes, due_through, floor_of, may_drop, may_forget
from broker.topics.inversion import Inverting, Source
from broker.topics.leader import TopicLeader
from broker.topics.leaders import Leaders
from broker.topics.sweep_rounds import SweepRounds

CLAIM_DEADLINE_S = 10.0
MARKS_AT_ONCE = 500  # More would block the event loop for too long.
Due = AsyncGenerator[tuple[LogId, Root], None]


@dataclass(slots=True)
class SweepReport:
    """The results of one sweep."""

    topics: int = 0
    rows: int = 0
    """The messages and marks that were removed."""
    payload_logs: int = 0
    inverted: int = 0
    """The invalid transactions whose messages were rolled back, counted once for each topic."""
    skipped: int = 0
    """Topics that could not be swept this time; the next sweep tries them again."""
    problem: str | None = None
    """The first of those topics, with its error."""
    ended_early: bool = False
    """True if the sweep ended before the last topic, because the clock jumped."""
    clock_is_wrong: bool = False
    """True if the sweep ended before the last topic, because this node's clock is too far off."""

    def skip(self, topic: TopicId, problem: str) -> None:
        """Count a topic that could not be swept."""
        self.skipped += 1
        self.problem = self.problem or f"{topic}: {problem}"


class Sweeper:
    """Sweeps topics that this node may lead. ``close`` ends what its last sweep left under way."""

    def __init__(self, leaders: Leaders, source: Source | None = None) -> None:
        """Sweep under the bounds of the leaders' settings.

        ``source`` gives the invalid transactions. With None the sweeper rolls nothing back.
        """
        self._inverting = None if source is None else Inverting(leaders, source)
        self._leaders = leaders
        self._around = leaders.around
        settings = leaders.around.settings
        self._rows_max = settings.sweep_rows_max
        self._pages_max = max(settings.sweep_rows_max // 100, 1)
        self._rounds = SweepRounds(leaders.around.clock)
        self._has_compared = False
        """True if this sweep has compared the clocks."""
        self._ends: dict[TopicId, LifetimeEnds] = {}
        self._cleared: dict[TopicId, int] = {}
        """By topic: the generation below which this process has removed everything."""
        self._marks_until_ms: dict[TopicId, float] = {}
        """By topic: the time of the next sweep of its marks, by the boot clock."""
        self._stages_looked_at: dict[TopicId, tuple[int, int]] = {}
        """By topic: the generation, and the number from which on its stages were checked at the end of their life."""

    @property
    def _margin_ms(self) -> int:
        return self._around.settings.sweep_margin_ms

    @property
    def _lives(self) -> PayloadLifetimes:
        settings = self._around.settings
        return PayloadLifetimes(
            settings.transaction_life_max_s * 1000, settings.stage_life_s * 1000, self._margin_ms
        )

    def _now_ms(self, topic: Topic) -> int:
        """Return the time by which this sweeper removes messages: a clock that jumped forward makes no life end."""
        lives = self._lives
        longest_ms = max(lives.transaction_ms, lives.stage_ms) + topic.ttl_ms + lives.margin_ms
        return self._around.clock.patient_ms(longest_ms)

    async def sweep(self) -> SweepReport:
        """Sweep every topic that this node should lead. Stop after the present topic if the clock jumps."""
        report = SweepReport()
        self._has_compared = False
        if self._inverting is not None:
            await self._inverting.begin()
        try:
            await self._begin_topics(report)
            for topic in await self._rounds.end():
                report.skip(topic, "its sweep is still under way")
        except BaseException:
            await self.close()
            raise
        return report

    async def close(self) -> None:
        """End the sweeps of topics that are under way, in any state: the next sweep begins from what is stored."""
        await self._rounds.close()

    async def _begin_topics(self, report: SweepReport) -> None:
        """Begin the sweep of each topic, several side by side."""
        steady_ms, pace = self._around.clock.steady_ms(), Pace()
        for topic in await self._leaders.registry.all():
            await pace.step()
            if not self._around.tenure.place(topic).here:
                self._forget(topic)
                continue
            if (problem := self._rounds.left_out(topic)) is not None:
                report.skip(topic, problem)
                continue
            await self._rounds.place()
            steady_before_ms, steady_ms = steady_ms, self._around.clock.steady_ms()
            report.ended_early |= steady_ms < steady_before_ms  # The clock jumped.
            if report.ended_early or report.clock_is_wrong:
                self._rounds.give_back()
                break
            self._rounds.begin(topic, partial(self._tried, topic, report))

    async def _tried(self, topic: TopicId, report: SweepReport) -> str | None:
        """Sweep one topic; return why that can't be done just now."""
        try:
            await self.sweep_topic(topic, report)
        except TopicNotFound:
            return None
        except BrokerError as error:
            # It is safe to go on after any error: the next sweep begins from the stored state.
            report.skip(topic, error.message)
            # Else the clock of the server that stores the topic is off.
            is_mine = isinstance(error, ClockSkew) and self._leaders.claims.clocks.is_wrong
            report.clock_is_wrong |= is_mine
            return error.message
        return None

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
                inverted = await self._inverting.clean(record.topic(topic))
                report.inverted += inverted
        below = record.generation + 1 if record.deleted else record.generation
        await self._sweep_generations(topic, below, report)

    def _forget(self, topic: TopicId) -> None:
        self._rounds.forget(topic)
        self._ends.pop(topic, None)
        self._marks_until_ms.pop(topic, None)
        self._stages_looked_at.pop(topic, None)
        if self._inverting is not None:
            self._inverting.forget(topic)

    # A live topic. Changes go through its leader, because the record read here may be stale.

    async def _sweep_live(self, topic: Topic, report: SweepReport) -> None:
        steady_ms, now_ms = self._around.clock.steady_ms(), self._now_ms(topic)
        async with aclosing(self._due_payload_logs(topic, now_ms)) as due:
            first = await anext(due, None)
            leader = await self._leader_of(topic, now_ms, has_due=first is not None)
            if leader is None or leader.topic.generation != topic.generation:
                return
            await self._sweep_led(leader, steady_ms, report)
            while first is not None:
                await self._sweep_payload_log(leader, *first, report)
                first = await anext(due, None)

    async def _sweep_led(self, leader: TopicLeader, steady_ms: float, report: SweepReport) -> None:
        """Sweep a topic's message log. Raises Unavailable if the clock has jumped back since ``steady_ms``."""
        await leader.messages.expire_keys()
        await self._compare_clocks(leader)
        await self._leaders.claims.clocks.compare(is_led_here=True)
        now_ms = self._now_ms(leader.topic)  # The caller's came before the comparison.
        if self._around.clock.steady_ms() < steady_ms:
            raise Unavailable("The clock jumped.")
        await leader.raise_floor(floor_of(leader.topic, now_ms, self._margin_ms))
        more = True
        while more:
            went, more = await leader.guarded(
                sweeping.clear_below_floor(self._around.logs.resolver, leader.hold, self._pages_max)
            )
            report.rows += went
            await asyncio.sleep(0)  # Other work has its turn, also with a store that never waits.
        await self._end_lives(leader, now_ms)
        await self._sweep_marks(leader, report)

    async def _leader_of(self, topic: Topic, now_ms: int, *, has_due: bool) -> TopicLeader | None:
        """Return this node's leader. If there is none, claim the topic if it has work, else return None."""
        state = self._leaders.states.get(topic.id)
        leader = state.leader if state is not None else None
        if leader is not None or not (has_due or await self._has_work(topic, now_ms)):
            return leader
        deadline = self._around.clock.monotonic() + CLAIM_DEADLINE_S
        return await self._leaders.lead(topic.id, deadline)

    async def _has_work(self, topic: Topic, now_ms: int) -> bool:
        """Return whether a topic without a leader is worth a claim: its pages have something to remove."""
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
        """Compare this clock with the storage's, once a sweep: a clock that is ahead would remove too much.

        Claims compare clocks too, but the last claim may be long ago.

        Raises:
            ClockSkew: this clock is too far off.
            Unavailable: the clocks can't be compared now.
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
        await leader.guarded(sweeping.look_for_ends(leader.hold, known))
        await leader.guarded(sweeping.end_lives(leader.hold, known, now_ms - self._margin_ms))

    async def _sweep_marks(self, leader: TopicLeader, report: SweepReport) -> None:
        """Remove marks that count no more (mark_window.py). This reads all marks, so not every sweep does it."""
        topic, boot_ms = leader.topic.id, self._around.clock.monotonic() * 1000
        if boot_ms < self._marks_until_ms.get(topic, 0):
            return
        window = leader.messages.window
        before = MarksBefore(
            keys=window.passed_before(window.window_ms + self._margin_ms),
            producers=leader.producers_passed(self._margin_ms),
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
        self._marks_until_ms[topic] = boot_ms + window.window_ms // 2

    # Payload logs.

    async def _due_payload_logs(self, topic: Topic, now_ms: int) -> Due:
        """Yield the payload logs that may be removed, also stages, without reading those that began too recently."""
        through = due_through(topic, now_ms=now_ms, lives=self._lives)
        async for each in self._due_between(topic, -1, through, now_ms):
            yield each
        lives = self._lives
        ended_ms = now_ms - lives.stage_ms - lives.margin_ms
        ended = stages.newest_begun_by(ended_ms - 1)  # One that ends now may not be removed yet.
        expired = stages.newest_begun_by(ended_ms - topic.ttl_ms)
        generation, looked_at = self._stages_looked_at.get(topic.id, (topic.generation, expired))
        looked_at = min(looked_at, expired) if generation == topic.generation else expired
        newest = ended - 1  # A stage that may be removed is checked again until it is removed.
        async for each in self._due_between(topic, ended - 1, looked_at - 1, now_ms):
            newest = max(newest, each[0].number or 0)
            yield each
        self._stages_looked_at[topic.id] = topic.generation, newest + 1
        async for each in self._due_between(topic, expired - 1, -1, now_ms):
            yield each

    async def _due_between(self, topic: Topic, after: int, through: int, now_ms: int) -> Due:
        """Yield the payload logs numbered ``(after, through]`` that may be removed."""
        payload_logs = self._around.payload_logs
        while found := await payload_logs.roots(topic.id, topic.generation, through, after):
            for log, root in found:
                if await self._is_over(log, root, topic, now_ms):
                    yield log, root
            after = found[-1][0].number or 0

    async def _is_over(self, log: LogId, root: Root, topic: Topic, now_ms: int) -> bool:
        if root.state is RootState.DROPPED:
            return True
        number = log.number or 0
        may_be_published = number < 0 and root.state is not RootState.OPEN
        if may_be_published and now_ms <= self._lives.end_ms(number) + topic.ttl_ms:
            return False  # Its messages may still live.
        tail = await self._around.payload_logs.tail(log, root)
        return may_drop(number, root, tail, topic, now_ms=now_ms, lives=self._lives)

    async def _sweep_payload_log(
        self, leader: TopicLeader, log: LogId, root: Root, report: SweepReport
    ) -> None:
        now_ms = self._now_ms(leader.topic)
        number = log.number
        assert number is not None
        was_dropped = root.state is RootState.DROPPED
        if not was_dropped:
            tail = await self._around.payload_logs.tail(log, root)

            def is_over(now: Root) -> bool:
                return now.state is not RootState.DROPPED and may_drop(
                    number, now, tail, leader.topic, now_ms=now_ms, lives=self._lives
                )

            if not await leader.payloads.drop(number, is_over):
                return
            report.payload_logs += 1
        went = await self._around.payload_logs.empty(log)
        report.rows += went
        floor = leader.hold.root.floor
        if was_dropped and may_forget(root, number, floor=floor, now_ms=now_ms, lives=self._lives):
            await leader.payloads.forget(number)

    async def _sweep_generations(self, topic: TopicId, below: int, report: SweepReport) -> None:
        if self._cleared.get(topic, 1) >= below:
            return
        resolver = self._around.logs.resolver
        for generation in range(self._cleared.get(topic, 1), below):
            after: LogKey | None = LOG_KEY_MIN
            while after is not None:
                went, after = await sweeping.clear_generation(
                    resolver, topic, generation, after, self._pages_max
                )
                report.rows += went
            went = await forget_marks(resolver, LogId(topic, generation))
            report.rows += went
        while found := await self._around.payload_logs.of_generations(topic, below):
            for log in found:
                await self._around.payload_logs.forget(log)
        await forget_cursors(self._leaders.registry.records, topic, below)
        self._cleared[topic] = below
