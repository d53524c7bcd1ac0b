"""Processes of one rowlog in virtual time, over rows in memory, which can crash between any two steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from broker.coordination.coordinator import TreeCoordinator
from broker.coordination.memory import MemoryCoordination
from broker.rowlog import Message, RowLog, Subscription
from broker.rowlog.attempt import Attempts, Outcome, Tools
from broker.rowlog.memory import MemoryRows
from broker.rowlog.meta import Meta
from broker.rowlog.row_table import Cells, NotWritten
from broker.testing.virtual_time import EPOCH_MS, VirtualClock, VirtualLoop, pass_time, simulate

TABLE = b"records"
INDEX = b"rowlog-mq"
ROW = b"row"


class Crashed(NotWritten):
    """The process is gone: none of its calls reaches the table."""


class Process:
    """A RowLog of its own, with a session of its own."""

    def __init__(self, world: World, *, fast_ms: int = 0, **options: Any) -> None:
        self.world = world
        self.session: TreeCoordinator = world.coordination.session()
        self.clock = VirtualClock(world.loop, wall_ms=EPOCH_MS + fast_ms)
        self.steps_left: int | None = None
        """After how many changing steps it crashes."""
        self.is_gone = False
        self.on_step: Callable[[str, bytes], None] | None = None
        """Called before each changing step with its name and its table."""
        self.rows = MemoryRows(world.stored, self._before)
        given = {"id": "mq", "coordinator": self.session, "clock": self.clock, **options}
        self.log = RowLog(None, TABLE.decode(), rows=self.rows, **given)

    def _before(self, name: str, table: bytes) -> None:
        if self.on_step is not None:
            self.on_step(name, table)
        self.world.steps.append(f"{name} {table.decode()}")
        if self.steps_left is not None:
            self.steps_left -= 1
            self.is_gone |= self.steps_left < 0
        if self.is_gone:
            raise Crashed(f"crashed before {name}")

    def put_late(self, seconds: float) -> None:
        """Let each put into the user's table take some seconds."""
        put = self.rows.put

        async def late(table: bytes, rows: Any) -> None:
            if table == TABLE:
                await pass_time(seconds)
            await put(table, rows)

        self.rows.put = late  # type: ignore[method-assign]

    async def crash(self) -> None:
        """Crash: no later call reaches the table, and the session ends after its time-out."""
        self.is_gone = True
        self.world.coordination.vanish(self.session)
        for task in self.log.host.tasks:
            task.cancel()
        await asyncio.gather(*self.log.host.tasks, return_exceptions=True)


class World:
    """The state that all processes share, and the processes."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.clock = VirtualClock(loop)
        self.stored: dict[bytes, dict[bytes, Cells]] = {TABLE: {}}
        self.coordination = MemoryCoordination(self.clock)
        self.steps: list[str] = []
        self.processes: list[Process] = []

    async def process(self, **options: Any) -> Process:
        made = Process(self, **options)
        self.processes.append(made)
        await made.log.open()
        return made

    async def log(self, *subscriptions: Subscription | str, **options: Any) -> RowLog:
        """Return a process's log with subscriptions; a name means one with defaults."""
        made = (await self.process(**options)).log
        for each in subscriptions:
            await made.subscribe(Subscription(each) if isinstance(each, str) else each)
        return made

    def cells(self, row: bytes = ROW) -> Cells:
        """Return the cells of the rowlog in a row, without counter and lock."""
        return {
            column: value
            for column, value in self.stored[TABLE].get(row, {}).items()
            if column.startswith(b"rowlog:") and len(column) == len(b"rowlog:") + 18
        }

    def entries(self) -> list[bytes]:
        return [key for key in self.stored.get(INDEX, {}) if not key.startswith(b"\xff")]

    async def close(self) -> None:
        for process in self.processes:
            await process.log.close()


class Heard:
    """A listener that notes the messages it is offered. Its results are ``answers``, then True."""

    def __init__(self, *answers: bool | Exception) -> None:
        self.messages: list[Message] = []
        self.answers = list(answers)
        self.gate: asyncio.Event | None = None
        self.in_flight: set[bytes] = set()
        self.overlapped = False
        self.ended = 0
        self.changed = asyncio.Event()

    async def until(self, *, begun: int = 0, ended: int = 0) -> None:
        """Wait until so many calls have begun and ended. For tests in real time."""
        async with asyncio.timeout(20):
            while len(self.messages) < begun or self.ended < ended:
                self.changed.clear()
                await self.changed.wait()

    async def __call__(self, message: Message) -> bool:
        self.messages.append(message)
        self.changed.set()
        self.overlapped |= message.row in self.in_flight
        self.in_flight.add(message.row)
        try:
            if self.gate is not None:
                await self.gate.wait()
            answer = self.answers.pop(0) if self.answers else True
            if isinstance(answer, Exception):
                raise answer
            return answer
        finally:
            self.in_flight.discard(message.row)
            self.ended += 1
            self.changed.set()

    @property
    def seqs(self) -> list[int]:
        return [each.seq for each in self.messages]


def virtual(test: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Make a test of a coroutine that is given a world."""

    def run() -> None:
        async def main(loop: VirtualLoop) -> None:
            world = World(loop)
            try:
                await test(world)
            finally:
                await world.close()

        simulate(main)

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


async def until(holds: Callable[[], bool | Awaitable[bool]], within_s: float = 600.0) -> None:
    """Let virtual time pass until something holds."""
    passed = 0.0
    while True:
        held = holds()
        if held if isinstance(held, bool) else await held:
            return
        assert passed < within_s, f"not within {within_s} virtual seconds"
        await pass_time(0.05)
        passed += 0.05


@dataclass
class Epoch:
    """An elected processor that may always begin, and that no later epoch fences."""

    epoch: int

    def may_begin(self) -> bool:
        return True

    async def check(self, meta: Meta) -> None:
        del meta


async def attempt(log: RowLog, leading: Epoch | None = None) -> Outcome:
    """Attempt the only message of ROW for "a", with the listeners of ``log``."""
    tools = Tools(log.id, log.messages, log.meta, log.clock, log.figures, chance=lambda: 0.5)
    (found,) = await log.messages.open(ROW)
    return await Attempts(tools).attempt(ROW, found, "a", log.listeners, leading)
