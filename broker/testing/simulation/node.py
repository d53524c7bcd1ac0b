"""One machine of a simulated cluster and the node on it: the shipped one, in process after process.

A ``Machine`` stays; each start makes a process with a new ``Node``, wired by broker/node/node.py over servers in
memory. A supervisor starts it again when it has ended, as an init system does, unless a fault keeps it down.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from typing_extensions import override

from broker.api.cluster import ClusterView
from broker.clock import Clock
from broker.config.sections import Config
from broker.coordination.coordinator import TreeCoordinator
from broker.coordination.memory import MemoryCoordination
from broker.coordination.ports import Contact, InstanceTaken
from broker.errors import BrokerError
from broker.metrics import Metrics
from broker.model import TopicId
from broker.node.cluster import InCluster, Stores
from broker.node.node import Node
from broker.routing.nodeheaders import PROTOCOL
from broker.storage.call_health import CallOutcome
from broker.storage.hold import PageBounds
from broker.storage.log import Logs
from broker.storage.memory.adversary import AdversaryTable
from broker.storage.records import Records
from broker.testing.simulation.hosts import SimulatedProcess
from broker.testing.simulation.machine_clocks import MachineWall, ProcessClock
from broker.testing.simulation.network import Network
from broker.testing.simulation.storage_way import LinkedTable, StorageWay
from broker.topics.topics import Topics

PORT: Final = 8080
RESTART_S: Final = 1.0
"""How soon the supervisor starts a node again that has ended by itself."""
HEARS_S: Final = 0.03
"""How long after a pause a node learns that its session is over."""


@dataclass(slots=True)
class SharedGround:
    """What all machines share."""

    network: Network
    coordination: MemoryCoordination
    table: AdversaryTable
    bounds: PageBounds
    call_s: float = 25.0
    lives: int = 0
    ended: list[str] = field(default_factory=list)
    """Why nodes ended by themselves."""


class SimServers:
    """The servers that one process connects to. It has one session at a time."""

    def __init__(self, ground: SharedGround, way: StorageWay, clock: Clock, protocol: int) -> None:
        """Reach storage by ``way``."""
        self.protocol = protocol
        self.session: TreeCoordinator | None = None
        self._ground = ground
        self._way = way
        self._clock = clock

    async def stores(self, told: Callable[[CallOutcome], None]) -> Stores:
        """Open the stores."""
        ground = self._ground
        table = LinkedTable(ground.table, self._way, told)
        logs = Logs(table, self._clock, bounds=ground.bounds, call_s=ground.call_s)
        return Stores(logs, Records(logs.resolver), table.close)

    async def coordinator(self) -> TreeCoordinator:
        """Begin a session."""
        self.session = self._ground.coordination.session()
        return self.session


class SimGround(InCluster):
    """A node's ground, which lets others see what the node leads."""

    topics: Topics | None = None

    @override
    def serve(self, topics: Topics) -> ClusterView:
        """Take note of what is led."""
        self.topics = topics
        return super().serve(topics)


