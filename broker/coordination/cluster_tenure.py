"""Decide which topics a node in a cluster may claim, take leases for them, and hand them over after a reassignment.

The node that *should* lead follows from the members and from the operators' settings (assignment.py, placement.py).
A lease keeps two nodes that disagree for a short time from taking a log from each other in turns::

    members ─────┐                      ┌─▶ place(topic)    this node, or another one
    placement ───┴─▶ assignment ────────┤
                                        └─▶ reassigned elsewhere: hand topics over, release the lease

    permit(topic):  assigned here ─▶ the log's head names this node ────────────────────▶ claim again
                                  └▶ lease held, good since the last fencing, contact ──▶ claim
                                         └ the head names another live node: wait a short time first

The wait is for topics that change their lock, because a pin was set, moved or removed. Then the new leader's lock is
free while the old node still leads, and the old node should hand over by itself.

Without contact this node claims nothing new, and keeps leading its topics. If a log's head still names this
incarnation, the node claims the log again without a lease. If the head names another live node, that node leads: only
this node was cut off, and its answers name the other one.

How a node uses it::

    membership = await coordinator.join(me)
    tenure = ClusterTenure(coordinator, membership, records, store, clock, jitter)
    await tenure.start()
    around = Surroundings(store, clock, settings, owner=me.incarnation, instance=me.instance,
                          tenure=tenure, skewed=...)
    topics = Topics(around, records)
    tenure.serve(topics.leaders)
    ...
    await membership.announce(draining=True)   # the other nodes and this one change their assignments
    await tenure.leave(seconds)                # hands over all topics, also without contact
    await membership.leave()
    await tenure.close()
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from typing import Final, Protocol

from broker import logs
from broker.clock import Clock
from broker.coordination.assignment import Assignment
from broker.coordination.leases import Leases
from broker.coordination.placement import HINT, Placement, read_placement
from broker.coordination.ports import Contact, Coordinator, Membership, NodeInfo
from broker.coordination.tenure import TopicPlacement, not_leader
from broker.errors import BrokerError, NoLeader, Unavailable
from broker.long_work import paced
from broker.model import TopicId
from broker.storage.head import Head
from broker.storage.last_page import TailReading
from broker.storage.log import Logs
from broker.storage.records import RecordStore

PLACEMENT_READ_S: Final = 10.0
PLACEMENT_READ_AGAIN_S: Final = 1.0
RELEASE_WAIT_S: Final = 1.0
"""A live node that the log's head names has this time to hand the log over. Then this node claims it."""
SUCCEED_AFTER_S: Final = 1.0
"""A node that lost its session and returns in this time keeps the topics for which no request came."""
PAUSE_S: Final = 0.005
PAUSE_S_MAX: Final = 0.05
FENCINGS_MAX: Final = 100_000

log = logs.get_logger()


class TopicLeaders(Protocol):
    """Leads topics under a tenure."""

    def topics_led(self) -> Collection[TopicId]:
        """Return the topics that this node leads, or is claiming."""

    async def hand_over(self, topics: Collection[TopicId]) -> None:
        """Hand over topics that another node should lead now, in bounded time."""

    async def succeed(self, inherited: Callable[[TopicId], bool]) -> None:
        """Claim topics of nodes that are gone, in bounded time."""


