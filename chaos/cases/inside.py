"""The logs of several nodes in this process, over a table that fails at a chosen moment.

HBase can delay a change, answer a done change with False, or answer a stale read, but not at a chosen moment.
So these cases run the nodes' own logs, each over a **way** to one table. The case controls each way::

    Keeper a ── way a ──┐                 gate         holds changes back until it opens
    Keeper b ── way b ──┴── table         late         lost changes, which arrive later
                                          lies, past   false answers, stale reads
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Final

from typing_extensions import override

from broker.clock import SystemClock
from broker.errors import BrokerError
from broker.model import LOG_KEY_MIN, LogKey, TopicId, log_key, timestamp_of
from broker.storage.hold import LogHold
from broker.storage.keys import LogId
from broker.storage.log import Logs
from broker.storage.memory.table import MemoryTable
from broker.storage.table import Cell, Space, WriteUnknown
from chaos.bare import append, rows_of
from chaos.cases.harness import WAIT_S, Scene

LOG: Final = LogId(TopicId("default", "case"), 1)
CALL_S: Final = 3.0
"""How long a log repeats a call: long enough for a busy machine, short enough for the case to wait."""


class Gate:
    """Holds changes back while it is shut."""

    def __init__(self) -> None:
        """Begin open."""
        self._arrived = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()

    def shut(self) -> None:
        """Hold every change back from now on."""
        self._arrived.clear()
        self._open.clear()

    def open(self) -> None:
        """Let all changes through."""
        self._open.set()

    async def arrived(self) -> None:
        """Wait until a change is held back. Raises TimeoutError."""
        async with asyncio.timeout(WAIT_S):
            await self._arrived.wait()

    async def passed(self) -> None:
        """Wait until the gate is open."""
        if not self._open.is_set():
            self._arrived.set()
        await self._open.wait()


class Way(MemoryTable):
    """One node's way to the table.

    Attributes:
        gate: Holds changes back before they are made.
        loses: If True, changes get no answer, and are made only when ``bring`` is called.
        lies: The number of next done changes with the answer False.
        lied: The number of such answers so far.
        past: An earlier copy of the table, which answers the next ``past_reads`` gets.
        read_past: The number of gets that the copy answered.
    """

    def __init__(self, table: MemoryTable) -> None:
        """Begin as a correct way to the table."""
        super().__init__(is_alone=False)
        self.spaces = table.spaces
        self.table = table
        self.gate = Gate()
        self.loses = False
        self.lies = self.lied = self.past_reads = self.read_past = 0
        self.past = table
        self._late: list[partial[Coroutine[None, None, bool]]] = []
        self._lost = asyncio.Event()

    @override
    async def change(
        self,
        space: Space,
        row: bytes,
        expected: bytes | None,
        puts: Mapping[bytes, bytes],
        deletes: Sequence[bytes] = (),
        *,
        clear: bool = False,
    ) -> bool:
        """Make a change and answer, perhaps falsely; or lose the change. Raises WriteUnknown."""
        await self.gate.passed()
        make = partial(self.table.change, space, row, expected, puts, deletes, clear=clear)
        if self.loses:
            self._late.append(make)
            self._lost.set()
            raise WriteUnknown("time-out")
        done = await make()
        if done and self.lies:
            self.lies -= 1
            self.lied += 1
            return False
        return done

    async def lost(self) -> None:
        """Wait until a change is lost. Raises TimeoutError."""
        async with asyncio.timeout(WAIT_S):
            await self._lost.wait()

    async def bring(self) -> int:
        """Make the lost changes now, like a server that had queued them; return their number."""
        late, self._late = self._late, []
        for make in late:
            await make()
        return len(late)

    @override
    async def get(self, space: Space, row: bytes, columns: Sequence[bytes]) -> dict[bytes, Cell]:
        """Return the present or earlier cells of a row."""
        if self.past_reads:
            self.past_reads -= 1
            self.read_past += 1
            return await self.past.get(space, row, columns)
        return await self.table.get(space, row, columns)


class Keeper:
    """A node's logs, and its hold of the log."""

    def __init__(self, scene: Scene, name: str, table: MemoryTable) -> None:
        """Begin with a new way to the table."""
        self.name = name
        self.way = Way(table)
        self.logs = Logs(self.way, SystemClock(), call_s=CALL_S)
        self.hold: LogHold | None = None
        self.log = LOG
        self._scene = scene
        self._count = 0

    async def claim(self) -> int:
        """Claim the log, and return the epoch. Raises BrokerError."""
        self.hold = await self.logs.claim(self.log, self.name)
        return self.hold.epoch

    def after(self, ahead_ms: int = 1) -> int:
        """Return a time above the log's pointer, as far as this node knows the pointer."""
        assert self.hold is not None
        return timestamp_of(self.hold.pointer) + ahead_ms

    async def publish(self, at_ms: int) -> bool:
        """Append one message with the first id of a millisecond; return True if it was acknowledged."""
        return await self.publish_at([log_key(at_ms, 0)])

    async def publish_lost(self, at_ms: int) -> asyncio.Task[bool]:
        """Begin an append, return when its change is lost, and lose all later changes, too."""
        self.way.loses = True
        publishing = asyncio.create_task(self.publish(at_ms))
        await self.way.lost()
        return publishing

    async def publish_at(self, ids: Sequence[LogKey]) -> bool:
        """Append messages at these ids; return True if they were acknowledged."""
        assert self.hold is not None
        self._count += 1
        labels = [f"{self.name}:{self._count}:{part}" for part in range(len(ids))]
        asked = {"payloads": labels, "generation": self.log.generation}
        process = f"{self.name}-{self._count}"
        ending = self._scene.history.invoke(process, "publish", str(LOG.topic), asked)
        ending.node, ending.epoch = self.name, self.hold.epoch
        try:
            await append(self.hold, ids, [label.encode() for label in labels])
        except BrokerError as error:
            told = ending.unknown if error.outcome == "unknown" else ending.fail
            told(f"{type(error).__name__}: {error}")
            return False
        except BaseException as error:
            ending.unknown(repr(error))
            raise
        ending.ok({"last": ids[-1].hex()}, ids[0].hex())
        return True

    async def read(self, process: str, after: LogKey = LOG_KEY_MIN) -> LogKey:
        """Read to the end through this node; return the last id."""
        asked = {"after": after.hex(), "generation": self.log.generation, "view": "rows"}
        if not process.startswith("final"):
            asked["cursor"] = process
        ending = self._scene.history.invoke(process, "read", str(LOG.topic), asked)
        try:
            rows = await rows_of(self.logs, self.log, after)
        except BrokerError as error:
            ending.fail(f"{type(error).__name__}: {error}")
            return after
        ending.ok({"rows": [[row.id.hex(), (row.payload or b"").decode(), None] for row in rows]})
        return rows[-1].id if rows else after


async def keepers(scene: Scene, *names: str) -> list[Keeper]:
    """Return nodes over the same empty table; the first one has claimed the log."""
    table = MemoryTable(is_alone=False)
    nodes = [Keeper(scene, name, table) for name in names]
    await nodes[0].claim()
    return nodes


def photographed(keeper: Keeper) -> MemoryTable:
    """Return a copy of the table, for later stale reads."""
    return copy.deepcopy(keeper.way.table)


async def final(keeper: Keeper) -> None:
    """Make the final read of the log."""
    await keeper.read("final")
