"""Rows of cells in the order of their keys, with undos of changes.

This module is pure: it has no clock, no random choice, no waiting. Each change returns the former cells (``Undo``).
So an older state of a row can be shown without a copy of the row.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence

from broker.storage.table import HEAD, Cell, Cells

Undo = Mapping[bytes, Cell | None]
"""The cells of one row before a change, by column; None: absent. It includes the head."""


class MemoryRow:
    """The cells of one row. A row without a head does not exist."""

    __slots__ = ("_cells", "_columns", "head")

    def __init__(self) -> None:
        """Begin without a cell."""
        self.head: Cell | None = None
        self._cells: dict[bytes, Cell] = {}
        self._columns: list[bytes] = []

    def set(self, column: bytes, cell: Cell | None) -> Cell | None:
        """Set a cell, or remove it (None); return the cell that was there."""
        if column == HEAD:
            before, self.head = self.head, cell
            return before
        before = self._cells.get(column)
        if cell is None:
            if before is not None:
                del self._cells[column]
                del self._columns[bisect_left(self._columns, column)]
            return before
        if before is None:
            insort(self._columns, column)
        self._cells[column] = cell
        return before

    def clear(self) -> dict[bytes, Cell]:
        """Remove every cell but the head; return them."""
        before, self._cells, self._columns = self._cells, {}, []
        return before

    def get(self, columns: Iterable[bytes]) -> dict[bytes, Cell]:
        """Return the named cells that the row has."""
        found = {}
        for column in columns:
            cell = self.head if column == HEAD else self._cells.get(column)
            if cell is not None:
                found[column] = cell
        return found

    def columns(self, first: bytes, last: bytes) -> list[bytes]:
        """Return the columns in ``[first, last]``, in order, without the head."""
        return _between(self._columns, first, last)

    def cells(
        self, first: bytes, last: bytes, *, cells_max: int, bytes_max: int, reverse: bool
    ) -> Cells:
        """Return cells in ``[first, last]``, at least one; see Table.cells."""
        columns = self.columns(first, last)
        if reverse:
            columns.reverse()
        found: list[tuple[bytes, bytes]] = []
        size = 0
        for column in columns:
            value = self._cells[column].value
            size += len(value)
            if found and (size > bytes_max or len(found) >= cells_max):
                return Cells(found, more=True)
            found.append((column, value))
        return Cells(found, more=False)

    def before(self, undos: Iterable[Undo]) -> MemoryRow:
        """Return this row as it was before some changes. ``undos`` has the latest change first."""
        row = MemoryRow()
        row.head, row._cells = self.head, dict(self._cells)
        for undo in undos:
            for column, cell in undo.items():
                if column == HEAD:
                    row.head = cell
                elif cell is None:
                    row._cells.pop(column, None)
                else:
                    row._cells[column] = cell
        row._columns = sorted(row._cells)
        return row


class RowSpace:
    """The rows of one space. Every method is one step."""

    __slots__ = ("_keys", "_rows")

    def __init__(self) -> None:
        """Begin without a row."""
        self._rows: dict[bytes, MemoryRow] = {}
        self._keys: list[bytes] = []

    def get(self, key: bytes) -> MemoryRow:
        """Return the current row, or an empty one if there is none. The caller must not change it."""
        return self._rows.get(key) or MemoryRow()

    def keys(self, first: bytes, last: bytes) -> list[bytes]:
        """Return the keys in ``[first, last]``, in order."""
        return _between(self._keys, first, last)

    def scan(
        self, first: bytes, last: bytes, *, limit: int, reverse: bool
    ) -> list[tuple[bytes, Cell]]:
        """Return keys in ``[first, last]`` with their heads; see Table.scan."""
        low, high = bisect_left(self._keys, first), bisect_right(self._keys, last)
        if reverse:
            keys = self._keys[max(low, high - limit) : max(low, high)][::-1]
        else:
            keys = self._keys[low : min(high, low + limit)]
        return [(key, head) for key in keys if (head := self._rows[key].head) is not None]

    def change(
        self,
        key: bytes,
        expected: bytes | None,
        puts: Mapping[bytes, bytes],
        deletes: Sequence[bytes],
        server_ms: int | None,
        *,
        clear: bool,
    ) -> Undo | None:
        """Change cells of a row if its head is ``expected``; None: it has another head."""
        head = self.get(key).head
        if (None if head is None else head.value) != expected:
            return None
        row = self._made(key)
        undo: dict[bytes, Cell | None] = {}
        if clear:
            undo.update(row.clear())
        for column in deletes:
            undo.setdefault(column, row.set(column, None))
        server_ms = _not_before(head, server_ms)
        for column, value in puts.items():
            undo.setdefault(column, row.set(column, Cell(value, server_ms)))
        return undo

    def put(self, key: bytes, value: bytes, server_ms: int | None) -> Undo:
        """Put the head of a row."""
        row = self._made(key)
        return {HEAD: row.set(HEAD, Cell(value, _not_before(row.head, server_ms)))}

    def delete(self, key: bytes) -> Undo:
        """Remove a row. It is a no-op if there is none."""
        row = self._rows.pop(key, None)
        if row is None:
            return {}
        del self._keys[bisect_left(self._keys, key)]
        return {HEAD: row.head, **row.clear()}

    def _made(self, key: bytes) -> MemoryRow:
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = MemoryRow()
            insort(self._keys, key)
        return row


def _between(ordered: Sequence[bytes], first: bytes, last: bytes) -> list[bytes]:
    return list(ordered[bisect_left(ordered, first) : bisect_right(ordered, last)])


def _not_before(head: Cell | None, server_ms: int | None) -> int | None:
    """Return the time of a write: never less than the head's, even if the clock has stepped back."""
    if server_ms is None or head is None or head.server_ms is None:
        return server_ms
    return max(server_ms, head.server_ms)