class ClusterTenure:
    """The right of one node in a cluster to claim topics. The module's docstring shows its use."""

    def __init__(
        self,
        coordinator: Coordinator,
        membership: Membership,
        records: RecordStore,
        store: Logs,
        clock: Clock,
        jitter: random.Random,
    ) -> None:
        """Begin without an assignment; ``start`` makes it. ``membership`` identifies this node."""
        self.assignment = Assignment()
        self.placement = Placement()
        self._coordinator = coordinator
        self._membership = membership
        self._records = records
        self._store = store
        self._clock = clock
        self._jitter = jitter
        self._me = membership.me.instance
        self._owner = membership.me.incarnation
        self._nodes: dict[int, NodeInfo] = {}
        self._leases = Leases(coordinator, clock, self._is_mine)
        self._fenced: dict[TopicId, int] = {}
        self._fenced_before = 0
        """Fencings up to this number are not kept by topic any more, and count for every topic."""
        self._elsewhere: dict[TopicId, NodeInfo] = {}
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._hinted = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._leaders: TopicLeaders | None = None
        self._leaving = False
        self._closed = False
        self._version = 0
        self._pass_on_again = False
        self._passing_on: asyncio.Task[None] | None = None
        self._passing: dict[str, asyncio.Task[None]] = {}
        self._succeeding: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Read the operators' settings and assign the topics; from then on follow every change.

        Raises:
            Unavailable: the settings can't be read.
        """
        self._apply_placement(await read_placement(self._records))
        self._membership.on_change(self._assign)
        self._coordinator.on_contact(self._contact_changed)
        self._coordinator.on_hint(HINT, self._hinted.set)
        self._reading = asyncio.ensure_future(self._follow_placement())

    def serve(self, leaders: TopicLeaders) -> None:
        """Make ``leaders`` hand over the topics that another node should lead, from now on."""
        self._leaders = leaders
        self._pass_on_soon()

    # Placement.

    @property
    def slots_led(self) -> int:
        """Return the number of slots whose lease this node has."""
        return sum(resource.startswith("slot/") for resource in self._leases.resources)

    def place(self, topic: TopicId) -> TopicPlacement:
        """Return the node that should lead a topic, as far as this node knows."""
        if self._elsewhere and topic in self._elsewhere:
            return TopicPlacement(here=False, node=self._elsewhere[topic])
        leader = self.assignment.leader_of(topic)
        node = None if leader is None else self._nodes.get(leader)
        return TopicPlacement(leader == self._me, node)

    async def pause(self, seconds: float) -> None:
        """Return after so many seconds, or as soon as the assignment may have changed."""
        await asyncio.wait((self._changed,), timeout=seconds)

    def _is_mine(self, resource: str) -> bool:
        return self.assignment.leader_of_resource(resource) == self._me

    def _assign(self) -> None:
        me, before, was = self._membership.me, self._nodes, self.assignment
        # A node that is cut off from the others still counts itself: it keeps leading its topics.
        self._nodes = dict(self._membership.members.nodes)
        self._nodes[self._me] = me._replace(draining=me.draining or self._leaving)
        self.assignment = Assignment.of(self._nodes, self.placement.drained, self.placement.pins)
        self._version += 1
        self._wake_waiters()
        self._pass_on_soon()
        if gone := before.keys() - self._nodes.keys():
            self._succeed(gone, was)

    def _succeed(self, gone: Collection[int], was: Assignment) -> None:
        """Begin to claim the topics of nodes that are gone, without waiting for a request."""
        leaders = self._leaders
        if leaders is None or self._leaving or self._closed:
            return

        def inherited(topic: TopicId) -> bool:
            return was.leader_of(topic) in gone and self.assignment.leader_of(topic) == self._me

        async def succeed() -> None:
            await self._clock.sleep(SUCCEED_AFTER_S)
            await leaders.succeed(inherited)

        task = asyncio.ensure_future(succeed())
        self._succeeding.add(task)
        task.add_done_callback(self._succeeding.discard)

    def _contact_changed(self, contact: Contact) -> None:
        del contact
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        self._elsewhere.clear()
        changed, self._changed = self._changed, asyncio.get_running_loop().create_future()
        changed.set_result(None)

    async def _follow_placement(self) -> None:
        interval_s = PLACEMENT_READ_S
        while True:
            try:
                async with asyncio.timeout(interval_s * self._jitter.uniform(0.5, 1.0)):
                    await self._hinted.wait()
            except TimeoutError:
                pass  # A hint may have been lost.
            self._hinted.clear()
            interval_s = await self._read_placement()

    async def _read_placement(self) -> float:
        """Read the operators' settings; return the time until the next read."""
        try:
            placement = await read_placement(self._records)
        except BrokerError as error:
            log.warning("pins and drained nodes can't be read", error=error.message)
            return PLACEMENT_READ_AGAIN_S
        if placement != self.placement:
            self._apply_placement(placement)
        return PLACEMENT_READ_S

    def _apply_placement(self, placement: Placement) -> None:
        for problem in placement.problems:
            if problem not in self.placement.problems:
                log.error("a pin or a drained node has no effect", problem=problem)
        self.placement = placement
        self._assign()

    # Claims.

    def fenced(self, topic: TopicId) -> None:
        """Note that another epoch took this topic's log from this node."""
        self._leases.fencings += 1
        self._fenced[topic] = self._leases.fencings
        if len(self._fenced) > FENCINGS_MAX:
            self._fenced_before = self._leases.fencings
            self._fenced.clear()
        # Perhaps the other node knows a pin that this node does not know yet.
        self._hinted.set()

    async def permit(self, topic: TopicId, deadline: float) -> TailReading:
        """Return once this node may claim the topic. See Tenure.

        Raises:
            NotLeader, NoLeader: see Tenure.
            Unavailable: the log's head can't be read.
        """
        wait_until: float | None = None
        pause_s = PAUSE_S
        while True:
            changed = self._changed
            place = self.place(topic)
            if not place.here and place.node is not None:
                raise not_leader(topic, place)
            if place.node is None:
                if self._leaving:
                    raise NoLeader("This node is stopping.")
                await self._wait(changed, deadline, topic)
                continue
            seen = await self._store.look(topic)
            written = seen.writer
            if written is not None and written.owner == self._owner:
                break
            if changed.done() or not await self._has_lease(topic, written, changed, deadline):
                continue
            if self._live_owner(written) is None:
                break
            if wait_until is None:
                wait_until = min(self._clock.monotonic() + RELEASE_WAIT_S, deadline)
            if self._clock.monotonic() >= wait_until:
                break
            await self._clock.sleep(pause_s * self._jitter.uniform(0.5, 1.0))
            pause_s = min(pause_s * 2, PAUSE_S_MAX)
        self._fenced.pop(topic, None)
        return seen

    async def _has_lease(
        self,
        topic: TopicId,
        written: Head | None,
        changed: asyncio.Future[None],
        deadline: float,
    ) -> bool:
        """Return whether the topic's lease is held and good. If not, first wait for a change that may help."""
        resource = self.assignment.resource_of(topic)
        suspended = self._coordinator.contact is not Contact.CONNECTED
        if suspended:
            self._check_head_without_contact(topic, written)
        if not self._leases.has(resource):
            taking = self._leases.taking(resource)
            await self._wait(changed, deadline, topic, taking)
            if taking.cancelled():
                raise NoLeader("This node is stopping.")
            if taking.done():
                taking.result()
            return False
        if suspended:
            await self._wait(changed, deadline, topic)
            return False
        try:
            fencing = self._fenced.get(topic, self._fenced_before)
            return await self._leases.is_good(resource, fencing)
        except Unavailable as error:
            if self._clock.monotonic() + PAUSE_S_MAX > deadline:
                raise NoLeader(
                    f"No node leads topic '{topic}' just now: {error.message}"
                ) from error
            await self._clock.sleep(PAUSE_S_MAX * self._jitter.uniform(0.5, 1.0))
            return False

    async def _wait(
        self,
        changed: asyncio.Future[None],
        deadline: float,
        topic: TopicId,
        taking: asyncio.Task[None] | None = None,
    ) -> None:
        awaited: set[asyncio.Future[None]] = {changed}
        if taking is not None:
            awaited.add(taking)
        left_s = max(deadline - self._clock.monotonic(), 0)
        done, _ = await asyncio.wait(awaited, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise NoLeader(f"No node leads topic '{topic}' just now: its lease could not be taken.")

    def _live_owner(self, written: Head | None) -> NodeInfo | None:
        """Return the other node that a page's head names, if this node believes that it lives."""
        if written is None or not written.owner:
            return None
        for node in self._nodes.values():
            if node.incarnation == written.owner and node.instance != self._me:
                return node
        return None

    def _check_head_without_contact(self, topic: TopicId, written: Head | None) -> None:
        """Raise NotLeader if the log's head names another live node: without contact the head decides."""
        owner = self._live_owner(written)
        if owner is not None:
            self._elsewhere[topic] = owner
            raise not_leader(topic, self.place(topic), written.epoch if written else None)

    # Handing over.

    def _pass_on_soon(self) -> None:
        if self._closed:
            return
        self._pass_on_again = True
        if self._passing_on is None or self._passing_on.done():
            self._passing_on = asyncio.ensure_future(self._pass_on_reassigned())

    async def _pass_on_reassigned(self) -> None:
        """Begin to hand over all topics and leases that another node should have."""
        while self._pass_on_again:
            self._pass_on_again = False
            version = self._version
            for resource, topics in (await self._reassigned()).items():
                if resource not in self._passing:
                    task = asyncio.ensure_future(self._pass_on(resource, topics, version))
                    self._passing[resource] = task

    async def _reassigned(self) -> dict[str, list[TopicId]]:
        """Return the locks that another node should hold, each with its topics that this node leads."""
        found: dict[str, list[TopicId]] = {
            resource: [] for resource in self._leases.resources if not self._is_mine(resource)
        }
        led = list(self._leaders.topics_led()) if self._leaders is not None else []
        async for topic in paced(led):
            if self.assignment.leader_of(topic) != self._me:
                found.setdefault(self.assignment.resource_of(topic), []).append(topic)
        return found

    async def _pass_on(self, resource: str, topics: list[TopicId], version: int) -> None:
        """Hand a lock over with its topics. The list of topics is of this version of the assignment."""
        try:
            if topics and self._leaders is not None:
                await self._leaders.hand_over(topics)
            if not self._is_mine(resource):
                await self._leases.release(resource)
        finally:
            del self._passing[resource]
            if version != self._version:
                self._pass_on_soon()

    async def leave(self, seconds: float) -> bool:
        """Stop leading topics. Return whether all of them were handed over within ``seconds``."""
        self._leaving = True
        self._assign()
        deadline = self._clock.monotonic() + seconds
        while under_way := self._hand_overs():
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0:
                return False
            await asyncio.wait(under_way, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        return True

    def _hand_overs(self) -> set[asyncio.Task[None]]:
        tasks = set(self._passing.values())
        if self._passing_on is not None and not self._passing_on.done():
            tasks.add(self._passing_on)
        return tasks

    async def close(self) -> None:
        """Stop following changes, cancel the hand-overs in flight, and release all leases."""
        self._closed = True
        tasks = self._hand_overs()
        tasks |= self._succeeding
        if self._reading is not None:
            tasks.add(self._reading)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._leases.close()
