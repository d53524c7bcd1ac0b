"""Lead topics on this node: claim them, and settle them when leading ends.

A topic in use has a state. Leading begins with the first write, by a claim. It ends when the hold is done, or when
the topic is idle while this node has more than ``topics_in_use_max`` states::

    no leader ──claim──▶ leader ──hold done──▶ former ──settled──▶ no leader, requests to carry over
        ▲                  │                                          │
        └──idle, released──┘                       the next leader takes them first, in their order

The next claim waits until all requests of the former leader have their outcome. So a request that was certainly not
stored keeps its place before later requests.

In a cluster this node hands over a topic that another node should lead (hand_over.py).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import TypeVar

from broker import logs, retries
from broker.coordination.claims import BACK_OFF_MAX_S, BACK_OFF_S
from broker.coordination.tenure import not_leader
from broker.errors import (
    BrokerError,
    Fenced,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
    StorageFull,
    TopicNotFound,
)
from broker.long_work import paced
from broker.model import Topic, TopicId
from broker.topics.hand_over import HAND_OVER_S, HandingOver
from broker.topics.leader import TopicLeader
from broker.topics.overdue import in_time
from broker.topics.registry import RECORD_BYTES_MAX, TopicRegistry, check_generation, not_found
from broker.topics.settings import PublishOptions
from broker.topics.settlement import refused_below
from broker.topics.succession import claim_topics
from broker.topics.surroundings import Surroundings
from broker.topics.topic_claims import TopicClaims
from broker.topics.topic_state import TopicState
from broker.topics.write import fail

RELEASES_AT_ONCE = 256
Result = TypeVar("Result")

log = logs.get_logger()


class Leaders:
    """The states of a node's topics, and the claims by which it leads them."""

    def __init__(self, around: Surroundings, registry: TopicRegistry, *, seed: int | None) -> None:
        """Begin without a topic. ``seed`` makes the jitter of back-off repeatable."""
        self.around = around
        self.registry = registry
        self.states: dict[TopicId, TopicState] = {}
        # Where only this node can lead, its operator need not be told that it does.
        self._tell = log.debug if around.is_alone else log.info
        self._jitter = random.Random(seed)  # noqa: S311 - It only spreads retries; security does not depend on it.
        self.claims = TopicClaims(around, registry, self._jitter)
        self._handing_over = HandingOver(
            around,
            self._hand_off,
            lambda state: self._run_in_background(self._pass_on_carried(state)),
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._forgetting: asyncio.Task[None] | None = None
        self._forget_over = around.settings.topics_in_use_max
        self._forget_bytes_over = RECORD_BYTES_MAX

    def state(self, topic: TopicId) -> TopicState:
        """Return the state of a topic, whether it exists or not."""
        state = self.states.get(topic)
        if state is None:
            state = self.states[topic] = TopicState(
                topic, self.around, lambda: self._read(topic), self.claims.clocks
            )
            if (
                len(self.states) > self._forget_over
                or self.around.record_bytes > self._forget_bytes_over
            ):
                self._forget_soon()
        return state

    async def learn(self, topic: TopicId) -> Topic:
        """Read and return a topic whose record this node does not know. Raises TopicNotFound."""
        if not self.around.is_alone:
            return await self._read(topic)
        # No other process changes the record, so this node remembers it.
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

    async def _read(self, topic: TopicId) -> Topic:
        """Return a topic from storage."""
        record = await self.registry.read(topic)
        if record is None:
            raise not_found(topic)
        found = record.topic(topic)
        if await self.claims.finish_delete(topic, record):
            raise not_found(topic)
        return found

    async def finish_delete(self, topic: TopicId) -> bool:
        """Finish a delete that fenced the log and stopped there. Return whether there was one.

        The caller has the lock of the topic's state.
        """
        record = await self.registry.read(topic)
        return record is not None and await self.claims.finish_delete(topic, record)

    def _forget_unknown(self, state: TopicState) -> None:
        """Forget the state of a name that no topic has."""
        if state.topic is None and state.idle and state.leader is None:
            self.states.pop(state.id, None)

    def deadline(self) -> float:
        """Return the deadline (monotonic seconds) of a request that comes now, without one of its own."""
        return self.around.clock.monotonic() + self.around.settings.request_deadline_s

    async def led(
        self,
        topic: TopicId,
        attempt: Callable[[TopicLeader], Awaitable[Result]],
        options: PublishOptions,
    ) -> Result:
        """Make an attempt as the topic's leader. If it is fenced, which is a definite failure, lead again and repeat.

        Raises:
            TopicRecreated: the request is for another generation; nothing was done.
            NotLeader: the request is for another epoch; nothing was done.
            OutcomeUnknown: retriable, if the request has a key or a producer's number.
        """
        deadline = options.deadline or self.deadline()
        while True:
            leader = await self.lead(topic, deadline)
            check_generation(leader.topic, options.generation)
            if options.epoch not in (None, leader.epoch):
                raise NotLeader(f"Topic '{topic}' is in another epoch.", epoch=leader.epoch)
            try:
                return await attempt(leader)
            except Fenced as error:
                leader.end(error)
                if self.around.clock.monotonic() > deadline:
                    raise _no_leader(topic) from error
            except (OutcomeUnknown, StorageFull) as error:
                may_repeat = options.key is not None or options.producer is not None
                if not may_repeat or error.outcome != "unknown":
                    raise
                raise OutcomeUnknown(error.message).under_key() from error

    async def lead(self, topic: TopicId, deadline: float) -> TopicLeader:
        """Return this node's leader of a topic, claiming it if needed.

        Raises:
            TopicNotFound: there is no such topic.
            NotLeader: another node should lead it; nothing was done.
            NoLeader: the deadline (monotonic seconds) passed, or the node stops.
            ClockSkew, StorageFull, StorageCorrupt, Unavailable: see TopicClaims; nothing was done.
        """
        state = self.state(topic)
        state.touched = True
        leader = state.leader
        if leader is not None:
            return leader
        self.must_be_here(topic)
        try:
            with state.used():
                async with self._in_time(topic, deadline), state.claiming:
                    return state.leader or await self._claim_or_pass_on(state, deadline)
        except TopicNotFound:
            self._forget_unknown(state)
            raise

    def must_be_here(self, topic: TopicId) -> None:
        """Raise NotLeader unless this node leads a topic, or should lead it."""
        state = self.states.get(topic)
        if state is not None and state.leader is not None:
            return
        place = self.around.tenure.place(topic)
        if not place.here:
            raise not_leader(topic, place)

    def _in_time(self, topic: TopicId, deadline: float) -> AbstractAsyncContextManager[None]:
        """Bound a block by the deadline. Raises NoLeader."""
        return in_time(self.around.clock, deadline, partial(_no_leader, topic))

    async def _claim_or_pass_on(self, state: TopicState, deadline: float) -> TopicLeader:
        try:
            return await self._claim_and_take_over(state, deadline)
        except (BrokerError, asyncio.CancelledError):
            if state.carried:
                # The carried requests have later deadlines than this request.
                self._run_in_background(self._pass_on_carried(state))
            raise

    async def _claim_and_take_over(self, state: TopicState, deadline: float) -> TopicLeader:
        """Claim a topic, and first write the requests that its former leader did not store."""
        await self._settle(state)
        await self._back_off(state, deadline)
        leader = await self._claim_log(state, deadline)
        leader.rates = state.rates(leader.topic.generation)
        # Without a pause since the end of the claim: the record can't have changed.
        state.topic, state.leader = leader.topic, leader
        carried, state.carried = state.carried, []
        if state.carried_generation == leader.topic.generation:
            leader.writer.take_over(carried)
        else:
            # They were accepted under another generation's properties.
            fail(carried, Fenced(f"Not done: topic '{state.id}' was created again."))
        self._tell("topic claimed", topic=str(state.id), epoch=leader.epoch)
        # Another node may have written to the log before.
        state.wake()
        if not self.around.tenure.place(state.id).here:
            # The claim took longer than the hand-over waited for it.
            self._run_in_background(self._handing_over.hand_over([state]))
        return leader

    async def _claim_log(self, state: TopicState, deadline: float) -> TopicLeader:
        """Claim a topic. Where a proof of leading reads nothing, its record does not change before this returns."""
        if not self.around.is_alone:
            # This takes no lock: a lease may take long, and storage orders this and other changes.
            return await self._claimed(state, deadline)
        async with state.lock:
            try:
                return await self._claimed(state, deadline)
            except TopicNotFound:
                state.topic = None
                raise

    async def _claimed(self, state: TopicState, deadline: float) -> TopicLeader:
        found, hold = await self.claims.claimed(state.id, deadline)
        if found.is_chained:
            await hold.begin_chain()
        refused = partial(refused_below, self.registry.records, state.id)
        leader = TopicLeader(found, hold, self.around, state.wake, self._leader_ended, refused)
        if any(write.pointer is not None for write in state.carried):
            await leader.learn_refused()
        return leader

    async def _settle(self, state: TopicState) -> None:
        """Carry over the requests that a former leader did not store. After the wait, no cancellation interrupts it."""
        former = state.former
        if former is None:
            return
        writes = await former.settled()
        again = Fenced("Not done: another node leads the topic now.")
        fail([write for write in writes if not write.may_be_carried], again)
        carried = [write for write in writes if write.may_be_carried]
        state.carry(carried, former.topic.generation)
        state.former = None

    async def _back_off(self, state: TopicState, deadline: float) -> None:
        """Wait before a claim if the last claims were lost before any commit: two nodes must not duel."""
        if not state.claims_lost:
            return
        clock = self.around.clock
        times = state.claims_lost + 1
        pause_s = retries.jittered_s(times, BACK_OFF_S, BACK_OFF_MAX_S, self._jitter)
        if clock.monotonic() + pause_s > deadline:
            raise _no_leader(state.id)
        await clock.sleep(pause_s)

    def _leader_ended(self, leader: TopicLeader) -> None:
        state = self.state(leader.topic.id)
        state.claims_lost = min(leader.lost_claims(state.claims_lost), 8)
        if isinstance(leader.ended, Fenced):
            self.around.tenure.fenced(state.id)
        if not self.around.is_alone:
            state.topic = None
        self._tell("topic let go", topic=str(state.id), epoch=leader.epoch, why=str(leader.ended))
        if state.leader is leader:
            state.leader = None
            state.former = leader
            self._run_in_background(self._pass_on_carried(state))
        state.wake()

    async def _pass_on_carried(self, state: TopicState) -> None:
        """Pass the requests that a former leader did not store to the next leader, or answer them."""
        with state.used():
            if state.former is not None:
                await state.former.quiet()
            deadline = self.deadline()
            try:
                async with self._in_time(state.id, deadline), state.claiming:
                    await self._settle(state)
                    if state.carried and state.leader is None:
                        await self._claim_and_take_over(state, deadline)
            except BrokerError as error:
                fail(state.carried, error)
                state.carried = []

    def _run_in_background(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Releasing idle topics.

    def _forget_soon(self) -> None:
        if self._forgetting is None or self._forgetting.done():
            self._forgetting = asyncio.ensure_future(self.forget_idle())

    async def forget_idle(self) -> None:
        """Hand off and forget the topics that were not used since the last call."""
        idle = []
        async for state in paced(list(self.states.values())):
            if state.idle and not state.touched:
                idle.append(state)
            state.touched = False
        await self._release_all(idle)
        async for state in paced(idle):
            is_unused = state.idle and not state.touched and state.leader is None
            if is_unused and self.states.get(state.id) is state:
                state.topic = None
                del self.states[state.id]
        # If so many topics are in use, the next search waits until a quarter more are in use.
        self._forget_over = max(self.around.settings.topics_in_use_max, len(self.states) * 5 // 4)
        self._forget_bytes_over = max(RECORD_BYTES_MAX, self.around.record_bytes * 5 // 4)

    async def _release_all(self, states: Iterable[TopicState]) -> None:
        led = [state for state in states if state.leader is not None]
        for first in range(0, len(led), RELEASES_AT_ONCE):
            some = led[first : first + RELEASES_AT_ONCE]
            if not self.claims.closing:  # Checked again: the earlier releases may have taken long.
                some = [state for state in some if state.idle and not state.touched]
            await asyncio.gather(*(self._release(state) for state in some))

    async def _release(self, state: TopicState) -> None:
        """Finish the work in progress and hand a topic's log off. A new use claims it again."""
        async with state.claiming, state.lock:
            leader = state.leader
            if leader is None:
                return
            # Other tasks wait for both locks. So if this takes too long, this node keeps leading.
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self.claims.closing else HAND_OVER_S):
                    await leader.idle()
            if state.leader is not leader or leader.busy:
                return
            state.leader = None
            state.former = leader
            await self._hand_off(leader)
            leader.end(NoLeader("This node no longer leads the topic."))
        self._run_in_background(self._pass_on_carried(state))

    async def _hand_off(self, leader: TopicLeader) -> None:
        try:
            await leader.hold.hand_off()
        except BrokerError:
            # The next claim works without the handoff.
            self.around.metrics.events.add("release_failed")

    # Handing over.

    def topics_led(self) -> list[TopicId]:
        """Return the topics that this node leads, or is about to lead."""
        return [
            state.id
            for state in self.states.values()
            if state.leader is not None or state.claiming.locked()
        ]

    def epochs(self) -> dict[TopicId, int]:
        """Return the topics that this node leads, each with its epoch."""
        led = (state.leader for state in self.states.values())
        return {leader.topic.id: leader.epoch for leader in led if leader is not None}

    async def hand_over(self, topics: Collection[TopicId]) -> None:
        """Hand over those of the topics that another node should lead, in bounded time."""
        await self._handing_over.hand_over(
            [self.states[topic] for topic in topics if topic in self.states]
        )

    async def succeed(self, inherited: Callable[[TopicId], bool]) -> None:
        """Claim topics of nodes that are gone, in bounded time."""
        await claim_topics(
            self.registry, lambda topic: self.lead(topic, self.deadline()), inherited
        )

    async def close(self) -> None:
        """Finish the work in progress and hand every log off; then this node leads no topic."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        self.claims.closing = True
        while any(state.leader is not None for state in self.states.values()):
            await self._release_all(list(self.states.values()))
        while self._tasks:
            await asyncio.wait(set(self._tasks))


def _no_leader(topic: TopicId) -> NoLeader:
    return NoLeader(f"No node leads topic '{topic}' just now.")
