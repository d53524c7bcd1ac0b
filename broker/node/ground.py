"""The ground of a node: stores, a session with a coordinator, its membership, its tenure, and the way to other nodes.

Each part needs the one before it. So the parts open in this order, and close in the opposite order::

    stores ─▶ coordinator ─▶ membership ─▶ tenure ─▶ routing

``broker.node.node`` connects the other parts. ``Servers`` provides stores and coordinator (``broker.node.servers``): HBase
and ZooKeeper; LevelDB and a tree in this process; or simulated ones.

A node alone is a cluster of one: its members are itself, so it leads every topic and finds every lease free. Its store
tells the rest (``is_alone``): no other process writes there, so no instance id has to be claimed in it.

The nodes of a cluster share a secret. It is a record that the first node writes; a node alone keeps it to itself. It keeps clients from pretending to be
nodes. A program that can read the record store can read the secret, but it can read all messages too, so it gains nothing
by pretending.
"""

from __future__ import annotations

import asyncio
import random
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from itertools import islice
from typing import Final, NamedTuple, Protocol

from broker import __version__, logs
from broker.api.cluster import Ask, ClusterView, ask_report
from broker.api.routed import Routed
from broker.clock import Clock
from broker.config.sections import Config
from broker.coordination.claims import Written, read_clock
from broker.coordination.cluster_tenure import ClusterTenure
from broker.coordination.coordinator import TreeCoordinator
from broker.coordination.instances import claim_instance, until_superseded
from broker.coordination.ports import Contact, Membership, NodeInfo
from broker.errors import OutcomeUnknown, StorageCorrupt, Unavailable
from broker.metrics import Metrics
from broker.model import TopicId
from broker.node.tls_files import Certificates
from broker.routing.forwarder import Forwarder
from broker.routing.nodeheaders import PROTOCOL, Sender
from broker.routing.peer_requests import Receiving
from broker.routing.peers import HttpPeers
from broker.routing.routing import Routing
from broker.storage.call_health import CallHealth, CallOutcome
from broker.storage.log import Logs
from broker.storage.records import RecordStore
from broker.topics.topics import Topics

SECRET_KEY: Final = b"cluster/secret"
SECRET_BYTES: Final = 32
TRIES_MAX: Final = 10
PAUSE_S: Final = 0.1
_FORM = re.compile(rb"[0-9a-f]{%d}" % (2 * SECRET_BYTES))
INCARNATION_BYTES = 8
LEAVE_S = 5.0
"""The time in which a node with a wrong clock may hand its topics over. A stopping node has its own bound."""
CLOCKS_MAX: Final = 8
"""The most nodes that are asked for their time."""
CLOCK_S_MAX: Final = 1.0
RELEASE_S = 1.0
"""The time in which a stopping node may release its leases in ZooKeeper. They end with its session in any case."""

log = logs.get_logger()


class Stores(NamedTuple):
    """The stores of a node. ``close`` closes both, after the calls in flight.

    ``failure`` returns why they take no writes now, None if they take them. ``lost`` is done, with the reason, once they
    are gone for good.
    """

    logs: Logs
    records: RecordStore
    close: Callable[[], Awaitable[None]]
    failure: Callable[[], str | None] = lambda: None
    lost: asyncio.Future[str] | None = None


class Servers(Protocol):
    """Stores and coordination, of this process or of servers that the node connects to."""

    async def stores(self, on_call_end: Callable[[CallOutcome], None]) -> Stores:
        """Open the stores. ``on_call_end`` gets the outcome of each call to a server. Raises Unavailable."""

    async def coordinator(self) -> TreeCoordinator:
        """Begin a session. Raises Unavailable."""


