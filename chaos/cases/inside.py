"""Nodes' logs in this process, over a table that does on demand what real ones do rarely.

A late change of a region server, one that was made and told as False, an answer from the past: no one can
make HBase do that at a chosen moment. What runs is the nodes' own logs, each over a **way** to one table, which
is where the case stands in between::

    Keeper a ── way a ──┐                 gate         holds changes back until it opens
    Keeper b ── way b ──┴── table         late         what was lost on the way and comes in the end
                                          lies, past   answers that are not so
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
from broker.model import ROW_ID_MIN, RowId, TopicId, row_id, timestamp_of
from broker.storage.hold import LogHold
from broker.storage.keys import LogId
from broker.storage.log import Logs
from broker.storage.memory.table import MemoryTable
from broker.storage.table import Cell, Space, WriteUnknown
from chaos.bare import append, rows_of
from chaos.cases.harness import WAIT_S, Scene

LOG: Final = LogId(TopicId("default", "case"), 1)
CALL_S: Final = 3.0
"""How long a call tries: long enough for a busy machine, short enough to be waited for."""


class Gate:
    """Where changes can be held back."""

    def __init__(self) -> None:
        """Stand open."""
        self._arrived = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()

    def shut(self) -> None:
        """Hold back every change from now on."""
        self._arrived.clear()
        self._open.clear()

    def open(self) -> None:
        """Let everything through."""
        self._open.set()

    async def arrived(self) -> None:
        """Return when a change is being held back. Raises TimeoutError."""
        async with asyncio.timeout(WAIT_S):
            await self._arrived.wait()

    async def passed(self) -> None:
        """Go through, now or when it opens."""
        if not self._open.is_set():
            self._arrived.set()
        await self._open.wait()


class Way(MemoryTable):
    """One node's way to the table.

    Attributes:
        gate: Where changes can be held back, before they are made.
        loses: Whether changes get no answer, and come later if ``bring`` is called.
        lies: How many changes, once made, are told as False.
        lied: How many were.
        past: The table as it once was, from which the next ``past_reads`` gets are answered.
        read_past: How many gets were answered from the past.
    """

    def __init__(self, table: MemoryTable) -> None:
        """Lead to the table."""
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
        """Change cells, and say so or lie; or lose the change on the way. Raises NoAnswer."""
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
        """Return when a change was lost on the way. Raises TimeoutError."""
        async with asyncio.timeout(WAIT_S):
            await self._lost.wait()

    async def bring(self) -> int:
        """Make what was lost on the way, as a server does that had it queued; return how many arrived."""
        late, self._late = self._late, []
        for make in late:
            await make()
        return len(late)

    @override
    async def get(self, space: Space, row: bytes, columns: Sequence[bytes]) -> dict[bytes, Cell]:
        """Return cells of a row, as they are or were."""
        if self.past_reads:
            self.past_reads -= 1
            self.read_past += 1
            return await self.past.get(space, row, columns)
        return await self.table.get(space, row, columns)


class Keeper:
    """A node's logs, and what it holds."""

    def __init__(self, scene: Scene, name: str, table: MemoryTable) -> None:
        """Have a way of its own to the table."""
        self.name = name
        self.way = Way(table)
        self.logs = Logs(self.way, SystemClock(), call_s=CALL_S)
        self.hold: LogHold | None = None
        self.log = LOG
        self._scene = scene
        self._count = 0

    async def claim(self) -> int:
        """Take the log, and return the epoch. Raises BrokerError."""
        self.hold = await self.logs.claim(self.log, self.name)
        return self.hold.epoch

    def after(self, ahead_ms: int = 1) -> int:
        """Return a time above the log's pointer, as this node knows it."""
        assert self.hold is not None
        return timestamp_of(self.hold.pointer) + ahead_ms

    async def publish(self, at_ms: int) -> bool:
        """Append one message with the first id of a millisecond; whether it was acknowledged."""
        return await self.publish_at([row_id(at_ms, 0)])

    async def publish_at(self, ids: Sequence[RowId]) -> bool:
        """Append messages at these ids; whether they were acknowledged."""
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

    async def read(self, process: str, after: RowId = ROW_ID_MIN) -> RowId:
        """Read to the end, as consumers do whose node this is; return the last id."""
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


def keepers(scene: Scene, *names: str) -> list[Keeper]:
    """Return nodes over the same empty table."""
    table = MemoryTable(is_alone=False)
    return [Keeper(scene, name, table) for name in names]


def photographed(keeper: Keeper) -> MemoryTable:
    """Return the table as it is now, for a node that shall see the past."""
    return copy.deepcopy(keeper.way.table)


async def final(keeper: Keeper) -> None:
    """Read the log as it ended."""
    await keeper.read("final")
