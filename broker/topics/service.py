"""The topics of a node: what the interface calls. Writing goes through a leader; reading needs none."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from broker.errors import (
    BadRequest,
    Fenced,
    Overloaded,
    TopicExists,
    TransactionTooOld,
)
from broker.model import (
    Poll,
    PublishRequest,
    RollbackRange,
    Topic,
    TopicId,
    TransactionUse,
)
from broker.storage.control import StaleGeneration
from broker.storage.keys import LogId
from broker.storage.ports import RecordStore
from broker.topics.browse import BrowsePage, BrowseQuery, browse
from broker.topics.finishing import to_its_end
from broker.topics.leader import TopicLeader
from broker.topics.leaders import Leaders
from broker.topics.reading import PollStream, Reading
from broker.topics.registry import TopicRegistry, not_found
from broker.topics.settings import NO_OPTIONS, Published, PublishOptions
from broker.topics.state import TopicState
from broker.topics.stats import TopicStats, topic_stats
from broker.topics.surroundings import Surroundings
from broker.topics.writer import Write

POINTERS_PER_MS = 1_000_000


class Topics:
    """All topics, as one node serves them."""

    def __init__(
        self, around: Surroundings, records: RecordStore, *, seed: int | None = None
    ) -> None:
        """Serve what the stores hold. ``seed`` makes the jitter of back-off repeatable."""
        self.registry = TopicRegistry(records, cached_max=around.settings.topic_records_cached_max)
        self.around = around
        self.leaders = Leaders(around, self.registry, seed=seed)
        self._states = self.leaders.states
        self._waiting = 0
        self._draining = False

    # Administration.

    async def create(self, topic: TopicId, properties: Mapping[str, str]) -> Topic:
        """Create a topic, or the next generation of a deleted one. Raises TopicExists."""
        return await to_its_end(self._create(topic, properties))

    async def _create(self, topic: TopicId, properties: Mapping[str, str]) -> Topic:
        state = self.leaders.state(topic)
        with state.used():
            async with state.lock:
                try:
                    state.topic = await self.registry.create(topic, properties)
                except TopicExists:
                    if not await self.leaders.finish_delete(topic):
                        raise
                    state.topic = await self.registry.create(topic, properties)
                return state.topic

    async def update(self, topic: TopicId, properties: Mapping[str, str]) -> Topic:
        """Replace a topic's properties. Raises TopicNotFound."""
        await self.get(topic)
        return await to_its_end(self._update(topic, properties))

    async def _update(self, topic: TopicId, properties: Mapping[str, str]) -> Topic:
        state = self.leaders.state(topic)
        with state.used():
            async with state.lock:
                state.topic = await self.registry.update(topic, properties)
                if state.leader is not None:
                    state.leader.topic = state.topic
                return state.topic

    async def get(self, topic: TopicId) -> Topic:
        """Return a topic. Raises TopicNotFound."""
        state = self._states.get(topic)
        if state is not None and state.topic is not None:
            return state.topic
        return await self.leaders.learn(topic)

    async def list(self, namespace: str) -> list[str]:
        """Return the names of a namespace's topics, in the order of their keys."""
        return await self.registry.names(namespace)

    async def delete(self, topic: TopicId) -> None:
        """Delete a topic: first its log is fenced, then its record says so. Raises TopicNotFound."""
        await self.get(topic)
        await to_its_end(self._delete(topic))

    async def _delete(self, topic: TopicId) -> None:
        state = self.leaders.state(topic)
        with state.used():
            async with state.lock:
                found = await self.registry.get(topic)
                log = LogId(topic, found.generation)
                try:
                    await self.around.store.tombstone(log, self.around.owner)
                except StaleGeneration:
                    raise not_found(topic) from None
                finally:
                    # Also if it failed: whether the log is fenced is found out by the next claim.
                    state.topic = None
                    if state.leader is not None:
                        state.leader.end(Fenced(f"Topic '{topic}' was deleted."))
                await self.registry.delete(topic, found.generation)
            state.wake()

    # Publishing.

    def publish(
        self, topic: TopicId, request: PublishRequest, options: PublishOptions = NO_OPTIONS
    ) -> Awaitable[Published]:
        """Publish messages, or with a pointer and no messages the reference to what was stored.

        Raises:
            BadRequest, TopicNotFound, TransactionTooOld, IdempotencyKeyReused: refused.
            Overloaded, NoLeader, StorageFull: not done; try again.
            OutcomeUnknown: it may have been done.
        """
        state = self._states.get(topic)
        if state is not None:
            leader = state.leader
            if (
                leader is not None
                and request.pointer is None
                and options is NO_OPTIONS
                and request.payloads
                and leader.topic.transactions is not TransactionUse.REQUIRED
            ):
                state.touched = True
                return leader.publish(Write(leader.loop.create_future(), request.payloads))
        return self._publish(topic, request, options)

    async def _publish(
        self, topic: TopicId, request: PublishRequest, options: PublishOptions
    ) -> Published:
        if request.pointer is None and not request.payloads:
            raise BadRequest(
                "Empty payload is only allowed for publishing transactional message. "
                f"Topic: {topic.entity}"
            )
        found = await self.get(topic)
        self._check(found, request, options)

        async def attempt(leader: TopicLeader) -> Published:
            self._check(leader.topic, request, options)
            return await leader.publish_request(request, options)

        return await self.leaders.led(topic, attempt, options)

    async def store(
        self, topic: TopicId, request: PublishRequest, options: PublishOptions = NO_OPTIONS
    ) -> Published:
        """Store payloads of a transaction. Raises as publish does, and PayloadsSealed."""
        if request.pointer is None or not request.payloads:
            raise BadRequest(
                f"Store request must be transactional with payload. Topic: {topic.entity}"
            )
        found = await self.get(topic)
        self._check(found, request, options)

        async def attempt(leader: TopicLeader) -> Published:
            self._check(leader.topic, request, options)
            return await leader.store(request, options)

        return await self.leaders.led(topic, attempt, options)

    async def rollback(self, topic: TopicId, rollback: RollbackRange) -> int:
        """Mark a transaction's rows as rolled back; return how many there were."""
        await self.get(topic)
        if rollback.pointer < 0:
            # Negating a negative pointer would show again what was rolled back.
            raise BadRequest(f"{rollback.pointer} is no transaction's write pointer.")
        return await self.leaders.led(topic, lambda leader: leader.rollback(rollback), NO_OPTIONS)

    def _check(self, topic: Topic, request: PublishRequest, options: PublishOptions) -> None:
        if topic.transactions is TransactionUse.REQUIRED and request.pointer is None:
            raise BadRequest(f"Topic '{topic.id}' takes publishes of transactions alone.")
        if topic.transactions is TransactionUse.REFUSED and request.pointer is not None:
            raise BadRequest(f"Topic '{topic.id}' takes no publishes of transactions.")
        if options.ttl_s is not None and not 0 < options.ttl_s <= topic.ttl_s:
            raise BadRequest(
                f"ttl: must be between 1 and the topic's own, {topic.ttl_s} seconds, "
                f"not {options.ttl_s}."
            )
        if request.pointer is not None:
            if request.pointer < 0:
                raise BadRequest(f"{request.pointer} is no transaction's write pointer.")
            self._check_age(request.pointer)

    def _check_age(self, pointer: int) -> None:
        life_max_s = self.around.settings.transaction_life_max_s
        began_ms = pointer // POINTERS_PER_MS
        if began_ms + life_max_s * 1000 <= self.around.clock.now_ms():
            raise TransactionTooOld(
                f"Transaction {pointer} began more than {life_max_s} seconds ago, the longest life "
                "of a transaction. Abort it and begin a new one."
            )

    # Consuming.

    async def poll(self, topic: TopicId, poll: Poll, *, wait_s: float = 0.0) -> PollStream:
        """Read a page; wait for one if there is nothing for this consumer and ``wait_s`` allows.

        Raises:
            TopicNotFound, Overloaded, Unavailable: see there.
        """
        found = await self.get(topic)
        state = self.leaders.state(topic)
        with state.used():
            reading = Reading(self.around, found, poll)
            seen = state.changes
            first = await state.next_page(reading)
            if not first and wait_s > 0:
                first = await self._wait(state, found, reading, seen, wait_s)
            return PollStream(reading, first, state)

    async def _wait(
        self, state: TopicState, topic: Topic, reading: Reading, seen: int, wait_s: float
    ) -> bytes:
        """Wait for a change after the one numbered ``seen``, which the reading has covered."""
        if self._waiting >= self.around.settings.waiting_polls_max:
            raise Overloaded("Too many polls wait on this node. Try again.", retry_after_s=1)
        self._waiting += 1
        try:
            deadline = self.around.clock.monotonic() + wait_s
            while not self._draining and state.is_generation(topic.generation):
                left_s = deadline - self.around.clock.monotonic()
                if left_s <= 0 or not await state.changed(seen, left_s):
                    break
                seen = state.changes
                reading.go_on()
                page = await state.next_page(reading)
                if page:
                    return page
            return b""
        finally:
            self._waiting -= 1

    @property
    def waiting_polls(self) -> int:
        """How many polls wait just now."""
        return self._waiting

    async def browse(self, topic: TopicId, query: BrowseQuery) -> BrowsePage:
        """Look at messages without the rules of consuming."""
        return await browse(self.around, await self.get(topic), query)

    async def stats(self, topic: TopicId) -> TopicStats:
        """Return what is known of a topic, estimates among it."""
        found = await self.get(topic)
        state = self.leaders.state(topic)
        ahead_ms = state.leader.ahead_ms() if state.leader is not None else 0
        return await topic_stats(self.around, found, state.rates, ahead_ms)

    # Ends.

    async def forget_idle(self) -> None:
        """Hand off and forget the topics that were not used since the last call."""
        await self.leaders.forget_idle()

    def begin_drain(self) -> None:
        """Answer waiting polls, empty if need be, and let no further poll wait."""
        self._draining = True
        for state in self._states.values():
            state.wake()

    async def close(self) -> None:
        """Finish what is under way and hand every log off."""
        self.begin_drain()
        await self.leaders.close()
