"""A whole cluster of processes on this machine, started together and ended together.

::

    with LocalCluster(Sizes(nodes=3)) as cluster:
        requests_go_to(cluster.nodes[0].url)
        cluster.nodes[0].kill()
        cluster.nodes[0].start()

Processes that don't depend on each other start at the same time. A process is ready when it has answered a real
question, see ``member``.

With the ``gateway`` of an HBase that runs already, a cluster has no HBase of its own, but tables of its own in that one.
Tests that kill nodes or ZooKeeper but no part of HBase share one HBase in this way.

The folder of a cluster::

    DIR/lock                     held by the LocalCluster that runs the cluster
    DIR/ended                    exists from the end of the cluster on: no process may start any more
    DIR/ports.json               the address of each process; kept, so that the same cluster can start again
    DIR/processes/ pids/ logs/   of each process: its command, its pid, its output
    DIR/hbase/ zookeeper-1/      configurations
    DIR/broker-1.toml            the configuration of each node
    DIR/data/                    the data of ZooKeeper and HBase
"""

from __future__ import annotations

import fcntl
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Final, Self

from broker.local import pids, plan
from broker.local.addresses import Sizes, local_layout
from broker.local.member import STOP_S, Member, question
from broker.local.plan import ClusterLayout, ListenAddress, ProcessKind, Program, Settings
from broker.local.servers import ServerFailed

Report = Callable[[str], None]

STORAGE_READY_S = 90.0
NODES_READY_S = 60.0
INIT_S = 120.0
TABLE_PREFIX = "hbase.hbase_table_prefix"
REGIONS = "hbase.hbase_regions"
REGIONS_LOCAL = 4
"""The number of regions; on one disk more regions only take longer to make."""

END_ORDER: Final = (
    ((ProcessKind.BROKER, ProcessKind.PROCESSOR), STOP_S),
    # JVMs of HBase end within a second, unless a server that they need is gone.
    ((ProcessKind.GATEWAY, ProcessKind.MASTER, ProcessKind.REGION_SERVER), 5.0),
    ((ProcessKind.ZOOKEEPER,), 5.0),
)
"""The kinds of processes that end together, in order, and the time after which they are killed."""


