"""One broker over LevelDB, on a small disk of its own: the target of faults of disks.

It runs under strace, so that it is known which bytes of its files were synced; and in a mount namespace,
whose small tmpfs can be filled and goes with the process. ``in_namespace`` starts the program again inside
one (as root by ``unshare -m``, else as root of a user namespace of its own)::

    FOLDER/disk/            the tmpfs, if there is one
      data/                 LevelDB's files
      ballast               what fills the disk
    FOLDER/trace-1, -2 …    the system calls of each life
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

from broker.local.servers import ServerFailed, ServerMissing, ToxiproxyServer
from broker.local.servers.process import HOST
from broker.local.single import BrokerProcess
from chaos.clocks import ClockOffsets, ClocksMissing
from chaos.links import CLIENT, Link
from chaos.proxies import client_url, proxied
from chaos.synced import Disk, replay, traced
from chaos.target import Ability, Target

NODE: Final = "broker-1"
DISK_MIB: Final = 256
SESSION_S: Final = 2.0
"""What pauses go by, though nobody holds a session."""
INSIDE: Final = "CHAOS_NAMESPACE"
FLAGS: Final = ("--write-buffer-bytes", str(256 << 10))
"""Small, so that tables are written and merged while things go wrong."""


def in_namespace(arguments: Sequence[str]) -> None:
    """Become this program with the same arguments in a mount namespace, unless it is in one already.

    Raises:
        OSError: There is no ``unshare``.
    """
    if os.environ.get(INSIDE):
        return
    rights = "-m" if os.geteuid() == 0 else "-rm"
    os.environ[INSIDE] = "1"
    command = ["unshare", rights, sys.executable, "-m", "chaos", *arguments]
    os.execvp(command[0], command)  # noqa: S606  The same program again.


class Traced(BrokerProcess):
    """A broker whose system calls are written down, a file for each life."""

    def __init__(
        self, data_dir: Path, traces: Path, environment: dict[str, str], mutant: str
    ) -> None:
        super().__init__(data_dir, FLAGS, environment=environment, mutant=mutant)
        self._plain = self._command
        self._traces = traces
        self._life = 0

    @property
    def trace(self) -> Path:
        """The calls of this life, or of the last one."""
        return self._traces / f"trace-{self._life}"

    @override
    def start(self) -> None:
        self.trace.unlink(missing_ok=True)  # What lies long ago is of no use.
        self._life += 1
        self._command = traced(self.trace, self._plain)
        super().start()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the broker and to what traces it."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)


class Standalone(Target):
    """One broker over LevelDB behind a proxy; a context manager.

    Args:
        mutant: Which clause it lacks, see broker/testing/mutants.py; "" none.
        seed: Of Toxiproxy.
        report: Gets a line for each step of the start.
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
        """Start. Raises ServerMissing, ServerFailed."""
        try:
            self._start()
        except BaseException:
            self._held.close()
            raise
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
        self._started()
        self._report(f"{NODE} serves at {self.urls[0]}")

    def _mount(self) -> None:
        self.disk.mkdir()
        size = f"size={DISK_MIB}m"
        mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(self.disk)]
        if not os.environ.get(INSIDE):
            self.missing[Ability.SMALL_DISK] = "it is not in a mount namespace of its own"
            return
        done = subprocess.run(mount, check=False, capture_output=True, text=True)
        if done.returncode:
            self.missing[Ability.SMALL_DISK] = f"no tmpfs can be mounted: {done.stderr.strip()}"
            return
        self.abilities.add(Ability.SMALL_DISK)
        self._held.callback(subprocess.run, ["umount", "-l", str(self.disk)], check=False)

    @property
    def logs(self) -> Path:
        """The folder of what the broker said."""
        return self.folder / "logs"

    @property
    def broker(self) -> Traced:
        """The process."""
        assert self._broker is not None, "not started"
        return self._broker

    @property
    def data(self) -> Path:
        """The database's folder."""
        return self.broker.data_dir

    def written(self) -> Disk:
        """Return what the last life wrote, and synced. To be asked when it has ended."""
        with self.broker.trace.open() as lines:
            return replay(lines)

    @override
    def is_running(self, name: str) -> bool:
        return self.broker.running

    @override
    def state(self) -> str:
        alive = "runs" if self.broker.running else "does not run"
        return f"{NODE} {alive}; it says {self.broker.log()[-2000:]}"

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
                await asyncio.to_thread(self.broker.kill)  # Forgets the one that has ended.
                await asyncio.to_thread(self._started)

    def _started(self) -> None:
        try:
            self.broker.start()
        except RuntimeError as error:
            raise ServerFailed(str(error)) from error

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
            done.append(f"{NODE} was woken")
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
