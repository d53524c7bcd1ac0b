"""The worker processes of a rowlog: a test starts them, kills, stops and continues them, and gets their history."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from signal import Signals
from typing import Any, Final

from broker.local import pids
from broker.rowlog import Message
from chaos.checkers.rowlog import HistoryLine, violations

LOGGED_MAX: Final = 60
"""How many log lines of the workers the error of a condition that never held shows."""
FROZEN_S_MAX: Final = 10.0
_KINDS: Final = {"put", "begin", "end", "halted"}


class Workers:
    """Worker processes by name, and the history of the workers and writers.

    Attributes:
        history: the lines of the history, see checkers/rowlog.py.
        leader: the name of the last worker that became leader; "" if none did.
        ready: the names of the workers that are candidates for leader.
        processes: the processes by name; a restarted worker has its new process.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        """Begin without a worker; ``given`` has the settings for rowlog_worker.py."""
        self.given = given
        self.history: list[HistoryLine] = []
        self.leader = ""
        self.ready: set[str] = set()
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        self.changed = asyncio.Condition()
        self._reading: list[asyncio.Task[None]] = []
        self._logged: deque[str] = deque(maxlen=LOGGED_MAX)

    async def start(self, name: str, **more: Any) -> None:
        """Start a worker; ``more`` has settings for this worker only."""
        command = (sys.executable, "-m", "chaos.rowlog_worker", name)
        process = await asyncio.create_subprocess_exec(
            *command,
            json.dumps({**self.given, **more}),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        self.processes[name] = process
        self._reading.append(asyncio.create_task(self._read(name, process)))

    async def _read(self, name: str, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if not line.startswith(b"{"):
                self._logged.append(f"{name}: {line.decode(errors='replace').rstrip()}")
                continue
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
        """Wait until a condition holds. It is checked after each line of a worker."""
        async with self.changed:
            try:
                async with asyncio.timeout(seconds):
                    await self.changed.wait_for(holds)
            except TimeoutError:
                last = self.history[-5:]
                logged = "\n".join(self._logged)
                raise AssertionError(
                    f"not in time: leader {self.leader}, {last}\n{logged}"
                ) from None

    def signal(self, name: str, number: Signals) -> None:
        """Send a signal to a worker. After SIGKILL or SIGSTOP, its calls in flight do not count."""
        pid = self.processes[name].pid
        if number in {Signals.SIGKILL, Signals.SIGSTOP}:
            # A process runs on for a moment after the call of a signal: it must begin no call behind this line.
            pids.freeze(pid, FROZEN_S_MAX)
            self.history.append(HistoryLine("halted", name, time.monotonic_ns()))
        os.kill(pid, number)

    def note_put(self, message: Message | None) -> None:
        """Note an acknowledged put."""
        assert message is not None
        row = message.row.decode()
        self.history.append(HistoryLine("put", "writer", time.monotonic_ns(), row, message.seq))

    def is_done(self, names: Sequence[str]) -> bool:
        """Return True if all messages of acknowledged puts are done for these subscriptions."""
        return not any(each.name == "row_lost" for each in violations(self.history, names))

    async def close(self) -> None:
        """Kill all workers."""
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        await asyncio.gather(*self._reading)
