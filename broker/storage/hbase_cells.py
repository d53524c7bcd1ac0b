"""The tables of logs in HBase: keys with one salt byte in front, regions that never split.

**A trial**, as hbase.py says: enough to run the log store over a real HBase. What the cluster work must
still do here: grow the number of regions, say what a log weighs without counting it, ask for compaction
(no Thrift gateway can), and the coprocessor.

::

    salt [1] | "ns:topic:" | rest of the key as keys.py has it

The salt is a hash of ``ns:topic:``. So topics spread over all regions, and everything of one topic, also
its control rows, lies in one region of each table, in the order of its keys.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

from broker.storage.cells import Columns, RowCells, Table
from broker.storage.hbase import Gateway
from broker.storage.hbase_table import HBaseTable

REGIONS = 16
ROW_BYTES_MAX = 1 << 20
PUT_BYTES_MAX = 1 << 20
WEIGHED_ROWS_MAX = 10_000


class HBaseCells:
    """Cells over HBase. Whoever made the gateway closes it."""

    row_bytes_max = ROW_BYTES_MAX
    put_bytes_max = PUT_BYTES_MAX

    def __init__(self, gateway: Gateway, table_prefix: str) -> None:
        """Use the tables whose names begin with ``table_prefix``."""
        self._tables = {
            table: HBaseTable(gateway, f"{table_prefix}{table.value}") for table in Table
        }

    async def create(self, regions: int = REGIONS) -> None:
        """Create the tables that are not there, each with ``regions`` regions.

        Raises:
            CellsError: asking again is safe.
        """
        for table in self._tables.values():
            await table.create([bytes([256 * i // regions]) for i in range(1, regions)])

    async def remove(self) -> None:
        """Remove the tables with all that is in them."""
        for table in self._tables.values():
            await table.remove()

    async def put(self, table: Table, rows: Sequence[RowCells], *, synced: bool = True) -> None:
        """Write rows, on disk on return if ``synced``. After an error any part may be written."""
        salted = [RowCells(salt_of(row.key) + row.key, row.columns) for row in rows]
        await self._tables[table].put(salted, synced=synced)

    async def get(self, table: Table, key: bytes) -> Columns | None:
        """Return a row's cells, or None."""
        return await self._tables[table].get(salt_of(key) + key)

    async def check_and_put(
        self, table: Table, key: bytes, expected: bytes | None, value: bytes
    ) -> bool:
        """Write the row's control cell if its value is ``expected``; False proves nothing."""
        return await self._tables[table].check_and_put(salt_of(key) + key, expected, value)

    async def scan(
        self, table: Table, start: bytes, stop: bytes, *, rows_max: int, reverse: bool = False
    ) -> list[RowCells]:
        """Return rows of one topic with ``start <= key < stop``, the last ones if ``reverse``."""
        salt = salt_of(start)
        rows = await self._tables[table].scan(
            salt + start, salt + stop, rows_max=rows_max, reverse=reverse
        )
        return [RowCells(row.key[1:], row.columns) for row in rows]

    async def delete(self, table: Table, keys: Sequence[bytes]) -> None:
        """Delete rows; after an error any of them may be gone, or go later."""
        await self._tables[table].delete([salt_of(key) + key for key in keys])

    async def weigh(self, table: Table, start: bytes, stop: bytes) -> tuple[int, int]:
        """Count rows and bytes of one topic's range, at most ``WEIGHED_ROWS_MAX`` rows of it."""
        salt = salt_of(start)
        rows, size = await self._tables[table].weigh(salt + start, salt + stop, WEIGHED_ROWS_MAX)
        return rows, size - rows

    async def compact(self, table: Table, start: bytes, stop: bytes) -> None:
        """Do nothing: HBase compacts by its own rules, and no Thrift gateway can be asked to."""

    async def close(self) -> None:
        """Do nothing: the gateway belongs to whoever made it."""


def salt_of(key: bytes) -> bytes:
    """Return the salt of a key that begins with ``ns:topic:``. Raises ValueError for any other."""
    return _salt(key[: key.index(b":", key.index(b":") + 1) + 1])


@functools.lru_cache(maxsize=4096)
def _salt(topic_prefix: bytes) -> bytes:
    return hashlib.blake2b(topic_prefix, digest_size=1).digest()