class Ground:
    """The ground of one node. Call ``open`` before anything else, and ``close`` at the end, also after an error.

    Attributes:
        owner: the name of this incarnation of the node.
        certificates: the node's contexts of TLS.
        stopped: done, with the reason, once this node must stop.
        logs, records: the stores.
        coordinator, membership, tenure: the node among the others.
        routing: brings requests to leaders, once ``routed`` was called.
    """

    logs: Logs
    records: RecordStore
    coordinator: TreeCoordinator
    membership: Membership
    tenure: ClusterTenure
    _stores: Stores
    _peers: HttpPeers
    _forwarder: Forwarder
    _receiving: Receiving
    routing: Routing
    _view: ClusterView

    def __init__(
        self,
        config: Config,
        clock: Clock,
        metrics: Metrics,
        servers: Servers,
        certificates: Certificates | None = None,
    ) -> None:
        """Keep the parts. Nothing is opened before ``open``.

        Raises:
            BadCertificates: a file of TLS can't be used.
        """
        self.certificates = certificates or Certificates(config.tls)
        self.owner = secrets.token_hex(INCARNATION_BYTES)
        self.stopped: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._servers = servers
        self._config = config
        self._clock = clock
        self._metrics = metrics
        self._health = CallHealth(clock.now_ms)
        self._skew_ms: int | None = None
        self._is_skewed = False
        self._leaving: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[str] | None = None
        self._ends = AsyncExitStack()

    async def open(self, url: str) -> None:
        """Become a member as the node at ``url``, where this process listens already.

        Raises:
            Unavailable: storage or the coordinator does not answer, or the tables do not exist, or another process has
                the store.
            StorageCorrupt: the store is damaged.
            InstanceTaken: another node has the configured id.
        """
        clock, ends = self._clock, self._ends
        ends.callback(asyncio.create_task(self.certificates.watch()).cancel)
        self._stores = stores = await self._servers.stores(self._call_ended)
        ends.push_async_callback(stores.close)
        self.logs, self.records = stores.logs, stores.records
        if stores.lost is not None:
            stores.lost.add_done_callback(lambda lost: self._stop(lost.result()))
        self.coordinator = coordinator = await self._servers.coordinator()
        ends.push_async_callback(coordinator.close)
        membership, secret = await self._join(NodeInfo(0, self.owner, url, __version__, PROTOCOL))
        self.membership = membership
        jitter = random.Random()  # noqa: S311 - It spreads retries; it protects no secret.
        self.tenure = tenure = ClusterTenure(
            coordinator, membership, self.records, self.logs, clock, jitter
        )
        await tenure.start()
        ends.push_async_callback(self._release)
        certificates = self.certificates
        self._peers = peers = HttpPeers(
            reached_at=self._config.cluster.peer_urls,
            tls=lambda: certificates.peers,
            only_tls=certificates.listener is not None,
        )
        ends.push_async_callback(peers.close)
        sender = Sender(self.instance, self.owner)
        self._forwarder = forwarder = Forwarder(peers, clock, sender, secret)
        self._receiving = Receiving(secret, clock, url=None if stores.logs.table.is_alone else url)

        def forget_gone_nodes() -> None:
            urls = {node.url for node in membership.members.nodes.values()}
            peers.forget_others(urls)
            forwarder.forget_others(urls)

        membership.on_change(forget_gone_nodes)

    async def _join(self, me: NodeInfo) -> tuple[Membership, str]:
        """Become a member; return the secret that the members share."""
        clock, records = self._clock, self.records
        if self.logs.table.is_alone:
            # The store belongs to this process, and so does the number.
            return await self.coordinator.join(me), _new_secret()
        membership = await claim_instance(
            self.coordinator, records, me, clock, configured=self._config.cluster.instance_id
        )
        self._watching = asyncio.ensure_future(until_superseded(records, membership, clock))
        self._watching.add_done_callback(self._superseded)
        log.info("joined the cluster", node=membership.me.instance, incarnation=self.owner)
        return membership, await cluster_secret(records, clock)

    @property
    def instance(self) -> int:
        """This node's instance id."""
        return self.membership.me.instance

    def serve(self, topics: Topics) -> ClusterView:
        """Let the tenure hand these topics over. Return the node's view of its cluster."""
        self.tenure.serve(topics.leaders)
        self._view = ClusterView(
            coordinator=self.coordinator,
            membership=self.membership,
            tenure=self.tenure,
            leaders=topics.leaders,
            peers=self._peers,
            signed=self._forwarder.signed,
            records=self.records,
            health=self._health,
            clock=self._clock,
            started_at=self._clock.monotonic(),
        )
        return self._view

    def routed(self, topics: Topics, deadline_s: float) -> Routed:
        """Return the binding of handlers to the leaders of topics."""
        states = topics.leaders.states

        def leads(topic: TopicId) -> bool:
            state = states.get(topic)
            return state is not None and state.leader is not None

        self.routing = routing = Routing(
            self.tenure,
            self._forwarder,
            self._clock,
            self._metrics,
            me=self.membership.me,
            leads=leads,
        )
        routing.pause = self.tenure.pause
        return Routed(routing, self._receiving, topics, deadline_s=deadline_s)

    def failure(self) -> str | None:
        """Return why this node should get no requests; None if it should."""
        if self._is_skewed:
            return f"its clock is {self._skew_ms} ms off the storage's (clock_skew)"
        if self.coordinator.contact is Contact.LOST:
            return "its session with ZooKeeper is over"
        return self._stores.failure()

    # Called by the parts.

    def _call_ended(self, ended: CallOutcome) -> None:
        self._health.ended(ended.kind, ended.message)
        self._metrics.called(ended.call, ended.kind, ended.seconds)

    def _superseded(self, watching: asyncio.Future[str]) -> None:
        if watching.cancelled():
            return
        error = watching.exception()
        # Without certainty about its instance id, this node must not make message ids.
        self._stop(watching.result() if error is None else f"its claim can't be read: {error}")

    def _stop(self, reason: str) -> None:
        if not self.stopped.done():
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
        nodes = sorted(self.membership.members.nodes.items())
        others = [node for instance, node in nodes if instance != self.instance]
        return await clocks_of(others, self._view.ask, self._clock)

    # The end.

    async def leave(self, seconds: float, *, waits_s: float) -> None:
        """Hand over every topic, within ``seconds``. The node still forwards, and waits for leaders for ``waits_s``.

        The only member leads on until its topics are closed: there is no other node for its requests.
        """
        self.routing.waits_until = self._clock.monotonic() + waits_s
        if self._leaving is not None:
            await asyncio.wait((self._leaving,), timeout=seconds)
        elif len(self.membership.members.nodes) > 1:
            await self._leave(seconds)

    async def _leave(self, seconds: float) -> None:
        deadline = self._clock.monotonic() + seconds
        announcing = asyncio.ensure_future(self.membership.announce(draining=True))
        handed_over = await self.tenure.leave(seconds)
        await asyncio.wait((announcing,), timeout=max(deadline - self._clock.monotonic(), 0))
        if not handed_over:
            log.warning("not all topics were handed over", seconds=seconds)

    async def close(self) -> None:
        """Leave the cluster and close all parts that were opened."""
        if self._watching is not None:
            self._watching.cancel()
        await self._ends.aclose()

    async def _release(self) -> None:
        """Release leases and membership, if ZooKeeper answers in time."""

        async def release() -> None:
            await self.tenure.close()
            await self.membership.leave()

        releasing = asyncio.ensure_future(release())
        await asyncio.wait((releasing,), timeout=RELEASE_S)
        if releasing.done():
            releasing.result()
            return
        log.warning("left without releasing leases: ZooKeeper does not answer", seconds=RELEASE_S)
        releasing.cancel()
        await asyncio.wait((releasing,))


