"""The way from a node to storage: calls that travel, arrive, and are answered, unless something is between.

Storage is one, and outlives its callers: a call that has arrived is carried out in storage's own name, also
when whoever sent it stands still, dies or is cut off meanwhile. What storage itself does wrong is up to the
adversary behind this (broker/testing/adversary.py); the record store here misbehaves by the same measure.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import Context
from typing import Any, Final, TypeVar

from broker.errors import OutcomeUnknown, Unavailable
from broker.storage.cells import CellsError, Columns, RowCells, Scanned, Table
from broker.storage.health import Ended
from broker.storage.memory_cells import MemoryRecordStore
from broker.storage.ports import Record
from broker.testing.adversary import AdversaryCells, Bias
from broker.testing.simulation.layers import Layers

Answer = TypeVar("Answer")

CALL_S: Final = 5.0
"""After this a call that is not answered is given up, as by a gateway's client."""
RECORD_S: Final = 20.0
RECORD_PAUSE_S: Final = 0.05

STORAGE: Final = Context()


class StorageWay:
    """What is wrong between one machine and storage. ``happened`` counts what it cost.

    Attributes:
        puts_late_s: how much later rows come that are sent by now; all else is in time.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.puts_late_s = 0.0
        self.happened: Counter[str] = Counter()
        self._cuts = Layers[tuple[bool, bool]]()
        """Of each whether it cuts the way there, and the way back."""
        self._serving: dict[asyncio.Task[None], None] = {}

    @property
    def is_cut_there(self) -> bool:
        """Whether calls don't arrive."""
        return any(there for there, _ in self._cuts.all)

    @property
    def is_cut_back(self) -> bool:
        """Whether answers don't come back."""
        return any(back for _, back in self._cuts.all)

    def cut(self, *, there: bool, back: bool) -> Callable[[], None]:
        """Cut one way or both, until what is returned is called. Cuts add up."""
        return self._cuts.add((there, back))

    def heal(self) -> None:
        """Take all cuts back."""
        self._cuts.clear()

    async def call(self, work: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """Let storage do something. Raises CellsError: it may have been done."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        if self.is_cut_there:
            self.happened["storage_calls_lost"] += 1
        else:
            serving = loop.create_task(self._serve(work, answer), context=STORAGE)
            self._serving[serving] = None
            serving.add_done_callback(self._serving.pop)
        try:
            async with asyncio.timeout(CALL_S):
                return await answer
        except TimeoutError:
            raise CellsError("time-out") from None

    async def _serve(
        self, work: Callable[[], Coroutine[Any, Any, Answer]], answer: asyncio.Future[Answer]
    ) -> None:
        error: Exception | None = None
        done: Answer | None = None
        try:
            done = await work()
        except (CellsError, Unavailable, OutcomeUnknown) as raised:
            error = raised
        if self.is_cut_back:
            self.happened["storage_answers_lost"] += 1
        elif answer.done():
            return
        elif error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(done)  # type: ignore[arg-type]  # Done, if there is no error.


class LinkedCells:
    """The tables as one node sees them."""

    def __init__(
        self, cells: AdversaryCells, way: StorageWay, told: Callable[[Ended], None]
    ) -> None:
        """Reach ``cells`` by ``way``."""
        self.row_bytes_max = cells.row_bytes_max
        self.put_bytes_max = cells.put_bytes_max
        self.tags_are_times = cells.tags_are_times
        self._cells = cells
        self._way = way
        self._told = told

    async def _call(self, name: str, work: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        began_s = asyncio.get_running_loop().time()
        kind: str | None = "silent"
        message: str | None = None
        try:
            answer = await self._way.call(work)
            kind = None
        except CellsError as error:
            message = str(error)
            raise
        else:
            return answer
        finally:
            self._told(Ended(name, asyncio.get_running_loop().time() - began_s, kind, message))

    async def put(self, table: Table, rows: Sequence[RowCells], *, synced: bool = True) -> None:
        """Write rows."""
        way = self._way

        async def work() -> None:
            if way.puts_late_s:
                way.happened["late_puts"] += 1
                await asyncio.sleep(way.puts_late_s)
            await self._cells.put(table, rows, synced=synced)

        await self._call("put", work)

    async def get(self, table: Table, key: bytes) -> Columns | None:
        """Return a row's cells, or None."""
        return await self._call("get", lambda: self._cells.get(table, key))

    async def check_and_put(
        self, table: Table, key: bytes, expected: bytes | None, value: bytes
    ) -> bool:
        """Write the control cell if its value is ``expected``."""
        return await self._call(
            "check_and_put", lambda: self._cells.check_and_put(table, key, expected, value)
        )

    async def scan(  # noqa: PLR0913  As the port.
        self,
        table: Table,
        start: bytes,
        stop: bytes,
        *,
        rows_max: int,
        bytes_max: int,
        reverse: bool = False,
        columns: Sequence[bytes] | None = None,
    ) -> Scanned:
        """Return rows of a range."""
        return await self._call(
            "scan",
            lambda: self._cells.scan(
                table,
                start,
                stop,
                rows_max=rows_max,
                bytes_max=bytes_max,
                reverse=reverse,
                columns=columns,
            ),
        )

    async def keys(
        self, table: Table, start: bytes, stop: bytes, *, rows_max: int, reverse: bool = False
    ) -> list[bytes]:
        """Return keys of a range."""
        return await self._call(
            "scan",
            lambda: self._cells.keys(table, start, stop, rows_max=rows_max, reverse=reverse),
        )

    async def delete(self, table: Table, keys: Sequence[bytes]) -> None:
        """Remove rows."""
        await self._call("delete", lambda: self._cells.delete(table, keys))

    async def weigh(self, table: Table, start: bytes, stop: bytes) -> tuple[int, int]:
        """Return how many rows and bytes lie in a range."""
        return await self._cells.weigh(table, start, stop)

    async def compact(self, table: Table, start: bytes, stop: bytes) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing: storage stays."""


class AdversaryRecords:
    """The record store itself, which delays, loses answers and applies writes late.

    Attributes:
        slow_s: how much longer a write takes than by its bias.
    """

    def __init__(self, chance: random.Random, bias: Callable[[], Bias]) -> None:
        """Misbehave as ``bias`` says just now."""
        self.records = MemoryRecordStore()
        self.slow_s = 0.0
        self.happened: Counter[str] = Counter()
        self._chance = chance
        self._bias = bias

    async def read(self, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Answer a read. Raises CellsError."""
        await self._travel()
        if self._chance.random() < self._bias().no_answer:
            raise CellsError("no answer")
        return await work()

    async def put_if(self, key: bytes, expected: bytes | None, value: bytes) -> bytes | None:
        """Compare and set. Raises OutcomeUnknown."""
        await self._travel()
        if self.slow_s:
            await asyncio.sleep(self.slow_s)
        bias = self._bias()
        if self._chance.random() < bias.late_write:
            self.happened["late_records"] += 1
            await asyncio.sleep(self._chance.expovariate(1 / bias.late_ms) / 1000)
        version = await self.records.put_if(key, expected, value)
        if self._chance.random() < bias.lost_answer:
            self.happened["lost_record_answers"] += 1
            raise OutcomeUnknown("the answer of the record store was lost")
        return version

    async def _travel(self) -> None:
        mean_ms = self._bias().delay_ms
        if mean_ms > 0:
            await asyncio.sleep(self._chance.expovariate(1 / mean_ms) / 1000)


class LinkedRecords:
    """The record store as one node sees it."""

    def __init__(self, records: AdversaryRecords, way: StorageWay) -> None:
        """Reach ``records`` by ``way``."""
        self._records = records
        self._way = way

    async def get(self, key: bytes) -> Record | None:
        """Return the record, or None. Raises Unavailable."""
        inner = self._records
        return await self._read(lambda: inner.read(lambda: inner.records.get(key)))

    async def put_if(self, key: bytes, expected: bytes | None, value: bytes) -> bytes | None:
        """Put ``value`` if the record's version is ``expected``. Raises OutcomeUnknown."""
        try:
            return await self._way.call(lambda: self._records.put_if(key, expected, value))
        except CellsError as error:
            raise OutcomeUnknown(f"the record store does not answer: {error}") from error

    async def scan_prefix(self, prefix: bytes) -> list[tuple[bytes, Record]]:
        """Return all records whose key begins with ``prefix``. Raises Unavailable."""
        inner = self._records
        return await self._read(lambda: inner.read(lambda: inner.records.scan_prefix(prefix)))

    async def _read(self, work: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + RECORD_S
        while True:
            try:
                return await self._way.call(work)
            except CellsError as error:
                if loop.time() > deadline_s:
                    raise Unavailable(f"the record store does not answer: {error}") from error
                await asyncio.sleep(RECORD_PAUSE_S)
