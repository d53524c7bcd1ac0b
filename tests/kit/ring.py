"""Several nodes in this process over one storage: real handlers, routing and sockets, leaders by decree.

There is no coordinator here: a test says which node leads, when it hands over and when it dies, and all
nodes know it at once, or, each for itself, what the test lets it believe.

A test may cut and hold up what nodes send each other (``TestedPeers``).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager

from broker.api.dispatch import Dispatch
from broker.api.health import Health
from broker.api.openapi import document
from broker.api.routed import Routed
from broker.api.router import Router
from broker.api.routes import make_routes
from broker.clock import Clock, SystemClock
from broker.config.sections import Config
from broker.coordination.ports import NodeInfo
from broker.coordination.tenure import HERE, TopicPlacement, not_leader
from broker.errors import NoLeader
from broker.http.answer import HttpAnswer, NoAnswer
from broker.http.outbound import Ask
from broker.http.server import Server
from broker.metrics import Metrics
from broker.model import TopicId
from broker.node.part_settings import topic_settings, transaction_settings
from broker.routing.forwarder import Forwarder
from broker.routing.nodeheaders import PROTOCOL, Sender
from broker.routing.peer_requests import Receiving
from broker.routing.peers import HttpPeers, Peers, RelayedAnswer
from broker.routing.routing import Routing
from broker.routing.secret import cluster_secret
from broker.storage.log import Logs
from broker.storage.memory.table import MemoryTable
from broker.storage.records import Records
from broker.topics.surroundings import Surroundings
from broker.topics.topics import Topics
from broker.transactions.service import Transactions
from tests.kit.serving import Http

TOPIC = TopicId("default", "t")
Hook = Callable[[Callable[[], Awaitable[HttpAnswer]]], Awaitable[HttpAnswer]]


class DecreedTenure:
    """What one node believes: the decree that holds for all, unless a test gave it an own belief."""

    def __init__(self, ring: Ring, instance: int) -> None:
        """Believe what ``ring`` decrees."""
        self._ring = ring
        self._instance = instance
        self.belief: int | None = None

    def place(self, topic: TopicId) -> TopicPlacement:
        """Return who should lead a topic."""
        node = self._ring.leader if self.belief is None else self.belief
        if node == self._instance:
            return HERE
        return TopicPlacement(here=False, node=None if node < 0 else self._ring.infos[node])

    async def permit(self, topic: TopicId, deadline: float) -> None:
        """Permit what is decreed, once nobody else that lives leads it."""
        place = self.place(topic)
        if not place.here:
            raise not_leader(topic, place)
        others = [node for node in self._ring.nodes if node.instance != self._instance]
        try:
            async with asyncio.timeout(max(deadline - asyncio.get_running_loop().time(), 0)):
                while any(node.leads(topic) for node in others):
                    await self._ring.let_go.wait()
        except TimeoutError:
            raise NoLeader("the former leader has not let go") from None

    def fenced(self, topic: TopicId) -> None:
        """Take no note: there are no leases."""


class TestedPeers:
    """The way to other nodes, whole replies of which a test can hold up, cut and change."""

    __test__ = False

    def __init__(self, inner: Peers) -> None:
        """Pass on by ``inner``."""
        self._inner = inner
        self.hooks: list[Hook] = []
        """The next requests, each handed to one: it may send or not, and give the reply or not."""
        self.asked: list[tuple[str, Ask]] = []
        self.silent: set[str] = set()
        """Nodes that take what is sent and answer nothing, as a paused process does."""

    async def exchange(self, url: str, ask: Ask, timeout_s: float) -> HttpAnswer:
        """Send a request and return the whole answer. Raises NotSent, NoAnswer."""
        self.asked.append((url, ask))
        await self._unless_silent(url)
        if self.hooks:
            return await self.hooks.pop(0)(lambda: self._inner.exchange(url, ask, timeout_s))
        return await self._inner.exchange(url, ask, timeout_s)

    async def stream(self, url: str, ask: Ask, timeout_s: float) -> RelayedAnswer:
        """Send a request and return its answer once it has begun. Raises NotSent, NoAnswer."""
        self.asked.append((url, ask))
        await self._unless_silent(url)
        return await self._inner.stream(url, ask, timeout_s)

    async def _unless_silent(self, url: str) -> None:
        if url in self.silent:
            await asyncio.Event().wait()

    async def close(self) -> None:
        """Close everything."""
        await self._inner.close()


async def passed(send: Callable[[], Awaitable[HttpAnswer]]) -> HttpAnswer:
    """Let a request and its answer pass."""
    return await send()


async def answer_lost(send: Callable[[], Awaitable[HttpAnswer]]) -> HttpAnswer:
    """Let the request be carried out, and lose the answer."""
    await send()
    raise NoAnswer("the answer was lost")


async def request_lost(_: Callable[[], Awaitable[HttpAnswer]]) -> HttpAnswer:
    """Lose the request, which nobody can tell from a lost answer."""
    raise NoAnswer("the request was lost")


class RingNode:
    """One node: its topics, its interface, and the socket on which it listens."""

    def __init__(self, ring: Ring, instance: int) -> None:
        """Be one of ``ring``; nothing listens before ``start``."""
        self.instance = instance
        self._ring = ring
        self.config = ring.config
        self.clock: Clock = SystemClock()
        self.metrics = Metrics(str(instance))
        self.tenure = DecreedTenure(ring, instance)
        self.peers = TestedPeers(HttpPeers())
        self.is_dead = False
        self.topics: Topics
        self.transactions: Transactions
        self.server: Server
        self.http: Http
        self.dispatch: Dispatch

    async def start(self) -> None:
        """Listen on a free port."""
        ring, instance = self._ring, self.instance
        incarnation = f"life-{instance}"
        around = Surroundings(
            Logs(ring.memory, self.clock),
            self.clock,
            topic_settings(self.config),
            owner=incarnation,
            instance=instance,
            tenure=self.tenure,
            metrics=self.metrics,
        )
        self.topics = Topics(around, ring.records)
        secret = await cluster_secret(ring.records, self.clock)
        self.secret = secret
        listening = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        me = NodeInfo(instance, incarnation, url, "test", ring.protocols.get(instance, PROTOCOL))
        ring.infos[instance] = me
        forwarder = Forwarder(self.peers, self.clock, Sender(instance, incarnation), secret)
        self.routing = Routing(
            self.tenure, forwarder, self.clock, self.metrics, me=me, leads=self.leads
        )
        self.receiving = Receiving(secret, self.clock)
        deadline_s = self.config.server.request_deadline_s
        routed = Routed(self.routing, self.receiving, self.topics, deadline_s=deadline_s)
        health = Health(
            version="test",
            not_ready=lambda: None,
            metrics=self.metrics.render,
            openapi=document,
        )
        self.transactions = Transactions(self.topics.leaders, transaction_settings(self.config))
        routes = make_routes(
            self.topics,
            self.config,
            health,
            routed=routed,
            transactions=self.transactions,
        )
        self.dispatch = Dispatch(Router(routes), self.metrics, self.config)
        self.server = Server(self.dispatch, self.config, self.clock)
        await self.server.start("127.0.0.1", 0, listening)
        self.http = await Http(self.server.port).__aenter__()

    def leads(self, topic: TopicId) -> bool:
        """Whether this node holds the topic's log."""
        state = self.topics.leaders.states.get(topic)
        return not self.is_dead and state is not None and state.leader is not None

    def forwarded(self) -> float:
        """Return how many requests it has passed on."""
        text = self.metrics.render().decode()
        lines = [line for line in text.splitlines() if line.startswith("broker_forwarded_total{")]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    async def kill(self) -> None:
        """Stop listening and cut every connection, as a dead process does."""
        self.is_dead = True
        self.server.cut()
        self._ring.told()

    def pause(self) -> None:
        """Let every other node ask it in vain; nobody waits for it to let go of anything."""
        self.is_dead = True
        for node in self._ring.nodes:
            node.peers.silent.add(self._ring.infos[self.instance].url)
        self._ring.told()

    async def stop(self) -> None:
        """Close everything."""
        await self.http.__aexit__(None, None, None)
        await self.server.close()
        await self.peers.close()
        await self.transactions.close()
        await self.topics.close()


