"""The port below the log store: tables of rows of cells, as HBase's gateways give them.

It is as small and as weak as what really answers: a multi-put is not atomic, an error says nothing of
what was done, a compare-and-set covers one cell, and nothing spans two rows. What turns this into a
log that can be relied upon is in tables.py::

    row key  ->  column  ->  Cell(tag, value)

A **tag** is the cell's timestamp. Of two writes of one cell the one with the higher tag is seen, and of
equal tags the later one; older versions do not exist. Cells of rows and side rows carry the tag that the
writer gives (twice its epoch, or one more); the cell that ``check_and_put`` writes has one that the server
gives, and is never compared. A row that was deleted may hide later puts of the same key with small tags,
so no key is written again after its deletion.

All keys of one call belong to one topic, and so lie in one region. What a put leaves, whole or in part, is
never seen with a gap: a region server takes the rows of one call as one step, or as several in the order of
their keys. Readers rely on that where an older state answers them (reading.py): a row proves those below.

Errors: ``CellsRefused`` when a write was certainly not sent, ``BodyTooLarge`` when the store can't hold
it, and ``CellsError`` for everything else: *that write may have happened, in whole or in part, and may
happen yet*. Each call ends within a deadline of its own.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Mapping, Sequence
from typing import NamedTuple, Protocol


class Table(enum.StrEnum):
    """The two tables of logs. Every key of a topic lies in one region of each."""

    MESSAGES = "messages"
    PAYLOADS = "payloads"


class Cell(NamedTuple):
    """A value and the tag that it was written with."""

    tag: int
    value: bytes


Columns = Mapping[bytes, Cell]


class RowCells(NamedTuple):
    """A row: its key and cells. A row without cells does not exist."""

    key: bytes
    columns: Columns


class Scanned(NamedTuple):
    """The rows of one answer. ``more``: a bound ended it, so the range may hold further rows."""

    rows: list[RowCells]
    more: bool


class CellsError(Exception):
    """A call failed; a write may have been done in whole or in part, or be done later."""


class CellsRefused(CellsError):
    """A call was certainly not sent: nothing was done, and nothing will be."""


class Cells(Protocol):
    """Tables of rows. Implementations: memory, its adversary, HBase."""

    @property
    def row_bytes_max(self) -> int:
        """The largest row that can be written, its key and values together."""

    @property
    def put_bytes_max(self) -> int:
        """The most bytes of one put, keys and values; the caller splits what is more."""

    @property
    def tags_are_times(self) -> bool:
        """Whether the tag of a control cell is the time of the server that wrote it, in ms."""

    def put(
        self, table: Table, rows: Sequence[RowCells], *, synced: bool = True
    ) -> Awaitable[None]:
        """Write rows, on disk once awaited if ``synced``. After an error any part may be written.

        It may be sent as soon as this is called, before anybody awaits it.

        Raises:
            CellsRefused, CellsError: see above.
        """

    async def get(self, table: Table, key: bytes) -> Columns | None:
        """Return a row's cells, or None.

        Raises:
            CellsError: nobody answered.
        """

    def check_and_put(
        self, table: Table, key: bytes, expected: bytes | None, value: bytes
    ) -> Awaitable[bool]:
        """Write the row's one control cell if its value is ``expected`` (None: there is none).

        On disk once awaited. True is certain; False is not: a gateway that repeats a call of which the
        answer was lost says False of what it did itself.

        Raises:
            CellsRefused, CellsError: see above.
        """

    async def scan(  # noqa: PLR0913  Each is named by its callers.
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
        """Return rows with ``start <= key < stop``, in key order.

        At most ``rows_max`` rows of together at most ``bytes_max`` bytes (keys and values), one at
        least if there is one: so an answer with ``more`` is never empty. ``reverse`` gives the last of
        them, the greatest first. ``columns`` gives only those cells; a row that has none of them is
        left out. One answer shows one state of the rows; two answers may show states in any order.

        Raises:
            CellsError: nobody answered.
        """

    async def keys(
        self, table: Table, start: bytes, stop: bytes, *, rows_max: int, reverse: bool = False
    ) -> list[bytes]:
        """Return the keys alone of what ``scan`` shows, whatever the rows weigh.

        Raises:
            CellsError: nobody answered.
        """

    async def delete(self, table: Table, keys: Sequence[bytes]) -> None:
        """Delete rows; after an error any of them may be gone, or go later."""

    async def weigh(self, table: Table, start: bytes, stop: bytes) -> tuple[int, int]:
        """Return roughly how many rows and bytes lie in ``start <= key < stop``, or at least how many.

        A store that can only count may stop at a bound of its own.
        """

    async def compact(self, table: Table, start: bytes, stop: bytes) -> None:
        """Give space that deletes freed back, where the store does that on request."""

    async def close(self) -> None:
        """Close."""


CONTROL_COLUMN = b"c"
"""The control row's one cell."""


def bytes_of(row: RowCells) -> int:
    """Return what a row weighs: its key and its values."""
    size = len(row.key)
    for cell in row.columns.values():
        size += len(cell.value)
    return size


def bounded(rows: Sequence[RowCells], rows_max: int, bytes_max: int, *, more: bool) -> Scanned:
    """Cut rows to the bounds of a scan, one row at least; ``more`` says whether others follow them."""
    size = 0
    for at, row in enumerate(rows[:rows_max]):
        size += bytes_of(row)
        if at and size > bytes_max:
            return Scanned(list(rows[:at]), more=True)
    return Scanned(list(rows[:rows_max]), more or len(rows) > rows_max)
