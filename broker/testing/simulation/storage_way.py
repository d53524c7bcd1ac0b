"""The connection from a node to storage, on which calls or answers may be lost.

All nodes share one storage, and it outlives them. Storage executes a call that has arrived outside of the node's
process, also if the node is paused, dies or is cut off in this time. The faults of storage itself come from the
adversary behind this module (broker/storage/memory/adversary.py).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from typing import Any, Final, TypeVar

from broker.errors import BodyTooLarge, BrokerError
from broker.shield import bare
from broker.storage.call_health import CANCELLED, CallOutcome
from broker.storage.table import Cell, Cells, NotWritten, Space, Table, TableError, WriteUnknown
from broker.testing.simulation.layers import Layers

Answer = TypeVar("Answer")

CALL_S: Final = 5.0
"""The time after which a node gives up a call without an answer, as a gateway's client does."""

STORAGE: Final = Context()


class StorageWay:
    """The faults between one machine and storage. ``happened`` has the numbers of lost calls and answers."""

    def __init__(self) -> None:
        """Begin without faults."""
        self.happened: Counter[str] = Counter()
        self._cuts = Layers[tuple[bool, bool]]()
        """The present cuts: each is a pair of flags, for the way to storage and the way back."""
        self._serving: dict[asyncio.Task[None], None] = {}

    @property
    def is_cut_there(self) -> bool:
        """Return whether calls are lost."""
        return any(there for there, _ in self._cuts.all)

    @property
    def is_cut_back(self) -> bool:
        """Return whether answers are lost."""
        return any(back for _, back in self._cuts.all)

    def cut(self, *, there: bool, back: bool) -> Callable[[], None]:
        """Cut one way or both, until the caller calls the returned function. Cuts add up."""
        return self._cuts.add((there, back))

    def heal(self) -> None:
        """Take all cuts back."""
        self._cuts.clear()

    async def call(self, work: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """Let storage run ``work``. Raises the errors of ``work``, and WriteUnknown if no answer comes."""
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
        except TimeoutError as error:
            raise WriteUnknown("time-out") from bare(error)

    async def _serve(
        self, work: Callable[[], Coroutine[Any, Any, Answer]], answer: asyncio.Future[Answer]
    ) -> None:
        error: Exception | None = None
        done: Answer | None = None
        try:
            done = await work()
        except (TableError, BrokerError, ValueError) as raised:
            error = raised
        if self.is_cut_back:
            self.happened["storage_answers_lost"] += 1
        elif answer.done():
            return
        elif error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(done)  # type: ignore[arg-type]  # It is set, as there is no error.


class LinkedTable:
    """A Table: one node's access to the shared storage. ``close`` ends this access; storage stays."""

    keeps_order = False  # A call may be late, or arrive twice.

    def __init__(
        self, table: Table, way: StorageWay, on_call_end: Callable[[CallOutcome], None]
    ) -> None:
        """Reach ``table`` by ``way``; call ``on_call_end`` with the outcome of every call."""
        self._table = table
        self.is_alone, self.checks_values = table.is_alone, table.checks_values
        self.cell_bytes_max = table.cell_bytes_max
        self.change_bytes_max = table.change_bytes_max
        self._way = way
        self._on_call_end = on_call_end
        self._is_closed = False

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
        """Change cells of a row together if its head is ``expected``."""
        sent, gone = dict(puts), list(deletes)
        return await self._call(
            "change",
            lambda: self._table.change(space, row, expected, sent, gone, clear=clear),
        )

    async def get(self, space: Space, row: bytes, columns: Sequence[bytes]) -> dict[bytes, Cell]:
        """Return the named cells that exist in a row."""
        return await self._call("get", lambda: self._table.get(space, row, columns))

    async def cells(  # noqa: PLR0913 - As the port.
        self,
        space: Space,
        row: bytes,
        first: bytes,
        last: bytes,
        *,
        cells_max: int,
        bytes_max: int,
        reverse: bool = False,
    ) -> Cells:
        """Return cells with columns in ``[first, last]``."""
        return await self._call(
            "cells",
            lambda: self._table.cells(
                space, row, first, last, cells_max=cells_max, bytes_max=bytes_max, reverse=reverse
            ),
        )

    async def columns(self, space: Space, row: bytes, first: bytes, last: bytes) -> list[bytes]:
        """Return the columns of a row in ``[first, last]``."""
        return await self._call("columns", lambda: self._table.columns(space, row, first, last))

    async def scan(
        self, space: Space, first: bytes, last: bytes, *, limit: int, reverse: bool = False
    ) -> list[tuple[bytes, Cell]]:
        """Return keys in ``[first, last]`` with their heads."""
        return await self._call(
            "scan", lambda: self._table.scan(space, first, last, limit=limit, reverse=reverse)
        )

    async def put(self, space: Space, heads: Mapping[bytes, bytes]) -> None:
        """Put heads of rows."""
        sent = dict(heads)
        await self._call("put", lambda: self._table.put(space, sent))

    async def delete(self, space: Space, rows: Sequence[bytes]) -> None:
        """Remove whole rows."""
        sent = list(rows)
        await self._call("delete", lambda: self._table.delete(space, sent))

    async def close(self) -> None:
        """Refuse every further call of this node."""
        self._is_closed = True

    async def _call(self, name: str, work: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        if self._is_closed:
            raise NotWritten("the table is closed")
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        kind: str | None = "silent"
        message: str | None = None
        try:
            answer = await self._way.call(work)
            kind = None
        except asyncio.CancelledError:
            kind = CANCELLED
            raise
        except (TableError, BrokerError) as error:
            kind, message = _kind_of(error), str(error)
            raise
        else:
            return answer
        finally:
            self._on_call_end(CallOutcome(name, loop.time() - began_s, kind, message))


def _kind_of(error: TableError | BrokerError) -> str | None:
    """Return how a call ended, in the words of call_health.py."""
    if isinstance(error, NotWritten):
        return "refused"
    if isinstance(error, BodyTooLarge):
        return None  # Storage answered as it should.
    return "silent" if isinstance(error, TableError) else "told"
