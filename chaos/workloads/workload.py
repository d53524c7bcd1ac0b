"""The port between a workload and its surroundings: the simulation, or a real cluster.

The surroundings are a cluster seen from outside: addresses, a clock, a random generator, and a history that the
processes write. The simulation and the verifier each build them. The workloads are the same, and use the
real client::

    simulation   virtual clock, network in memory, one seed ─┐
                                                             ├─ surroundings ──> Workload ──> History ──> checkers
    verifier     the machine's clock, sockets, processes ────┘

A workload has three phases. Faults happen during the second phase. They are healed before the third::

    prepare   create the topics
    run       make calls and record their answers, until ``stop`` is set
    finish    read every topic to its end through every node

A **process** is a name that makes one call at a time. A workload's behaviour depends only on
``around.chance`` and ``around.clock``, so a run in virtual time can be repeated.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from broker.client import Client
from broker.clock import Clock
from chaos.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The amount of work of a workload.

    Attributes:
        topics: the number of topics.
        publishers: the number of publishing processes of each topic.
        consumers: the number of reading processes of each topic; they take the kinds in turn.
        messages_max: the most messages in one request.
        padded: True for payloads of many sizes, up to 70 kB (see ``labels.expand``).
        page_messages_max: the most messages in one page of a read.
        pause_s: the mean pause of a process between two operations.
        wait_s: how long a poll waits for a first message.
        deadline_s: how long a client tries one call.
        again_s: the pause before the final reads repeat a read of a log that may still change.
        final_s: how long the final reads may repeat their requests after healing.
        ttl_s: the ``ttl`` of messages that expire while the workload runs.
        transaction_s: the longest life of a transaction; after it, the service makes it invalid.
    """

    topics: int = 1
    publishers: int = 5
    consumers: int = 6
    messages_max: int = 4
    padded: bool = False
    page_messages_max: int = 100
    pause_s: float = 1.0
    wait_s: float = 5.0
    deadline_s: float = 20.0
    again_s: float = 1.0
    final_s: float = 120.0
    ttl_s: int = 30
    transaction_s: float = 20.0


SIMULATED: Final = Scale()
"""For virtual time: requests take real time, and waiting takes none."""

REAL: Final = Scale(
    topics=2,
    messages_max=5,
    padded=True,
    page_messages_max=1000,
    pause_s=0.1,
    wait_s=2.0,
    ttl_s=20,
)
"""For a cluster of real processes."""


class Beneath(Protocol):
    """The HBase and ZooKeeper of the nodes, for workloads that use them directly."""

    @property
    def gateways(self) -> Sequence[str]:
        """Return the addresses of HBase's Thrift-2 gateways."""

    @property
    def zookeepers(self) -> Sequence[str]:
        """Return the addresses of ZooKeeper."""

    async def begin(
        self, given: Mapping[str, Any], halted: Callable[[str], None]
    ) -> Mapping[str, Path]:
        """Start the worker processes of a rowlog. Faults hit them as they hit nodes.

        Args:
            given: the settings of each worker (``rowlog_worker``), without the addresses of HBase and
                ZooKeeper.
            halted: called from any thread with the name of a worker that was killed, stopped, or has ended.

        Returns:
            The file in which each worker logs its events, by its name. Raises ServerFailed.
        """

    async def end(self) -> None:
        """End the worker processes."""


class WorkloadSurroundings(Protocol):
    """A cluster, and the means to call it and to record the calls."""

    @property
    def history(self) -> History:
        """Return the history that the processes write."""

    @property
    def chance(self) -> random.Random:
        """Return the source of all random choices."""

    @property
    def clock(self) -> Clock:
        """Return the clock of the clients. It is not a node's clock."""

    @property
    def nodes(self) -> Sequence[str]:
        """Return the addresses of the nodes."""

    @property
    def scale(self) -> Scale:
        """Return the amount of work."""

    @property
    def beneath(self) -> Beneath | None:
        """Return the HBase and ZooKeeper of the nodes; None if workloads can't use them."""

    def client(self, process: str, *, node: str | None = None, **settings: Any) -> Client:
        """Return a new client, which the caller closes.

        Args:
            process: the process that uses it; a fault may hit the connections of one process.
            node: the address of the only node to use. By default, the client gets all addresses and
                follows the leaders.
            settings: settings of the client, by name.
        """


class Workload(Protocol):
    """The requests of applications to a cluster."""

    @property
    def name(self) -> str:
        """Return its name in ``REGISTRY``."""

    async def prepare(self, around: WorkloadSurroundings) -> None:
        """Create the topics, before any fault. Raises BrokerError."""

    async def run(self, around: WorkloadSurroundings, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set, then finish the calls in flight. End at once if cancelled."""

    async def finish(self, around: WorkloadSurroundings) -> None:
        """Read everything through every node, after healing. The history records failed reads."""


REGISTRY: Final[dict[str, Callable[[], Workload]]] = {}
"""The workloads by name. The package's ``__init__`` fills it."""