class Ring:
    """The nodes, what they share, and the decree."""

    def __init__(self, count: int, config: Config | None = None) -> None:
        """Let ``count`` nodes be, of which the first leads."""
        self.config = config or Config()
        self.memory = MemoryTable(is_alone=False)
        self.records = Records(Logs(self.memory, SystemClock()).resolver)
        self.infos: dict[int, NodeInfo] = {}
        self.protocols: dict[int, int] = {}
        self.leader = 0
        """The number of the node that should lead everything; below 0: nobody."""
        self.let_go = asyncio.Event()
        self.nodes = [RingNode(self, number) for number in range(count)]

    def told(self) -> None:
        """Let everybody look again at who leads."""
        was, self.let_go = self.let_go, asyncio.Event()
        was.set()

    async def move(self, to: int, topics: Collection[TopicId] = (TOPIC,)) -> None:
        """Decree another leader; the former one hands over in good order."""
        former, self.leader = self.leader, to
        if former >= 0 and not self.nodes[former].is_dead:
            await self.nodes[former].topics.leaders.hand_over(topics)
        self.told()


@asynccontextmanager
async def ring_of(count: int, config: Config | None = None) -> AsyncIterator[Ring]:
    """Run a ring of nodes."""
    ring = Ring(count, config)
    started: list[RingNode] = []
    try:
        for node in ring.nodes:
            await node.start()
            started.append(node)
        yield ring
    finally:
        for node in started:
            await node.stop()
