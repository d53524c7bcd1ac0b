"""Rows in memory, for tests and the model. A call for several rows is one step for each row.

``before`` is called with the name of each changing step, before that step. A test may raise there, and so crash a
process between any two steps.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

from broker.rowlog.row_table import Cells, Guard, NotWritten, is_family

Step = Callable[[str, bytes], None]


class MemoryRows:
    """Implements RowTable. Several processes of a test may share ``stored``."""

    changes_together = True

    def __init__(
        self, stored: dict[bytes, dict[bytes, Cells]] | None = None, before: Step | None = None
    ) -> None:
        """Begin with the rows that are stored, by table."""
        self.stored = {} if stored is None else stored
        self.splits: list[bytes] = []
        """The first keys of the regions of each table, without the first region."""
        self._before = before

    async def _step(self, name: str, table: bytes) -> dict[bytes, Cells]:
        await asyncio.sleep(0)  # Other tasks run here, as they do while a real table is asked.
        if self._before is not None:
            self._before(name, table)
        return self._rows(table)

    def _rows(self, table: bytes) -> dict[bytes, Cells]:
        if table not in self.stored:
            raise NotWritten(f"there is no table {table.decode(errors='replace')}")
        return self.stored[table]

    async def put(self, table: bytes, rows: Sequence[tuple[bytes, Mapping[bytes, bytes]]]) -> None:
        """Put cells. Each row is a step of its own."""
        assert len({row for row, _ in rows}) == len(rows), "no row comes twice"
        for row, cells in rows:
            there = await self._step("put", table)
            there.setdefault(row, {}).update(cells)

    async def change(
        self,
        table: bytes,
        row: bytes,
        puts: Mapping[bytes, bytes],
        deletes: Sequence[bytes],
        guard: Guard | None,
    ) -> bool:
        """Put and delete in one step."""
        there = await self._step("change", table)
        found = there.get(row, {})
        if guard is not None and found.get(guard.column) != guard.expected:
            return False
        left = {column: value for column, value in found.items() if column not in deletes}
        there[row] = {**left, **puts}
        return True

    async def check_and_put(
        self, table: bytes, row: bytes, column: bytes, expected: bytes, value: bytes
    ) -> bool:
        """Compare and set."""
        there = await self._step("check_and_put", table)
        if there.get(row, {}).get(column, b"") != expected:
            return False
        there.setdefault(row, {})[column] = value
        return True

    async def increment(self, table: bytes, row: bytes, column: bytes, by: int = 1) -> int:
        """Raise a counter."""
        cells = (await self._step("increment", table)).setdefault(row, {})
        value = int.from_bytes(cells.get(column, b"")) + by
        cells[column] = value.to_bytes(8)
        return value

    async def get(
        self, table: bytes, rows: Sequence[bytes], columns: Sequence[bytes]
    ) -> dict[bytes, Cells]:
        """Return rows."""
        await asyncio.sleep(0)
        there = self._rows(table)
        found = {row: _chosen(there.get(row, {}), columns, b"") for row in rows}
        return {row: cells for row, cells in found.items() if cells}

    async def scan(
        self,
        table: bytes,
        start: bytes,
        stop: bytes,
        columns: Sequence[bytes],
        *,
        limit: int,
        qualifier_prefix: bytes = b"",
    ) -> list[tuple[bytes, Cells]]:
        """Return rows in order."""
        await asyncio.sleep(0)
        there = self._rows(table)
        keys = sorted(there)
        found: list[tuple[bytes, Cells]] = []
        for key in keys[bisect_left(keys, start) :]:
            if (stop and key >= stop) or len(found) == limit:
                break
            if cells := _chosen(there[key], columns, qualifier_prefix):
                found.append((key, cells))
        return found

    async def delete(self, table: bytes, rows: Sequence[tuple[bytes, Sequence[bytes]]]) -> None:
        """Delete columns. Each row is a step of its own."""
        for row, columns in rows:
            there = await self._step("delete", table)
            cells = there.get(row, {})
            for column in columns:
                cells.pop(column, None)
            if not cells:
                there.pop(row, None)

    async def make_table(self, table: bytes, family: bytes, splits: Sequence[bytes]) -> bool:
        """Make an empty table, if there is none of that name."""
        del family, splits
        is_new = table not in self.stored
        self.stored.setdefault(table, {})
        return is_new

    async def region_starts(self, table: bytes) -> list[bytes]:
        """Return the empty key and ``splits``."""
        self._rows(table)
        return [b"", *self.splits]

    async def tables(self) -> list[bytes]:
        """Return the names of all tables."""
        return sorted(self.stored)

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


def _chosen(cells: Cells, columns: Sequence[bytes], prefix: bytes) -> Cells:
    return {
        column: value
        for column, value in sorted(cells.items())
        if any(column == each or (is_family(each) and column.startswith(each)) for each in columns)
        and column.partition(b":")[2].startswith(prefix)
    }
