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

from collections.abc import Awaitable, Sequence
from typing import Any, NamedTuple

from broker.config import Durability
from broker.storage import hbase_requests
from broker.storage.cells import (
    Cell,
    CellsError,
    CellsRefused,
    Columns,
    RowCells,
    Scanned,
    bounded,
)
from broker.storage.hbase_exchange import encode
from broker.storage.hbase_gateways import IDL, Gateways
from broker.storage.hbase_requests import FAMILY
from broker.storage.visibility import PAYLOAD

DURABILITIES = {
    Durability.FSYNC: IDL.TDurability.FSYNC_WAL,
    Durability.FLUSHED: IDL.TDurability.SYNC_WAL,
}
"""SYNC_WAL hands a write to the servers of the file system, and does not wait for their disks."""
_FLUSHED: int = IDL.TDurability.SYNC_WAL
DELETES_MAX = 1000
_WEIGHED_AT_ONCE = 1000
UNWEIGHED_ROWS_MAX = 16
"""Rows that are asked for without asking first what they weigh."""
_LENGTHS_ONLY = b"KeyOnlyFilter (true)"
_KEYS_ONLY = b"FirstKeyOnlyFilter () AND KeyOnlyFilter ()"
_ABOVE_ANY_REST = b"\xff" * 64
"""Follows the predecessor of a key's last byte: hardly a key lies between that and the key itself."""


class _View(NamedTuple):
    """A range of keys, read forwards or backwards."""

    start: bytes
    stop: bytes
    reverse: bool

    def up_to(self, key: bytes) -> _View:
        """Return the part that ends with ``key``."""
        if self.reverse:
            return self._replace(start=key)
        return self._replace(stop=key + b"\0")


