"""Who leads which topic on this node, and what happens when that ends.

A topic that is in use has a state. Leading begins with the first write, by a claim. It ends when a hold
is done, or when the topic has been idle::

    no leader ──claim──▶ leader ──hold done──▶ former ──settled──▶ no leader, requests to carry over
        ▲                  │                                          │
        └──idle, released──┘                       the next leader takes them first, in their order

The next claim waits until the former leader's requests all have their outcome. So what was certainly
not stored keeps its place before what came later.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from broker import guards
from broker.errors import BrokerError, Fenced, NoLeader, OutcomeUnknown, StorageFull
from broker.leading.claims import BACK_OFF_MAX_S, BACK_OFF_S, claim
from broker.model import RowId, Topic, TopicId, first_row_at
from broker.storage.control import Deleted, StaleGeneration, State
from broker.storage.keys import LogId
from broker.storage.ports import Hold
from broker.topics.leader import TopicLeader
from broker.topics.registry import TopicRegistry, not_found
from broker.topics.settings import PublishOptions
from broker.topics.state import TopicState
from broker.topics.surroundings import Surroundings
from broker.topics.writer import Write

REQUEST_DEADLINE_S = 30.0
RELEASES_AT_ONCE = 256
STALE_RECORD_PAUSE_S = 0.02
Result = TypeVar("Result")


class Leaders:
    """The states of a node's topics, and the claims by which it leads them."""

    def __init__(self, around: Surroundings, registry: TopicRegistry, *, seed: int | None) -> None:
        """Begin leading nothing. ``seed`` makes the jitter of back-off repeatable."""
        self.around = around
        self.registry = registry
        self.states: dict[TopicId, TopicState] = {}
        self._jitter = random.Random(seed)  # noqa: S311 - It spreads retries; nobody guards it.
        self._tasks: set[asyncio.Task[None]] = set()
        self._forgetting: asyncio.Task[None] | None = None
        self._forget_over = around.settings.topics_in_use_max
        self._closing = False

    def state(self, topic: TopicId) -> TopicState:
        """Return the state of a topic, whether it exists or not."""
        state = self.states.get(topic)
        if state is None:
            state = self.states[topic] = TopicState(topic, self.around)
            if len(self.states) > self._forget_over:
                self._forget_soon()
        return state

    async def learn(self, topic: TopicId) -> Topic:
        """Return a topic whose record was not read yet. Raises TopicNotFound."""
        state = self.state(topic)
        try:
            with state.used():
                async with state.lock:
                    if state.topic is None:
                        await self.finish_delete(topic)
                        state.topic = await self.registry.get(topic)
                    return state.topic
        finally:
            self._forget_unknown(state)

    async def finish_delete(self, topic: TopicId) -> bool:
        """Bring a delete to its end that fenced the log and got no further; whether there was one.

        The caller has the lock of the topic's state.
        """
        record = await self.registry.read(topic)
        if record is None or record.deleted:
            return False
        control = await self.around.store.head(LogId(topic, record.generation))
        if (
            control is None
            or control.generation != record.generation
            or control.state is not State.DELETED
            or not guards.holds("tombstone")
        ):
            return False
        await self.registry.delete(topic, record.generation)
        return True

    def _forget_unknown(self, state: TopicState) -> None:
        """Keep nothing for names that are no topic's."""
        if state.topic is None and state.idle and state.leader is None:
            self.states.pop(state.id, None)

    async def led(
        self,
        topic: TopicId,
        attempt: Callable[[TopicLeader], Awaitable[Result]],
        options: PublishOptions,
    ) -> Result:
        """Do something as the topic's leader; if fenced, which is definite, as the next one.

        Raises:
            OutcomeUnknown: retriable, if the request has a key under which it may be repeated.
        """
        deadline = options.deadline or self.around.clock.monotonic() + REQUEST_DEADLINE_S
        while True:
            leader = await self.lead(topic, deadline)
            try:
                return await attempt(leader)
            except Fenced as error:
                leader.end(error)
                if self.around.clock.monotonic() > deadline:
                    raise NoLeader(f"Nobody leads topic '{topic}' just now.") from error
            except (OutcomeUnknown, StorageFull) as error:
                if options.key is None or error.outcome != "unknown":
                    raise
                raise OutcomeUnknown(error.message).under_key() from error

    async def lead(self, topic: TopicId, deadline: float) -> TopicLeader:
        """Return this node's leader of a topic, claiming it if needed.

        Raises:
            TopicNotFound: there is no such topic.
            NoLeader: the deadline (monotonic seconds) passed, or the node stops.
            StorageFull, StorageCorrupt: see LogStore.claim; nothing was done.
        """
        state = self.state(topic)
        state.touched = True
        if state.leader is not None:
            return state.leader
        with state.used():
            async with state.lock:
                if state.leader is None:
                    state.leader = await self._succeed(state, deadline)
                return state.leader

    async def _succeed(self, state: TopicState, deadline: float) -> TopicLeader:
        """Claim a topic and begin with what its former leader did not store."""
        try:
            await self._settle(state, deadline)
            await self._back_off(state, deadline)
            found, hold = await self._claimed(state, deadline)
        except BrokerError as error:
            _fail(state.carried, error)
            state.carried = []
            raise
        state.topic = found
        leader = TopicLeader(found, hold, self.around, committed=state.wake, lost=self._lost)
        leader.rates = state.rates
        carried, state.carried = state.carried, []
        if state.carried_generation == found.generation:
            leader.writer.take_over(carried)
        else:
            # They were let in under another topic's properties.
            _fail(carried, Fenced(f"Not done: topic '{state.id}' was created anew."))
        return leader

    async def _settle(self, state: TopicState, deadline: float) -> None:
        former = state.former
        if former is None:
            return
        settling = asyncio.ensure_future(former.settled())
        left_s = max(deadline - self.around.clock.monotonic(), 0)
        try:
            await asyncio.wait((settling,), timeout=left_s)
        finally:
            if not settling.done():
                settling.cancel()
        if not settling.done():
            raise NoLeader(f"What was sent to topic '{state.id}' is not resolved yet.")
        again = Fenced("Not done: the topic changed hands.")
        for write in settling.result():
            if write.key is not None or write.payloads is None:
                # Under the next leader a key is looked up anew, and so is a payload log's seal.
                _fail([write], again)
            else:
                state.carried.append(write)
        state.carried_generation = former.topic.generation
        state.former = None

    async def _back_off(self, state: TopicState, deadline: float) -> None:
        """Wait before a claim if the last ones were in vain: two nodes must not duel."""
        if not state.claimed_in_vain:
            return
        clock = self.around.clock
        pause_s = min(BACK_OFF_S * 2**state.claimed_in_vain, BACK_OFF_MAX_S)
        pause_s *= self._jitter.uniform(0.5, 1.0)
        if clock.monotonic() + pause_s > deadline:
            raise NoLeader(f"Nobody leads topic '{state.id}' just now.")
        await clock.sleep(pause_s)

    async def _claimed(self, state: TopicState, deadline: float) -> tuple[Topic, Hold]:
        topic = state.id
        while True:
            if self._closing:
                raise NoLeader("This node is stopping.")
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
                # Whoever began to delete it did not come to the end.
                await self.registry.delete(topic, found.generation)
                state.topic = None
                raise not_found(topic) from None
            except StaleGeneration:
                record = await self.registry.read(topic)
                if record is not None and record.generation > found.generation:
                    continue
                if self.around.clock.monotonic() > deadline:
                    raise NoLeader(
                        f"The record of topic '{topic}' is older than its log."
                    ) from None
                await self.around.clock.sleep(STALE_RECORD_PAUSE_S)
            else:
                return found, hold

    def _window_start(self) -> RowId:
        window_ms = self.around.settings.idempotency_window_ms
        return first_row_at(self.around.clock.now_ms() - window_ms)

    def _lost(self, leader: TopicLeader) -> None:
        state = self.state(leader.topic.id)
        state.claimed_in_vain = 0 if leader.has_committed else min(state.claimed_in_vain + 1, 8)
        if state.leader is leader:
            state.leader = None
            state.former = leader
            self._start(self._hand_over(state))
        state.wake()

    async def _hand_over(self, state: TopicState) -> None:
        """See to it that what a former leader left is taken up or answered."""
        with state.used():
            former = state.former
            if former is not None:
                # Not under the lock: creating and deleting need not wait for a slow disk.
                await former.quiet()
            async with state.lock:
                deadline = self.around.clock.monotonic() + REQUEST_DEADLINE_S
                try:
                    await self._settle(state, deadline)
                    if state.carried and state.leader is None:
                        state.leader = await self._succeed(state, deadline)
                except BrokerError as error:
                    _fail(state.carried, error)
                    state.carried = []

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Letting go.

    def _forget_soon(self) -> None:
        if self._forgetting is None or self._forgetting.done():
            self._forgetting = asyncio.ensure_future(self.forget_idle())

    async def forget_idle(self) -> None:
        """Hand off and forget the topics that nobody has used since the last call."""
        idle = []
        for state in self.states.values():
            if state.idle and not state.touched:
                idle.append(state)
            state.touched = False
        await self._release_all(idle)
        for state in idle:
            if state.idle and not state.touched and state.leader is None:
                self.states.pop(state.id, None)
        # Where so many are in use, looking at all of them again must wait until there are more.
        in_use_max = self.around.settings.topics_in_use_max
        self._forget_over = max(in_use_max, len(self.states) * 5 // 4)

    async def _release_all(self, states: Iterable[TopicState]) -> None:
        led = [state for state in states if state.leader is not None]
        for first in range(0, len(led), RELEASES_AT_ONCE):
            some = led[first : first + RELEASES_AT_ONCE]
            await asyncio.gather(*(self._release(state) for state in some))

    async def _release(self, state: TopicState) -> None:
        """Finish what is under way and hand a topic's log off. A new use claims it again."""
        async with state.lock:
            leader = state.leader
            if leader is None:
                return
            await leader.idle()
            if state.leader is not leader:
                return
            state.leader = None
            state.former = leader
            try:
                await self.around.store.release(leader.hold)
            except BrokerError:
                # The next claim does without: it adds a range instead of extending the last.
                self.around.metrics.happened("release_failed")
            leader.end(NoLeader("This node let go of the topic."))
        self._start(self._hand_over(state))

    async def close(self) -> None:
        """Finish what is under way and hand every log off; nothing is led any more."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        self._closing = True
        while any(state.leader is not None for state in self.states.values()):
            await self._release_all(list(self.states.values()))
        while self._tasks:
            await asyncio.wait(set(self._tasks))


def _fail(writes: Iterable[Write], error: BrokerError) -> None:
    for write in writes:
        if not write.future.done():
            write.future.set_exception(error)
