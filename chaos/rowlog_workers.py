"""Processes that process a rowlog, as a test or the verifier sees them: to be killed, stopped and gone on with."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from signal import Signals
from typing import Any, Final

from broker.rowlog import Message
from chaos.checkers.rowlog import HistoryLine, violations

_KINDS: Final = {"put", "begin", "end", "halted"}


class Workers:
    """Worker processes by name, and the history of all of them and of the writers.

    Attributes:
        history: what was seen, see checkers/rowlog.py.
        leader: the worker that began to process last; empty: none did.
        ready: those that stand for election.
        processes: by name; a name that is started again has its new process.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        """Start none yet; ``given`` is what rowlog_worker.py is told."""
        self.given = given
        self.history: list[HistoryLine] = []
        self.leader = ""
        self.ready: set[str] = set()
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        self.changed = asyncio.Condition()
        self._reading: list[asyncio.Task[None]] = []

    async def start(self, name: str) -> None:
        """Start a worker."""
        command = (sys.executable, "-m", "chaos.rowlog_worker", name)
        process = await asyncio.create_subprocess_exec(
            *command,
            json.dumps(self.given),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        self.processes[name] = process
        self._reading.append(asyncio.create_task(self._read(name, process)))

    async def _read(self, name: str, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if not line.startswith(b"{"):
                continue  # A line of the log.
            told = json.loads(line)
            async with self.changed:
                if told["kind"] in _KINDS:
                    self.history.append(
                        HistoryLine(
                            **{each: told[each] for each in HistoryLine._fields if each in told}
                        )
                    )
                elif told["kind"] == "leads":
                    self.leader = name
                elif told["kind"] == "ready":
                    self.ready.add(name)
                self.changed.notify_all()

    async def until(self, holds: Callable[[], bool], seconds: float = 40.0) -> None:
        """Wait until something holds; it is looked at after each line."""
        async with self.changed:
            try:
                async with asyncio.timeout(seconds):
                    await self.changed.wait_for(holds)
            except TimeoutError:
                last = self.history[-5:]
                raise AssertionError(f"not in time: leader {self.leader}, {last}") from None

    def signal(self, name: str, number: Signals) -> None:
        """Kill a worker, stop it, or let it go on; what it had in flight counts no more."""
        os.kill(self.processes[name].pid, number)
        if number in {Signals.SIGKILL, Signals.SIGSTOP}:
            self.history.append(HistoryLine("halted", name, time.monotonic_ns()))

    def note_put(self, message: Message | None) -> None:
        """Note that a put was acknowledged."""
        assert message is not None
        row = message.row.decode()
        self.history.append(HistoryLine("put", "writer", time.monotonic_ns(), row, message.seq))

    def is_done(self, names: Sequence[str]) -> bool:
        """Whether all that was put was done for these subscriptions."""
        return not any(each.name == "row_lost" for each in violations(self.history, names))

    async def close(self) -> None:
        """End all of them."""
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        await asyncio.gather(*self._reading)
