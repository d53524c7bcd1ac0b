"""One HBase table as the ports need it: rows of cells in one family, through the Thrift-2 gateway.

All through Thrift-2, reads too, and not through happybase (Thrift-1): ``getScannerResults`` opens a
scanner, reads and closes it in one call, where Thrift-1 takes three and leaves a scanner open with every
error between; a page of 100 rows takes half the time; there is one pool and one classification of errors;
and only Thrift-2 syncs what it writes.

What the rest relies on, as measured or read in HBase 2.6:

* A put with several rows of one region is one step of the region (sorted by key, up to
  ``hbase.regionserver.minibatch.size``, 20,000): readers see none of them or all. Beyond a frame's size it
  is cut here, in order.
* Of two cells of one column the greater timestamp is seen, of equal ones the later written.
* The cell that ``checkAndPut`` writes takes the server's time, never less than the cell that it replaces.
* A deleted row hides later puts with smaller timestamps. So no key is written again after its deletion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from broker.storage.cells import CONTROL_COLUMN, Cell, CellsError, Columns, RowCells
from broker.storage.hbase import IDL, Gateway

FAMILY = b"d"
FRAME_BYTES_MAX = 3 << 19
"""1.5 MiB; a framed gateway takes 2 MiB by default."""
_ROW_OVERHEAD, _CELL_OVERHEAD = 32, 40
"""What Thrift adds to a row's key, and to a cell's column and value."""
DELETES_MAX = 1000
_WEIGHED_AT_ONCE = 1000
_LENGTHS_ONLY = b"KeyOnlyFilter (true)"
_ABOVE_ANY_REST = b"\xff" * 64
"""Follows the predecessor of a key's last byte: hardly a key lies between that and the key itself."""

# SPLIT_ENABLED stops the operator's splits, the policy HBase's own; a topic stays in one region.
_NEVER_SPLIT = {
    b"SPLIT_ENABLED": b"false",
    b"SPLIT_POLICY": b"org.apache.hadoop.hbase.regionserver.DisabledRegionSplitPolicy",
    b"MERGE_ENABLED": b"false",
}


