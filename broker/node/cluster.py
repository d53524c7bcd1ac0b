"""The ground of a node in a cluster: stores, a session with a coordinator, its instance id, its tenure.

Each part needs the one before it. So the parts open in this order, and close in the opposite order::

    stores ─▶ coordinator ─▶ instance id ─▶ tenure ─▶ routing

``broker.node.node`` connects the other parts, which are the same for every node. ``Servers`` provides the servers:
HBase and ZooKeeper (``broker.node.servers``), or simulated ones.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from broker import __version__, logs
from broker.api.cluster import OWN_PATH, ClusterView
from broker.api.cluster_view import cluster_view
from broker.api.routed import Routed
from broker.api.routed_transactions import RoutedTransactions
from broker.clock import Clock
from broker.config.sections import Config
from broker.coordination.claims import Written
from broker.coordination.cluster_tenure import ClusterTenure
from broker.coordination.coordinator import TreeCoordinator
from broker.coordination.instances import claim_instance, until_superseded
from broker.coordination.ports import Contact, Membership, NodeInfo
from broker.metrics import Metrics
from broker.model import TopicId
from broker.routing.forwarder import Forwarder
from broker.routing.nodeheaders import PROTOCOL, Sender
from broker.routing.peer_requests import Receiving
from broker.routing.peers import HttpPeers
from broker.routing.routing import Routing
from broker.routing.secret import cluster_secret
from broker.routing.witnesses import clocks_of
from broker.storage.call_health import CallHealth, CallOutcome
from broker.storage.log import Logs
from broker.storage.records import RecordStore
from broker.topics.topics import Topics
from broker.transactions.service import Transactions

INCARNATION_BYTES = 8
LEAVE_S = 5.0
"""The time in which a node with a wrong clock may hand its topics over. A stopping node has its own bound."""
RELEASE_S = 1.0
"""The time in which a stopping node may release its leases in ZooKeeper. They end with its session in any case."""

log = logs.get_logger()


class Stores(NamedTuple):
    """The stores of one cluster. ``close`` closes both, after the calls in flight."""

    logs: Logs
    records: RecordStore
    close: Callable[[], Awaitable[None]]


class Servers(Protocol):
    """The servers that a node of a cluster connects to."""

    async def stores(self, on_call_end: Callable[[CallOutcome], None]) -> Stores:
        """Open the stores. ``on_call_end`` gets the outcome of each call. Raises Unavailable."""

    async def coordinator(self) -> TreeCoordinator:
        """Begin a session. Raises Unavailable."""


class Opened(NamedTuple):
    """The parts that ``open`` opens, before the node gets its topics."""

    stores: Stores
    coordinator: TreeCoordinator
    membership: Membership
    tenure: ClusterTenure
    peers: HttpPeers
    forwarder: Forwarder
    receiving: Receiving


class InCluster:
    """The ground of one node of a cluster. Call ``open`` and ``close`` once each."""

    def __init__(self, config: Config, clock: Clock, metrics: Metrics, servers: Servers) -> None:
        """Keep the parts. Nothing is opened before ``open``."""
        self._servers = servers
        self.owner = secrets.token_hex(INCARNATION_BYTES)
        self.stopped: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._config = config
        self._clock = clock
        self._metrics = metrics
        self._health = CallHealth(clock.now_ms)
        self._skew_ms: int | None = None
        self._is_skewed = False
        self._leaving: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[str] | None = None
        self._stores: Stores | None = None
        self._coordinator: TreeCoordinator | None = None
        self._opened: Opened | None = None
        self._routing: Routing | None = None
        self._view: ClusterView | None = None

    async def open(self, url: str) -> None:
        """Join the cluster as the node at ``url``, where this process listens already.

        Raises:
            Unavailable: storage or the coordinator does not answer, or the tables do not exist.
            InstanceTaken: another node has the configured id.
        """
        clock = self._clock
        self._stores = stores = await self._servers.stores(self._call_ended)
        self._coordinator = coordinator = await self._servers.coordinator()
        me = NodeInfo(0, self.owner, url, __version__, PROTOCOL)
        membership = await claim_instance(
            coordinator, stores.records, me, clock, configured=self._config.cluster.instance_id
        )
        self._watching = asyncio.ensure_future(until_superseded(stores.records, membership, clock))
        self._watching.add_done_callback(self._superseded)
        secret = await cluster_secret(stores.records, clock)
        jitter = random.Random()  # noqa: S311 - It spreads retries; it protects no secret.
        tenure = ClusterTenure(coordinator, membership, stores.records, stores.logs, clock, jitter)
        # The last step that may fail: ``close`` does not know a tenure without the other parts.
        await tenure.start()
        peers = HttpPeers(reached_at=self._config.cluster.peer_urls)
        sender = Sender(membership.me.instance, self.owner)
        forwarder = Forwarder(peers, clock, sender, secret)

        def forget_gone_nodes() -> None:
            urls = {node.url for node in membership.members.nodes.values()}
            peers.forget_others(urls)
            forwarder.forget_others(urls)

        membership.on_change(forget_gone_nodes)
        self._opened = Opened(
            stores, coordinator, membership, tenure, peers, forwarder, Receiving(secret, clock)
        )
        log.info("joined the cluster", node=membership.me.instance, incarnation=self.owner)

    @property
    def _all(self) -> Opened:
        assert self._opened is not None, "not opened"
        return self._opened

    @property
    def logs(self) -> Logs:
        """The logs."""
        return self._all.stores.logs

    @property
    def records(self) -> RecordStore:
        """The record store."""
        return self._all.stores.records

    @property
    def instance(self) -> int:
        """This node's instance id."""
        return self._all.membership.me.instance

    @property
    def tenure(self) -> ClusterTenure:
        """Coordination's answer which topics this node may claim."""
        return self._all.tenure

    def routed(self, topics: Topics, deadline_s: float) -> Routed:
        """Return the binding of handlers to the leaders of topics."""
        opened = self._all
        states = topics.leaders.states

        def leads(topic: TopicId) -> bool:
            state = states.get(topic)
            return state is not None and state.leader is not None

        self._routing = routing = Routing(
            opened.tenure,
            opened.forwarder,
            self._clock,
            self._metrics,
            me=opened.membership.me,
            leads=leads,
        )
        routing.pause = opened.tenure.pause
        return Routed(routing, opened.receiving, topics, deadline_s=deadline_s)

    def transactions(self, local: Transactions, deadline_s: float) -> RoutedTransactions:
        """Return the transaction service, which any node may lead. Call ``routed`` first."""
        assert self._routing is not None, "routed was not called"
        return RoutedTransactions(local, self._routing, deadline_s=deadline_s)

    def serve(self, topics: Topics) -> ClusterView:
        """Let the tenure hand these topics over. Return the node's view of its cluster."""
        opened = self._all
        opened.tenure.serve(topics.leaders)
        self._view = cluster_view(
            coordinator=opened.coordinator,
            membership=lambda: opened.membership,
            slots_led=lambda: opened.tenure.slots_led,
            leaders=topics.leaders,
            exchange=opened.peers.exchange,
            records=opened.stores.records,
            health=self._health,
            clock=self._clock,
        )
        return self._view

    def failure(self) -> str | None:
        """Return why this node should get no requests; None if it should."""
        if self._is_skewed:
            return f"its clock is {self._skew_ms} ms off the storage's (clock_skew)"
        if self._opened is not None and self._all.coordinator.contact is Contact.LOST:
            return "its session with ZooKeeper is over"
        return None

    # Called by the parts.

    def _call_ended(self, ended: CallOutcome) -> None:
        self._health.ended(ended.kind, ended.message)
        self._metrics.called(ended.call, ended.kind, ended.seconds)

    def _superseded(self, watching: asyncio.Future[str]) -> None:
        if watching.cancelled() or self.stopped.done():
            return
        error = watching.exception()
        # Without certainty about its instance id, this node must not make message ids.
        reason = watching.result() if error is None else f"its claim can't be read: {error}"
        log.error("this node must stop", reason=reason)
        self.stopped.set_result(reason)

    def skewed(self, skew_ms: int) -> None:
        """Hand all topics over and lead none again: this node's clock is wrong."""
        self._skew_ms = skew_ms
        if not self._is_skewed:
            self._is_skewed = True
            log.error("clock differs from storage's: this node leads no topic", skew_ms=skew_ms)
            self._leaving = asyncio.ensure_future(self._leave(LEAVE_S))

    async def other_clocks(self) -> Sequence[Written]:
        """Return the times of the other nodes' clocks, for the nodes that answer."""
        view = self._view
        if view is None:
            return ()
        me, nodes = view.me().instance, sorted(view.members().nodes.items())
        others = [node for instance, node in nodes if instance != me]

        async def ask(url: str, seconds: float) -> bytes:
            return await view.ask(url, OWN_PATH, seconds)

        return await clocks_of(others, ask, self._clock)

    # The end.

    async def leave(self, seconds: float, *, waits_s: float) -> None:
        """Hand over every topic, within ``seconds``. The node still forwards, and waits for leaders for ``waits_s``."""
        if self._routing is not None:
            self._routing.waits_until = self._clock.monotonic() + waits_s
        if self._leaving is None:
            await self._leave(seconds)
        else:
            await asyncio.wait((self._leaving,), timeout=seconds)

    async def _leave(self, seconds: float) -> None:
        opened = self._all
        deadline = self._clock.monotonic() + seconds
        announcing = asyncio.ensure_future(opened.membership.announce(draining=True))
        handed_over = await opened.tenure.leave(seconds)
        await asyncio.wait((announcing,), timeout=max(deadline - self._clock.monotonic(), 0))
        if not handed_over:
            log.warning("not all topics were handed over", seconds=seconds)

    async def close(self) -> None:
        """Leave the cluster and close all parts that were opened."""
        opened = self._opened
        if self._watching is not None:
            self._watching.cancel()
        if opened is not None:
            await opened.peers.close()
            await self._release(opened)
        if self._coordinator is not None:
            await self._coordinator.close()
        if self._stores is not None:
            await self._stores.close()

    @staticmethod
    async def _release(opened: Opened) -> None:
        """Release leases and membership, if ZooKeeper answers in time."""

        async def release() -> None:
            await opened.tenure.close()
            await opened.membership.leave()

        releasing = asyncio.ensure_future(release())
        await asyncio.wait((releasing,), timeout=RELEASE_S)
        if releasing.done():
            releasing.result()
            return
        log.warning("left without releasing leases: ZooKeeper does not answer", seconds=RELEASE_S)
        releasing.cancel()
        await asyncio.wait((releasing,))
