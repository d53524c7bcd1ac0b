"""Keep a node's state of one topic in use: its record, its leader on this node, and its waiting readers."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final

from broker.errors import BrokerError, Overloaded, TopicNotFound, TopicRecreated
from broker.model import Topic, TopicId
from broker.topics.cache import TopicCache
from broker.topics.clock_comparison import ClockComparison
from broker.topics.leader import TopicLeader
from broker.topics.overdue import Overdue, in_time
from broker.topics.pages import PollPage
from broker.topics.registry import memory_bytes
from broker.topics.stats import Rates
from broker.topics.streams import PAGE_BYTES
from broker.topics.surroundings import Surroundings
from broker.topics.topic_reader import TopicReading
from broker.topics.write import Write, fail

WOKEN_AT_ONCE: Final = 32
"""A change wakes so many readers in a round of the event loop: each then reads and answers without a pause."""


class TopicState:
    """One topic that is in use on this node.

    ``leader`` writes to it now. A leader that has ended is ``former`` until every write that it sent has its
    outcome. ``carried`` has the requests that it certainly did not store, for the next leader. Every use sets
    ``touched``, and the search for idle topics clears it.
    """

    __slots__ = (
        "_overdue",
        "_rates",
        "_topic",
        "around",
        "carried",
        "carried_generation",
        "changes",
        "claiming",
        "claims_lost",
        "clocks",
        "former",
        "id",
        "leader",
        "lock",
        "recorded",
        "touched",
        "users",
        "waiting",
    )

    def __init__(
        self,
        identifier: TopicId,
        around: Surroundings,
        recorded: Callable[[], Awaitable[Topic]],
        clocks: ClockComparison,
    ) -> None:
        """Begin without leader and record; ``recorded`` reads the record, as ``Leaders.learn`` does.

        ``clocks`` compares this node's with the storage's.
        """
        self.id = identifier
        self.around = around
        self.recorded = recorded
        self.clocks = clocks
        self._topic: Topic | None = None
        self.leader: TopicLeader | None = None
        self.former: TopicLeader | None = None
        self.carried: list[Write] = []
        self.carried_generation = 0
        self._overdue: Overdue | None = None
        self.claims_lost = 0
        """The number of consecutive leaders that lost their claim before any commit."""
        self.claiming = asyncio.Lock()
        """Guards the start and the end of leading on this node. A task takes it before ``lock``."""
        self.lock = asyncio.Lock()
        """Guards changes of the topic's record."""
        self.waiting: dict[asyncio.Future[bool], None] = {}
        """Waiting readers, in the order in which they came and are woken."""
        self.changes = 0
        self.users = 0
        self.touched = True
        self._rates: Rates | None = None

    @property
    def topic(self) -> Topic | None:
        """The topic's record, if this node knows it. The node counts its memory."""
        return self._topic

    @topic.setter
    def topic(self, topic: Topic | None) -> None:
        self.around.record_bytes += _record_bytes(topic) - _record_bytes(self._topic)
        self._topic = topic

    def rates(self, generation: int) -> Rates:
        """Return the rates of a generation. Those of another generation are forgotten."""
        if self._rates is None or self._rates.generation != generation:
            self._rates = Rates(self.around.clock, generation)
        return self._rates

    @property
    def idle(self) -> bool:
        """Return whether no task uses it, no reader waits on it, and no work is in progress."""
        return not (
            self.users
            or self.waiting
            or self.former is not None
            or self.carried
            or self.lock.locked()
            or self.claiming.locked()
            or (self.leader is not None and self.leader.busy)
        )

    def carry(self, writes: Sequence[Write], generation: int) -> None:
        """Keep requests for the next leader. Each is refused when its deadline passes."""
        self.carried += writes
        self.carried_generation = generation
        if self._overdue is None:
            self._overdue = Overdue(self.around.clock, self._refuse_late)
        self._overdue.watch(min((write.deadline for write in writes), default=math.inf))

    def _refuse_late(self) -> float:
        """Refuse carried requests past their deadline; return the earliest deadline of the others."""
        now = self.around.clock.monotonic()
        late = [write for write in self.carried if write.deadline <= now]
        self.carried = [write for write in self.carried if write.deadline > now]
        fail(late, Overloaded("The deadline passed before another leader took the topic over."))
        return min((write.deadline for write in self.carried), default=math.inf)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Keep this state in memory during the block."""
        self.users += 1
        self.touched = True
        try:
            yield
        finally:
            self.users -= 1

    def adopt(self, leader: TopicLeader, recorded: Topic) -> None:
        """Give a leader the present record, unless that is of another generation."""
        if leader.topic.generation == recorded.generation:
            leader.topic = recorded
            # Once a leader has ended, another node may change the record at any time, if there can be one.
            if self.leader is leader or self.around.is_alone:
                self.topic = recorded

    def doubt(self, error: BrokerError) -> None:
        """Forget the topic's record after a failed change, if it may have been changed: the next use reads it."""
        if error.outcome == "unknown":
            self.topic = None
            if self.leader is not None:
                self.leader.end(error)  # The next one begins with the record as it is then.

    @asynccontextmanager
    async def turn(self, deadline: float | None) -> AsyncIterator[None]:
        """Hold the lock for a change of the topic's record. Raises Unavailable: the deadline passed before."""
        async with in_time(self.around.clock, deadline):
            await self.lock.acquire()
        try:
            yield
        finally:
            self.lock.release()

    def is_generation(self, generation: int) -> bool:
        """Return whether the topic still has this generation."""
        return self.topic is not None and self.topic.generation == generation

    def wake(self) -> None:
        """Tell the waiting readers that the log changed, in the order in which they came."""
        self.changes += 1
        if self.waiting:
            _wake(deque(self.waiting))
            self.waiting.clear()

    async def changed(self, seen: int, seconds: float) -> bool:
        """Wait for a change after the one numbered ``seen``; False if none came in time."""
        if self.changes != seen:
            return True
        loop = asyncio.get_running_loop()
        change: asyncio.Future[bool] = loop.create_future()
        self.waiting[change] = None
        timer = loop.call_later(seconds, _tell, change, False)
        try:
            return await change
        finally:
            timer.cancel()
            self.waiting.pop(change, None)

    async def next_page(self, reading: TopicReading, bytes_max: int = PAGE_BYTES) -> PollPage:
        """Return the next page of a reading, and count its messages.

        Raises:
            ClockSkew: this node's clock is too far off to tell which messages have expired.
            Unavailable: see TopicReading.page, ClockComparison.compare.
            BadRequest: see TopicReading.page.
            TopicRecreated: the topic has another generation than the reading.
        """
        self.touched = True
        cache = self._cache_for(reading)
        if cache is not None:
            cache = await self._proven_cache(reading)
            if cache is None:
                await self._follow_record(reading)
        # Only a proven leader knows the present record, unless no other process can change it.
        if self.topic is not None and (cache is not None or self.around.is_alone):
            reading.follow(self.topic)
        await self.clocks.compare(is_led_here=self.leader is not None)
        page = await reading.page(cache, bytes_max)
        self.rates(reading.generation).polled(page.count)
        self.around.metrics.moved("poll", "/".join(self.id), page.count, page.bytes)
        return page

    def _cache_for(self, reading: TopicReading) -> TopicCache | None:
        """Return the cache of this node's leader of the topic, None if another node leads. Raises TopicRecreated."""
        if self.leader is None:
            return None
        present = self.leader.topic.generation
        if present != reading.generation:
            raise TopicRecreated.between(self.id, reading.generation, present)
        return self.leader.cache

    async def _follow_record(self, reading: TopicReading) -> None:
        """Read the record again: if another node leads, it may have changed the ttl."""
        with suppress(TopicNotFound):  # Then the topic has no messages to read.
            reading.follow(await self.recorded())

    async def _proven_cache(self, reading: TopicReading) -> TopicCache | None:
        """Return the cache if a read of storage since the reading began shows that the cache is complete.

        All pages of a reading end at the pointer that its first page found, so one proof is enough.
        """
        leader = self.leader
        if leader is not None and reading.proven is not leader:
            if not await leader.is_proven():
                return None
            reading.proven = leader
        return self._cache_for(reading) if self.leader is leader else None


def _wake(waiting: deque[asyncio.Future[bool]]) -> None:
    """Wake some readers now, and the others in the next rounds of the loop."""
    for _ in range(min(len(waiting), WOKEN_AT_ONCE)):
        _tell(waiting.popleft(), True)
    if waiting:
        asyncio.get_running_loop().call_soon(_wake, waiting)


def _tell(change: asyncio.Future[bool], came: bool) -> None:
    if not change.done():
        change.set_result(came)


def _record_bytes(topic: Topic | None) -> int:
    return 0 if topic is None else memory_bytes(topic.properties)
