"""The target: the cluster under test, as nemeses and cases see it.

A target has **abilities**: the faults that it allows. A cluster that the verifier starts has all abilities
that this machine allows. A cluster given by its addresses has only those of its hooks. A call without its
ability raises ``Unable``. The run leaves a nemesis out if the target lacks an ability that it needs.

Processes have names: ``broker-1``, ``zookeeper-1``, ``hbase-master``, ``hbase-regionserver-1``, ``thrift-1``.
Nemeses name nodes. Clients use ``urls``, one for each node in the order of ``nodes``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Final

from broker.client import BrokerError, Client, admin
from broker.client.client_request import ClientRequest
from broker.local import ProcessKind
from broker.model import TopicId
from chaos.clocks import ClockOffsets
from chaos.links import Links, Pair
from chaos.packets import Packets
from chaos.workloads.workload import Beneath

ADMIN_DEADLINE_S: Final = 10.0
ANSWER_S: Final = 2.0
OWN_STATUS: Final = "/v1/cluster/node"


class Unable(Exception):
    """The target lacks the ability for this call; the text says why."""


class Ability(enum.StrEnum):
    """Kinds of faults that a target may allow."""

    KILL = "kill"
    """Nodes can be killed and started."""
    PAUSE = "pause"
    """Nodes can be paused and resumed."""
    LINKS = "links"
    """There is a proxy between every pair of processes."""
    PACKETS = "packets"
    """Packets on the way to a proxy can be dropped."""
    CLOCKS = "clocks"
    """Each node has a wall clock that can be set."""
    ZOOKEEPER = "zookeeper"
    """ZooKeeper's processes can be killed, started and queried; sessions can be ended by id."""
    OWN_ZOOKEEPER = "own-zookeeper"
    """HBase uses a different ZooKeeper, so the nodes' ZooKeeper can lose its data."""
    HBASE = "hbase"
    """HBase's region servers and gateways are processes that can be killed and started."""
    SPARE = "spare"
    """One more node can join."""
    FILES = "files"
    """The files of a standalone broker can be cut and changed."""
    SMALL_DISK = "small-disk"
    """The disk of a standalone broker can be filled."""


