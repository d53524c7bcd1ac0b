"""The port to the rows of an HBase: what a rowlog asks of it.

Tables are named by bytes, columns are ``family:qualifier``. One row's cells of one put change together. Only one cell
is ever compared, and an empty value counts as absent, since Thrift-1 can say no more::

    check_and_put(row, column, expected | b"", value) -> True | False

    True        certain: the change was made
    False       the cell was another; or the change was made by an attempt whose answer the gateway lost
    NoAnswer    it was made, or will be at any later moment, or never
    NotSent     certainly not made, now or later

Implementations: memory, Thrift-1 (happybase), Thrift-2 with FSYNC_WAL. The contract suite is
tests/kit/contract/rowtable.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from broker.storage.table import NotWritten, TableError, WriteUnknown

__all__ = ["Cells", "Guard", "NotWritten", "RowTable", "TableError", "WriteUnknown"]

Cells = dict[bytes, bytes]


class Guard(NamedTuple):
    """A cell of the same row that a change depends on; never empty."""

    column: bytes
    expected: bytes


class RowTable(Protocol):
    """Rows of one HBase. Every call ends within a deadline of its own. All raise TableError."""

    @property
    def changes_together(self) -> bool:
        """Whether ``change`` is there: Thrift-1 has no such call."""

    async def put(self, table: bytes, rows: Sequence[tuple[bytes, Mapping[bytes, bytes]]]) -> None:
        """Put cells; each row, of which none comes twice, changes in one step, not all together."""

    async def change(
        self,
        table: bytes,
        row: bytes,
        puts: Mapping[bytes, bytes],
        deletes: Sequence[bytes],
        guard: Guard | None,
    ) -> bool:
        """Put cells and delete columns in one step, if the guard's cell is as it says."""

    async def check_and_put(
        self, table: bytes, row: bytes, column: bytes, expected: bytes, value: bytes
    ) -> bool:
        """Put one cell if it is ``expected``; empty: if there is none."""

    async def increment(self, table: bytes, row: bytes, column: bytes, by: int = 1) -> int:
        """Raise a counter, and return it."""

    async def get(
        self, table: bytes, rows: Sequence[bytes], columns: Sequence[bytes]
    ) -> dict[bytes, Cells]:
        """Return rows that are there with the cells of columns or whole families (``family:``)."""

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
        """Return rows in ``[start, stop)``, in order, that have such cells; ``stop`` empty: to the end."""

    async def delete(self, table: bytes, rows: Sequence[tuple[bytes, Sequence[bytes]]]) -> None:
        """Delete columns of rows. It need not be on disk on return."""

    async def make_table(self, table: bytes, family: bytes, splits: Sequence[bytes]) -> bool:
        """Make a table with one version of each cell, split if this door can; False: it is there."""

    async def tables(self) -> list[bytes]:
        """Return the names of all tables."""

    async def close(self) -> None:
        """End what is this object's own: no pool that was given to it."""