class Machine:
    """A machine on which one node runs, or does not.

    Attributes:
        url: where its node listens.
        wall: its clock.
        way: its way to storage.
        protocol: what its next process says that it speaks.
    """

    def __init__(
        self, number: int, ground: SharedGround, config: Config, wall: MachineWall
    ) -> None:
        """Be there, with nothing started."""
        self.number = number
        self.name = f"node-{number}"
        self.address = f"10.0.0.{number + 1}"
        self.url = f"http://{self.address}:{PORT}"
        self.config = config
        self.wall = wall
        self.way = StorageWay()
        self.protocol = PROTOCOL
        self.process: SimulatedProcess | None = None
        self.node: Node | None = None
        self.servers: SimServers | None = None
        self.below: SimGround | None = None
        """What the node stands on."""
        self._ground = ground
        self.serving: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._term: asyncio.Event | None = None
        self._wanted = False
        ground.network.name(self.address, self.name)

    @property
    def is_up(self) -> bool:
        """Whether its node has started and goes on."""
        return self.node is not None and self.serving.done() and not self.is_paused

    @property
    def is_alive(self) -> bool:
        """Whether there is a process, be it starting or standing still."""
        return self.process is not None

    @property
    def is_paused(self) -> bool:
        """Whether its process stands still."""
        return self.process is not None and self.process.is_paused

    @property
    def session(self) -> TreeCoordinator | None:
        """The node's session with the coordinator, if it has one by now."""
        return None if self.servers is None else self.servers.session

    @property
    def instance(self) -> int | None:
        """The node's number, once it serves."""
        return None if self.below is None or not self.is_up else self.below.instance

    @property
    def is_skewed(self) -> bool:
        """Whether its node has found that its clock is wrong, and so leads nothing."""
        return self.below is not None and "clock_skew" in (self.below.failure() or "")

    @property
    def topics_led(self) -> list[TopicId]:
        """The topics that its node holds just now, as it believes."""
        if self.below is None or self.below.topics is None or not self.is_up:
            return []
        return sorted(self.below.topics.leaders.epochs())

    # Its way to the coordinator.

    def cut_session(self, ends_s: float | None) -> TreeCoordinator | None:
        """Cut the node off from the coordinator; return its session, if that could be done."""
        session = self.session
        if session is None or self.is_paused or session.contact is not Contact.CONNECTED:
            return None
        self._ground.coordination.suspend(session, session_ends_after_s=ends_s)
        return session

    def mend_session(self, session: TreeCoordinator | None) -> None:
        """Take that back, if the same process still runs."""
        if session is not None and self.session is session:
            self._ground.coordination.resume(session)

    # Starting and ending.

    def start(self) -> None:
        """Start a process, and another whenever it has ended by itself."""
        self._wanted = True
        if self.process is None:
            self._begin()

    def _begin(self) -> None:
        if not self._wanted or self.process is not None:
            return
        ground = self._ground
        ground.lives += 1
        ground.network.start_machine(self.name)
        self.serving = asyncio.get_running_loop().create_future()
        self.process = process = SimulatedProcess(f"{self.name}.{ground.lives}", self.name)
        serving = process.begin(self._serve(process))
        serving.add_done_callback(lambda task: self._ended(process, task))

    async def _serve(self, process: SimulatedProcess) -> None:
        clock = ProcessClock(self.wall)
        self.servers = servers = SimServers(self._ground, self.way, clock, self.protocol)
        self._term = term = asyncio.Event()

        def ground(config: Config, clock: Clock, metrics: Metrics) -> SimGround:
            self.below = SimGround(config, clock, metrics, servers)
            return self.below

        network = self._ground.network
        listen: Callable[[str, int], object] = network.listen
        node = Node(self.config, clock=clock, ground=ground, listen=listen)  # type: ignore[arg-type]
        await node.start()
        self.node = node
        self.serving.set_result(None)
        stopping = asyncio.ensure_future(term.wait())
        await asyncio.wait((stopping, node.stopped), return_when=asyncio.FIRST_COMPLETED)
        if node.stopped.done():
            self._ground.ended.append(f"{process.name}: {node.stopped.result()}")
        await node.stop()

    def _ended(self, process: SimulatedProcess, task: asyncio.Task[None]) -> None:
        """A process has come to its end by itself."""
        if process.is_dead or task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._ground.ended.append(f"{process.name}: {error!r}")
            if not isinstance(error, (BrokerError, InstanceTaken, OSError)):
                raise error
        loop = asyncio.get_running_loop()
        nobody = self._ground.network.context
        loop.call_soon(self._bury, process, False, context=nobody)
        loop.call_later(RESTART_S, self._begin, context=nobody)

    def _bury(self, process: SimulatedProcess, silently: bool) -> None:
        session = self.session
        process.die()
        self._ground.network.stop_process(process, silently=silently)
        if session is not None:
            self._ground.coordination.vanish(session)
        if self.process is process:
            self.process = self.node = self.servers = self.below = None
            self.serving = asyncio.get_running_loop().create_future()

    def kill(self, *, silently: bool = False) -> None:
        """End the process where it is; ``silently``: with its machine. Nothing starts by itself."""
        self._wanted = False
        if self.process is not None:
            self._bury(self.process, silently)

    def terminate(self, *, again: bool = True) -> None:
        """Ask the node to stop in good order; it is started ``again`` afterwards, or not."""
        self._wanted = again
        if self._term is not None and self.process is not None:
            self._term.set()

    def pause(self) -> None:
        """Let the process stand still."""
        if self.process is not None and not self.process.is_paused:
            self.process.pause()
            if self.session is not None:
                self._ground.coordination.deafen(self.session)

    def resume(self) -> None:
        """Let it go on."""
        process, session = self.process, self.session
        if process is None or not process.is_paused:
            return
        process.resume()

        def hear() -> None:
            if session is not None and self.process is process:
                self._ground.coordination.listen(session)

        # What it has missed it learns a moment later, when it may have done something already.
        asyncio.get_running_loop().call_later(HEARS_S, hear)

    async def served(self, seconds: float) -> bool:
        """Return whether the node serves within so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.is_up:  # noqa: ASYNC110 - Time is virtual.
                    await asyncio.sleep(0.05)
        return self.is_up
