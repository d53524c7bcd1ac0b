"""Nodes' stores in this process, over tables that do on demand what real ones do rarely.

A late write of a region server, a compare-and-set that was done and said False, an answer from the past:
no one can make HBase do that at a chosen moment. What runs is the nodes' own log store, each over a **way**
to shared tables, which is where the case stands in between::

    Keeper a ── way a ──┐                 gate         holds calls back until it opens
    Keeper b ── way b ──┴── tables        late         what was lost on the way and comes in the end
                                          lies, past   answers that are not so
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from typing import Any, Final

from typing_extensions import override

from broker.clock import SystemClock
from broker.errors import BrokerError
from broker.model import ROW_ID_MAX, ROW_ID_MIN, RowId, TopicId, row_id, timestamp_of
from broker.storage.cells import CellsError, Columns, RowCells, Scanned, Table
from broker.storage.keys import LogId
from broker.storage.memory_cells import MemoryCells
from broker.storage.ports import Batch, Hold, Segment
from broker.storage.tables import TableLogStore
from chaos.cases.harness import WAIT_S, Scene

LOG: Final = LogId(TopicId("default", "case"), 1)
CALL_S: Final = 3.0
"""How long a store tries: long enough for a busy machine, short enough to be waited for."""
PAGE: Final = (1000, 1 << 22)


class Gate:
    """Where calls can be held back."""

    def __init__(self) -> None:
        """Stand open."""
        self._arrived = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()
        self._let = 0

    def shut(self, let: int = 0) -> None:
        """Hold back whoever comes after so many."""
        self._let = let
        self._arrived.clear()
        self._open.clear()

    def open(self) -> None:
        """Let everybody through."""
        self._open.set()

    async def arrived(self) -> None:
        """Return when somebody is being held back. Raises TimeoutError."""
        async with asyncio.timeout(WAIT_S):
            await self._arrived.wait()

    async def passed(self) -> None:
        """Go through, now or when it opens."""
        if not self._open.is_set() and self._let:
            self._let -= 1
            return
        if not self._open.is_set():
            self._arrived.set()
        await self._open.wait()


class Way(MemoryCells):
    """One node's way to the tables.

    Attributes:
        gate: Where calls can be held back, before they are done.
        loses_puts: Whether rows are reported as an error, and come later if ``bring`` is called.
        lies: How many compare-and-sets, once done, say False.
        lied: How many did.
        past: Tables as they once were, from which the next ``past_reads`` reads of a row are answered.
        read_past: How many reads were answered from the past.
    """

    def __init__(self, tables: MemoryCells) -> None:
        """Lead to the tables."""
        super().__init__()
        self._tables = tables
        self.gate = Gate()
        self.loses_puts = False
        self.late: list[tuple[Table, Sequence[RowCells]]] = []
        self.lies = self.lied = self.past_reads = self.read_past = 0
        self.past = MemoryCells()

    @override
    async def put(self, table: Table, rows: Sequence[RowCells], *, synced: bool = True) -> None:
        """Write rows, unless they are lost on the way."""
        await self.gate.passed()
        if self.loses_puts:
            self.late.append((table, list(rows)))
            raise CellsError("time-out")
        await self._tables.put(table, rows, synced=synced)

    async def bring(self) -> int:
        """Write what was lost on the way, as a server does that had it queued; return how many rows."""
        late, self.late = self.late, []
        for table, rows in late:
            await self._tables.put(table, rows)
        return sum(len(rows) for _, rows in late)

    @override
    async def check_and_put(
        self, table: Table, key: bytes, expected: bytes | None, value: bytes
    ) -> bool:
        """Compare and set, and say so or lie."""
        await self.gate.passed()
        done = await self._tables.check_and_put(table, key, expected, value)
        if done and self.lies:
            self.lies -= 1
            self.lied += 1
            return False
        return done

    @override
    async def get(self, table: Table, key: bytes) -> Columns | None:
        """Return a row, as it is or was."""
        await self.gate.passed()
        if self.past_reads:
            self.past_reads -= 1
            self.read_past += 1
            return await self.past.get(table, key)
        return await self._tables.get(table, key)

    @override
    async def scan(self, *asked: Any, **more: Any) -> Scanned:
        """Return rows, as they are."""
        return await self._tables.scan(*asked, **more)


class Keeper:
    """A node's store, and what it holds."""

    def __init__(self, scene: Scene, name: str, tables: MemoryCells) -> None:
        """Have a way of its own to the tables."""
        self.name = name
        self.way = Way(tables)
        self.store = TableLogStore(self.way, SystemClock(), call_s=CALL_S)
        self.hold: Hold | None = None
        self.log = LOG
        self._scene = scene
        self._count = 0

    async def claim(self) -> int:
        """Take the log, and return the epoch. Raises BrokerError."""
        self.hold = await self.store.claim(self.log, self.name)
        return self.hold.epoch

    def after(self, ahead_ms: int = 1) -> int:
        """Return a time above the log's pointer, as this node knows it."""
        assert self.hold is not None
        return timestamp_of(self.hold.control.pointer) + ahead_ms

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
        segment = Segment(list(ids), [label.encode() for label in labels])
        try:
            await self.store.append(self.hold, Batch([segment], ids[-1]))
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
        rows = []
        try:
            while True:
                rows_max, bytes_max = PAGE
                page = await self.store.scan(
                    self.log, after, ROW_ID_MAX, rows_max=rows_max, bytes_max=bytes_max
                )
                rows += [[row.id.hex(), (row.payload or b"").decode(), None] for row in page.rows]
                after = page.rows[-1].id if page.rows else after
                if not page.more:
                    break
        except BrokerError as error:
            ending.fail(f"{type(error).__name__}: {error}")
            return after
        ending.ok({"rows": rows})
        return after


def keepers(scene: Scene, *names: str) -> list[Keeper]:
    """Return nodes' stores over the same empty tables."""
    tables = MemoryCells()
    return [Keeper(scene, name, tables) for name in names]


def photographed(keeper: Keeper) -> MemoryCells:
    """Return the tables as they are now, for who shall see the past."""
    return copy.deepcopy(keeper.way._tables)  # noqa: SLF001  The tables that the ways share.


async def final(keeper: Keeper) -> None:
    """Read the log as it ended."""
    await keeper.read("final")
