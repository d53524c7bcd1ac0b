"""Clean up: roll back the messages of invalid transactions, topic by topic, as a part of each sweep.

At the start of a sweep each node asks the transaction service for a snapshot. Then it passes the topics that it
should lead. If the service does not answer, this sweep does no clean-up, and nothing else follows from that.
``settlement`` describes a pass, and why it is safe to prune a transaction that all topics have passed. If no
transaction has settled since the last pass, the clean-up reads and writes nothing in the log.

A sealed page keeps its pointers. So this node remembers the least and the greatest pointer of each page that it read,
and the next pass reads only the pages in which one of its pointers can lie.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import takewhile
from typing import Final, NamedTuple

from broker import logs
from broker.errors import BrokerError, TopicNotFound, Unavailable
from broker.long_work import Pace
from broker.model import LogKey, Snapshot, Topic, TopicId
from broker.storage.head import Head
from broker.storage.keys import LogId
from broker.storage.root import RootState
from broker.topics import settlement
from broker.topics.leader import TopicLeader
from broker.topics.leaders import Leaders
from broker.topics.reserved import is_reserved
from broker.topics.settlement import SettlingRecord, SettlingWork, SnapshotView

ASK_S: Final = 10.0
CLAIM_DEADLINE_S: Final = 10.0
PAGES_KNOWN_MAX: Final = 100_000
"""The most pages, of all topics together, whose pointers a node remembers."""

Pointers = tuple[int, int] | None
"""The least and the greatest pointer in a page; None if it has none."""
Source = Callable[[], Awaitable[Snapshot]]
"""Returns a present snapshot of the transaction service. Raises BrokerError."""

log = logs.get_logger()


class _KnownPointers(NamedTuple):
    """The pointers of those sealed pages of a topic that this node has read."""

    generation: int
    pages: dict[LogKey, Pointers]


class Inverting:
    """Does the clean-up of one node. Each sweep calls ``begin``, then ``clean`` for each topic."""

    def __init__(self, leaders: Leaders, source: Source) -> None:
        """Ask ``source`` for the invalid transactions."""
        self._leaders = leaders
        self._source = source
        self._around = leaders.around
        self._records = leaders.registry.records
        self._view: SnapshotView | None = None
        self._known: dict[TopicId, _KnownPointers] = {}
        self._pages_known = 0

    @property
    def _life_ms(self) -> int:
        return self._around.settings.transaction_life_max_s * 1000

    async def begin(self) -> None:
        """Ask for the invalid transactions. If the service does not answer, this sweep does no clean-up."""
        self._view = None
        now_ms = self._around.clock.now_ms()
        try:
            async with asyncio.timeout(ASK_S):
                snapshot = await self._source()
        except (BrokerError, TimeoutError) as error:
            log.debug("no clean-up: the transaction service does not answer", error=str(error))
            return
        bound = settlement.bound_of(
            snapshot,
            now_ms=now_ms,
            life_ms=self._life_ms,
            margin_ms=self._around.settings.sweep_margin_ms,
        )
        self._view = SnapshotView(snapshot, bound)

    def forget(self, topic: TopicId) -> None:
        """Forget the pointers of a topic that was deleted, or that another node should lead."""
        known = self._known.pop(topic, None)
        if known is not None:
            self._pages_known -= len(known.pages)

    async def clean(self, topic: Topic) -> int:
        """Pass a live topic, if there is work. Return the number of transactions that had messages to roll back.

        Raises:
            TopicNotFound: the topic was deleted meanwhile.
            BrokerError: the topic was not passed.
        """
        view = self._view
        if view is None or not view.settled or is_reserved(topic.id):
            return 0
        before, version = await settlement.read_pass(self._records, topic.id)
        now_ms, every_ms = self._around.clock.now_ms(), min(settlement.PASS_EVERY_MS, self._life_ms)
        work = settlement.work_of(before, topic.generation, view, now_ms=now_ms, every_ms=every_ms)
        if work is None:
            return 0
        begun = settlement.announced(before, topic.generation, view.bound)
        version = await self._put(topic.id, version, begun)
        done, inverted = begun, 0
        if not await self._is_untouched(topic, begun, work):
            done, inverted = await self._lead_and_pass(topic, view, begun, work)
        done = done._replace(
            bound=view.bound, fingerprint=view.fingerprint(view.bound), began_ms=now_ms
        )
        await self._put(topic.id, version, done)
        return inverted

    async def _put(self, topic: TopicId, version: bytes | None, record: SettlingRecord) -> bytes:
        put = await settlement.put_pass(self._records, topic, version, record)
        if put is None:
            raise Unavailable("Another node also passes the topic.")
        return put

    async def _is_untouched(self, topic: Topic, before: SettlingRecord, work: SettlingWork) -> bool:
        """Return whether a topic without a leader certainly has no message of these transactions, now and later.

        The announcement was put before. So this method reads the log's state of that moment, or a later one.
        """
        state = self._leaders.states.get(topic.id)
        if state is not None and state.leader is not None:
            return False
        log_id = LogId(topic.id, topic.generation)
        root = await self._around.logs.root(log_id)
        if root is None or root.generation < topic.generation:
            return True  # Never claimed: a node that claims it reads the announcement.
        ends = await self._around.logs.ends(log_id)
        if ends is None or ends.tail is None or ends.root.state is RootState.DELETED:
            return False
        return settlement.has_nothing(before, work, ends.tail)

    async def _lead_and_pass(
        self, topic: Topic, view: SnapshotView, before: SettlingRecord, work: SettlingWork
    ) -> tuple[SettlingRecord, int]:
        deadline = self._around.clock.monotonic() + CLAIM_DEADLINE_S
        leader = await self._leaders.lead(topic.id, deadline)
        if leader.topic.generation != topic.generation:
            raise TopicNotFound(f"Topic {topic.id} was created again.")
        with self._leaders.state(topic.id).used():
            return await self._pass(leader, view, before, work)

    async def _pass(
        self, leader: TopicLeader, view: SnapshotView, before: SettlingRecord, work: SettlingWork
    ) -> tuple[SettlingRecord, int]:
        """Roll back in all pages from the start of the work on, under one hold."""
        hold = leader.hold
        await leader.writer.refuse_below(before.refused)
        through = hold.pointer
        pages = await leader.guarded(hold.chain(work.start, through))
        # Later messages lie in the last page or behind it.
        start, later = None, [work.start, *(page for page, _ in pages)][-1]
        self._forget_below(hold.root.floor, leader.topic)
        high, inverted, pace = 0, set[int](), Pace()
        for page, head in pages:
            pointers, found = await self._invert_page(leader, page, head, work)
            inverted |= found
            greatest = 0 if pointers is None else pointers[1]
            if start is None and greatest >= view.bound:
                start = page
            high = max(high, greatest)
            await asyncio.sleep(0)
            await pace.step()
        await leader.guarded(hold.end_inverting())
        return before._replace(start=start or later, high=high, through=through), len(inverted)

    async def _invert_page(
        self, leader: TopicLeader, page: LogKey, head: Head, work: SettlingWork
    ) -> tuple[Pointers, frozenset[int]]:
        """Roll back in one page, if it can have such messages; return its pointers, and those rolled back."""
        known = self._known_pages_of(leader)
        pointers = known.pages.get(page)
        if page in known.pages and (pointers is None or not work.any_in(*pointers)):
            return pointers, frozenset()
        found = await leader.invert(page, work.is_invalid)
        pointers = None
        if found.low is not None and found.high is not None:
            pointers = found.low, found.high
        is_new = page not in known.pages and self._pages_known < PAGES_KNOWN_MAX
        if head.is_sealed and is_new:
            known.pages[page] = pointers
            self._pages_known += 1
        return pointers, found.inverted

    def _known_pages_of(self, leader: TopicLeader) -> _KnownPointers:
        topic = leader.topic
        known = self._known.get(topic.id)
        if known is None or known.generation != topic.generation:
            self.forget(topic.id)
            known = self._known[topic.id] = _KnownPointers(topic.generation, {})
        return known

    def _forget_below(self, floor: LogKey, topic: Topic) -> None:
        """Forget the pages below a topic's floor: they are gone."""
        pages = self._known[topic.id].pages if topic.id in self._known else {}
        gone = list(takewhile(lambda page: page < floor, pages))
        for page in gone:
            del pages[page]
        self._pages_known -= len(gone)
