"""One machine of a simulated cluster, and the shipped node that runs on it.

A ``Machine`` stays for the whole simulation. Each start makes a process with a new ``Node``, which broker/node/node.py
wires to servers in memory. A supervisor starts the node again when it has ended, as an init system does, unless a
fault keeps it down.
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
from broker.node.ground import Ground, Stores
from broker.node.node import Node
from broker.storage.call_health import CallOutcome
from broker.storage.log import Logs
from broker.storage.memory.adversary import AdversaryTable
from broker.storage.ownpage import PageBounds
from broker.storage.records import Records
from broker.storage.table import Table
from broker.testing.simulation.hosts import SimulatedProcess
from broker.testing.simulation.machine_clocks import MachineWall, ProcessClock
from broker.testing.simulation.network import Network
from broker.testing.simulation.storage_way import LinkedTable, StorageWay
from broker.topics.topics import Topics

PORT: Final = 8080
RESTART_S: Final = 1.0
"""The delay before the supervisor starts a node again that has ended by itself."""
HEARS_S: Final = 0.03
"""The time after a pause until a node learns that its session is over."""


@dataclass(slots=True)
class SharedParts:
    """The parts that all machines share."""

    network: Network
    coordination: MemoryCoordination
    table: AdversaryTable
    bounds: PageBounds
    call_s: float = 25.0
    lives: int = 0
    ended: list[str] = field(default_factory=list)
    """The reasons of nodes that ended by themselves."""


class SimServers:
    """The servers to which one process connects. It has one session at a time."""

    def __init__(self, shared: SharedParts, storage: Table, way: StorageWay, clock: Clock) -> None:
        """Reach ``storage`` by ``way``."""
        self.session: TreeCoordinator | None = None
        self._shared = shared
        self._storage = storage
        self._way = way
        self._clock = clock

    async def stores(self, on_call_end: Callable[[CallOutcome], None]) -> Stores:
        """Open the stores."""
        shared = self._shared
        table = LinkedTable(self._storage, self._way, on_call_end)
        logs = Logs(table, self._clock, bounds=shared.bounds, call_s=shared.call_s)
        return Stores(logs, Records(logs.resolver), table.close)

    async def coordinator(self) -> TreeCoordinator:
        """Start a session."""
        self.session = self._shared.coordination.session()
        return self.session


class SimGround(Ground):
    """The ground of a node, which shows the topics that the node leads."""

    topics: Topics | None = None

    @override
    def serve(self, topics: Topics) -> ClusterView:
        """Keep the topics."""
        self.topics = topics
        return super().serve(topics)


class Machine:
    """A machine for one node, which may run or not.

    Attributes:
        url: the address at which its node listens.
        wall: its wall clock.
        way: its way to storage.
        storage: the storage at the end of this way, for its next process. A test may put a table before it.
    """

    def __init__(self, number: int, shared: SharedParts, config: Config, wall: MachineWall) -> None:
        """Make a machine without a process."""
        self.number = number
        self.name = f"node-{number}"
        self.address = f"10.0.0.{number + 1}"
        self.url = f"{'https' if config.tls.is_on else 'http'}://{self.address}:{PORT}"
        self.config = config
        self.wall = wall
        self.way = StorageWay()
        self.storage: Table = shared.table
        self.process: SimulatedProcess | None = None
        self.node: Node | None = None
        self.servers: SimServers | None = None
        self.ground: SimGround | None = None
        """The node's ground."""
        self._shared = shared
        self.serving: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._term: asyncio.Event | None = None
        self._wanted = False
        shared.network.name(self.address, self.name)

    @property
    def is_up(self) -> bool:
        """Return whether its node serves and is not paused."""
        return self.node is not None and self.serving.done() and not self.is_paused

    @property
    def is_alive(self) -> bool:
        """Return whether there is a process, also if it is starting or paused."""
        return self.process is not None

    @property
    def is_paused(self) -> bool:
        """Return whether its process is paused."""
        return self.process is not None and self.process.is_paused

    @property
    def session(self) -> TreeCoordinator | None:
        """The node's session with the coordinator, if it has one."""
        return None if self.servers is None else self.servers.session

    @property
    def instance(self) -> int | None:
        """The node's instance id, once it serves."""
        return None if self.ground is None or not self.is_up else self.ground.instance

    @property
    def is_skewed(self) -> bool:
        """Return whether its node has found its clock wrong, and so leads no topic."""
        if self.ground is None or self.node is None:
            return False
        return "clock_skew" in (self.ground.failure() or "")

    @property
    def topics_led(self) -> list[TopicId]:
        """The topics that its node believes it leads."""
        if self.ground is None or self.ground.topics is None or not self.is_up:
            return []
        return sorted(self.ground.topics.leaders.epochs())

    # The connection to the coordinator.

    def cut_session(self, ends_s: float | None) -> TreeCoordinator | None:
        """Cut the node off from the coordinator, and return its session; None: it had no connected session."""
        session = self.session
        if session is None or self.is_paused or session.contact is not Contact.CONNECTED:
            return None
        self._shared.coordination.suspend(session, session_ends_after_s=ends_s)
        return session

    def mend_session(self, session: TreeCoordinator | None) -> None:
        """Undo ``cut_session``, if the same process still runs."""
        if session is not None and self.session is session:
            self._shared.coordination.resume(session)

    # Start and end.

    def start(self) -> None:
        """Start a process, and start another one each time a process has ended by itself."""
        self._wanted = True
        if self.process is None:
            self._begin()

    def _begin(self) -> None:
        if not self._wanted or self.process is not None:
            return
        shared = self._shared
        shared.lives += 1
        shared.network.start_machine(self.name)
        self.serving = asyncio.get_running_loop().create_future()
        self.process = process = SimulatedProcess(f"{self.name}.{shared.lives}", self.name)
        serving = process.begin(self._serve(process))
        serving.add_done_callback(lambda task: self._ended(process, task))

    async def _serve(self, process: SimulatedProcess) -> None:
        clock = ProcessClock(self.wall)
        self.servers = servers = SimServers(self._shared, self.storage, self.way, clock)
        self._term = term = asyncio.Event()

        def ground(config: Config, clock: Clock, metrics: Metrics) -> SimGround:
            self.ground = SimGround(config, clock, metrics, servers)
            return self.ground

        network = self._shared.network
        listen: Callable[[str, int], object] = network.listen
        node = Node(self.config, clock=clock, ground=ground, listen=listen)  # type: ignore[arg-type]
        await node.start()
        self.node = node
        self.serving.set_result(None)
        stopping = asyncio.ensure_future(term.wait())
        await asyncio.wait((stopping, node.stopped), return_when=asyncio.FIRST_COMPLETED)
        if node.stopped.done():
            self._shared.ended.append(f"{process.name}: {node.stopped.result()}")
        await node.stop()

    def _ended(self, process: SimulatedProcess, task: asyncio.Task[None]) -> None:
        """Bury a process that has ended by itself, and start another one a moment later."""
        if process.is_dead or task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._shared.ended.append(f"{process.name}: {error!r}")
            if not isinstance(error, (BrokerError, InstanceTaken, OSError)):
                raise error
        loop = asyncio.get_running_loop()
        no_process = self._shared.network.context
        loop.call_soon(self._bury, process, False, context=no_process)
        loop.call_later(RESTART_S, self._begin, context=no_process)

    def _bury(self, process: SimulatedProcess, silently: bool) -> None:
        session = self.session
        process.die()
        self._shared.network.stop_process(process, silently=silently)
        if session is not None:
            self._shared.coordination.vanish(session)
        if self.process is process:
            self.process = self.node = self.servers = self.ground = None
            self.serving = asyncio.get_running_loop().create_future()

    def kill(self, *, silently: bool = False) -> None:
        """End the process at once; ``silently``: its machine, too. The supervisor does not start another one."""
        self._wanted = False
        if self.process is not None:
            self._bury(self.process, silently)

    def terminate(self, *, again: bool = True) -> None:
        """Ask the node to stop cleanly; with ``again`` the supervisor starts another process afterwards."""
        self._wanted = again
        if self._term is not None and self.process is not None:
            self._term.set()

    def pause(self) -> None:
        """Pause the process."""
        if self.process is not None and not self.process.is_paused:
            self.process.pause()
            if self.session is not None:
                self._shared.coordination.deafen(self.session)

    def resume(self) -> None:
        """Resume the process."""
        process, session = self.process, self.session
        if process is None or not process.is_paused:
            return
        process.resume()

        def hear() -> None:
            if session is not None and self.process is process:
                self._shared.coordination.listen(session)

        # The node learns of missed events a moment later. It may have acted before.
        asyncio.get_running_loop().call_later(HEARS_S, hear)

    async def served(self, seconds: float) -> bool:
        """Wait for at most ``seconds`` until the node serves; return whether it does."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.is_up:  # noqa: ASYNC110 - Time is virtual.
                    await asyncio.sleep(0.05)
        return self.is_up