class Target:
    """A cluster under test. This base class has no abilities; it can only query the cluster.

    Attributes:
        nodes: The names of the nodes.
        urls: Their addresses for clients, in the same order.
        session_s: ZooKeeper's time-out of the nodes' sessions.
        abilities: The abilities of this target.
        missing: The reasons for missing abilities.
        beneath: The HBase and ZooKeeper of the nodes, for workloads that use them; None if workloads
            can't reach them.
        client_settings: Settings of each client, such as the file of its token.
    """

    def __init__(self, nodes: Sequence[str], urls: Sequence[str], *, session_s: float) -> None:
        self.nodes = tuple(nodes)
        self.urls = tuple(urls)
        self.session_s = session_s
        self.abilities: set[Ability] = set()
        self.beneath: Beneath | None = None
        self.client_settings: dict[str, Any] = {}
        alone = "only a standalone broker allows this: --standalone"
        self.missing = {Ability.FILES: alone, Ability.SMALL_DISK: alone}
        # A target on this machine sets these when it starts.
        self._links: Links | None = None
        self._packets: Packets | None = None
        self._clocks: ClockOffsets | None = None

    # Queries.

    def url(self, node: str) -> str:
        """Return the address of a node, for clients."""
        return self.urls[self.nodes.index(node)]

    def node_at(self, url: str) -> str | None:
        """Return the name of the node that advertises an address."""
        return self.nodes[self.urls.index(url)] if url in self.urls else None

    def client(self, *, node: str | None = None, **settings: Any) -> Client:
        """Return a client for administration, of all nodes or of one. The caller closes it."""
        urls = list(self.urls) if node is None else [self.url(node)]
        known = {"deadline_s": ADMIN_DEADLINE_S, "connect_timeout_s": 2.0, **self.client_settings}
        given = {**known, **settings}
        return Client(urls, follow_leaders=node is None, coalesce=False, **given)

    async def status(self) -> list[dict[str, Any]]:
        """Return the status of all nodes, from the first node that answers. Raises BrokerError."""
        async with self.client() as client:
            told = await client.ask(admin.status(with_topics=True))
        views: list[dict[str, Any]] = told["nodes"]
        return views

    async def incarnation(self, node: str) -> str | None:
        """Return the incarnation that a node tells its clients; None if it does not answer."""
        asked = ClientRequest("GET", OWN_STATUS, {}, reading=True, repeatable=True)
        try:
            async with self.client(node=node, deadline_s=ANSWER_S) as client:
                told: str = (await client.ask(asked))["incarnation"]
        except BrokerError:
            return None
        return told

    async def topics(self) -> list[str]:
        """Return the topics that have a leader now, and that faults may hit. Raises BrokerError."""
        views = [row["view"] for row in await self.status() if row["view"]]
        return sorted({one["topic"] for view in views for one in view["topics"]})

    async def pin(self, topic: str, node: str | None) -> None:
        """Pin a topic to a node; unpin it for None. Raises BrokerError."""
        identifier = TopicId(*topic.split("/", 1))
        async with self.client() as client:
            if node is None:
                await client.ask(admin.unpin(identifier))
            else:
                await client.ask(admin.pin(identifier, self.url(node)))

    def state(self) -> str:
        """Return the states of all processes, for the message of a time-out."""
        return "the verifier did not start this cluster"

    # Faults.

    @property
    def links(self) -> Links:
        """Return the proxies between all pairs of processes. Raises Unable."""
        if self._links is None:
            raise self._unable(Ability.LINKS)
        return self._links

    @property
    def packets(self) -> Packets:
        """Return the control of packet loss. Raises Unable."""
        if self._packets is None:
            raise self._unable(Ability.PACKETS)
        return self._packets

    @property
    def clocks(self) -> ClockOffsets:
        """Return the wall clocks of the nodes. Raises Unable."""
        if self._clocks is None:
            raise self._unable(Ability.CLOCKS)
        return self._clocks

    def processes(self, kind: ProcessKind) -> tuple[str, ...]:
        """Return the names of the processes of a kind that the target can control."""
        return self.nodes if kind is ProcessKind.BROKER else ()

    def is_running(self, name: str) -> bool:
        """Return True if a process lives, also while it is paused. Raises Unable."""
        raise self._unable(Ability.KILL)

    def alive(self) -> list[str]:
        """Return the names of the living nodes. Raises Unable."""
        return [node for node in self.nodes if self.is_running(node)]

    def victims(self) -> list[str]:
        """Return the names of the living nodes and rowlog processors. Raises Unable."""
        processes = (*self.nodes, *self.processes(ProcessKind.PROCESSOR))
        return [name for name in processes if self.is_running(name)]

    def ends_of(self, pair: Pair) -> list[str]:
        """Return the names of the nodes and rowlog processors with links of a kind. Raises Unable."""
        processes = (*self.nodes, *self.processes(ProcessKind.PROCESSOR))
        return [name for name in processes if self.links.around(name, pair)]

    async def kill(self, name: str) -> None:
        """End a process as a crash would. Raises Unable."""
        raise self._unable(Ability.KILL)

    async def stop(self, name: str) -> int | None:
        """End a process cleanly; return its exit code. Raises Unable."""
        raise self._unable(Ability.KILL)

    async def start(self, name: str) -> None:
        """Start a process and return when it serves. Raises Unable, ServerFailed."""
        raise self._unable(Ability.KILL)

    async def pause(self, name: str) -> None:
        """Pause a process; its connections stay open, and it does not answer. Raises Unable."""
        raise self._unable(Ability.PAUSE)

    async def resume(self, name: str) -> None:
        """Resume a paused process. Raises Unable."""
        raise self._unable(Ability.PAUSE)

    async def zookeeper_leader(self) -> str | None:
        """Return the name of the leading ZooKeeper; None while there is none. Raises Unable."""
        raise self._unable(Ability.ZOOKEEPER)

    async def expire_session(self, node: str) -> int | None:
        """End a node's ZooKeeper session, as if it had expired.

        Returns:
            The session's id, or None if the node does not tell it. Raises Unable.
        """
        raise self._unable(Ability.ZOOKEEPER)

    async def wipe_zookeeper(self) -> None:
        """Kill the nodes' ZooKeeper, delete its data, and start it empty. Raises Unable."""
        raise self._unable(Ability.OWN_ZOOKEEPER)

    async def move_regions(self, region_server: str) -> int:
        """Move the regions of one of HBase's region servers to the others, while all of them serve.

        Returns:
            The number of moved regions. Raises Unable, ServerFailed.
        """
        raise self._unable(Ability.HBASE)

    async def start_spare(self, environment: Mapping[str, str]) -> str:
        """Start the spare node with additional environment variables; return its name when it serves.

        Raises:
            Unable: There is no spare node, or it runs already.
            ServerFailed: It did not start; the message has the end of its log.
        """
        raise self._unable(Ability.SPARE)

    async def revive(self) -> list[str]:
        """Start ended processes, and restart nodes that need it, as a supervisor would; don't wait.

        Returns:
            One line for each started process.
        """
        return []

    async def release(self) -> list[str]:
        """Undo the faults that would outlast the verifier, without waiting until all nodes serve.

        Returns:
            One line for each repair. Raises ServerFailed after all repairs if one of them failed.
        """
        return []

    async def mend(self) -> list[str]:
        """Undo all remaining faults, start ended processes, and wait until all nodes serve.

        Returns:
            One line for each repair. Raises TimeoutError with the states of the processes.
        """
        return []

    def _unable(self, ability: Ability) -> Unable:
        reason = self.missing.get(ability, "it was not started with it")
        return Unable(f"this cluster has no {ability.value!r}: {reason}")
