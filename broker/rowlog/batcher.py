"""Batch the puts of many tasks: puts that wait while calls are in flight go together with the next call.

A single put goes at once. If a call fails, each task whose rows it carried gets the error, and finds out by itself
whether its rows were written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from broker.rowlog.row_table import RowTable

ROWS_MAX: Final = 100
BYTES_MAX: Final = 1 << 20
WAYS: Final = 2
"""How many calls are in flight at once."""
RowPut = tuple[bytes, Mapping[bytes, bytes]]
_Waiting = tuple[Sequence[RowPut], int, "asyncio.Future[None]"]


class Gathering:
    """Batched puts into one table. Use it in one event loop."""

    def __init__(self, table: RowTable, name: bytes) -> None:
        """Put into the table ``name``."""
        self._table = table
        self._name = name
        self._waiting: list[_Waiting] = []
        self._under_way: dict[asyncio.Task[None], set[bytes]] = {}
        """The calls in flight, with their rows."""

    async def put(self, rows: Sequence[RowPut]) -> None:
        """Put rows, none of them twice. Raises TableError.

        If the caller is cancelled, its rows may be written all the same.
        """
        size = sum(len(value) for _, cells in rows for value in cells.values())
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((rows, size, done))
        self._begin()
        await done

    def _begin(self) -> None:
        while len(self._under_way) < WAYS and (taken := self._taken()):
            task = asyncio.create_task(self._call(taken))
            self._under_way[task] = {row for rows, _, _ in taken for row, _ in rows}
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._under_way[task]
        self._begin()

    def _taken(self) -> list[_Waiting]:
        """Take as many puts as one call can carry.

        No call carries a row twice: both puts would change the row in one step, and not in order. Nor does it carry a
        row that a call in flight carries, for a cancelled caller: it might overtake that call.
        """
        taken: list[_Waiting] = []
        left: list[_Waiting] = []
        keys = {row for rows in self._under_way.values() for row in rows}
        count = size = 0
        for at, waiting in enumerate(self._waiting):
            own = {row for row, _ in waiting[0]}
            is_full = count + len(own) > ROWS_MAX or size + waiting[1] > BYTES_MAX
            if taken and is_full:
                left += self._waiting[at:]
                break
            if keys & own:
                left.append(waiting)
            else:
                taken.append(waiting)
                count += len(own)
                size += waiting[1]
            keys |= own  # Later puts of the same row stay behind this one.
        self._waiting = left
        return taken

    async def _call(self, taken: list[_Waiting]) -> None:
        try:
            await self._table.put(self._name, [row for rows, _, _ in taken for row in rows])
        except Exception as error:  # noqa: BLE001 - The tasks that put these rows get it.
            for _, _, done in taken:
                if not done.done():
                    done.set_exception(error)
        else:
            for _, _, done in taken:
                if not done.done():
                    done.set_result(None)
