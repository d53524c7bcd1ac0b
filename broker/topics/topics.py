"""Serve the topics of a node: the interface calls this module. Writing goes through a leader; reading needs none.

In a cluster this node refuses a change with NotLeader if another node should lead the topic. It also refuses a poll
that waits, because only the leader learns of commits. Any node can answer a poll that does not wait.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Mapping

from broker.errors import (
    BadRequest,
    Fenced,
    OutcomeUnknown,
    TopicExists,
    Unavailable,
    UnavailableError,
)
from broker.http.budget import Usage
from broker.model import (
    LOG_KEY_BYTES,
    LogKey,
    MessageId,
    Poll,
    PublishRequest,
    RollbackRange,
    Snapshot,
    Topic,
    TopicId,
    TransactionUse,
)
from broker.shield import to_its_end
from broker.storage.keys import LogId
from broker.storage.log import StaleGeneration
from broker.storage.records import RecordStore
from broker.topics import admission, record_changes
from broker.topics.blockers import Blockers, BlockersQuery, blockers
from broker.topics.browse import BrowseQuery, EntryPage, browse
from broker.topics.cursors import Cursors
from broker.topics.fetch import behind
from broker.topics.leader import TopicLeader
from broker.topics.leaders import Leaders
from broker.topics.overdue import answered_in_time, in_time
from broker.topics.ranges import Range, RangeQuery, TopicNumberings, Unread
from broker.topics.registry import TopicRegistry, check_generation, not_found
from broker.topics.settings import NO_OPTIONS, PublishedIds, PublishOptions
from broker.topics.stats import TopicStats, topic_stats
from broker.topics.streams import BULK_BYTES, BulkStream, PollStream
from broker.topics.surroundings import Surroundings
from broker.topics.topic_reader import TopicReading
from broker.topics.waiting_polls import WaitingPoll, WaitingPolls
from broker.topics.write import Write


class Topics:
    """All topics, as one node serves them."""

    def __init__(
        self, around: Surroundings, records: RecordStore, *, seed: int | None = None
    ) -> None:
        """Serve the topics in the stores. ``seed`` makes the jitter of back-off repeatable."""
        cached_max = around.settings.topic_records_cached_max if around.is_alone else 0
        self.registry = TopicRegistry(records, cached_max=cached_max)
        self.around = around
        self.leaders = Leaders(around, self.registry, seed=seed)
        self._states = self.leaders.states
        self._polls = WaitingPolls(self.leaders)
        self._ranges = TopicNumberings(around, records)
        self.cursors = Cursors(records, around.clock, cursors_max=around.settings.cursors_max)

    # Administration.

    async def create(
        self,
        topic: TopicId,
        properties: Mapping[str, str],
        deadline: float | None = None,
        *,
        owner: str = "",
    ) -> Topic:
        """Create a topic, or the next generation of a deleted one. ``owner`` is the principal; empty: it is not known.

        Raises:
            TopicExists, NotLeader: refused.
            Unavailable: ``deadline`` (monotonic seconds) passed before its turn; nothing was done.
            OutcomeUnknown: it may have been done.
        """
        self.leaders.must_be_here(topic)
        return await to_its_end(self._create(topic, properties, deadline, owner))

    async def _create(
        self, topic: TopicId, properties: Mapping[str, str], deadline: float | None, owner: str
    ) -> Topic:
        state = self.leaders.state(topic)
        with state.used():
            async with state.turn(deadline):
                try:
                    return await self.registry.create(topic, properties, owner)
                except TopicExists:
                    if not await self.leaders.finish_delete(topic):
                        raise
                    return await self.registry.create(topic, properties, owner)

    async def update(
        self,
        topic: TopicId,
        properties: Mapping[str, str],
        deadline: float | None = None,
        *,
        generation: int | None = None,
    ) -> Topic:
        """Replace a topic's properties.

        Raises:
            TopicNotFound: there is no such topic.
            NotLeader, NoLeader: nothing was done.
            Unavailable: ``deadline`` (monotonic seconds) passed before its turn; nothing was done.
            OutcomeUnknown: the topic's leader may not know of the change.
        """
        self.leaders.must_be_here(topic)
        await self._check_there(topic, generation, deadline)
        deadline = self.leaders.deadline() if deadline is None else deadline

        async def change(leader: TopicLeader) -> Topic:
            updated = await self.registry.update(topic, properties)
            if updated.is_chained and updated.generation == leader.topic.generation:
                try:
                    await leader.guarded(leader.hold.begin_chain())
                except Unavailable as error:
                    # The record has the property by now: the next leader begins the chain.
                    raise OutcomeUnknown(error.message) from error
            return updated

        return await to_its_end(record_changes.change_led(self.leaders, topic, change, deadline))

    async def _check_there(
        self, topic: TopicId, generation: int | None, deadline: float | None
    ) -> None:
        """Raise TopicNotFound, TopicRecreated; Unavailable if the deadline passes before storage answers."""
        async with in_time(self.around.clock, deadline):
            await self.get(topic, generation)

    async def purge(
        self,
        topic: TopicId,
        before_ms: int,
        deadline: float | None = None,
        *,
        generation: int | None = None,
    ) -> Topic:
        """Hide all messages published before a moment; return the changed topic.

        A lower moment than an earlier one changes nothing.

        Raises:
            BadRequest: the moment lies in the future.
            TopicNotFound: there is no such topic.
            NotLeader, NoLeader, Unavailable: nothing was done.
            OutcomeUnknown: it may have been done, and the topic's leader may not know of it.
        """
        self.leaders.must_be_here(topic)
        await self._check_there(topic, generation, deadline)
        deadline = self.leaders.deadline() if deadline is None else deadline
        change = record_changes.purge(self.leaders, before_ms)
        return await to_its_end(record_changes.change_led(self.leaders, topic, change, deadline))

    async def get(self, topic: TopicId, generation: int | None = None) -> Topic:
        """Return a topic. Raises TopicNotFound; TopicRecreated, if it has another generation than the given one."""
        return (await self._look_up(topic, generation))[0]

    async def _look_up(
        self, topic: TopicId, generation: int | None
    ) -> tuple[Topic, TopicLeader | None]:
        """Return a topic, and this node's leader if it has proven its leadership since this call began.

        Raises TopicNotFound, TopicRecreated.
        """
        found, leader = await self._known(topic)
        check_generation(found, generation)
        return found, leader

    async def _known(self, topic: TopicId) -> tuple[Topic, TopicLeader | None]:
        """Do as ``_look_up``, for any generation.

        Only the leader knows a topic without reading its record, once it has proven that it leads.
        """
        state = self._states.get(topic)
        if state is None:
            return await self.leaders.learn(topic), None
        leader = state.leader
        if leader is not None and await leader.is_proven() and state.leader is leader:
            return leader.topic, leader
        return await self.leaders.learn(topic), None

    async def namespaces(self) -> list[str]:
        """Return the names of the namespaces that have topics, sorted."""
        return await self.registry.namespaces()

    def names(self, namespace: str) -> AsyncGenerator[list[str], None]:
        """Yield the names of a namespace's topics, in the order of their keys, some at a time."""
        return self.registry.names(namespace)

    async def delete(
        self, topic: TopicId, generation: int | None = None, deadline: float | None = None
    ) -> None:
        """Delete a topic: first fence its log, then mark its record as deleted.

        Raises:
            TopicNotFound: there is no such topic.
            TopicRecreated: it has another generation than the given one.
            NotLeader: another node should lead it; nothing was done.
            Unavailable: ``deadline`` (monotonic seconds) passed before its turn; nothing was done.
            OutcomeUnknown: it may have been done.
        """
        self.leaders.must_be_here(topic)
        await self._check_there(topic, generation, deadline)
        await to_its_end(self._delete(topic, generation, deadline))

    async def _delete(self, topic: TopicId, generation: int | None, deadline: float | None) -> None:
        state = self.leaders.state(topic)
        with state.used():
            async with state.turn(deadline):
                found = await self.registry.get(topic)
                check_generation(found, generation)
                log = LogId(topic, found.generation)
                try:
                    await self.around.logs.delete(log, self.around.owner)
                except StaleGeneration:
                    raise not_found(topic) from None
                finally:
                    # Also after a failure: the log may be fenced, and the next claim finds out.
                    state.topic = None
                    if state.leader is not None:
                        state.leader.end(Fenced(f"Topic '{topic}' was deleted."))
                await self._record_delete(found)
            state.wake()

    async def _record_delete(self, found: Topic) -> None:
        """Mark the record of a topic whose log is deleted already."""
        try:
            await self.registry.delete(found.id, found.generation)
        except UnavailableError as error:
            # The next use of the topic finishes the delete, so it was not refused.
            raise OutcomeUnknown(
                f"Topic '{found.id}' is deleted once its record can be written: {error.message}"
            ) from error

    # Publishing.

    def publish(
        self, topic: TopicId, request: PublishRequest, options: PublishOptions = NO_OPTIONS
    ) -> Awaitable[PublishedIds]:
        """Publish messages, or stages, or the stored payloads of a transaction (a pointer and no messages).

        Raises:
            BadRequest, TopicNotFound, TransactionTooOld, IdempotencyKeyReused, PayloadsSealed: refused.
            Overloaded, NoLeader, StorageFull: not done; try again.
            NotLeader: not done; another node should lead the topic.
            OutcomeUnknown: it may have been done.
        """
        state = self._states.get(topic)
        if state is not None:
            leader = state.leader
            if (
                leader is not None
                and request.pointer is None
                and options.key is None
                and options.producer is None
                and options.ttl_s is None
                and options.epoch is None
                and options.generation is None
                and request.payloads
                and not request.ttls_s
                and leader.topic.transactions is not TransactionUse.REQUIRED
            ):
                state.touched = True
                future = leader.loop.create_future()
                return leader.writer.submit(
                    Write(
                        future,
                        request.payloads,
                        attributes=request.attributes,
                        deadline=options.deadline,
                        caller=options.caller,
                    )
                )
        return self._publish(topic, request, options)

    async def _publish(
        self, topic: TopicId, request: PublishRequest, options: PublishOptions
    ) -> PublishedIds:
        if request.pointer is None and not request.payloads and not request.stages:
            raise BadRequest(
                "Empty payload is only allowed for publishing transactional message. "
                f"Topic: {topic.entity}"
            )
        self.leaders.must_be_here(topic)

        async def attempt(leader: TopicLeader) -> PublishedIds:
            self._check(leader.topic, request, options)
            found = await leader.publish_request(request, options)
            return found._replace(generation=leader.topic.generation)

        async with answered_in_time(self.around.clock, options.deadline):
            return await self.leaders.led(topic, attempt, options)

    async def store(
        self, topic: TopicId, request: PublishRequest, options: PublishOptions = NO_OPTIONS
    ) -> PublishedIds:
        """Store payloads of a transaction, or into a stage. Raises as publish does."""
        if not request.payloads or (request.pointer is None and not request.stages):
            raise BadRequest(
                f"Store request must be transactional with payload. Topic: {topic.entity}"
            )
        self.leaders.must_be_here(topic)

        async def attempt(leader: TopicLeader) -> PublishedIds:
            self._check(leader.topic, request, options)
            found = await leader.payloads.store(request, options)
            return found._replace(generation=leader.topic.generation)

        async with answered_in_time(self.around.clock, options.deadline):
            return await self.leaders.led(topic, attempt, options)

    async def begin_stage(self, topic: TopicId, options: PublishOptions = NO_OPTIONS) -> int:
        """Begin a stage and return its number. Each call begins another one. Raises as publish does."""
        self.leaders.must_be_here(topic)
        return await self.leaders.led(
            topic, lambda leader: leader.payloads.begin_stage(options.deadline), options
        )

    async def rollback(
        self, topic: TopicId, rollback: RollbackRange, options: PublishOptions = NO_OPTIONS
    ) -> None:
        """Mark a transaction's messages as rolled back. At the deadline its outcome is unknown, and it goes on."""
        self.leaders.must_be_here(topic)
        admission.check_is_pointer(rollback.pointer)
        async with answered_in_time(self.around.clock, options.deadline):
            await self.leaders.led(topic, lambda leader: leader.rollback(rollback), options)

    def _check(self, topic: Topic, request: PublishRequest, options: PublishOptions) -> None:
        admission.check(topic, request, options, self.around.settings, self.around.clock)

    # Consuming.

    async def poll(
        self,
        topic: TopicId,
        poll: Poll,
        *,
        wait_s: float = 0.0,
        anywhere: bool = False,
        usage: Usage | None = None,
    ) -> PollStream:
        """Read a page. If it has no message for this consumer, wait for one, at most ``wait_s``.

        A poll with a snapshot does not wait while an open transaction blocks it (see ``waiting_polls``).

        In a cluster a poll waits at the topic's leader. It may wait ``anywhere`` if no leader answers: then it
        reads storage from time to time. ``usage`` is the request's.

        Raises:
            TopicNotFound, Overloaded, Unavailable: see broker.errors.
            TopicRecreated: the topic has another generation than the poll's.
            ClockSkew: this node's clock is too far off to tell which messages have expired.
            NotLeader: another node should lead the topic; ask that node.
        """
        if wait_s > 0 and not anywhere:
            self.leaders.must_be_here(topic)
        found, leader = await self._look_up(topic, poll.generation)
        await self.leaders.claims.clocks.compare(is_led_here=leader is not None)
        state, usage = self.leaders.state(topic), usage or Usage(None)
        with state.used():
            reading = TopicReading(self.around, found, poll, usage=usage)
            reading.proven = leader
            seen = state.changes
            first = await state.next_page(reading)
            wait = WaitingPoll(state, found, reading, self.around.clock.monotonic() + wait_s, usage)
            if not first.count and wait_s > 0 and not wait.is_blocked:
                first = await self._polls.page(wait, seen, anywhere=anywhere)
            return PollStream(reading, first, state, usage)

    async def bulk(
        self,
        topic: TopicId,
        after: MessageId | None,
        through: MessageId,
        snapshot: Snapshot | None = None,
        usage: Usage | None = None,
        *,
        generation: int | None = None,
    ) -> BulkStream:
        """Read all messages in ``(after, through]``, by their log keys (see ``fetch.behind``); None: from the oldest.

        ``usage`` is the request's, and ``generation`` the one that it names. Any node may read them: the messages end
        at ``through``, at a message of an open transaction that blocks the consumer, or with an error. Every read gives
        the same messages, except those that have expired or were rolled back.

        Raises:
            TopicNotFound, Unavailable, ClockSkew: see ``poll``.
            BadRequest: ``through`` lies behind the topic's latest message.
        """
        found, leader = await self._look_up(topic, generation)
        await self.leaders.claims.clocks.compare(is_led_here=leader is not None)
        state, usage = self.leaders.state(topic), usage or Usage(None)
        with state.used():
            poll, last = behind(after, snapshot), through[:LOG_KEY_BYTES]
            reading = TopicReading(self.around, found, poll, last, usage)
            reading.proven = leader
            return BulkStream(reading, await state.next_page(reading, BULK_BYTES), state, usage)

    @property
    def waiting_polls(self) -> int:
        """Return the number of polls that wait now."""
        return self._polls.count

    async def browse(
        self, topic: TopicId, query: BrowseQuery, usage: Usage | None = None
    ) -> EntryPage:
        """Show messages without the rules of consuming. ``usage`` is the request's."""
        found, leader = await self._look_up(topic, query.generation)
        await self.leaders.claims.clocks.compare(is_led_here=leader is not None)
        return await browse(self.around, found, query, usage)

    async def blockers(
        self, topic: TopicId, query: BlockersQuery, usage: Usage | None = None
    ) -> Blockers:
        """Find the transactions that block a consumer. ``usage`` is the request's."""
        found, leader = await self._look_up(topic, query.generation)
        await self.leaders.claims.clocks.compare(is_led_here=leader is not None)
        return await blockers(self.around, self._ranges, found, query, usage)

    async def stats(
        self, topic: TopicId, generation: int | None = None, usage: Usage | None = None
    ) -> TopicStats:
        """Return the statistics of a topic; some are estimates."""
        found = await self.get(topic, generation)
        state = self.leaders.state(topic)
        ahead_ms = state.leader.ahead_ms() if state.leader is not None else 0
        rates = state.rates(found.generation)
        return await topic_stats(self.around, found, rates, ahead_ms, usage or Usage(None))

    async def lag(self, topic: TopicId, after: MessageId, generation: int | None = None) -> int:
        """Return the number of messages published behind an id, which is in that generation if one is given."""
        found = await self.get(topic, generation)
        return await self._ranges.behind(found, after[:LOG_KEY_BYTES])

    async def unread(self, topic: Topic, after: LogKey | None) -> Unread:
        """Return the messages behind a place; any node can count them. Raises Unavailable."""
        return await self._ranges.unread(topic, after)

    async def range(self, topic: TopicId, query: RangeQuery) -> Range:
        """Return a range of a topic's ids, with its size and the ends of its parts."""
        found, leader = await self._look_up(topic, query.generation)
        await self.leaders.claims.clocks.compare(is_led_here=leader is not None)
        return await self._ranges.range(found, query)

    # Ends.

    async def compare_clock(self) -> None:
        """Compare this node's clock with the storage's, if that was not done in the last minute.

        Raises:
            ClockSkew: this node's clock is too far off.
            Unavailable: the clock can't be compared now.
        """
        await self.leaders.claims.clocks.compare(is_led_here=False)

    async def forget_idle(self) -> None:
        """Hand off and forget the topics that were not used since the last call."""
        await self.leaders.forget_idle()

    def begin_drain(self) -> None:
        """Answer all waiting polls, if need be without messages, and let no later poll wait."""
        self._polls.drain()

    async def close(self) -> None:
        """Finish the work in progress and hand every log off."""
        self.begin_drain()
        await self.leaders.close()
