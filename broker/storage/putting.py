"""Writing rows until they are confirmed, in pieces that the tables take."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence

from broker import guards
from broker.errors import BodyTooLarge, OutcomeUnknown
from broker.storage.cells import Cells, CellsError, CellsRefused, RowCells, Table, bytes_of
from broker.storage.retrying import Pauses, Retrying

Meanwhile = Callable[[], None]


class RowWriter:
    """Puts rows. What it was given it writes unchanged, however often it must."""

    def __init__(self, cells: Cells, retrying: Retrying) -> None:
        """Write to ``cells``."""
        self._cells = cells
        self._retrying = retrying

    def check_sizes(self, rows: Sequence[RowCells]) -> list[int]:
        """Return what each row weighs. Raises BodyTooLarge if the tables can't hold one."""
        sizes = [bytes_of(row) for row in rows]
        for size in sizes:
            if size > self._cells.row_bytes_max:
                raise BodyTooLarge(
                    f"A message of more than {self._cells.row_bytes_max} bytes can't be stored."
                )
        return sizes

    def put(
        self,
        table: Table,
        rows: Sequence[RowCells],
        sizes: Sequence[int] | None = None,
        *,
        meanwhile: Meanwhile | None = None,
    ) -> Awaitable[None]:
        """Write rows, one piece after the other, so that a later row proves the earlier ones.

        ``meanwhile`` is called once, when the first piece is on its way.

        Raises:
            CellsRefused: time is up, and nothing was ever sent.
            CellsError: time is up; any of them may be written, or be written yet.
        """
        deadline = self._retrying.deadline()
        sizes = sizes if sizes is not None else [bytes_of(row) for row in rows]
        if rows and sum(sizes) <= self._cells.put_bytes_max:
            return self._put(table, rows, deadline, meanwhile)
        return self._put_pieces(table, self._pieces(rows, sizes), deadline, meanwhile)

    async def _put_pieces(
        self,
        table: Table,
        pieces: Iterator[Sequence[RowCells]],
        deadline: float,
        meanwhile: Meanwhile | None,
    ) -> None:
        for number, piece in enumerate(pieces):
            try:
                await self._put(table, piece, deadline, None if number else meanwhile)
            except CellsRefused as refused:
                if number:
                    raise CellsError(f"some rows were written, others not: {refused}") from refused
                raise

    async def _put(
        self,
        table: Table,
        rows: Sequence[RowCells],
        deadline: float,
        meanwhile: Meanwhile | None,
    ) -> None:
        """Write one piece. Raises CellsRefused only if no attempt was sent."""
        pauses: Pauses | None = None
        sent: CellsError | None = None
        while True:
            try:
                putting = self._cells.put(table, rows, synced=guards.holds("row-sync"))
                if meanwhile is not None:
                    meanwhile()
                    meanwhile = None
                await putting
            except CellsError as error:
                if not guards.holds("retry-or-give-up"):
                    raise
                if not isinstance(error, CellsRefused):
                    sent = error
                pauses = pauses or self._retrying.pauses(deadline)
                try:
                    await pauses.next("rows can't be written")
                except OutcomeUnknown:
                    raise (sent or error) from None
            else:
                return

    def _pieces(
        self, rows: Sequence[RowCells], sizes: Sequence[int]
    ) -> Iterator[Sequence[RowCells]]:
        first = weight = 0
        for at, size in enumerate(sizes):
            if at > first and weight + size > self._cells.put_bytes_max:
                yield rows[first:at]
                first, weight = at, 0
            weight += size
        if first < len(rows):
            yield rows[first:]
