"""Several nodes' topics in one process, over one storage and one coordinator in memory, in virtual time.

What is here of routing is the least: a request goes to the node that is asked, and from there to whichever
node a NotLeader names, with a pause, until its deadline. Storage and coordinator take their time to answer,
so that things overlap.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from typing_extensions import override

from broker.coordination.claims import Written, read_clock
from broker.coordination.cluster_tenure import ClusterTenure
from broker.coordination.coordinator import TreeCoordinator
from broker.coordination.memory import MemoryCoordination
from broker.coordination.placement import HINT
from broker.coordination.ports import NodeInfo
from broker.errors import NotLeader, OutcomeUnknown
from broker.model import Message, Poll, PublishRequest, TopicId
from broker.storage.head import Head
from broker.storage.log import Logs
from broker.storage.memory.table import MemoryTable
from broker.storage.records import Records
from broker.storage.table import Cell, Space
from broker.testing.virtual_time import VirtualClock, VirtualLoop
from broker.topics.retention import Sweeper
from broker.topics.settings import NO_OPTIONS, PublishedIds, PublishOptions, TopicSettings
from broker.topics.surroundings import Surroundings
from broker.topics.topics import Topics
from tests.kit.bench import LIFE_S, HookedTable

WRITE_S = 0.003
READ_S = 0.0005
ASK_S = 0.001
FORWARD_S = 0.002
PATIENCE_S = 30.0

Result = TypeVar("Result")


class SlowTable(MemoryTable):
    """A table in memory that answers after a while.

    ``off_ms`` says how far the clock of the server of a row is off.
    """

    off_ms: Callable[[Space, bytes], int] | None = None
    _writing: tuple[Space, bytes] | None = None

    @override
    def _now_ms(self) -> int | None:
        now_ms = super()._now_ms()
        if now_ms is None or self.off_ms is None or self._writing is None:
            return now_ms
        return now_ms + self.off_ms(*self._writing)

    @override
    async def change(
        self,
        space: Space,
        row: bytes,
        expected: bytes | None,
        puts: Mapping[bytes, bytes],
        deletes: Sequence[bytes] = (),
        *,
        clear: bool = False,
    ) -> bool:
        """Change cells of a row."""
        await asyncio.sleep(WRITE_S / 2)
        self._writing = space, row  # The call below waits for nothing before it has written.
        done = await super().change(space, row, expected, puts, deletes, clear=clear)
        await asyncio.sleep(WRITE_S / 2)
        return done

    @override
    async def get(self, space: Space, row: bytes, columns: Sequence[bytes]) -> dict[bytes, Cell]:
        """Return cells of a row."""
        await asyncio.sleep(READ_S)
        return await super().get(space, row, columns)


class Member:
    """One node: its own session, store, clock and topics."""

    def __init__(self, cluster: Cluster, instance: int, incarnation: str) -> None:
        """Keep what it is made of; ``Cluster.start`` starts it."""
        self.me = NodeInfo(instance, incarnation, f"http://node-{instance}", "1.0", 1)
        self.cluster = cluster
        self.clock = VirtualClock(cluster.loop)
        self.coordinator: TreeCoordinator = cluster.coordination.session()
        self.table = HookedTable(cluster.memory)
        self.logs = Logs(self.table, self.clock)
        self.records = Records(self.logs.resolver)
        self.skews: list[int] = []
        self.is_over = False

    async def start(self) -> None:
        """Join, and lead what is assigned."""
        self.membership = await self.coordinator.join(self.me)
        self.tenure = ClusterTenure(
            self.coordinator,
            self.membership,
            self.records,
            self.logs,
            self.clock,
            random.Random(self.me.instance),
        )
        await self.tenure.start()
        self.around = Surroundings(
            self.logs,
            self.clock,
            TopicSettings(**self.cluster.settings),
            owner=self.me.incarnation,
            instance=self.me.instance,
            tenure=self.tenure,
            skewed=self.skews.append,
            other_clocks=self._other_clocks,
        )
        self.topics = Topics(self.around, self.records, seed=self.me.instance)
        self.sweeper = Sweeper(self.topics.leaders)
        self.tenure.serve(self.topics.leaders)

    async def _other_clocks(self) -> Sequence[Written]:
        if not self.cluster.tells_time:
            return ()
        told = []
        for other in self.cluster.members.values():
            if other is not self and not other.is_over:
                sent = read_clock(self.clock)
                await asyncio.sleep(ASK_S)
                told.append(Written(sent, other.clock.now_ms(), self.clock.now_ms()))
        return told

    async def stop(self) -> bool:
        """Hand over and leave, as on SIGTERM; whether all was handed over in time."""
        self.is_over = True
        await self.membership.announce(draining=True)
        done = await self.tenure.leave(5)
        self.topics.begin_drain()
        await self.membership.leave()
        await self.tenure.close()
        await self.topics.close()
        await self.coordinator.close()
        return done

    async def ask(self, request: Callable[[Member], Awaitable[Result]]) -> Result:
        """Let it do something. Raises NotLeader also if it is over, and so does not answer."""
        if self.is_over:
            raise NotLeader("Nobody answers.")
        return await request(self)

    def leads(self, topic: TopicId) -> bool:
        """Whether it has a leader of the topic."""
        return topic in self.topics.leaders.epochs()


class Cluster:
    """The nodes, by instance id, and what they share."""

    def __init__(self, **settings: Any) -> None:
        """Start with empty storage and no node. Must be called in a running virtual loop."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.clock = VirtualClock(loop)
        self.coordination = MemoryCoordination(self.clock)
        self.coordination.delay_s = ASK_S
        self.coordination.notification_delay_s = ASK_S
        self.memory = SlowTable(is_alone=False)
        self.tells_time = False
        """Whether nodes tell each other what time it is."""
        self.records = Records(Logs(self.memory, self.clock).resolver)
        self.settings: dict[str, Any] = {"transaction_life_max_s": LIFE_S, **settings}
        self.members: dict[int, Member] = {}
        self._starts = 0

    async def start(self, *instances: int) -> list[Member]:
        """Start nodes, one after the other, and let everybody hear of them."""
        started = []
        for instance in instances:
            self._starts += 1
            member = Member(self, instance, f"life-{self._starts}")
            await member.start()
            self.members[instance] = member
            started.append(member)
        await asyncio.sleep(0.1)
        return started

    async def hint(self) -> None:
        """Tell all nodes to read pins and drained nodes again."""
        await next(iter(self.members.values())).coordinator.hint(HINT)

    def leader_of(self, topic: TopicId) -> Member:
        """Return the node that the others should ask, as any of them knows it."""
        for member in self.members.values():
            if not member.is_over:
                node = member.tenure.place(topic).node
                assert node is not None
                return self.members[node.instance]
        raise AssertionError("no node lives")

    async def routed(self, via: Member, request: Callable[[Member], Awaitable[Result]]) -> Result:
        """Ask a node, and from there whichever node it names, until one answers."""
        deadline = self.loop.time() + PATIENCE_S
        asked = via
        while True:
            try:
                return await asked.ask(request)
            except NotLeader as error:
                if self.loop.time() > deadline:
                    raise
                await asyncio.sleep(FORWARD_S)
                known = self.members.get(via.me.instance if error.node is None else error.node)
                asked = known if known is not None else via

    async def publish(
        self,
        via: Member,
        topic: TopicId,
        *payloads: bytes,
        options: PublishOptions = NO_OPTIONS,
        pointer: int | None = None,
    ) -> PublishedIds:
        """Publish through a node."""
        request = PublishRequest(pointer, payloads)
        return await self.routed(via, lambda node: node.topics.publish(topic, request, options))

    async def create(self, topic: TopicId, ttl_s: int = 600) -> None:
        """Create a topic."""
        via = next(iter(self.members.values()))
        await self.routed(via, lambda node: node.topics.create(topic, {"ttl": str(ttl_s)}))

    async def poll(self, node: Member, topic: TopicId, poll: Poll | None = None) -> list[Message]:
        """Return a whole reply of one node, from its cache or from storage."""
        stream = await node.topics.poll(topic, poll or Poll())
        return [message async for messages in stream.messages() for message in messages]

    async def payloads(self, node: Member, topic: TopicId) -> list[bytes]:
        """Return the payloads of a whole reply."""
        return [message.payload for message in await self.poll(node, topic)]

    async def close(self) -> None:
        """Stop all nodes."""
        for member in self.members.values():
            if not member.is_over:
                await member.stop()


