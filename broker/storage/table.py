"""The port to a store: rows whose cells change together, durably, if one cell is as the writer expects.

A store is asked for one thing. A row has a key and cells; a cell has a column and a value. One cell is
the row's **head** (column ``h``): ``change`` compares it, and nothing else is ever compared::

    change(row, head as expected, cells to put, columns to delete)  ->  True | False
           └─ one row, all cells or none, on disk on return ─┘

    True      certain: the change was made, and is on disk
    False     the head was another; or the change was made, and then something made the store forget so
    NoAnswer  the change was made, or will be made at any later moment, or never
    NotSent   certainly not made, now or later

After False and NoAnswer the writer reads, and finds out (log.py). Nothing spans two rows. A reading may
show an older state of a row where the store's servers can be cut off; it never shows half a change.

Heads lie apart from all other cells, so that a scan over heads reads no entries and the entries of a
page go with one delete. Rows that have a single cell (roots, marks, records) have it in the head.

Implementations: memory (and its adversary), LevelDB, HBase. Another store is these methods and the
contract suite (tests/kit/contract/table.py).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

HEAD = b"h"
"""The column of the cell that is compared; its value is never empty. Other columns sort apart from it."""


class Space(enum.StrEnum):
    """Where a row lies. Each has keys of its own; all keys of a topic lie in one region of each."""

    MESSAGES = "messages"
    PAYLOADS = "payloads"
    RECORDS = "records"


class Cell(NamedTuple):
    """A value, and when the server wrote it (ms since 1970 by its clock); None: no server has a clock."""

    value: bytes
    server_ms: int | None = None


class Cells(NamedTuple):
    """Cells of one row, without its head, in the order of their columns (descending if asked so).

    ``more``: a limit ended the answer; further cells may lie in the range.
    """

    cells: list[tuple[bytes, bytes]]
    more: bool


class TableError(Exception):
    """A call of a store did not end well."""


class WriteUnknown(TableError):
    """A write may have been made, or may be made at any later moment. Of a reading: nothing is known."""


class NotWritten(TableError):
    """A write was certainly not made and never will be. Of a reading: nothing is known."""


class Table(Protocol):
    """Rows of cells. Every call ends within a deadline of its own.

    All methods raise TableError as told above, and BrokerErrors where a store knows more: StorageFull,
    StorageCorrupt, Unavailable (nothing was done), OutcomeUnknown. A BrokerError is final: reading does
    not tell more than it says.
    """

    @property
    def is_alone(self) -> bool:
        """Whether this process has the store to itself: then every reading is current."""

    @property
    def keeps_order(self) -> bool:
        """Whether changes are made in the order of asking, each at most once; then a False is final."""

    @property
    def checks_values(self) -> bool:
        """Whether a reading fails unless every value is as it was put, by checksums of the table's own."""

    @property
    def cell_bytes_max(self) -> int:
        """The largest value of one cell."""

    @property
    def change_bytes_max(self) -> int:
        """The most bytes of values that one change may put."""

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
        """Change cells of a row together if its head is ``expected`` (None: the row has no head).

        ``puts`` has values by column, the new head among them. ``deletes`` are columns that go;
        ``clear``: every cell but the head goes. They go for good: what is put there later may stay
        hidden.
        """

    async def get(self, space: Space, row: bytes, columns: Sequence[bytes]) -> dict[bytes, Cell]:
        """Return those of the named cells that a row has, all of one moment."""

    async def cells(  # noqa: PLR0913 - A range and its limits.
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
        """Return cells with columns in ``[first, last]``, all of one moment, the head never among them.

        At most ``cells_max`` cells and about ``bytes_max`` bytes, one cell at least. ``reverse`` begins
        at ``last``.
        """

    async def columns(self, space: Space, row: bytes, first: bytes, last: bytes) -> list[bytes]:
        """Return the columns in ``[first, last]`` that a row has, in order, the head never among them."""

    async def scan(
        self, space: Space, first: bytes, last: bytes, *, limit: int, reverse: bool = False
    ) -> list[tuple[bytes, Cell]]:
        """Return keys in ``[first, last]`` with their heads, in order; ``reverse`` begins at ``last``.

        At most ``limit`` of them, never fewer while there are more. Both ends of a range belong to one
        topic, or the space is RECORDS.
        """

    async def put(self, space: Space, heads: Mapping[bytes, bytes]) -> None:
        """Put heads of rows, whatever they are now; on disk on return. Not one step.

        All keys belong to one topic. For rows that are an index of what is stored elsewhere.
        """

    async def delete(self, space: Space, rows: Sequence[bytes]) -> None:
        """Remove rows wholly. All keys belong to one topic. It need not be on disk on return."""

    async def close(self) -> None:
        """Finish what is under way and close."""
