"""Claim one topic: read its record, get a permit, claim its log, and compare the clocks.

The claim reads the record twice, unless no other process can change it. The first read says which generation to claim, and may be stale.
The second read begins once the log is held, so it shows every change that the leader before made. A leader that
changes a record proves afterwards that it still leads (record_changes.py). So if a change and a claim overlap, one of
the two sees the other.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import Final

from broker.coordination.claims import Claimed, claim
from broker.errors import BrokerError, ClockSkew, NoLeader
from broker.model import Topic, TopicId
from broker.storage.hold import LogHold
from broker.storage.keys import LogId
from broker.storage.log import Deleted, StaleGeneration
from broker.storage.root import RootState
from broker.topics.clock_comparison import ClockComparison
from broker.topics.registry import TopicRecord, TopicRegistry, not_found
from broker.topics.surroundings import Surroundings

STALE_RECORD_PAUSE_S = 0.02
SKEWED_S: Final = 5.0
"""After a claim that found the clocks apart, this node refuses the topic for so long without a claim."""
SKEWED_MAX: Final = 4096
"""The most topics for which a node remembers that."""


class TopicClaims:
    """The claims of one node. ``closing`` ends them."""

    def __init__(
        self, around: Surroundings, registry: TopicRegistry, jitter: random.Random
    ) -> None:
        """Begin without claims. They need a permit of the surroundings' tenure, and read the registry's records."""
        self.closing = False
        self.clocks = ClockComparison(around, registry.records)
        self._around = around
        self._registry = registry
        self._jitter = jitter
        self._skewed: OrderedDict[TopicId, tuple[float, str]] = OrderedDict()
        """Topics whose claims found the clocks apart: the end of the refusal, and its message."""

    async def claimed(self, topic: TopicId, deadline: float) -> tuple[Topic, LogHold]:
        """Return a topic and the hold on its log.

        Raises:
            TopicNotFound: there is no such topic.
            NotLeader: another node should lead it.
            NoLeader: the deadline (monotonic seconds) passed, or the node stops.
            ClockSkew: the clock of this node, or of the server that stores the topic, is too far off.
            StorageFull, StorageCorrupt, Unavailable: see Logs.claim; nothing was done.
        """
        clock = self._around.clock
        self._refuse_skewed(topic)
        while True:
            if self.closing:
                raise NoLeader("This node is stopping.")
            found = await self._registry.get(topic)
            try:
                made = await self._claim(LogId(topic, found.generation), deadline)
            except Deleted:
                # A delete was begun and not finished, or it was finished long ago.
                await self._registry.delete(topic, found.generation)
                if not await self._is_newer(found):
                    raise not_found(topic) from None
            except StaleGeneration:
                if await self._is_newer(found):
                    continue
                if clock.monotonic() > deadline:
                    raise NoLeader(
                        f"The record of topic '{topic}' belongs to an earlier generation than its log."
                    ) from None
                await clock.sleep(STALE_RECORD_PAUSE_S)
            else:
                await self._compare_clocks(made)
                recorded = await self._registry.get(found.id)
                if recorded.generation == found.generation:
                    return recorded, made.hold

    async def _claim(self, log: LogId, deadline: float) -> Claimed:
        return await claim(
            self._around.logs,
            log,
            owner=self._around.owner,
            clock=self._around.clock,
            deadline=deadline,
            jitter=self._jitter,
            tenure=self._around.tenure,
        )

    async def _is_newer(self, found: Topic) -> bool:
        """Return whether the record has a higher generation now."""
        record = await self._registry.read(found.id)
        return record is not None and record.generation > found.generation

    async def finish_delete(self, topic: TopicId, record: TopicRecord) -> bool:
        """Mark a topic's record as deleted if its log says so. Return whether this was still to do."""
        if record.deleted:
            return False
        root = await self._around.logs.root(LogId(topic, record.generation))
        is_deleted = root is not None and root.state is RootState.DELETED
        if root is None or root.generation != record.generation or not is_deleted:
            return False
        await self._registry.delete(topic, record.generation)
        return True

    def _refuse_skewed(self, topic: TopicId) -> None:
        """Refuse a topic whose last claim found the clocks apart: each claim writes to its log, and fences."""
        until_s, why = self._skewed.get(topic, (0.0, ""))
        left_s = until_s - self._around.clock.monotonic()
        if left_s > 0:
            raise ClockSkew(why, retry_after_s=left_s)
        self._skewed.pop(topic, None)

    async def _compare_clocks(self, made: Claimed) -> None:
        """Hand the log off again if this clock is too far off. Raises ClockSkew."""
        if made.written is None:
            return
        try:
            await self.clocks.judge(made.written)
        except ClockSkew as error:
            until_s = self._around.clock.monotonic() + SKEWED_S
            self._skewed[made.hold.log.topic] = until_s, error.message
            if len(self._skewed) > SKEWED_MAX:
                self._skewed.popitem(last=False)
            try:
                await made.hold.hand_off()
            except BrokerError:
                self._around.metrics.events.add("release_failed")
            raise