class Load:
    """Publishers, each of which publishes what nobody else does to one topic, one after the other."""

    def __init__(self, cluster: Cluster) -> None:
        """Begin with none."""
        self.acknowledged: dict[TopicId, list[bytes]] = {}
        self.unknown: list[bytes] = []
        self.slowest_s = 0.0
        self._cluster = cluster
        self._stop = False
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, topics: Sequence[TopicId], *, each: int = 2, pause_s: float = 0.01) -> None:
        """Let ``each`` publishers to each topic begin, through all nodes in turn."""
        self._tasks = [
            asyncio.ensure_future(self._publish(topic, f"{topic.topic}.{number}", pause_s))
            for topic in topics
            for number in range(each)
        ]

    async def _publish(self, topic: TopicId, name: str, pause_s: float) -> None:
        count = 0
        while not self._stop:
            via = [member for member in self._cluster.members.values() if not member.is_over]
            payload = f"{name}.{count}".encode()
            began = self._cluster.loop.time()
            try:
                await self._cluster.publish(via[count % len(via)], topic, payload)
            except OutcomeUnknown:
                self.unknown.append(payload)
            else:
                self.acknowledged.setdefault(topic, []).append(payload)
            self.slowest_s = max(self.slowest_s, self._cluster.loop.time() - began)
            count += 1
            await asyncio.sleep(pause_s)

    async def end(self) -> None:
        """Let all of them finish what they are doing."""
        self._stop = True
        await asyncio.gather(*self._tasks)

    async def check(self) -> None:
        """Find every acknowledged message once, on every node, each publisher's in their order."""
        live = [member for member in self._cluster.members.values() if not member.is_over]
        for topic, acknowledged in self.acknowledged.items():
            views = [await self._cluster.payloads(member, topic) for member in live]
            assert all(view == views[0] for view in views)
            seen = [payload for payload in views[0] if payload not in self.unknown]
            assert sorted(seen) == sorted(acknowledged)
            assert len(set(views[0])) == len(views[0])
            for publisher in (b".0.", b".1."):
                mine = [payload for payload in seen if publisher in payload]
                assert mine == [payload for payload in acknowledged if publisher in payload]


async def led_by(cluster: Cluster, topic: TopicId) -> Member:
    """Create a topic, publish once, and return its leader."""
    await cluster.create(topic)
    await cluster.publish(next(iter(cluster.members.values())), topic, b"first")
    (leader,) = [member for member in cluster.members.values() if member.leads(topic)]
    return leader


async def head(member: Member, topic: TopicId) -> Head:
    """Return the head of a topic's tail, which there must be."""
    found = (await member.logs.look(topic)).writer
    assert found is not None
    return found
