"""Who leads which topic on this node, and what happens when that ends.

A topic that is in use has a State: its record, the leader that this node is for it, those who wait for
something new, and its rates. Leading begins with the first write, by a claim. It ends when a hold is
done; requests that were never sent then go to the next leader, in their order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from broker.errors import BrokerError, Fenced, NoLeader, OutcomeUnknown
from broker.leading.claims import claim
from broker.model import RowId, Topic, TopicId, first_row_at
from broker.storage.control import Deleted, StaleGeneration
from broker.storage.keys import LogId
from broker.topics.cache import TopicCache
from broker.topics.leader import Queued, TopicLeader
from broker.topics.reading import Reading
from broker.topics.registry import TopicRegistry, not_found
from broker.topics.settings import PublishOptions
from broker.topics.stats import Rates
from broker.topics.surroundings import Surroundings

REQUEST_DEADLINE_S = 30.0
PAGE_BYTES = 1024 * 1024
Result = TypeVar("Result")


class TopicState:
    """One topic that is in use on this node."""

    __slots__ = ("around", "changes", "id", "leader", "lock", "rates", "topic", "waiting")

    def __init__(self, identifier: TopicId, around: Surroundings) -> None:
        """Begin without leader and record."""
        self.id = identifier
        self.around = around
        self.topic: Topic | None = None
        self.leader: TopicLeader | None = None
        self.lock = asyncio.Lock()
        self.waiting: set[asyncio.Future[None]] = set()
        self.changes = 0
        self.rates = Rates(around.clock)

    @property
    def cache(self) -> TopicCache | None:
        """The cache of this node's leader of the topic, if it is one."""
        return self.leader.cache if self.leader is not None else None

    def is_generation(self, generation: int) -> bool:
        """Whether the topic still is the one that was looked up."""
        return self.topic is not None and self.topic.generation == generation

    def wake(self) -> None:
        """Tell those who wait that the log changed."""
        self.changes += 1
        for future in self.waiting:
            if not future.done():
                future.set_result(None)
        self.waiting.clear()

    async def next_page(self, reading: Reading) -> bytes:
        """Return the next page of a reading, counting what it gives out."""
        before = reading.messages
        page = await reading.page(self.cache, PAGE_BYTES)
        count = reading.messages - before
        self.rates.polled(count)
        self.around.metrics.moved("poll", "/".join(self.id), count, len(page))
        return page


class Leaders:
    """The states of a node's topics, and the claims by which it leads them."""

    def __init__(self, around: Surroundings, registry: TopicRegistry, *, seed: int | None) -> None:
        """Begin leading nothing. ``seed`` makes the jitter of back-off repeatable."""
        self.around = around
        self.registry = registry
        self.states: dict[TopicId, TopicState] = {}
        self._jitter = random.Random(seed)  # noqa: S311 - It spreads retries; nobody guards it.
        self._moves: set[asyncio.Task[None]] = set()

    def state(self, topic: TopicId) -> TopicState:
        """Return the state of a topic, whether it exists or not."""
        state = self.states.get(topic)
        if state is None:
            state = self.states[topic] = TopicState(topic, self.around)
        return state

    async def led(
        self,
        topic: TopicId,
        attempt: Callable[[TopicLeader], Awaitable[Result]],
        options: PublishOptions,
    ) -> Result:
        """Do something as the topic's leader; if fenced, which is definite, as the next one."""
        deadline = options.deadline or self.around.clock.monotonic() + REQUEST_DEADLINE_S
        while True:
            leader = await self.lead(topic, deadline)
            try:
                return await attempt(leader)
            except Fenced as error:
                leader.end(error)
                if self.around.clock.monotonic() > deadline:
                    raise NoLeader(f"Nobody leads topic '{topic}' just now.") from error
            except OutcomeUnknown as error:
                if options.key is None:
                    raise
                raise error.under_key() from error

    async def lead(self, topic: TopicId, deadline: float) -> TopicLeader:
        """Return this node's leader of a topic, claiming it if needed. Raises TopicNotFound."""
        state = self.state(topic)
        if state.leader is not None:
            return state.leader
        async with state.lock:
            while state.leader is None:
                found = await self.registry.get(topic)
                try:
                    hold = await claim(
                        self.around.store,
                        LogId(topic, found.generation),
                        owner=self.around.owner,
                        clock=self.around.clock,
                        keep_after=self._window_start(),
                        deadline=deadline,
                        jitter=self._jitter,
                    )
                except Deleted:
                    await self.registry.delete(topic, found.generation)
                    raise not_found(topic) from None
                except StaleGeneration:
                    await self.registry.read(topic)
                    continue
                state.topic = found
                state.leader = TopicLeader(
                    found, hold, self.around, committed=state.wake, lost=self._lost
                )
            return state.leader

    def _window_start(self) -> RowId:
        window_ms = self.around.settings.idempotency_window_ms
        return first_row_at(self.around.clock.now_ms() - window_ms)

    def _lost(self, leader: TopicLeader, error: BrokerError, queued: Queued) -> None:
        state = self.state(leader.topic.id)
        if state.leader is leader:
            state.leader = None
        state.wake()
        if queued:
            task = asyncio.ensure_future(self._move(leader.topic.id, error, queued))
            self._moves.add(task)
            task.add_done_callback(self._moves.discard)

    async def _move(self, topic: TopicId, error: BrokerError, queued: Queued) -> None:
        """Hand requests that were never sent to the next leader, in their order.

        Keyed ones and references go back to their callers, who know how to begin again: under a new
        leader a key is looked up anew, and so is a payload log's seal.
        """
        plain = [write for write in queued if write.key is None and write.payloads is not None]
        for write in queued:
            if (write.key is not None or write.payloads is None) and not write.future.done():
                write.future.set_exception(Fenced(f"Not done: {error.message}"))
        if not plain:
            return
        try:
            deadline = self.around.clock.monotonic() + REQUEST_DEADLINE_S
            leader = await self.lead(topic, deadline)
            for write in plain:
                leader.messages.writer.submit(write)
        except BrokerError as failure:
            for write in plain:
                if not write.future.done():
                    write.future.set_exception(failure)

    async def close(self) -> None:
        """Finish what is under way and hand every log off."""
        if self._moves:
            await asyncio.wait(set(self._moves))
        for state in list(self.states.values()):
            leader = state.leader
            if leader is None:
                continue
            await leader.idle()
            if state.leader is leader:
                await self.around.store.release(leader.hold)
                leader.end(NoLeader("This node has stopped."))
