"""A whole cluster in this process: machines, storage, a coordinator, clients, and faults.

This project's tests run seeded workloads and faults in it::

    ┌ client "p0" ┐   ┌ node-0 ┐ ┌ node-1 ┐ ┌ node-2 ┐
    └──────┬──────┘   └─┬────┬─┘ └─┬────┬─┘ └─┬────┬─┘
      ═════╧════════════╧════╪═════╧════╪═════╧════╪══   network: delays, cuts, resets
                             └──────────┴──────────┴──   storage with its adversary, coordinator
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from broker.client import Client
from broker.client.values import Settings
from broker.config.sections import (
    AccessConfig,
    AccessMode,
    ClusterConfig,
    Config,
    HBaseConfig,
    ServerConfig,
)
from broker.coordination.memory import MemoryCoordination
from broker.model import TopicId
from broker.storage.log import Logs
from broker.storage.memory.adversary import CALM, AdversaryTable, Bias
from broker.storage.memory.table import MemoryTable
from broker.storage.ownpage import PageBounds
from broker.storage.records import Records
from broker.testing.simulation.client import Repeater, placed_client
from broker.testing.simulation.layers import Layers
from broker.testing.simulation.loop import SimLoop
from broker.testing.simulation.machine_clocks import MachineWall
from broker.testing.simulation.network import Network
from broker.testing.simulation.node import PORT, Machine, SharedParts
from broker.testing.virtual_time import VirtualClock

ASK_S: Final = 0.002
STARTED_S: Final = 30.0
COMPARED_S: Final = 5.0
"""Within this a comparison of clocks that began before ``heal`` has ended."""
PAGES: Final = PageBounds(bytes_max=16_384, cells_max=64)
"""Small enough that leaders roll now and then."""


class SimCluster:
    """The cluster. Make it inside a running ``SimLoop``.

    Attributes:
        machines: the machines of the nodes, by number.
        clients: the names of the client processes so far.
    """

    def __init__(
        self,
        *,
        nodes: int = 3,
        seed: int | str = 0,
        bias: Bias = CALM,
        deadline_s: float = 20.0,
        settings: Mapping[str, Any] | None = None,
        bounds: PageBounds = PAGES,
    ) -> None:
        """Make ``nodes`` machines, without running processes. All random numbers come from ``seed``.

        ``settings`` are sections of the nodes' configuration, by name. ``bounds`` are the limits of a full page.
        ``deadline_s`` is how long a client tries one call.
        """
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop), "a simulated cluster needs its own loop"
        self.loop = loop
        self.clock = VirtualClock(loop)
        self._deadline_s = deadline_s
        self.coordination = MemoryCoordination(self.clock)
        self.coordination.delay_s = ASK_S
        self.coordination.notification_delay_s = ASK_S
        stored = MemoryTable(server_ms=self.clock.now_ms, is_alone=False)
        self.table = AdversaryTable(loop, random.Random(f"{seed}/storage"), bias, stored)
        self.records = Records(Logs(stored, self.clock).resolver)
        """The record store itself, without faults: for checks and for an operator's changes."""
        self._bias = bias
        self._spoilt = Layers[Callable[[Bias], Bias]]()
        self.shared = SharedParts(self.network, self.coordination, self.table, bounds)
        self._settings = settings or {}
        self.machines = [self._made(number, None) for number in range(nodes)]
        self.others: list[Machine] = []
        """Machines that faults have added."""
        self.clients: dict[str, None] = {}
        self.is_out = False
        """True while the coordinator is out."""
        self.clock_off_ms_max = 3_600_000.0
        """The largest error that a fault may give to a clock."""
        self.repeater = Repeater(random.Random(f"{seed}/repeater"))

    def _made(self, number: int, instance: int | None) -> Machine:
        config = node_config(f"10.0.0.{number + 1}", instance, **self._settings)
        return Machine(number, self.shared, config, MachineWall(self.loop))

    def add_machine(self, instance: int | None = None) -> Machine:
        """Add a machine, with an instance id if one is given, and return it. No client learns its address."""
        machine = self._made(len(self.machines) + len(self.others), instance)
        self.others.append(machine)
        return machine

    @property
    def up(self) -> list[Machine]:
        """The machines whose nodes serve."""
        return [machine for machine in self.machines if machine.is_up]

    def topics(self) -> list[TopicId]:
        """Return the topics that any node believes it leads."""
        led = (topic for machine in self.machines for topic in machine.topics_led)
        return sorted(set(led))

    @property
    def network(self) -> Network:
        """The network between all machines."""
        return self.loop.network

    @property
    def nodes(self) -> Sequence[str]:
        """The addresses of the nodes."""
        return [machine.url for machine in self.machines]

    @property
    def beneath(self) -> None:
        """Always None: no real HBase is below the simulated nodes."""

    def client(self, process: str, *, node: str | None = None, **settings: Any) -> Client:
        """Return a new client of a process. With ``node`` it uses only the node at this address."""
        self.clients[process] = None
        urls = ",".join(self.nodes) if node is None else node
        known = Settings(
            url=urls, follow_leaders=node is None, deadline_s=self._deadline_s
        ).changed(None, settings)
        return placed_client(self.network, process, known, self.repeater)

    async def start(self) -> None:
        """Start all nodes, and wait until they serve."""
        for machine in self.machines:
            machine.start()
        for machine in self.machines:
            assert await machine.served(STARTED_S), f"{machine.name}: {self.shared.ended}"

    def spoil_storage(self, change: Callable[[Bias], Bias]) -> Callable[[], None]:
        """Change the faults of storage, until the caller calls the returned function.

        Several changes apply one after the other, in the order of the calls.
        """
        take_back = self._spoilt.add(change)
        self._misbehave()

        def mend() -> None:
            take_back()
            self._misbehave()

        return mend

    def _misbehave(self) -> None:
        bias = self._bias
        for change in self._spoilt.all:
            bias = change(bias)
        self.table.bias = bias

    def heal(self) -> None:
        """End all faults."""
        self._bias = CALM
        self._spoilt.clear()
        self.table.heal()
        self.network.heal()
        self.repeater.heal()
        if self.is_out:
            self.is_out = False
            self.coordination.recover()
        for machine in self.others:
            machine.kill()
        for machine in self.machines:
            machine.way.heal()
            machine.wall.mend()
            machine.resume()
            machine.start()
        self._restart_skewed()
        self.loop.call_later(COMPARED_S, self._restart_skewed)

    def _restart_skewed(self) -> None:
        """Restart the nodes that found their clock wrong, as an operator does after mending it."""
        for machine in self.machines:
            if machine.is_skewed:
                machine.terminate()


def node_config(host: str, instance: int | None = None, **sections: Any) -> Config:
    """Return the configuration of a simulated node; ``sections`` replace whole sections."""
    sections.setdefault("access", AccessConfig(access_mode=AccessMode.OPEN))
    return Config(
        server=ServerConfig(host=host, port=PORT),
        cluster=ClusterConfig(zookeeper_hosts=("coordinator:2181",), instance_id=instance),
        hbase=HBaseConfig(hbase_gateways=("storage:9090",)),
        **sections,
    )
