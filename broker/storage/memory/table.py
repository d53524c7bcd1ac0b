"""The table in memory: every call takes effect at once, and data are lost only with the process.

It is as strict as the strictest store. A call that the port does not allow raises ValueError. So a test in memory
finds a wrong caller that would fail later on another store. adversary.py adds faults to this table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from broker.errors import BodyTooLarge
from broker.storage.memory.row_space import RowSpace
from broker.storage.table import HEAD, Cell, Cells, NotWritten, Space

CELL_BYTES_MAX: Final = 64 << 20
CHANGE_BYTES_MAX: Final = 128 << 20


class MemoryTable:
    """Implements Table. Every method is one step: no other task runs during it.

    Attributes:
        is_alone, keeps_order, checks_values: see the port.
        spaces: the stored rows, for code that plays the store's servers.
    """

    keeps_order = False
    checks_values = False

    def __init__(
        self,
        *,
        server_ms: Callable[[], int] | None = None,
        is_alone: bool = True,
        cell_bytes_max: int = CELL_BYTES_MAX,
        change_bytes_max: int = CHANGE_BYTES_MAX,
    ) -> None:
        """Begin empty. ``server_ms`` is the servers' clock (ms since 1970); None: there is no clock."""
        self.is_alone = is_alone
        self.cell_bytes_max = cell_bytes_max
        self.change_bytes_max = change_bytes_max
        self.server_ms = server_ms
        self.spaces = {space: RowSpace() for space in Space}
        self._is_closed = False

    # The port.

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
        """Change cells of a row together if its head is ``expected``."""
        self.check_change(expected, puts, deletes)
        undo = self.spaces[space].change(row, expected, puts, deletes, self._now_ms(), clear=clear)
        return undo is not None

    async def get(self, space: Space, row: bytes, columns: Sequence[bytes]) -> dict[bytes, Cell]:
        """Return the named cells that the row has."""
        self.check_open()
        return self.spaces[space].get(row).get(columns)

    async def cells(  # noqa: PLR0913 - As the port.
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
        """Return cells with columns in ``[first, last]``."""
        self.check_open()
        return (
            self.spaces[space]
            .get(row)
            .cells(first, last, cells_max=cells_max, bytes_max=bytes_max, reverse=reverse)
        )

    async def columns(self, space: Space, row: bytes, first: bytes, last: bytes) -> list[bytes]:
        """Return the columns in ``[first, last]`` that a row has."""
        self.check_open()
        return self.spaces[space].get(row).columns(first, last)

    async def scan(
        self, space: Space, first: bytes, last: bytes, *, limit: int, reverse: bool = False
    ) -> list[tuple[bytes, Cell]]:
        """Return keys in ``[first, last]`` with their heads."""
        self.check_rows(space, (first, last))
        return self.spaces[space].scan(first, last, limit=limit, reverse=reverse)

    async def put(self, space: Space, heads: Mapping[bytes, bytes]) -> None:
        """Put heads of rows."""
        self.check_put(space, heads)
        for key, value in heads.items():
            self.spaces[space].put(key, value, self._now_ms())

    async def delete(self, space: Space, rows: Sequence[bytes]) -> None:
        """Remove whole rows."""
        self.check_rows(space, rows)
        for key in rows:
            self.spaces[space].delete(key)

    async def close(self) -> None:
        """Refuse every further call."""
        self._is_closed = True

    def reopen(self) -> None:
        """Take calls again after a close. All rows are still there, as on a disk."""
        self._is_closed = False

    def _now_ms(self) -> int | None:
        return None if self.server_ms is None else self.server_ms()

    # Checks of calls.

    def check_open(self) -> None:
        """Raise NotWritten after a close."""
        if self._is_closed:
            raise NotWritten("the table is closed")

    def check_change(
        self, expected: bytes | None, puts: Mapping[bytes, bytes], deletes: Sequence[bytes]
    ) -> None:
        """Raise the error of a change that is refused: NotWritten, BodyTooLarge, ValueError."""
        self.check_open()
        if not puts.get(HEAD) or expected == b"":
            raise ValueError("a change must put a head, and no head is empty")
        if HEAD in deletes or not puts.keys().isdisjoint(deletes):
            raise ValueError("a change must not delete the head, or a column that it puts")
        self._check_sizes(puts.values())
        size = sum(map(len, puts.values()))
        if size > self.change_bytes_max:
            raise BodyTooLarge(
                f"A change has {size} bytes; the store takes at most {self.change_bytes_max}."
            )

    def check_put(self, space: Space, heads: Mapping[bytes, bytes]) -> None:
        """Raise the error of a put that is refused: NotWritten, BodyTooLarge, ValueError."""
        self.check_rows(space, heads)
        if not all(heads.values()):
            raise ValueError("no head is empty")
        self._check_sizes(heads.values())

    def check_rows(self, space: Space, rows: Iterable[bytes]) -> None:
        """Raise NotWritten after a close, ValueError if the rows belong to several topics."""
        self.check_open()
        if space is not Space.RECORDS and len({topic_of(row) for row in rows}) > 1:
            raise ValueError("all rows of one call must belong to one topic")

    def _check_sizes(self, values: Iterable[bytes]) -> None:
        size = max(map(len, values), default=0)
        if size > self.cell_bytes_max:
            raise BodyTooLarge(
                f"A cell has {size} bytes; the store takes at most {self.cell_bytes_max}."
            )


def topic_of(key: bytes) -> bytes:
    """Return the prefix ``ns:topic:`` of a key. Raises ValueError if it has none."""
    namespace, topic, _ = key.split(b":", 2)
    return b"%s:%s:" % (namespace, topic)
