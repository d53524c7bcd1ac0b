"""The port to the rows of an HBase: the calls that a rowlog makes.

Names of tables are bytes, columns are ``family:qualifier``. The cells of one row in one put change together. A call
compares one cell at most, and an empty value counts as absent, since Thrift-1 can do no more::

    check_and_put(row, column, expected | b"", value) -> True | False

    True            certain: the change was made
    False           the cell had another value; or the gateway repeated the call, and its first attempt made the change
    WriteUnknown    the change was made, or will be made at any later moment, or never
    NotWritten      certain: the change was not made, and never will be

Implementations: memory, Thrift-1 (happybase), Thrift-2 with FSYNC_WAL. The contract suite is
tests/kit/contract/rowtable.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from broker.storage.table import NotWritten, TableError, WriteUnknown

__all__ = ["Cells", "Guard", "NotWritten", "RowTable", "TableError", "WriteUnknown", "is_family"]

Cells = dict[bytes, bytes]


class Guard(NamedTuple):
    """A cell of the same row that a change depends on, with its expected value, which is never empty."""

    column: bytes
    expected: bytes


def is_family(column: bytes) -> bool:
    """Return whether a column names a whole family: its first ":" is its last byte."""
    return column.find(b":") == len(column) - 1


class RowTable(Protocol):
    """The rows of one HBase. Every call ends within a deadline of its own. All calls raise TableError."""

    @property
    def changes_together(self) -> bool:
        """True if ``change`` works: Thrift-1 has no such call."""

    async def put(self, table: bytes, rows: Sequence[tuple[bytes, Mapping[bytes, bytes]]]) -> None:
        """Put cells. No row comes twice. Each row changes in one step; all together do not."""

    async def change(
        self,
        table: bytes,
        row: bytes,
        puts: Mapping[bytes, bytes],
        deletes: Sequence[bytes],
        guard: Guard | None,
    ) -> bool:
        """Put cells and delete columns in one step, if the guard's cell has its expected value."""

    async def check_and_put(
        self, table: bytes, row: bytes, column: bytes, expected: bytes, value: bytes
    ) -> bool:
        """Put one cell if its value is ``expected``; empty: if there is no such cell."""

    async def increment(self, table: bytes, row: bytes, column: bytes, by: int = 1) -> int:
        """Raise a counter, and return its new value."""

    async def get(
        self, table: bytes, rows: Sequence[bytes], columns: Sequence[bytes]
    ) -> dict[bytes, Cells]:
        """Return the rows that exist, with the cells of these columns or whole families (``family:``)."""

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
        """Return the rows of ``[start, stop)`` that have such cells, in order. ``stop`` empty: to the end."""

    async def delete(self, table: bytes, rows: Sequence[tuple[bytes, Sequence[bytes]]]) -> None:
        """Delete columns of rows. The deletion need not be on disk on return."""

    async def make_table(self, table: bytes, family: bytes, splits: Sequence[bytes]) -> bool:
        """Make a table with one version of each cell, pre-split if the gateway can. Return False if it exists."""

    async def region_starts(self, table: bytes) -> list[bytes]:
        """Return the first key of each region of a table, in order. The first one is empty. A region may hang alone."""

    async def tables(self) -> list[bytes]:
        """Return the names of all tables."""

    async def close(self) -> None:
        """Close this object's own resources, not a pool that was given to it."""
