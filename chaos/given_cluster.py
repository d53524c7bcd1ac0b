"""A cluster that others have started, by its addresses; processes are reached by commands of its owner.

A **hook** is a command line in which ``{node}`` stands for the node's number from 1 in the order of the
addresses, ``{url}`` for its address, ``{host}`` for the host in it::

    --kill-cmd 'ssh {host} systemctl kill --signal=KILL broker' --start-cmd 'ssh {host} systemctl start broker'

It is run without a shell. One that exits with anything but 0 has failed, which the history notes.
"""

from __future__ import annotations

import asyncio
import shlex
import tempfile
import time
from collections.abc import Sequence
from typing import IO, Final, NamedTuple
from urllib.parse import urlsplit

from typing_extensions import override

from broker.client import BrokerError
from broker.client.protocol import ClientRequest
from broker.local.servers import ServerFailed
from chaos.target import Ability, Target

HOOK_S: Final = 60.0
READY_S: Final = 120.0
POLL_S: Final = 0.5


class Hooks(NamedTuple):
    """Commands of the cluster's owner; None where there is none."""

    kill: str | None = None
    start: str | None = None
    stop: str | None = None
    pause: str | None = None
    resume: str | None = None

    def abilities(self) -> set[Ability]:
        """Return what can be done with these: nothing that can't be undone."""
        found = set()
        if self.kill and self.start:
            found.add(Ability.KILL)
        if self.pause and self.resume:
            found.add(Ability.PAUSE)
        return found


class HookFailed(ServerFailed):
    """A hook did not exit with 0, or not in time."""


def filled(command: str, number: int, url: str) -> list[str]:
    """Return the words of a hook for one node. Raises ValueError for quotes that don't match."""
    facts = {"{node}": str(number), "{url}": url, "{host}": urlsplit(url).hostname or ""}
    words = shlex.split(command)
    for mark, fact in facts.items():
        words = [word.replace(mark, fact) for word in words]
    return words


class GivenTarget(Target):
    """A running cluster. Nothing is started or ended but by hooks.

    Args:
        urls: Where clients reach the nodes, each of them.
        hooks: How processes are reached.
        session_s: ZooKeeper's time-out of the nodes' sessions there.
    """

    def __init__(
        self, urls: Sequence[str], hooks: Hooks | None = None, *, session_s: float = 4.0
    ) -> None:
        nodes = [f"broker-{number}" for number in range(1, len(urls) + 1)]
        super().__init__(nodes, [url.rstrip("/") for url in urls], session_s=session_s)
        self._hooks = hooks or Hooks()
        self.abilities = self._hooks.abilities()
        self._down: set[str] = set()
        self._frozen: set[str] = set()

    @override
    def is_running(self, name: str) -> bool:
        return name not in self._down

    @override
    async def kill(self, name: str) -> None:
        self._down.add(name)
        await self._do(self._hooks.kill, Ability.KILL, name)
        self._frozen.discard(name)

    @override
    async def stop(self, name: str) -> int | None:
        """End a node by the hook for that, or that for kills."""
        self._down.add(name)
        await self._do(self._hooks.stop or self._hooks.kill, Ability.KILL, name)
        return None

    @override
    async def start(self, name: str) -> None:
        await self._do(self._hooks.start, Ability.KILL, name)
        self._down.discard(name)
        await self._ready(name)

    @override
    async def pause(self, name: str) -> None:
        self._frozen.add(name)
        await self._do(self._hooks.pause, Ability.PAUSE, name)

    @override
    async def resume(self, name: str) -> None:
        await self._do(self._hooks.resume, Ability.PAUSE, name)
        self._frozen.discard(name)

    @override
    async def mend(self) -> list[str]:
        done = []
        for name in sorted(self._frozen):
            await self.resume(name)
            done.append(f"{name} was woken")
        for name in sorted(self._down):
            await self.start(name)
            done.append(f"{name} was started")
        for name in self.nodes:
            await self._ready(name)
        return done

    async def _do(self, command: str | None, ability: Ability, name: str) -> None:
        if command is None:
            raise self._unable(ability)
        words = filled(command, self.nodes.index(name) + 1, self.url(name))
        # A file, not a pipe: a node that a hook has started may hold what it was given for good.
        with tempfile.TemporaryFile() as said:
            await _run(words, said)

    async def _ready(self, name: str) -> None:
        """Wait until a node serves. Raises TimeoutError with what it said last."""
        said = "nothing yet"
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            async with self.client(node=name, deadline_s=2.0) as client:
                try:
                    await client.ask(
                        ClientRequest("GET", "/readyz", {}, reading=True, repeatable=True)
                    )
                except BrokerError as error:
                    said = str(error)
                else:
                    return
            await asyncio.sleep(POLL_S)
        raise TimeoutError(f"{name} is not ready after {READY_S:g} s: {said}")


async def _run(words: Sequence[str], said: IO[bytes]) -> None:
    """Run a hook to its end; ``said`` is where it says something. Raises HookFailed."""
    try:
        process = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.DEVNULL, stdout=said, stderr=asyncio.subprocess.STDOUT
        )
    except OSError as error:
        raise HookFailed(f"{words} can't be run: {error}") from error
    try:
        async with asyncio.timeout(HOOK_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise HookFailed(f"{words} took longer than {HOOK_S:g} s") from None
    if process.returncode != 0:
        said.seek(0)
        told = said.read().decode(errors="replace").strip()
        raise HookFailed(f"{words} exited with {process.returncode}: {told}")
