"""Tables that do what a test tells them, and the store over them, in virtual time."""

import asyncio
from collections.abc import Callable

from broker.model import ROW_ID_MAX, ROW_ID_MIN, TopicId, row_id
from broker.storage.cells import CellsError, CellsRefused
from broker.storage.keys import LogId
from broker.storage.memory_cells import MemoryCells
from broker.storage.ports import Batch, Segment
from broker.storage.tables import TableLogStore
from broker.testing.clock import VirtualClock, simulate

LOG = LogId(TopicId("default", "notes"), 1)


class Scripted(MemoryCells):
    """Tables of which the next calls can be told what to do: (before, after) the real call."""

    def __init__(self) -> None:
        super().__init__()
        self.puts: list[Callable[[], None]] = []
        self.after_puts: list[Callable[[], None]] = []
        self.cas: list[str] = []
        self.gate: asyncio.Event | None = None
        self.log: list[str] = []

    async def put(self, table, rows, *, synced=True):
        if self.gate is not None and len(self.log) == 0:
            self.log.append("waits")
            await self.gate.wait()
        if self.puts:
            self.puts.pop(0)()
        await super().put(table, rows, synced=synced)
        if self.after_puts:
            self.after_puts.pop(0)()

    async def check_and_put(self, table, key, expected, value):
        word = self.cas.pop(0) if self.cas else "do"
        if word == "refuse":
            raise CellsRefused("nobody there")
        if word == "fail":
            raise CellsError("not done")
        done = await super().check_and_put(table, key, expected, value)
        if word == "do and fail":
            raise CellsError("answer lost")
        return False if word == "do and lie" else done


def fail() -> None:
    raise CellsError("time-out")


def refuse() -> None:
    raise CellsRefused("nobody there")


def batch(*rows_ms: int, pointer: int | None = None) -> Batch:
    ids = [row_id(ms, 0) for ms in rows_ms]
    return Batch([Segment(ids, [b"x"] * len(ids), pointer)], ids[-1])


def run(story):
    """Tell a story in virtual time; it gets the tables and two stores over them."""

    async def main(loop):
        cells = Scripted()
        clock = VirtualClock(loop)
        stores = [TableLogStore(cells, clock, call_s=2.0) for _ in range(2)]
        await story(cells, *stores)

    simulate(main)


async def ids_ms(store: TableLogStore, log: LogId = LOG) -> list[int]:
    page = await store.scan(log, ROW_ID_MIN, ROW_ID_MAX, rows_max=1000, bytes_max=1 << 20)
    return [int.from_bytes(row.id[:8], "big") for row in page.rows]
