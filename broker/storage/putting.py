"""Writing rows until they are confirmed, in pieces that the tables take."""

from __future__ import annotations

from collections.abc import Sequence

from broker import guards
from broker.errors import BodyTooLarge, OutcomeUnknown
from broker.storage.cells import Cells, CellsError, RowCells, Table
from broker.storage.retrying import Retrying


class RowWriter:
    """Puts rows. What it was given it writes unchanged, however often it must."""

    def __init__(self, cells: Cells, retrying: Retrying) -> None:
        """Write to ``cells``."""
        self._cells = cells
        self._retrying = retrying

    def check_sizes(self, rows: Sequence[RowCells]) -> None:
        """Raise BodyTooLarge if the tables can't hold a row."""
        for row in rows:
            if _bytes_of(row) > self._cells.row_bytes_max:
                raise BodyTooLarge(
                    f"A message of more than {self._cells.row_bytes_max} bytes can't be stored."
                )

    async def put(self, table: Table, rows: Sequence[RowCells]) -> None:
        """Write rows, one piece after the other, so that a later row proves the earlier ones.

        Raises:
            CellsError: time is up; any of them may be written, or be written yet.
        """
        deadline = self._retrying.deadline()
        for piece in self._pieces(rows):
            await self._put(table, piece, deadline)

    async def _put(self, table: Table, rows: Sequence[RowCells], deadline: float) -> None:
        pauses = self._retrying.pauses(deadline)
        while True:
            try:
                await self._cells.put(table, rows, synced=guards.holds("row-sync"))
            except CellsError as error:
                if not guards.holds("retry-or-give-up"):
                    raise
                try:
                    await pauses.next("rows can't be written")
                except OutcomeUnknown:
                    raise error from None
            else:
                return

    def _pieces(self, rows: Sequence[RowCells]) -> list[list[RowCells]]:
        pieces: list[list[RowCells]] = []
        room = 0
        for row in rows:
            size = _bytes_of(row)
            if not pieces or size > room:
                pieces.append([])
                room = self._cells.put_bytes_max
            pieces[-1].append(row)
            room -= size
        return pieces


def _bytes_of(row: RowCells) -> int:
    return len(row.key) + sum([len(cell.value) for cell in row.columns.values()])
