"""A cluster on this machine with all connections through Toxiproxy, so that faults can break each of them.

The processes are those of ``broker.local``. A node reaches the other nodes, ZooKeeper and HBase only through
proxies, see ``proxies``. The launcher, the readiness checks and the evidence of faults use the true
addresses.

HBase has two modes. ``distributed``: it has several processes, which can be killed, and the nodes share its
ZooKeeper. ``one-jvm``: it is one process with its own ZooKeeper, so the nodes' ZooKeeper can lose its data.

``renew`` makes a new cluster of the same nodes within seconds, because the servers go on running. It takes
new tables, a new root in ZooKeeper, and may take other settings or a mutant.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

from typing_extensions import override

from broker.local import Member, ProcessKind, Sizes
from broker.local.addresses import reserve
from broker.local.plan import Settings
from broker.local.servers.process import ServerFailed
from broker.testing.hbase_server import HBaseServer
from broker.testing.local_state import own_view, state_of
from chaos.changing_cluster import ChangingCluster
from chaos.clocks import ClockOffsets, ClocksMissing
from chaos.infrastructure import ChaosBeneath
from chaos.packets import Packets, PacketsMissing
from chaos.proxies import Wiring, client_url, proxied
from chaos.sessions import end_session
from chaos.supervisor import start_again, start_missing
from chaos.target import Ability, Target, Unable
from chaos.toxiproxy_server import ToxiproxyServer
from chaos.zookeepers import Ensemble

SESSION_S: Final = 2.0
Report = Callable[[str], None]
HBaseMode = Literal["distributed", "one-jvm"]


class ChaosCluster(Target):
    """A local cluster behind proxies; a context manager whose entry and exit block.

    Args:
        sizes: The number of processes of each kind; by default three nodes and a spare one.
        hbase: The mode of HBase, see the module.
        folder: The folder for all files, which is kept; by default a temporary one.
        settings: Settings of every node, by ``section.key``.
        with_clocks: Make the nodes' wall clocks settable, if this machine can do that.
        processors: The number of rowlog processors that a workload can start (``beneath``).
        mutant: The guard that every node lacks, see broker/testing/mutants.py; "" for none.
        seed: The seed of Toxiproxy.
        report: Called with a line for each step of the start.
    """

    def __init__(  # noqa: PLR0913  All options are keywords.
        self,
        sizes: Sizes | None = None,
        *,
        hbase: HBaseMode = "one-jvm",
        folder: Path | None = None,
        settings: Settings | None = None,
        with_clocks: bool = True,
        processors: int = 0,
        mutant: str = "",
        seed: int = 1,
        report: Report = lambda _: None,
    ) -> None:
        self.sizes = sizes or Sizes(nodes=3, spares=1)
        names = [f"broker-{number}" for number in range(1, self.sizes.nodes + 1)]
        super().__init__(names, (), session_s=SESSION_S)
        self.hbase: HBaseMode = hbase
        self._keep = folder is not None
        self.folder = (folder or Path(tempfile.mkdtemp(prefix="broker-chaos-"))).resolve()
        self._settings = {"cluster.session_timeout_ms": int(SESSION_S * 1000), **(settings or {})}
        self.session_s = self._settings["cluster.session_timeout_ms"] / 1000
        self._with_clocks = with_clocks
        self._processors = [f"rowlog-{number}" for number in range(1, processors + 1)]
        self._mutant = mutant
        self._seed = seed
        self._report = report
        self._held = ExitStack()
        self.cluster: ChangingCluster | None = None
        self._paused: set[str] = set()
        self._busy: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    # Start and end.

    def __enter__(self) -> Self:
        """Start everything. Raises ServerMissing, ServerFailed."""
        with ExitStack() as stack:
            stack.push(self)
            self._start()
            stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End every process, and remove the temporary folder."""
        self.resume_all()
        self._held.close()
        if not self._keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        proxy = self._held.enter_context(
            ToxiproxyServer(seed=self._seed, folder=self.folder / "toxiproxy")
        )
        places = reserve(self.folder, self.sizes)
        jvm = self._start_jvm() if self.hbase == "one-jvm" else None
        gateway = None if jvm is None else jvm.gateway
        wiring = Wiring.of(places.values(), gateway, self._processors)
        self._links = proxied(proxy, wiring.links(), wiring.upstreams)
        where = self._links.addresses
        self.urls = tuple(client_url(node, where) for node in self.nodes)
        self._find_clocks()
        self._find_packets()
        self.cluster = self._held.enter_context(
            ChangingCluster(
                self.sizes,
                gateway=gateway,
                folder=self.folder,
                settings=self._settings,
                own_settings={
                    _number(node): wiring.settings(node, where) for node in wiring.brokers
                },
                own_environment={
                    _number(node): {
                        **wiring.environment(node, where),
                        **({} if self._clocks is None else self._clocks.environment(node)),
                    }
                    for node in wiring.brokers
                },
                mutant=self._mutant,
                report=self._report,
            )
        )
        if self._processors:
            self.beneath = ChaosBeneath(self.cluster, self.folder, wiring, where)
        self._able()

    def _start_jvm(self) -> HBaseServer:
        self._report("HBase starts")
        return self._held.enter_context(HBaseServer(folder=self.folder / "one-jvm"))

    def _find_clocks(self) -> None:
        if not self._with_clocks:
            self.missing[Ability.CLOCKS] = "it was started without them"
            return
        try:
            self._clocks = ClockOffsets(self.folder / "clocks")
        except ClocksMissing as error:
            self.missing[Ability.CLOCKS] = str(error)

    def _find_packets(self) -> None:
        try:
            self._packets = Packets()
            self._held.callback(self._packets.heal)
        except PacketsMissing as error:
            self.missing[Ability.PACKETS] = str(error)

    def _able(self) -> None:
        self.abilities = {Ability.KILL, Ability.PAUSE, Ability.LINKS, Ability.ZOOKEEPER}
        self.abilities |= {Ability.CLOCKS} if self._clocks is not None else set()
        self.abilities |= {Ability.PACKETS} if self._packets is not None else set()
        self.abilities |= {Ability.SPARE} if self.sizes.spares else set()
        if self.hbase == "one-jvm":
            self.abilities.add(Ability.OWN_ZOOKEEPER)
            self.missing[Ability.HBASE] = "all of HBase is one process"
        else:
            self.abilities.add(Ability.HBASE)
            self.missing[Ability.OWN_ZOOKEEPER] = "HBase keeps its own state in the same ZooKeeper"

    async def renew(
        self,
        settings: Settings | None = None,
        *,
        own_settings: Mapping[str, Settings] | None = None,
        mutant: str = "",
    ) -> None:
        """Heal everything, and restart the same nodes without any topic; the servers go on running.

        Args:
            settings: Settings that override those of the constructor.
            own_settings: Settings of single nodes, by name.
            mutant: The guard that every node lacks; "" for none.

        Raises:
            ServerFailed: A node did not start; the message has the end of its log.
        """
        self.resume_all()
        self._busy.clear()  # The locks belong to the event loop of an earlier case.
        await self.links.reset()
        await asyncio.to_thread(self._let_pass)
        for node in self.nodes:
            self._set_clock(node, 0)
        fresh = secrets.token_hex(4)
        await asyncio.to_thread(
            self._cluster.renew,
            {
                "hbase.hbase_table_prefix": f"chaos_{fresh}_",
                "cluster.zookeeper_root": f"/chaos-{fresh}",
                **(settings or {}),
            },
            own_settings={_number(name): own for name, own in (own_settings or {}).items()},
            mutant=mutant,
        )

    # Queries.

    @property
    def _cluster(self) -> ChangingCluster:
        assert self.cluster is not None, "not started"
        return self.cluster

    @property
    def _regular(self) -> list[Member]:
        return [one for one in self._cluster.members if one not in self._cluster.spares]

    def member(self, name: str) -> Member:
        """Return a process by its name. Raises KeyError."""
        return {member.name: member for member in self._cluster.members}[name]

    @property
    def logs(self) -> Path:
        """Return the folder of the processes' logs."""
        return self.folder / "logs"

    @override
    def processes(self, kind: ProcessKind) -> tuple[str, ...]:
        return tuple(member.name for member in self._regular if member.kind is kind)

    @override
    def is_running(self, name: str) -> bool:
        return self.member(name).running

    def own_view(self, node: str) -> dict[str, Any] | None:
        """Return a node's own status, past the proxies; None if it does not answer. Blocks."""
        place = self.member(node).place
        try:
            return own_view(place.host, place.port)
        except (OSError, HTTPException, ValueError):
            return None

    @override
    def state(self) -> str:
        return "not started" if self.cluster is None else state_of(self.cluster)

    # Faults.

    @override
    async def kill(self, name: str) -> None:
        async with self._busy[name]:
            await asyncio.to_thread(self.member(name).kill)
            self._paused.discard(name)

    @override
    async def stop(self, name: str) -> int | None:
        async with self._busy[name]:
            return await asyncio.to_thread(self.member(name).stop)

    @override
    async def start(self, name: str) -> None:
        """Start a process, unless another fault has started it, and return when it serves."""
        member = self.member(name)
        async with self._busy[name]:
            if not member.running:
                await asyncio.to_thread(member.launch)
        await asyncio.to_thread(member.await_ready)

    @override
    async def pause(self, name: str) -> None:
        self._paused.add(name)
        await asyncio.to_thread(self.member(name).pause)

    @override
    async def resume(self, name: str) -> None:
        self._paused.discard(name)
        member = self.member(name)
        if member.running:
            member.resume()

    def resume_all(self) -> None:
        """Resume every paused process."""
        for name in sorted(self._paused):
            if self.member(name).running:
                self.member(name).resume()
        self._paused.clear()

    @property
    def _ensemble(self) -> Ensemble:
        return Ensemble(self._cluster.zookeepers, self.folder / "data")

    @override
    async def zookeeper_leader(self) -> str | None:
        return await asyncio.to_thread(self._ensemble.leader)

    @override
    async def expire_session(self, node: str) -> int | None:
        view = await asyncio.to_thread(self.own_view, node)
        told = None if view is None else view["zookeeper"]["session"]
        if told is None:
            return None
        session = int(told, 16)
        await asyncio.to_thread(end_session, self._ensemble.hosts, session)
        return session

    @override
    async def wipe_zookeeper(self) -> None:
        if Ability.OWN_ZOOKEEPER not in self.abilities:
            raise self._unable(Ability.OWN_ZOOKEEPER)
        await asyncio.to_thread(self._ensemble.wipe)

    @override
    async def move_regions(self, region_server: str) -> int:
        if Ability.HBASE not in self.abilities:
            raise self._unable(Ability.HBASE)
        said = await asyncio.to_thread(self._cluster.unload, self.member(region_server))
        return max((int(count) for count in re.findall(r"Moving (\d+) regions", said)), default=0)

    @override
    async def start_spare(self, environment: Mapping[str, str]) -> str:
        if not self._cluster.spares:
            raise self._unable(Ability.SPARE)
        spare = self._cluster.spares[0]
        async with self._busy[spare.name]:
            if spare.running:
                raise Unable(f"{spare.name} runs already")
            spare.reconfigure({**spare.environment, **environment})
            await asyncio.to_thread(spare.launch)
        try:
            await asyncio.to_thread(spare.await_ready)
        except ServerFailed:
            # A node that the caller does not know of must not join later.
            await asyncio.to_thread(spare.kill)
            raise
        return spare.name

    def _set_clock(self, node: str, offset_s: float) -> None:
        if self._clocks is not None:
            self._clocks.set(node, offset_s)

    @override
    async def revive(self) -> list[str]:
        done = []
        for member in self._regular:
            async with self._busy[member.name]:
                done += await asyncio.to_thread(start_again, member)
        return done

    def _let_pass(self) -> None:
        if self._packets is not None:
            self._packets.heal()

    @override
    async def mend(self) -> list[str]:
        """Undo all remaining faults; see ``Target.mend``. It does not stop a running spare node."""
        done = [f"{name} was resumed" for name in sorted(self._paused)]
        self._busy.clear()
        self.resume_all()
        if spoilt := await self.links.spoilt():
            await self.links.reset()
            done += [f"{name} had {', '.join(toxics)}" for name, toxics in sorted(spoilt.items())]
        await asyncio.to_thread(self._let_pass)
        for node in self.nodes:
            if self._clocks is not None and self._clocks.offset_s(node) != 0:
                self._clocks.set(node, 0)
                done.append(f"the clock of {node} was set right")
        try:
            return [*done, *await asyncio.to_thread(start_missing, self._regular)]
        except TimeoutError as error:
            raise TimeoutError(f"{error}; {self.state()}") from error


def _number(node: str) -> int:
    return int(node.rpartition("-")[2])