class HBaseTable:
    """A table of one family with one version of each cell."""

    def __init__(
        self, gateways: Gateways, name: str, durability: Durability = Durability.FSYNC
    ) -> None:
        """Use the table ``name`` (``namespace:table``) through ``gateways``."""
        self._gateways = gateways
        self._name = name.encode()
        self._synced = DURABILITIES[durability]

    def put(
        self, rows: Sequence[RowCells], *, synced: bool = True, prefix: bytes = b""
    ) -> Awaitable[None]:
        """Write rows, on disk on return if ``synced``; ``prefix`` goes in front of every key.

        Raises:
            CellsRefused, CellsError: see cells.py.
        """
        durability = self._synced if synced else _FLUSHED
        calls = hbase_requests.puts(self._name, prefix, rows, durability)
        if len(calls) == 1:
            return self._gateways.ask("put", *calls[0])
        return self._put_all(calls)

    async def _put_all(self, calls: Sequence[tuple[str, bytes]]) -> None:
        """Make the calls of one write, one after the other: refused is only the whole of it."""
        for number, call in enumerate(calls):
            try:
                await self._gateways.ask("put", *call)
            except CellsRefused as refused:
                if number:
                    raise _partly(refused) from refused
                raise

    async def get(self, key: bytes) -> Columns | None:
        """Return a row's cells, or None. Raises CellsError."""
        get = IDL.TGet(row=key)
        found = await self._gateways.ask("get", "get", encode("get", (self._name, get)))
        return _columns(found) or None

    def check_and_put(self, key: bytes, expected: bytes | None, value: bytes) -> Awaitable[bool]:
        """Write the control cell if its value is ``expected``, synced. False proves nothing.

        Raises:
            CellsRefused, CellsError: see cells.py.
        """
        call = hbase_requests.check_and_put(self._name, key, expected, value, self._synced)
        return self._gateways.ask("check_and_put", "checkAndPut", call)

    async def scan(
        self,
        start: bytes,
        stop: bytes,
        *,
        rows_max: int,
        bytes_max: int,
        reverse: bool = False,
        columns: Sequence[bytes] | None = None,
    ) -> Scanned:
        """Return rows with ``start <= key < stop`` as Cells.scan does; no ``stop``: to the end.

        Raises:
            CellsError: nobody answered.
        """
        view = _View(start, stop, reverse)
        cut = False
        if rows_max > UNWEIGHED_ROWS_MAX and columns is None:
            view, cut = await self._cut(view, rows_max, bytes_max)
        rows = await self._rows(view, rows_max, columns=_chosen(columns))
        if cut and not rows:
            raise CellsError("rows went while they were read")
        return bounded(rows, rows_max, bytes_max, more=cut or len(rows) == rows_max)

    async def _cut(self, view: _View, rows_max: int, bytes_max: int) -> tuple[_View, bool]:
        """Cut a range to what weighs ``bytes_max``, by the lengths of its payloads.

        A gateway knows no bound in bytes: it would hold, and send, all the rows that were asked for.
        Only payloads are ever large.
        """
        weighed = await self._rows(
            view, rows_max, columns=_chosen((PAYLOAD,)), filterString=_LENGTHS_ONLY
        )
        size = 0
        for at, (key, columns) in enumerate(weighed):
            size += len(key) + sum(_length(cell) for cell in columns.values())
            if at and size > bytes_max:
                return view.up_to(weighed[at - 1].key), True
        return view, False

    async def keys(
        self, start: bytes, stop: bytes, *, rows_max: int, reverse: bool = False
    ) -> list[bytes]:
        """Return the keys of at most ``rows_max`` rows. Raises CellsError."""
        rows = await self._rows(_View(start, stop, reverse), rows_max, filterString=_KEYS_ONLY)
        return [row.key for row in rows]

    async def _rows(self, view: _View, rows_max: int, **options: Any) -> list[RowCells]:
        start, stop, reverse = view
        if rows_max < 1 or (stop and start >= stop):
            return []
        if not reverse:
            return await self._scan(start, stop, rows_max, **options)
        # Backwards HBase begins with ``stop`` itself and ends before ``start``.
        rows = await self._scan(stop, _just_below(start), rows_max + 1, reversed=True, **options)
        return [row for row in rows if start <= row.key < stop][:rows_max]

    async def _scan(
        self, start: bytes, stop: bytes, rows_max: int, **options: Any
    ) -> list[RowCells]:
        scan = IDL.TScan(startRow=start, stopRow=stop, caching=rows_max, limit=rows_max, **options)

        def read(client: Any) -> list[RowCells]:
            results = client.getScannerResults(self._name, scan, rows_max)
            return [RowCells(result.row, _columns(result)) for result in results]

        return await self._gateways.call("scan", read)

    async def delete(self, keys: Sequence[bytes]) -> None:
        """Delete rows, without waiting for the disk: one that comes back is deleted again.

        Raises:
            CellsRefused, CellsError: see cells.py.
        """
        for at in range(0, len(keys), DELETES_MAX):
            try:
                await self._delete(keys[at : at + DELETES_MAX])
            except CellsRefused as refused:
                if at:
                    raise _partly(refused) from refused
                raise

    async def _delete(self, keys: Sequence[bytes]) -> None:
        deletes = [IDL.TDelete(row=key, durability=_FLUSHED) for key in keys]
        failed = await self._gateways.call(
            "delete", lambda client: client.deleteMultiple(self._name, deletes)
        )
        if failed:
            raise CellsError(f"{len(failed)} rows were not deleted")

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
                size += len(key) + sum(_length(cell) for cell in columns.values())
            if len(found) < _WEIGHED_AT_ONCE:
                break
            start = found[-1].key + b"\0"
        return rows, size


def _partly(refused: CellsRefused) -> CellsError:
    return CellsError(f"the rest of it was not sent: {refused}")


def _chosen(columns: Sequence[bytes] | None) -> list[Any] | None:
    if columns is None:
        return None
    return [IDL.TColumn(family=FAMILY, qualifier=column) for column in columns]


def _length(cell: Cell) -> int:
    """Return the length that stands in the place of a value."""
    return int.from_bytes(cell.value, "big")


def _columns(result: Any) -> dict[bytes, Cell]:
    return {found.qualifier: Cell(found.timestamp, found.value) for found in result.columnValues}


def _just_below(key: bytes) -> bytes:
    """Return a key below ``key`` and above nearly all other keys below it."""
    if not key or key.endswith(b"\0"):
        return key[:-1]
    return key[:-1] + bytes([key[-1] - 1]) + _ABOVE_ANY_REST
