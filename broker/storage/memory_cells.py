"""Tables and records in memory: for tests, and for who wants a broker that forgets.

They behave well: every call does at once what it says, and nothing is lost but at the end of the process.
What storage can do to a broker beyond that is in broker/testing/adversary.py, over these tables.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from broker.storage.cells import (
    CONTROL_COLUMN,
    Cell,
    Columns,
    RowCells,
    Scanned,
    Table,
    bounded,
)
from broker.storage.ports import Record

UNBOUNDED = 1 << 62


class MemoryTable:
    """Rows in key order. Every method is one atomic step."""

    __slots__ = ("_keys", "_rows")

    def __init__(self) -> None:
        """Start empty."""
        self._rows: dict[bytes, dict[bytes, Cell]] = {}
        self._keys: list[bytes] = []

    def put(self, row: RowCells) -> None:
        """Write a row's cells; of two writes of one cell the higher tag, then the later, stays."""
        columns = self._rows.get(row.key)
        if columns is None:
            columns = self._rows[row.key] = {}
            insort(self._keys, row.key)
        for name, cell in row.columns.items():
            known = columns.get(name)
            if known is None or cell.tag >= known.tag:
                columns[name] = cell

    def put_all(self, rows: Iterable[RowCells]) -> None:
        """Write rows."""
        for row in rows:
            self.put(row)

    def get(self, key: bytes) -> Columns | None:
        """Return a row's cells as they are now."""
        columns = self._rows.get(key)
        return None if columns is None else dict(columns)

    def check_and_put(
        self, key: bytes, expected: bytes | None, value: bytes, tag_min: int = 0
    ) -> bool:
        """Write the control cell if its value is ``expected``; its tag rises, to ``tag_min`` at least."""
        known = self._rows.get(key, {}).get(CONTROL_COLUMN)
        if (None if known is None else known.value) != expected:
            return False
        tag = tag_min if known is None else max(known.tag + 1, tag_min)
        self.put(RowCells(key, {CONTROL_COLUMN: Cell(tag, value)}))
        return True

    def scan(self, start: bytes, stop: bytes, rows_max: int, *, reverse: bool) -> list[RowCells]:
        """Return the first or last rows of a range."""
        low, high = self._range(start, stop)
        if reverse:
            keys = self._keys[max(low, high - rows_max) : high][::-1]
        else:
            keys = self._keys[low : min(high, low + rows_max)]
        return [RowCells(key, dict(self._rows[key])) for key in keys]

    def page(
        self,
        start: bytes,
        stop: bytes,
        *,
        rows_max: int,
        bytes_max: int,
        reverse: bool,
        columns: Sequence[bytes] | None,
    ) -> Scanned:
        """Return what Cells.scan does."""
        if columns is None:
            rows = self.scan(start, stop, rows_max + 1, reverse=reverse)
        else:
            rows = list(islice(self._chosen(start, stop, columns, reverse=reverse), rows_max + 1))
        return bounded(rows, rows_max, bytes_max, more=False)

    def _chosen(
        self, start: bytes, stop: bytes, columns: Sequence[bytes], *, reverse: bool
    ) -> Iterator[RowCells]:
        """Give the rows that have some of the columns, with these alone."""
        low, high = self._range(start, stop)
        keys = self._keys[low:high]
        for key in reversed(keys) if reverse else keys:
            row = self._rows[key]
            cells = {name: row[name] for name in columns if name in row}
            if cells:
                yield RowCells(key, cells)

    def keys(self, start: bytes, stop: bytes, rows_max: int, *, reverse: bool) -> list[bytes]:
        """Return the first or last keys of a range."""
        return [row.key for row in self.scan(start, stop, rows_max, reverse=reverse)]

    def delete(self, keys: Iterable[bytes]) -> None:
        """Remove rows."""
        for key in keys:
            if self._rows.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]

    def weigh(self, start: bytes, stop: bytes) -> tuple[int, int]:
        """Count rows and bytes of a range."""
        low, high = self._range(start, stop)
        sizes = (
            len(key) + sum(len(cell.value) for cell in self._rows[key].values())
            for key in self._keys[low:high]
        )
        return high - low, sum(sizes)

    def _range(self, start: bytes, stop: bytes) -> tuple[int, int]:
        return bisect_left(self._keys, start), bisect_left(self._keys, stop)


class MemoryCells:
    """Cells in memory, well-behaved."""

    tags_are_times = False

    def __init__(self, *, row_bytes_max: int = UNBOUNDED, put_bytes_max: int = UNBOUNDED) -> None:
        """Start with empty tables and the bounds that a real store would have."""
        self.row_bytes_max = row_bytes_max
        self.put_bytes_max = put_bytes_max
        self.tables = {table: MemoryTable() for table in Table}

    async def put(self, table: Table, rows: Sequence[RowCells], *, synced: bool = True) -> None:
        """Write rows."""
        del synced  # There is no disk.
        await asyncio.sleep(0)
        self.tables[table].put_all(rows)

    async def get(self, table: Table, key: bytes) -> Columns | None:
        """Return a row's cells, or None."""
        await asyncio.sleep(0)
        return self.tables[table].get(key)

    async def check_and_put(
        self, table: Table, key: bytes, expected: bytes | None, value: bytes
    ) -> bool:
        """Write the control cell if its value is ``expected``."""
        await asyncio.sleep(0)
        return self.tables[table].check_and_put(key, expected, value)

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
        """Return the first rows of a range, or the last ones."""
        await asyncio.sleep(0)
        return self.tables[table].page(
            start, stop, rows_max=rows_max, bytes_max=bytes_max, reverse=reverse, columns=columns
        )

    async def keys(
        self, table: Table, start: bytes, stop: bytes, *, rows_max: int, reverse: bool = False
    ) -> list[bytes]:
        """Return the first keys of a range, or the last ones."""
        await asyncio.sleep(0)
        return self.tables[table].keys(start, stop, rows_max, reverse=reverse)

    async def delete(self, table: Table, keys: Sequence[bytes]) -> None:
        """Remove rows."""
        await asyncio.sleep(0)
        self.tables[table].delete(keys)

    async def weigh(self, table: Table, start: bytes, stop: bytes) -> tuple[int, int]:
        """Count rows and bytes of a range."""
        return self.tables[table].weigh(start, stop)

    async def compact(self, table: Table, start: bytes, stop: bytes) -> None:
        """Do nothing: what is deleted is gone."""

    async def close(self) -> None:
        """Do nothing: whoever has the object has the data."""


class MemoryRecordStore:
    """Records in memory."""

    def __init__(self) -> None:
        """Start empty."""
        self._records: dict[bytes, Record] = {}
        self._versions = 0

    async def get(self, key: bytes) -> Record | None:
        """Return the record, or None."""
        await asyncio.sleep(0)
        return self._records.get(key)

    async def put_if(self, key: bytes, expected: bytes | None, value: bytes) -> bytes | None:
        """Put ``value`` if the record's version is ``expected``; return the new version."""
        await asyncio.sleep(0)
        known = self._records.get(key)
        if (None if known is None else known.version) != expected:
            return None
        self._versions += 1
        record = Record(value, self._versions.to_bytes(8, "big"))
        self._records[key] = record
        return record.version

    async def scan_prefix(self, prefix: bytes) -> list[tuple[bytes, Record]]:
        """Return all records whose key begins with ``prefix``, in key order."""
        await asyncio.sleep(0)
        return sorted(item for item in self._records.items() if item[0].startswith(prefix))
