"""A cluster that runs already, given by its addresses; the commands of its owner control its processes.

A **hook** is a command line of the owner. In it, ``{node}`` stands for the node's number, from 1 in the
order of the addresses, ``{url}`` for its address, and ``{host}`` for the host in the address::

    --kill-cmd 'ssh {host} systemctl kill --signal=KILL broker' --start-cmd 'ssh {host} systemctl start broker'

The verifier runs a hook without a shell. A hook fails if its exit code is not 0; the history records that.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Final, NamedTuple
from urllib.parse import urlsplit

from typing_extensions import override

from broker.client import BrokerError
from broker.client.client_request import ClientRequest
from broker.http.answer import Address
from broker.local.servers import ServerFailed
from chaos.target import Ability, Target
from chaos.workloads import REGISTRY

HOOK_S: Final = 60.0
READY_S: Final = 120.0
POLL_S: Final = 0.5
_OWN: Final = re.compile(rf"default/((?:{'|'.join(REGISTRY)})-[0-9a-f]{{8}}|churned)-")
"""The names of topics that workloads and nemeses create. All other topics, and their pins, are the owner's."""


def addresses(text: str) -> list[str]:
    """Return the addresses of nodes, with commas between them. Raises ValueError."""
    urls = [url.strip() for url in text.split(",") if url.strip()]
    if not urls:
        raise ValueError("it has no address")
    for url in urls:
        Address.of(url)
    return urls


class Hooks(NamedTuple):
    """Commands of the cluster's owner; None for a missing one."""

    kill: str | None = None
    start: str | None = None
    stop: str | None = None
    pause: str | None = None
    resume: str | None = None

    def abilities(self) -> set[Ability]:
        """Return the abilities that these hooks give. Each ability needs a hook that undoes it."""
        found = set()
        if self.kill and self.start:
            found.add(Ability.KILL)
        if self.pause and self.resume:
            found.add(Ability.PAUSE)
        return found


class HookFailed(ServerFailed):
    """A hook did not exit with 0 in time."""


def filled(command: str, number: int, url: str) -> list[str]:
    """Return the words of a hook for one node. Raises ValueError for quotes that don't match."""
    facts = {"{node}": str(number), "{url}": url, "{host}": urlsplit(url).hostname or ""}
    words = shlex.split(command)
    for mark, fact in facts.items():
        words = [word.replace(mark, fact) for word in words]
    return words


class GivenTarget(Target):
    """A cluster that runs already. Only hooks start and end its processes.

    Args:
        urls: The address of each node, for clients.
        hooks: The commands that control its processes.
        session_s: ZooKeeper's time-out of the nodes' sessions.
        token_file: A file with the token of the verifier's clients; empty: they have none.
    """

    def __init__(
        self,
        urls: Sequence[str],
        hooks: Hooks | None = None,
        *,
        session_s: float = 4.0,
        token_file: str = "",
    ) -> None:
        nodes = [f"broker-{number}" for number in range(1, len(urls) + 1)]
        super().__init__(nodes, [url.rstrip("/") for url in urls], session_s=session_s)
        self._hooks = hooks or Hooks()
        self.abilities = self._hooks.abilities()
        self.client_settings = {"token_file": token_file}
        self._down: set[str] = set()
        self._frozen: set[str] = set()

    @override
    def is_running(self, name: str) -> bool:
        return name not in self._down

    @override
    async def topics(self) -> list[str]:
        return [topic for topic in await super().topics() if _OWN.match(topic)]

    @override
    async def kill(self, name: str) -> None:
        self._down.add(name)
        await self._do(self._hooks.kill, Ability.KILL, name)
        self._frozen.discard(name)

    @override
    async def stop(self, name: str) -> int | None:
        """End a node by the stop hook, or by the kill hook if there is none."""
        self._down.add(name)
        await self._do(self._hooks.stop or self._hooks.kill, Ability.KILL, name)
        return None

    @override
    async def start(self, name: str) -> None:
        await self._launch(name)
        await self._ready(name)

    async def _launch(self, name: str) -> None:
        await self._do(self._hooks.start, Ability.KILL, name)
        self._down.discard(name)

    @override
    async def pause(self, name: str) -> None:
        self._frozen.add(name)
        await self._do(self._hooks.pause, Ability.PAUSE, name)

    @override
    async def resume(self, name: str) -> None:
        await self._do(self._hooks.resume, Ability.PAUSE, name)
        self._frozen.discard(name)

    @override
    async def release(self) -> list[str]:
        done, failed = [], []
        repairs = [(name, self.resume, "resumed") for name in sorted(self._frozen)]
        repairs += [(name, self._launch, "started") for name in sorted(self._down)]
        for name, repair, word in repairs:
            try:
                await repair(name)
            except HookFailed as error:
                failed.append(str(error))
            else:
                done.append(f"{name} was {word}")
        if failed:
            raise HookFailed("; ".join(failed))
        return done

    @override
    async def mend(self) -> list[str]:
        done = await self.release()
        for name in self.nodes:
            await self._ready(name)
        return done

    async def _do(self, command: str | None, ability: Ability, name: str) -> None:
        if command is None:
            raise self._unable(ability)
        words = filled(command, self.nodes.index(name) + 1, self.url(name))
        # A file, not a pipe: a node started by the hook inherits its output, and may keep it open for ever.
        with tempfile.TemporaryFile() as output:
            await _run(words, output)

    async def _ready(self, name: str) -> None:
        """Wait until a node serves. Raises TimeoutError with its last answer."""
        last_error = "no answer"
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            async with self.client(node=name, deadline_s=2.0) as client:
                try:
                    await client.ask(
                        ClientRequest("GET", "/readyz", {}, reading=True, repeatable=True)
                    )
                except BrokerError as error:
                    last_error = str(error)
                else:
                    return
            await asyncio.sleep(POLL_S)
        raise TimeoutError(f"{name} is not ready after {READY_S:g} s: {last_error}")


async def _run(words: Sequence[str], output: IO[bytes]) -> None:
    """Run a hook to its end, with its output into a file. Raises HookFailed."""
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as error:
        raise HookFailed(f"{words} can't be run: {error}") from error
    try:
        async with asyncio.timeout(HOOK_S):
            await process.wait()
    except TimeoutError:
        _kill(process)
        await process.wait()
        raise HookFailed(f"{words} took longer than {HOOK_S:g} s") from None
    except asyncio.CancelledError:
        _kill(process)  # Else it might act after the hook that undoes it.
        raise
    if process.returncode != 0:
        output.seek(0)
        text = output.read().decode(errors="replace").strip()
        raise HookFailed(f"{words} exited with {process.returncode}: {text}")


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):  # It may have ended just now.
        process.kill()
