"""What a node knows of one topic that is in use: its record, its leader here, and who waits for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from broker.errors import TopicNotFound
from broker.model import Topic, TopicId
from broker.topics.cache import TopicCache
from broker.topics.clock_comparison import ClockComparison
from broker.topics.leader import TopicLeader
from broker.topics.pages import PollPage
from broker.topics.stats import Rates
from broker.topics.streams import PAGE_BYTES
from broker.topics.surroundings import Surroundings
from broker.topics.topic_reader import TopicReading
from broker.topics.write import Write

WOKEN_AT_ONCE: Final = 32
"""Those that wait are woken so many in a round of the event loop: each then reads and answers in one go."""


class TopicState:
    """One topic that is in use on this node.

    ``leader`` is who writes to it now. After its end it is ``former`` until all that it sent has its
    outcome; ``carried`` is what it certainly did not store, for the next leader. ``touched`` is set
    with every use and cleared by the search for idle topics.
    """

    __slots__ = (
        "around",
        "carried",
        "carried_generation",
        "changes",
        "claimed_in_vain",
        "claiming",
        "clocks",
        "former",
        "id",
        "leader",
        "lock",
        "rates",
        "recorded",
        "topic",
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
        self.topic: Topic | None = None
        self.leader: TopicLeader | None = None
        self.former: TopicLeader | None = None
        self.carried: list[Write] = []
        self.carried_generation = 0
        self.claimed_in_vain = 0
        """How many leaders in a row ended before they had committed anything."""
        self.claiming = asyncio.Lock()
        """Held by who begins or ends this node's leading. Taken before ``lock``."""
        self.lock = asyncio.Lock()
        """Held by who changes the topic's record."""
        self.waiting: dict[asyncio.Future[bool], None] = {}
        """In the order in which they came: so they are woken."""
        self.changes = 0
        self.users = 0
        self.touched = True
        self.rates = Rates(around.clock)

    @property
    def cache(self) -> TopicCache | None:
        """The cache of this node's leader of the topic, if it is one."""
        return self.leader.cache if self.leader is not None else None

    @property
    def idle(self) -> bool:
        """Whether nobody uses it, waits on it, or has something under way."""
        return not (
            self.users
            or self.waiting
            or self.former is not None
            or self.carried
            or self.lock.locked()
            or self.claiming.locked()
            or (self.leader is not None and self.leader.busy)
        )

    @contextmanager
    def used(self) -> Iterator[None]:
        """Keep this state from being forgotten."""
        self.users += 1
        self.touched = True
        try:
            yield
        finally:
            self.users -= 1

    def adopt(self, leader: TopicLeader, recorded: Topic) -> None:
        """Let a leader go by the record as it is now, unless that is of another generation."""
        if leader.topic.generation == recorded.generation:
            leader.topic = recorded
            # Once a leader has ended, another node may change the record at any time.
            if self.leader is leader or not self.around.is_clustered:
                self.topic = recorded

    def is_generation(self, generation: int) -> bool:
        """Whether the topic still is the one that was looked up."""
        return self.topic is not None and self.topic.generation == generation

    def wake(self) -> None:
        """Tell those that wait that the log changed, in the order in which they came."""
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
        """Return the next page of a reading, counting what it gives out.

        Raises:
            ClockSkew: this node's clock is too far off to tell what lives.
            Unavailable: see Reading.page, ClockComparison.compare.
            BadRequest: see Reading.page.
        """
        self.touched = True
        if self.topic is not None:
            reading.follow(self.topic)
        cache = self.cache
        if cache is not None and self.around.is_clustered:
            cache = await self._proven_cache(reading)
            if self.leader is None:
                await self._follow_record(reading)
        await self.clocks.compare(is_led_here=self.leader is not None)
        page = await reading.page(cache, bytes_max)
        self.rates.polled(page.count)
        self.around.metrics.moved("poll", "/".join(self.id), page.count, page.bytes)
        return page

    async def _follow_record(self, reading: TopicReading) -> None:
        """Go by the record: where another leads, the ttl need not be what was known here."""
        with suppress(TopicNotFound):  # Then there is nothing to be read.
            reading.follow(await self.recorded())

    async def _proven_cache(self, reading: TopicReading) -> TopicCache | None:
        """Return the cache if storage, read since the reading began, shows that it is whole.

        All of a reading's pages end where its first one found the pointer, so one proof is enough.
        """
        leader = self.leader
        if leader is None:
            return None
        if reading.proven is not leader:
            if not await leader.is_proven():
                return None
            reading.proven = leader
        return leader.cache if self.leader is leader else None


def _wake(waiting: deque[asyncio.Future[bool]]) -> None:
    """Wake some now, and the others in the next rounds of the loop."""
    for _ in range(min(len(waiting), WOKEN_AT_ONCE)):
        _tell(waiting.popleft(), True)
    if waiting:
        asyncio.get_running_loop().call_soon(_wake, waiting)


def _tell(change: asyncio.Future[bool], came: bool) -> None:
    if not change.done():
        change.set_result(came)