# Two clocks differ at least by the distance of the other node's time from the interval between the request and the answer,
# as with a write to storage.


async def clocks_of(others: Iterable[NodeInfo], ask: Ask, clock: Clock) -> Sequence[Written]:
    """Return the clocks of the nodes that answer. This asks at most CLOCKS_MAX nodes, all at once."""
    asked = [_clock_of(node, ask, clock) for node in islice(others, CLOCKS_MAX)]
    return [answer for answer in await asyncio.gather(*asked) if answer is not None]


async def _clock_of(node: NodeInfo, ask: Ask, clock: Clock) -> Written | None:
    sent = read_clock(clock)
    view = (await ask_report(node, ask, CLOCK_S_MAX)).view
    now_ms = None if view is None else view.get("now_ms")
    return Written(sent, now_ms, clock.now_ms()) if isinstance(now_ms, int) else None


def _new_secret() -> str:
    """Return a new secret."""
    return secrets.token_hex(SECRET_BYTES)


async def cluster_secret(records: RecordStore, clock: Clock) -> str:
    """Return the cluster's secret, and create it if there is none. All nodes get the same.

    Raises:
        Unavailable: the record store does not answer.
        StorageCorrupt: the record has no valid secret.
    """
    for _ in range(TRIES_MAX):
        found = await records.get(SECRET_KEY)
        if found is not None:
            if not _FORM.fullmatch(found.value):
                raise StorageCorrupt(f"The record {SECRET_KEY.decode()} has no valid secret.")
            return found.value.decode("ascii")
        try:
            await records.put_if(SECRET_KEY, None, _new_secret().encode("ascii"))
        except OutcomeUnknown:
            await clock.sleep(PAUSE_S)
        # Another node may have been first, so read the stored secret.
    raise Unavailable("The cluster's secret can't be written.")