@dataclass
class LocalCluster:
    """A cluster of processes; a context manager that leaves nothing behind.

    Starting and ending block for seconds. If an event loop runs, call them from another thread.

    Attributes:
        sizes: The number of processes of each kind. No ZooKeepers if ``settings`` name some.
        gateway: The gateway of an HBase that runs already, and that this cluster does not end.
        folder: The folder for all files; it is kept. Without it, a temporary folder, which is removed at the
            end. If the start failed, it is kept for its logs.
        settings: Settings of every node, by ``section.key``.
        own_settings: Settings of single nodes, by their number from 1; they override ``settings``.
        environment: Environment variables of every node.
        own_environment: Variables of single nodes, by their number from 1; they override ``environment``.
        mutant: The guard that every node lacks, see broker/testing/mutants.py; "" for none.
        report: Gets a line for each step of the start.
        members: All processes; each depends only on earlier ones.
    """

    sizes: Sizes = field(default_factory=Sizes)
    _: KW_ONLY
    gateway: ListenAddress | None = None
    folder: Path | None = None
    settings: Settings = field(default_factory=dict)
    own_settings: Mapping[int, Settings] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    own_environment: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    mutant: str = ""
    report: Report = lambda _: None
    members: list[Member] = field(default_factory=list, init=False)
    _home: Path | None = field(default=None, init=False)
    _plan: ClusterLayout | None = field(default=None, init=False)
    _lock: ExitStack = field(default_factory=ExitStack, init=False)

    def __enter__(self) -> Self:
        """Start the cluster. Raises the same errors as ``start``."""
        try:
            self.start()
        except ServerFailed:
            self._end()
            raise
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End the cluster."""
        self.close()

    @property
    def nodes(self) -> list[Member]:
        """The brokers, without the spare ones."""
        return self._of(ProcessKind.BROKER)[: self.sizes.nodes]

    @property
    def urls(self) -> list[str]:
        """The addresses of ``nodes``, for clients."""
        return [node.url for node in self.nodes if node.url is not None]

    @property
    def spares(self) -> list[Member]:
        """Brokers that are not started with the others."""
        return self._of(ProcessKind.BROKER)[self.sizes.nodes :]

    @property
    def zookeepers(self) -> list[Member]:
        """The ZooKeepers, without that of an HBase in one JVM."""
        return self._of(ProcessKind.ZOOKEEPER)

    @property
    def region_servers(self) -> list[Member]:
        """The region servers."""
        return self._of(ProcessKind.REGION_SERVER)

    @property
    def gateways(self) -> list[Member]:
        """The Thrift-2 gateways."""
        return self._of(ProcessKind.GATEWAY)

    def start(self) -> None:
        """Start all processes and return when every node serves.

        Raises:
            ServerMissing: A program is not on this machine.
            ServerFailed: A process ended, or did not answer; the message has the end of its log.
        """
        began = time.monotonic()
        home = self._home = self._own_folder()
        layout = self._plan = self._layout(home)
        self.members = [self._member(program, home) for program in self._programs(layout)]
        self._start_storage(began)
        self._make_tables(layout, home, began)
        self._start_nodes(began)

    def close(self) -> None:
        """End all processes of the folder, and remove it if it is temporary. Idempotent."""
        self._end()
        if self.folder is None and self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)

    def _of(self, kind: ProcessKind) -> list[Member]:
        return [member for member in self.members if member.kind is kind]

    def _own_folder(self) -> Path:
        folder = self.folder or Path(tempfile.mkdtemp(prefix="broker-cluster-"))
        folder = folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        lock = self._lock.enter_context((folder / "lock").open("w"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ServerFailed(f"a cluster runs in {folder} already") from None
        left = pids.live(folder)
        if left:
            raise ServerFailed(f"processes of {folder} run already: {left}; end them first")
        pids.begin(folder)
        return folder

    def _layout(self, home: Path) -> ClusterLayout:
        settings = {REGIONS: REGIONS_LOCAL, **self.settings}
        if self.gateway is not None:
            settings.setdefault(TABLE_PREFIX, f"broker_{secrets.token_hex(4)}_")
        own = by_name(self.own_settings)
        return local_layout(
            home, self.sizes, settings=settings, own_settings=own, gateway=self.gateway
        )

    def _programs(self, layout: ClusterLayout) -> Iterator[Program]:
        for program in plan.programs(layout):
            if self.gateway is None or program.kind in (
                ProcessKind.ZOOKEEPER,
                ProcessKind.BROKER,
            ):
                yield program

    def _member(self, program: Program, home: Path) -> Member:
        environment: Mapping[str, str] = {}
        if program.kind is ProcessKind.BROKER:
            number = int(program.name.rpartition("-")[2])
            own = self.own_environment.get(number, {})
            environment = {**self.environment, **own}
        ready = question(program.kind, program.place)
        return Member(program, home, ready, environment)

    def _start_storage(self, began: float) -> None:
        storage = [member for member in self.members if member.kind is not ProcessKind.BROKER]
        for member in storage:
            member.launch()
        for member in storage:
            member.await_ready(STORAGE_READY_S)
            self._report_step(f"{member.name} is ready", began)

    def _make_tables(self, layout: ClusterLayout, home: Path, began: float) -> None:
        file = home / "storage.toml"
        file.write_text(plan.toml(plan.common_settings(layout)))
        init_storage(file)
        self._report_step("the tables are there", began)

    def _start_nodes(self, began: float) -> None:
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.await_ready(NODES_READY_S)
            self._report_step(f"{node.name} serves at {node.url}", began)

    def _report_step(self, what: str, began: float) -> None:
        self.report(f"{time.monotonic() - began:4.1f} s  {what}")

    def _end(self) -> None:
        """End all processes, and unlock the folder."""
        if self._home is not None:
            self._end_processes(self._home)
        self._lock.close()

    def _end_processes(self, home: Path) -> None:
        """End the processes in the order of ``END_ORDER``: each kind ends before the servers that it uses."""
        pids.begin_end(home)
        kinds = {member.name: member.kind for member in self.members}
        for ending_kinds, grace_s in END_ORDER:
            live = pids.live(home)
            ending = [
                live[name] for name in live if kinds.get(name, ProcessKind.BROKER) in ending_kinds
            ]
            pids.end(ending, signal.SIGTERM, grace_s)


def by_name(*given: Mapping[int, Settings]) -> dict[str, Settings]:
    """Return settings of nodes by name instead of number; later ones override earlier ones, key by key."""
    merged: dict[str, Settings] = {}
    for number, own in (pair for settings in given for pair in settings.items()):
        name = f"broker-{number}"
        merged[name] = {**merged.get(name, {}), **own}
    return merged


def init_storage(file: Path) -> None:
    """Make the missing tables of a configuration. Raises ServerFailed."""
    command = [sys.executable, "-m", "broker.cli", "storage", "init", "--config", str(file)]
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=INIT_S,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as late:
        raise ServerFailed(f"making the tables: {late}") from late
    if done.returncode != 0:
        raise ServerFailed(f"{' '.join(command[2:])} said: {done.stdout}{done.stderr}")
