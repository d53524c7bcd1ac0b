"""The tables of logs in HBase: keys with one salt byte in front, regions that never split.

::

    salt [1] | "ns:topic:" | rest of the key as keys.py has it

The salt is a hash of ``ns:topic:``. So topics spread over all regions, and everything of one topic, also
its control rows, lies in one region of each table, in the order of its keys.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Awaitable, Sequence

from broker.storage.cells import Columns, RowCells, Scanned, Table
from broker.storage.hbase_gateways import Gateways
from broker.storage.hbase_schema import Schema
from broker.storage.hbase_table import HBaseTable

ROW_BYTES_MAX = (1 << 20) + (1 << 12)
"""A payload of 1 MiB, and what goes with it."""
PUT_BYTES_MAX = 1 << 20
WEIGHED_ROWS_MAX = 10_000


class HBaseCells:
    """Cells over HBase. Whoever made the gateways closes them."""

    row_bytes_max = ROW_BYTES_MAX
    put_bytes_max = PUT_BYTES_MAX
    tags_are_times = True

    def __init__(self, gateways: Gateways, schema: Schema) -> None:
        """Use the tables that ``schema`` names."""
        self._tables = {
            table: HBaseTable(gateways, schema.name_of(table.value), schema.durability)
            for table in Table
        }

    def put(
        self, table: Table, rows: Sequence[RowCells], *, synced: bool = True
    ) -> Awaitable[None]:
        """Write rows, on disk on return if ``synced``. After an error any part may be written."""
        if not rows:
            return _nothing()
        salt = salt_of(rows[0].key)  # All of one topic.
        return self._tables[table].put(rows, synced=synced, prefix=salt)

    async def get(self, table: Table, key: bytes) -> Columns | None:
        """Return a row's cells, or None."""
        return await self._tables[table].get(salt_of(key) + key)

    def check_and_put(
        self, table: Table, key: bytes, expected: bytes | None, value: bytes
    ) -> Awaitable[bool]:
        """Write the row's control cell if its value is ``expected``; False proves nothing."""
        return self._tables[table].check_and_put(salt_of(key) + key, expected, value)

    async def scan(  # noqa: PLR0913  As the port.
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
        """Return rows of one topic with ``start <= key < stop``, the last ones if ``reverse``."""
        salt = salt_of(start)
        rows, more = await self._tables[table].scan(
            salt + start,
            salt + stop,
            rows_max=rows_max,
            bytes_max=bytes_max,
            reverse=reverse,
            columns=columns,
        )
        return Scanned([RowCells(row.key[1:], row.columns) for row in rows], more)

    async def keys(
        self, table: Table, start: bytes, stop: bytes, *, rows_max: int, reverse: bool = False
    ) -> list[bytes]:
        """Return the keys of rows of one topic, the last ones if ``reverse``."""
        salt = salt_of(start)
        keys = await self._tables[table].keys(
            salt + start, salt + stop, rows_max=rows_max, reverse=reverse
        )
        return [key[1:] for key in keys]

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
        """Do nothing: the gateways belong to whoever made them."""


async def _nothing() -> None:
    pass


def salt_of(key: bytes) -> bytes:
    """Return the salt of a key that begins with ``ns:topic:``. Raises ValueError for any other."""
    return _salt(key[: key.index(b":", key.index(b":") + 1) + 1])


@functools.lru_cache(maxsize=4096)
def _salt(topic_prefix: bytes) -> bytes:
    return hashlib.blake2b(topic_prefix, digest_size=1).digest()
