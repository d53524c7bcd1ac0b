"""The port to a store: rows whose cells change together, durably, if one cell has the expected value.

A store needs only one kind of write. A row has a key and cells; a cell has a column and a value. One cell
is the row's **head** (column ``h``). ``change`` compares the head, and never any other cell::

    change(row, head as expected, cells to put, columns to delete)  ->  True | False
           └─ one row, all cells or none, on disk on return ─┘

    True             certain: the change was made, and is on disk
    False            the head had another value; or the store made the change, and lost that answer
    WriteUnknown     the change was made, or will be made at any later moment, or never
    NotWritten       certainly not made, now or later

After False and WriteUnknown the writer reads the row to learn the outcome (resolve.py). No change spans two
rows. A read may show an older state of a row where the store's servers can be cut off. It never shows half a
change.

The store keeps heads apart from all other cells. So a scan over heads reads no entries, and one delete
removes all entries of a page. Rows with a single cell (roots, marks, records) have it in the head.

Implementations: memory (and its adversary), LevelDB, HBase. To add a store, write these methods and pass the
contract suite (tests/kit/contract/table.py).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

HEAD = b"h"
"""The column of the head, the cell that ``change`` compares. Its value is never empty."""


class Space(enum.StrEnum):
    """Where a row lies. Each space has keys of its own. In each, all keys of a topic lie in one region."""

    MESSAGES = "messages"
    PAYLOADS = "payloads"
    RECORDS = "records"


class Cell(NamedTuple):
    """A value, and when the server wrote it (ms since 1970 by its clock; None: the store has no such clock)."""

    value: bytes
    server_ms: int | None = None


class Cells(NamedTuple):
    """Cells of one row, without its head, in the order of their columns (descending after ``reverse``).

    ``more``: a limit ended the answer, and further cells may lie in the range.
    """

    cells: list[tuple[bytes, bytes]]
    more: bool


class TableError(Exception):
    """A call to a store failed."""


class WriteUnknown(TableError):
    """A write may have been made, or may be made at any later moment. After a read: the read failed."""


class NotWritten(TableError):
    """A write was certainly not made and never will be. After a read: the read failed."""


class Table(Protocol):
    """Rows of cells. Every call ends within a deadline of its own.

    All methods raise TableError as described above. They raise a BrokerError where the store knows more:
    StorageFull, StorageCorrupt, Unavailable (nothing was done), OutcomeUnknown. A BrokerError is final:
    reading the row again gives no further information.
    """

    @property
    def is_alone(self) -> bool:
        """True if no other process uses the store: then every read is current."""

    @property
    def keeps_order(self) -> bool:
        """True if the store makes changes in the order of the calls, each at most once. Then False is final."""

    @property
    def checks_values(self) -> bool:
        """True if the table has checksums of its own, and a read fails if a value differs from the one put."""

    @property
    def cell_bytes_max(self) -> int:
        """The largest value of one cell."""

    @property
    def change_bytes_max(self) -> int:
        """The largest sum of the values that one change may put."""

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

        ``puts`` maps columns to values, and includes the new head. ``deletes`` are columns to delete.
        ``clear`` deletes every cell but the head. Deletion is final: a value put into a deleted column
        later may stay hidden.
        """

    async def get(self, space: Space, row: bytes, columns: Sequence[bytes]) -> dict[bytes, Cell]:
        """Return the named cells that the row has, all of one moment."""

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
        """Return cells with columns in ``[first, last]``, all of one moment, without the head.

        The answer has at most ``cells_max`` cells and about ``bytes_max`` bytes, but at least one cell.
        ``reverse`` begins at ``last``.
        """

    async def columns(self, space: Space, row: bytes, first: bytes, last: bytes) -> list[bytes]:
        """Return the columns in ``[first, last]`` that a row has, in order, without the head."""

    async def scan(
        self, space: Space, first: bytes, last: bytes, *, limit: int, reverse: bool = False
    ) -> list[tuple[bytes, Cell]]:
        """Return keys in ``[first, last]`` with their heads, in order; ``reverse`` begins at ``last``.

        The answer has ``limit`` keys, or fewer if the range has no more. Both ends of a range belong to
        one topic, or the space is RECORDS.
        """

    async def put(self, space: Space, heads: Mapping[bytes, bytes]) -> None:
        """Put heads of rows without comparing them. They are on disk on return, but do not change together.

        All keys belong to one topic. This is for rows that only index data stored elsewhere.
        """

    async def delete(self, space: Space, rows: Sequence[bytes]) -> None:
        """Remove whole rows. All keys belong to one topic. The removal need not be on disk on return."""

    async def close(self) -> None:
        """Finish the calls in flight, and close."""
