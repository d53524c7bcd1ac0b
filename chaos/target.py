"""The cluster under test, as nemeses and scenarios see it.

A target says what can be done to it: its **abilities**. A cluster that was started for the occasion has
all that this machine allows; one that was given by its addresses has only what its hooks allow. What a
target can't do raises ``Unable``, and a nemesis that needs it is left out, by name.

Processes have names: ``broker-1``, ``zookeeper-1``, ``hbase-master``, ``hbase-regionserver-1``, ``thrift-1``.
Nodes are addressed by name; clients use ``urls``, one for each node in the order of ``nodes``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Final

from broker.client import BrokerError, Client, Leader, admin
from broker.local import ProcessKind
from broker.model import TopicId
from chaos.clocks import ClockOffsets
from chaos.links import Links, Pair
from chaos.packets import Packets
from chaos.workloads.workload import Beneath

ADMIN_DEADLINE_S: Final = 10.0


class Unable(Exception):
    """This target has no way to do that; the text says what is missing."""


class Ability(enum.StrEnum):
    """What can be done to a target."""

    KILL = "kill"
    """Nodes can be killed and started."""
    PAUSE = "pause"
    """Nodes can be frozen and woken."""
    LINKS = "links"
    """There is a proxy between every pair."""
    PACKETS = "packets"
    """Packets on the way to a proxy can be dropped."""
    CLOCKS = "clocks"
    """Each node has a wall clock that can be set."""
    ZOOKEEPER = "zookeeper"
    """ZooKeeper's processes can be killed and started, and asked; sessions can be ended by id."""
    ENSEMBLE = "ensemble"
    """There are several ZooKeepers, one of which leads."""
    OWN_ZOOKEEPER = "own-zookeeper"
    """HBase uses another ZooKeeper, so that of the nodes can lose its data."""
    HBASE = "hbase"
    """HBase's region servers and gateways are processes that can be killed and started."""
    SPARE = "spare"
    """A node can be added."""
    FILES = "files"
    """The files of a standalone broker can be cut and changed."""
    SMALL_DISK = "small-disk"
    """The disk of a standalone broker can be filled."""


