"""Random runs of a whole rowlog in virtual time: puts, listeners that fail, processes that crash between any two steps,
sleep, and lose their sessions. Each run keeps these rules.

For every message whose put was acknowledged:

* at least once per subscription
* no two messages of a row in flight for one subscription, over all processes
* per-row order: a message is offered only after all earlier ones of its row were done
* nothing is left: no cells, no index entries, and a verification finds nothing to mend
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from broker.errors import BrokerError
from broker.rowlog import Message, Subscription
from broker.rowlog.row_table import TableError
from broker.testing.virtual_time import pass_time
from tests.unit.rowlog.world import INDEX, Process, World, until

ROWS = [b"r%d" % each for each in range(4)]
NAMES = ("first", "second")


@dataclass
class Judge:
    """Notes the calls of the listeners, and every broken rule in ``wrong``."""

    in_flight: defaultdict[tuple[str, bytes], dict[int, Process]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    done: defaultdict[tuple[str, bytes], set[int]] = field(default_factory=lambda: defaultdict(set))
    put: defaultdict[bytes, set[int]] = field(default_factory=lambda: defaultdict(set))
    wrong: list[str] = field(default_factory=list)

    def begin(self, process: Process, name: str, message: Message) -> None:
        flying = self.in_flight[name, message.row]
        others = {seq for seq, by in flying.items() if not by.is_gone} - {message.seq}
        if others:
            self.wrong.append(f"{name} {message.row!r}: {message.seq} beside {others}")
        earlier = {seq for seq in self.put[message.row] if seq < message.seq}
        if missing := earlier - self.done[name, message.row]:
            self.wrong.append(f"{name} {message.row!r}: {message.seq} before {missing}")
        flying[message.seq] = process

    def end(self, process: Process, name: str, message: Message, *, is_done: bool) -> None:
        flying = self.in_flight[name, message.row]
        # A process that was cut off may still call while its successor has the message: only the later call counts.
        if flying.get(message.seq) is process:
            del flying[message.seq]
        if is_done:
            self.done[name, message.row].add(message.seq)


class Run:
    """One run, from one seed."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.chance = random.Random(seed)
        self.judge = Judge()
        self.live: list[Process] = []
        self.fails = True
        self.respects = self.chance.random() < 0.5
        self.turns = {row: asyncio.Lock() for row in ROWS}
        self.retired: list[asyncio.Task[None]] = []

    def listener(self, process: Process, name: str):  # type: ignore[no-untyped-def]
        async def listen(message: Message) -> bool:
            if process.is_gone:
                raise ValueError("gone")
            self.judge.begin(process, name, message)
            is_done = False
            try:
                await pass_time(self.chance.choice((0, 0, 0.2, 3)))
                is_done = not process.is_gone and not (self.fails and self.chance.random() < 0.3)
                return is_done
            finally:
                self.judge.end(process, name, message, is_done=is_done)

        return listen

    async def begin(self) -> Process:
        process = await self.world.process(
            shards=3, settings={"respect_order": self.respects, "claim_timeout_ms": 20_000}
        )
        for name in NAMES:
            process.log.listen(name, self.listener(process, name))
        await process.log.start()
        self.live.append(process)
        return process

    async def put(self, process: Process) -> None:
        row = self.chance.choice(ROWS)
        async with self.turns[row]:
            with suppress(BrokerError, TableError):
                message = await process.log.put(row, {b"d:x": b"1"}, b"p")
                if message is not None:
                    self.judge.put[row].add(message.seq)
                    if self.chance.random() < 0.3:
                        await process.log.process(message)

    async def crash(self, process: Process) -> None:
        self.live.remove(process)
        if self.chance.random() < 0.7:
            process.steps_left = self.chance.randrange(12)
            await pass_time(self.chance.choice((0, 0.5, 3)))
        await process.crash()

    async def step(self) -> None:
        drawn = self.chance.random()
        process = self.chance.choice(self.live)
        if drawn < 0.75:
            putting = asyncio.create_task(self.put(process))
            self.retired.append(putting)
            await pass_time(self.chance.choice((0, 0.01, 0.3)))
        elif drawn < 0.82 and len(self.live) > 1:
            await self.crash(process)
        elif drawn < 0.86 and len(self.live) < 3:
            await self.begin()
        elif drawn < 0.90:
            self.world.coordination.deafen(process.session)
            await pass_time(self.chance.choice((1, 6)))
            self.world.coordination.listen(process.session)
        elif drawn < 0.93:
            self.world.coordination.expire(process.session, noticed_after_s=1.0)
        else:
            await pass_time(self.chance.choice((0.5, 5)))

    async def run(self, steps: int) -> list[str]:
        """Run, and return the broken rules."""
        first = await self.begin()
        for order, name in enumerate(NAMES):
            await first.log.subscribe(
                Subscription(name, order=order, max_tries=0, backoff_ms_first=100, parallel=3)
            )
        await self.begin()
        for _ in range(steps):
            await self.step()
        self.fails = False
        if not self.live:
            await self.begin()
        await asyncio.gather(*self.retired)
        with suppress(AssertionError):
            await until(lambda: not any(self.world.cells(row) for row in ROWS), within_s=400)
        # Orphans go when they are old; nothing else has to be mended.
        await pass_time(140)
        return [*self.judge.wrong, *self.left(), *[each async for each in self.unsound()]]

    def left(self) -> Iterator[str]:
        for row in ROWS:
            for name in NAMES:
                if missing := self.judge.put[row] - self.judge.done[name, row]:
                    yield f"{name} never got {missing} of {row!r}"
            if self.world.cells(row):
                yield f"{row!r} still has cells"

    async def unsound(self):  # type: ignore[no-untyped-def]
        report = await self.live[0].log.verify()
        if not report.is_sound:
            yield f"not sound: {report} {self.world.stored[INDEX].keys()}"
