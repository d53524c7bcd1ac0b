"""One broker over LevelDB, on its own small disk: the target of disk faults.

The broker runs under strace, whose trace shows the synced bytes of its files. It runs in a mount namespace
with a small tmpfs, which a fault can fill, and which ends with the process. ``in_namespace`` starts the
program again in a new namespace::

    FOLDER/disk/            the tmpfs, if there is one
      data/                 LevelDB's files
      ballast               the file that fills the disk
    FOLDER/trace-1, -2 …    the system calls of each broker process
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from typing_extensions import override

from broker.local.servers import ServerMissing
from broker.local.servers.process import HOST
from broker.testing.broker_process import BrokerProcess
from chaos.clocks import ClockOffsets, ClocksMissing
from chaos.full_disk import in_own_mounts
from chaos.links import CLIENT, Link
from chaos.proxies import client_url, proxied
from chaos.synced import Disk, replay, traced
from chaos.target import Ability, Target
from chaos.toxiproxy_server import ToxiproxyServer

NODE: Final = "broker-1"
DISK_MIB: Final = 256
SESSION_S: Final = 2.0
"""It sets the length of pauses, though there is no session."""
INSIDE: Final = "CHAOS_NAMESPACE"
FLAGS: Final = ("--write-buffer-bytes", str(256 << 10))
"""A small write buffer, so that LevelDB writes and merges tables during faults."""


def in_namespace(arguments: Sequence[str]) -> None:
    """Replace this process by the same program in a mount namespace, unless it is in one already.

    If this machine gives no namespace, the process goes on without one. It tries that first, because after the
    replacement the exit code of ``unshare`` would be taken for a verdict.
    """
    if os.environ.get(INSIDE) or shutil.which("unshare") is None:
        return
    if subprocess.run(in_own_mounts("true"), check=False, capture_output=True).returncode:
        return
    os.environ[INSIDE] = "1"
    command = in_own_mounts(sys.executable, "-m", "chaos", *arguments)
    os.execvp(command[0], command)  # noqa: S606  The same program again.


class Traced(BrokerProcess):
    """A broker under strace, with one trace file for each process."""

    def __init__(
        self, data_dir: Path, traces: Path, environment: dict[str, str], mutant: str
    ) -> None:
        super().__init__(data_dir, FLAGS, environment=environment, mutant=mutant)
        self._plain = self._command
        self._traces = traces
        self._life = 0

    @property
    def trace(self) -> Path:
        """Return the trace file of the present process, or of the last one."""
        return self._traces / f"trace-{self._life}"

    @override
    def start(self) -> None:
        self.trace.unlink(missing_ok=True)  # Nothing reads the trace of an earlier process.
        self._life += 1
        self._command = traced(self.trace, self._plain)
        super().start()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the broker and to strace."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)


class Standalone(Target):
    """One broker over LevelDB behind a proxy; a context manager.

    Args:
        mutant: The guard that the broker lacks, see broker/testing/mutants.py; "" for none.
        seed: The seed of Toxiproxy.
        report: Called with a line for each step of the start.
    """

    def __init__(
        self,
        *,
        mutant: str = "",
        seed: int = 1,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__([NODE], (), session_s=SESSION_S)
        self.folder = Path(tempfile.mkdtemp(prefix="broker-chaos-"))
        self.disk = self.folder / "disk"
        self._mutant = mutant
        self._seed = seed
        self._report = report
        self._held = ExitStack()
        self._paused = False
        self._busy = asyncio.Lock()
        self._broker: Traced | None = None

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
        """End everything, and remove the folder."""
        self._held.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        if shutil.which("strace") is None:
            raise ServerMissing("strace is not installed: apt-get install strace")
        self.abilities = {Ability.KILL, Ability.PAUSE, Ability.LINKS, Ability.FILES}
        self._mount()
        environment: dict[str, str] = {}
        try:
            self._clocks = ClockOffsets(self.folder / "clocks")
            environment |= self._clocks.environment(NODE)
            self.abilities.add(Ability.CLOCKS)
        except ClocksMissing as error:
            self.missing[Ability.CLOCKS] = str(error)
        self._broker = Traced(self.disk / "data", self.folder, environment, self._mutant)
        self.logs.mkdir()
        self._broker.log_path = self.logs / f"{NODE}.log"
        self._held.callback(self._broker.kill)
        server = self._held.enter_context(ToxiproxyServer(seed=self._seed))
        link = Link(CLIENT, NODE)
        self._links = proxied(server, [link], {NODE: f"{HOST}:{self._broker.port}"})
        self.urls = (client_url(NODE, self._links.addresses),)
        self.broker.start()
        self._report(f"{NODE} serves at {self.urls[0]}")

    def _mount(self) -> None:
        self.disk.mkdir()
        size = f"size={DISK_MIB}m"
        mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(self.disk)]
        if not os.environ.get(INSIDE):
            self.missing[Ability.SMALL_DISK] = "it has no mount namespace"
            return
        done = subprocess.run(mount, check=False, capture_output=True, text=True)
        if done.returncode:
            self.missing[Ability.SMALL_DISK] = f"no tmpfs can be mounted: {done.stderr.strip()}"
            return
        self.abilities.add(Ability.SMALL_DISK)
        self._held.callback(subprocess.run, ["umount", "-l", str(self.disk)], check=False)

    @property
    def logs(self) -> Path:
        """Return the folder of the broker's log."""
        return self.folder / "logs"

    @property
    def broker(self) -> Traced:
        """Return the broker's process."""
        assert self._broker is not None, "not started"
        return self._broker

    @property
    def data(self) -> Path:
        """Return the database's folder."""
        return self.broker.data_dir

    def written(self) -> Disk:
        """Return the written and synced bytes of the last process. Call it after the process has ended."""
        with self.broker.trace.open() as lines:
            return replay(lines)

    @override
    def is_running(self, name: str) -> bool:
        return self.broker.running

    @override
    def state(self) -> str:
        alive = "runs" if self.broker.running else "does not run"
        return f"{NODE} {alive}; its log ends with {self.broker.log()[-2000:]}"

    @override
    async def kill(self, name: str) -> None:
        async with self._busy:
            self._paused = False
            await asyncio.to_thread(self.broker.kill)

    @override
    async def stop(self, name: str) -> int | None:
        async with self._busy:
            self.broker.send(signal.SIGCONT)
            await asyncio.to_thread(self.broker.close)
        return None

    @override
    async def start(self, name: str) -> None:
        async with self._busy:
            if not self.broker.running:
                await asyncio.to_thread(self.broker.kill)  # Drop the process that has ended.
                await asyncio.to_thread(self.broker.start)

    @override
    async def pause(self, name: str) -> None:
        self._paused = True
        self.broker.send(signal.SIGSTOP)

    @override
    async def resume(self, name: str) -> None:
        self._paused = False
        self.broker.send(signal.SIGCONT)

    @override
    async def mend(self) -> list[str]:
        done = []
        if self._paused:
            await self.resume(NODE)
            done.append(f"{NODE} was resumed")
        if await self.links.spoilt():
            await self.links.reset()
            done.append("its link was mended")
        if self._clocks is not None and self._clocks.offset_s(NODE):
            self._clocks.set(NODE, 0)
            done.append("its clock was set right")
        if not self.broker.running:
            await self.start(NODE)
            done.append(f"{NODE} was started")
        return done