class Target:
    """A cluster under test; by itself it can only be asked.

    Attributes:
        nodes: The names of the nodes.
        urls: Where clients reach them, in the same order.
        session_s: ZooKeeper's time-out of the nodes' sessions.
        abilities: What can be done to it.
        missing: Why some things can't be done here, by ability.
        beneath: The HBase and ZooKeeper below the nodes, for workloads that use them; None where they can't be reached.
    """

    def __init__(self, nodes: Sequence[str], urls: Sequence[str], *, session_s: float) -> None:
        self.nodes = tuple(nodes)
        self.urls = tuple(urls)
        self.session_s = session_s
        self.abilities: set[Ability] = set()
        self.beneath: Beneath | None = None
        alone = "only a standalone broker has them: --standalone"
        self.missing = {Ability.FILES: alone, Ability.SMALL_DISK: alone}
        # What a target of this machine has, once it is started.
        self._links: Links | None = None
        self._packets: Packets | None = None
        self._clocks: ClockOffsets | None = None

    # Asked.

    def url(self, node: str) -> str:
        """Return where clients reach a node."""
        return self.urls[self.nodes.index(node)]

    def node_at(self, url: str) -> str | None:
        """Return the name of the node that advertises an address."""
        return self.nodes[self.urls.index(url)] if url in self.urls else None

    def client(self, *, node: str | None = None, **settings: Any) -> Client:
        """Return a client for administration, which the caller closes; of one node if it is named."""
        urls = list(self.urls) if node is None else [self.url(node)]
        given = {"deadline_s": ADMIN_DEADLINE_S, "connect_timeout_s": 2.0, **settings}
        return Client(urls, follow_leaders=node is None, coalesce=False, **given)

    async def leader(self, topic: str, *, through: str | None = None) -> Leader | None:
        """Return who leads a topic, as all nodes or one of them say; None if nobody says."""
        try:
            async with self.client(node=through) as client:
                return await client.leader(topic)
        except BrokerError:
            return None

    async def status(self) -> list[dict[str, Any]]:
        """Return what the nodes tell of themselves, by the first that answers. Raises BrokerError."""
        async with self.client() as client:
            told = await client.ask(admin.status(with_topics=True))
        views: list[dict[str, Any]] = told["nodes"]
        return views

    async def topics(self) -> list[str]:
        """Return the topics that somebody leads now. Raises BrokerError."""
        views = [row["view"] for row in await self.status() if row["view"]]
        return sorted({one["topic"] for view in views for one in view["topics"]})

    async def pin(self, topic: str, node: str | None) -> None:
        """Let a node lead a topic; None lets any. Raises BrokerError."""
        identifier = TopicId(*topic.split("/", 1))
        async with self.client() as client:
            if node is None:
                await client.ask(admin.unpin(identifier))
            else:
                await client.ask(admin.pin(identifier, self.url(node)))

    def state(self) -> str:
        """Say how every process is: for the message of a wait that took too long."""
        return "a cluster of others"

    # Done to it.

    @property
    def links(self) -> Links:
        """The proxies between every pair. Raises Unable."""
        if self._links is None:
            raise self._unable(Ability.LINKS)
        return self._links

    @property
    def packets(self) -> Packets:
        """What is dropped on the way to proxies and back. Raises Unable."""
        if self._packets is None:
            raise self._unable(Ability.PACKETS)
        return self._packets

    @property
    def clocks(self) -> ClockOffsets:
        """The wall clocks of the nodes. Raises Unable."""
        if self._clocks is None:
            raise self._unable(Ability.CLOCKS)
        return self._clocks

    def processes(self, kind: ProcessKind) -> tuple[str, ...]:
        """Return the names of the processes of a kind, those below the nodes too, that can be reached."""
        return self.nodes if kind is ProcessKind.BROKER else ()

    def is_running(self, name: str) -> bool:
        """Return whether a process lives, also if it is frozen. Raises Unable."""
        raise self._unable(Ability.KILL)

    def alive(self) -> list[str]:
        """Return the names of the nodes that live. Raises Unable."""
        return [node for node in self.nodes if self.is_running(node)]

    def victims(self) -> list[str]:
        """Return the names of the nodes, and of processes of a workload, that live. Raises Unable."""
        processes = (*self.nodes, *self.processes(ProcessKind.PROCESSOR))
        return [name for name in processes if self.is_running(name)]

    def ends_of(self, pair: Pair) -> list[str]:
        """Return the names of the nodes and of processes of a workload that have links of a kind. Raises Unable."""
        processes = (*self.nodes, *self.processes(ProcessKind.PROCESSOR))
        return [name for name in processes if self.links.around(name, pair)]

    async def kill(self, name: str) -> None:
        """End a process as a crash would. Raises Unable."""
        raise self._unable(Ability.KILL)

    async def stop(self, name: str) -> int | None:
        """End a process in good order; return its exit code. Raises Unable."""
        raise self._unable(Ability.KILL)

    async def start(self, name: str) -> None:
        """Start a process and return when it serves. Raises Unable, ServerFailed."""
        raise self._unable(Ability.KILL)

    async def pause(self, name: str) -> None:
        """Freeze a process; its connections stay, nothing answers. Raises Unable."""
        raise self._unable(Ability.PAUSE)

    async def resume(self, name: str) -> None:
        """Let a frozen process go on. Raises Unable."""
        raise self._unable(Ability.PAUSE)

    async def zookeeper_leader(self) -> str | None:
        """Return the ZooKeeper that leads its ensemble, None while there is none. Raises Unable."""
        raise self._unable(Ability.ZOOKEEPER)

    async def expire_session(self, node: str) -> int | None:
        """End a node's session with ZooKeeper, as if it had been silent for too long.

        Returns:
            The session's id, or None if the node tells none. Raises Unable.
        """
        raise self._unable(Ability.ZOOKEEPER)

    async def wipe_zookeeper(self) -> None:
        """Kill the nodes' ZooKeeper, delete its data, and start it empty. Raises Unable."""
        raise self._unable(Ability.OWN_ZOOKEEPER)

    async def move_regions(self, region_server: str) -> int:
        """Move the regions of one of HBase's region servers to the others, while all serve.

        Returns:
            How many were there. Raises Unable, ServerFailed.
        """
        raise self._unable(Ability.HBASE)

    async def start_spare(self, environment: Mapping[str, str]) -> str:
        """Start one more node with further variables; return its name when it serves.

        Raises:
            Unable: There is none.
            ServerFailed: It did not start; the message has the end of its log.
        """
        raise self._unable(Ability.SPARE)

    async def revive(self) -> list[str]:
        """Start what ended by itself, and again what waits for that, as a supervisor would; wait for nothing.

        Returns:
            What was started.
        """
        return []

    async def mend(self) -> list[str]:
        """Undo whatever is still wrong, start what does not run, wait until all nodes serve.

        Returns:
            What had to be done. Raises TimeoutError with the state of what it waited for.
        """
        return []

    def _unable(self, ability: Ability) -> Unable:
        why = self.missing.get(ability, "it was not started for this")
        return Unable(f"this cluster has no {ability.value!r}: {why}")