class HBaseTable:
    """A table of one family with one version of each cell."""

    def __init__(self, gateway: Gateway, name: str) -> None:
        """Use the table ``name`` through ``gateway``."""
        self._gateway = gateway
        self._name = name.encode()

    async def create(self, splits: Sequence[bytes] = ()) -> None:
        """Create the table with these regions, if it is not there.

        Raises:
            CellsError: perhaps it is created nevertheless; asking again is safe.
        """
        name = IDL.TTableName(qualifier=self._name)
        family = IDL.TColumnFamilyDescriptor(name=FAMILY, maxVersions=1)
        table = IDL.TTableDescriptor(
            tableName=name,
            columns=[family],
            attributes=_NEVER_SPLIT,
            durability=IDL.TDurability.FSYNC_WAL,
        )
        if not await self._gateway.call(lambda client: client.tableExists(name)):
            await self._gateway.call(lambda client: client.createTable(table, list(splits)))

    async def remove(self) -> None:
        """Remove the table with all that is in it."""
        name = IDL.TTableName(qualifier=self._name)
        await self._gateway.call(lambda client: client.disableTable(name))
        await self._gateway.call(lambda client: client.deleteTable(name))

    async def put(self, rows: Sequence[RowCells], *, synced: bool = True) -> None:
        """Write rows, on disk on return if ``synced``. Raises CellsRefused, CellsError."""
        for frame in _frames(rows):
            await self._gateway.call(partial(self._put, frame, synced))

    def _put(self, rows: Sequence[RowCells], synced: bool, client: Any) -> None:
        durability = IDL.TDurability.FSYNC_WAL if synced else IDL.TDurability.SYNC_WAL
        puts = [
            IDL.TPut(
                row=row.key,
                durability=durability,
                columnValues=[
                    _column_value(column, cell.value, cell.tag)
                    for column, cell in row.columns.items()
                ],
            )
            for row in rows
        ]
        if len(puts) == 1:
            client.put(self._name, puts[0])  # Takes a third less time than a list of one.
        else:
            client.putMultiple(self._name, puts)

    async def get(self, key: bytes) -> Columns | None:
        """Return a row's cells, or None. Raises CellsError."""
        found = await self._gateway.call(lambda client: client.get(self._name, IDL.TGet(row=key)))
        return _columns(found) or None

    async def check_and_put(self, key: bytes, expected: bytes | None, value: bytes) -> bool:
        """Write the control cell if its value is ``expected``, synced. False proves nothing.

        Raises:
            CellsRefused, CellsError: see cells.py.
        """
        put = IDL.TPut(
            row=key,
            durability=IDL.TDurability.FSYNC_WAL,
            columnValues=[_column_value(CONTROL_COLUMN, value, None)],
        )
        return await self._gateway.call(
            lambda client: bool(
                client.checkAndPut(self._name, key, FAMILY, CONTROL_COLUMN, expected, put)
            )
        )

    async def scan(
        self, start: bytes, stop: bytes, *, rows_max: int, reverse: bool = False
    ) -> list[RowCells]:
        """Return at most ``rows_max`` rows with ``start <= key < stop``; no ``stop``: to the end.

        Raises:
            CellsError: nobody answered.
        """
        if rows_max < 1 or (stop and start >= stop):
            return []
        if not reverse:
            return await self._scan(start, stop, rows_max)
        # Backwards HBase begins with ``stop`` itself and ends before ``start``.
        rows = await self._scan(stop, _just_below(start), rows_max + 1, reversed=True)
        return [row for row in rows if start <= row.key < stop][:rows_max]

    async def _scan(
        self, start: bytes, stop: bytes, rows_max: int, **options: Any
    ) -> list[RowCells]:
        scan = IDL.TScan(startRow=start, stopRow=stop, caching=rows_max, limit=rows_max, **options)

        def read(client: Any) -> list[RowCells]:
            results = client.getScannerResults(self._name, scan, rows_max)
            return [RowCells(result.row, _columns(result)) for result in results]

        return await self._gateway.call(read)

    async def delete(self, keys: Sequence[bytes]) -> None:
        """Delete rows, without waiting for the disk: one that comes back is deleted again.

        Raises:
            CellsRefused, CellsError: see cells.py.
        """
        for at in range(0, len(keys), DELETES_MAX):
            failed = await self._gateway.call(partial(self._delete, keys[at : at + DELETES_MAX]))
            if failed:
                raise CellsError(f"{len(failed)} rows were not deleted")

    def _delete(self, keys: Sequence[bytes], client: Any) -> list[Any]:
        durability = IDL.TDurability.SYNC_WAL
        deletes = [IDL.TDelete(row=key, durability=durability) for key in keys]
        failed: list[Any] = client.deleteMultiple(self._name, deletes)
        return failed

    async def weigh(self, start: bytes, stop: bytes, rows_max: int) -> tuple[int, int]:
        """Count rows and the bytes of their keys and values, of the first ``rows_max`` rows.

        The values stay where they are: the server sends their lengths.
        """
        rows = size = 0
        while rows < rows_max:
            found = await self._scan(
                start, stop, _WEIGHED_AT_ONCE, filterString=_LENGTHS_ONLY, cacheBlocks=False
            )
            rows += len(found)
            for key, columns in found:
                lengths = (int.from_bytes(cell.value, "big") for cell in columns.values())
                size += len(key) + sum(lengths)
            if len(found) < _WEIGHED_AT_ONCE:
                break
            start = found[-1].key + b"\0"
        return rows, size


def _frames(rows: Sequence[RowCells]) -> Iterator[Sequence[RowCells]]:
    """Cut rows into what fits a frame, in order; a row that fits none has one of its own."""
    first = size = 0
    for at, row in enumerate(rows):
        weight = (
            _ROW_OVERHEAD
            + len(row.key)
            + sum(
                _CELL_OVERHEAD + len(column) + len(cell.value)
                for column, cell in row.columns.items()
            )
        )
        if size + weight > FRAME_BYTES_MAX and at > first:
            yield rows[first:at]
            first, size = at, 0
        size += weight
    if first < len(rows):
        yield rows[first:]


def _column_value(column: bytes, value: bytes, tag: int | None) -> Any:
    return IDL.TColumnValue(family=FAMILY, qualifier=column, value=value, timestamp=tag)


def _columns(result: Any) -> dict[bytes, Cell]:
    return {found.qualifier: Cell(found.timestamp, found.value) for found in result.columnValues}


def _just_below(key: bytes) -> bytes:
    """Return a key below ``key`` and above nearly all other keys below it."""
    if not key or key.endswith(b"\0"):
        return key[:-1]
    return key[:-1] + bytes([key[-1] - 1]) + _ABOVE_ANY_REST
