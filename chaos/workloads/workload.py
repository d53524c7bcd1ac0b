"""Where a workload runs: the port between workloads and the worlds that they run in.

A **stage** is a cluster seen from outside: addresses, a clock, chance, and a history that is written by
those who ask. Simulation and verifier each build one; the workloads are the same, over the real client::

    simulation   virtual clock, network in memory, one seed ─┐
                                                             ├─ Stage ──> Workload ──> History ──> checkers
    verifier     the machine's clock, sockets, processes ────┘

A workload goes through three phases. In between, and during the second, faults happen; before the third
everything is healed::

    prepare   topics are created
    run       processes ask and note what they were told, until ``stop`` is set
    finish    every topic is read to its end through every node

A **process** is a name under which one thing is done at a time. What a workload does is up to
``stage.chance`` and ``stage.clock`` alone, so that a run in virtual time can be repeated.
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
    """How much happens.

    Attributes:
        topics: how many topics a workload uses.
        publishers: publishing processes of each topic.
        consumers: reading processes of each topic; each is of another kind, as far as there are kinds.
        messages_max: messages of one request.
        padded: whether payloads have many sizes, up to 70 kB (see ``drivers.expand``).
        page_messages_max: messages of one page of a read.
        pause_s: the mean pause of a process between two operations.
        wait_s: how long a poll waits for a first message.
        deadline_s: how long a client tries one call.
        again_s: the pause before the last reads look again at a log that may still move.
        final_s: how long they may go on asking a cluster that is healed.
        ttl_s: the lifetime of messages that are to expire while the workload runs.
        transaction_s: the longest life of a transaction before the service calls it invalid.
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
"""For virtual time, in which every request costs and waiting is free."""

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
    """HBase and ZooKeeper below the nodes, for workloads that use them without a node."""

    @property
    def gateways(self) -> Sequence[str]:
        """The addresses of HBase's Thrift-2 gateways."""

    @property
    def zookeepers(self) -> Sequence[str]:
        """The addresses of ZooKeeper."""

    async def begin(
        self, given: Mapping[str, Any], halted: Callable[[str], None]
    ) -> Mapping[str, Path]:
        """Start processes that process a rowlog, which faults hit as they hit nodes.

        Args:
            given: what each is told (rowlog_worker.py), but for how it reaches HBase and ZooKeeper.
            halted: called from any thread with the name of one that was killed, stopped, or has ended.

        Returns:
            By name the file in which each tells what it does. Raises ServerFailed.
        """

    async def end(self) -> None:
        """End these processes."""


class WorkloadStage(Protocol):
    """A cluster, and what is needed to ask it and to tell of it."""

    @property
    def history(self) -> History:
        """Where processes tell what they asked, and what they were told."""

    @property
    def chance(self) -> random.Random:
        """Where all draws come from."""

    @property
    def clock(self) -> Clock:
        """The clock of those who ask; never that of a node."""

    @property
    def nodes(self) -> Sequence[str]:
        """The addresses of the nodes."""

    @property
    def scale(self) -> Scale:
        """How much happens."""

    @property
    def beneath(self) -> Beneath | None:
        """The HBase and ZooKeeper below the nodes; None where they can't be used."""

    def client(self, process: str, *, node: str | None = None, **settings: Any) -> Client:
        """Return a new client, which the caller closes.

        Args:
            process: for whom; a fault may hit one process's connections alone.
            node: stay with the node at this address, whoever leads; by default all addresses are
                given, and leaders are followed.
            settings: single settings of the client by name.
        """


class Workload(Protocol):
    """What applications do to a cluster."""

    @property
    def name(self) -> str:
        """Its name in ``REGISTRY``."""

    async def prepare(self, stage: WorkloadStage) -> None:
        """Create what is needed, before any fault. Raises BrokerError."""

    async def run(self, stage: WorkloadStage, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set, then let what is under way end; cancelled, end at once."""

    async def finish(self, stage: WorkloadStage) -> None:
        """Read everything through every node, after healing. What can't be read is in the history."""


REGISTRY: Final[dict[str, Callable[[], Workload]]] = {}
"""The workloads by name; filled by the package's ``__init__``."""
