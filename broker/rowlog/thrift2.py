"""Rows through a Thrift-2 gateway, each write on disk before it is answered: ``synced=True``.

Connections, the meaning of their errors, and Thrift's bytes come from the broker's own store (broker/storage/hbase).
Everything runs in the event loop, and nothing blocks. Field numbers are those of hbase.thrift of HBase 2.6.1. The index
is written with FSYNC_WAL, too: an entry must survive every failure that its message survives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from broker.config.text_forms import parse_address
from broker.rowlog.row_table import Cells, Guard
from broker.storage.hbase import thrift
from broker.storage.hbase.gateways import GatewayAddress, Gateways
from broker.storage.hbase.requests import FSYNC_WAL, SYNC_WAL, region_locations
from broker.storage.hbase.thrift import STOP, begin, call, i32, i64, record, records, text, texts

SCAN_ROWS: Final = 500
"""How many rows one call reads. The next call reads on behind the last row."""
_EQUAL, _DELETE_COLUMNS = 2, 1
_CELLS, _ROW = 2, 1
_FAMILY, _QUALIFIER, _VALUE = 1, 2, 3
_REGION, _START_KEY = 2, 3


class Thrift2Rows:
    """Implements RowTable. Made and used in one event loop."""

    changes_together = True

    def __init__(self, addresses: Sequence[str], *, connections_max: int = 16) -> None:
        """Use gateways, each "host:port"; the first call connects. Raises ValueError."""
        self._gateways = Gateways(
            [GatewayAddress(*parse_address(each)) for each in addresses],
            connections_max=connections_max,
        )

    async def _ask(self, api: str, table: bytes, fields: bytes) -> Any:
        return await self._gateways.ask(api, call(api) + text(1, table) + fields + STOP)

    async def put(self, table: bytes, rows: Sequence[tuple[bytes, Mapping[bytes, bytes]]]) -> None:
        """Put cells."""
        puts = [_put(row, cells) for row, cells in rows]
        if len(puts) == 1:
            await self._ask("put", table, record(2, puts[0]))
        elif puts:
            await self._ask("putMultiple", table, records(2, puts))

    async def change(
        self,
        table: bytes,
        row: bytes,
        puts: Mapping[bytes, bytes],
        deletes: Sequence[bytes],
        guard: Guard | None,
    ) -> bool:
        """Put and delete in one step."""
        mutations = [record(1, _put(row, puts))] if puts else []
        if deletes:
            mutations.insert(0, record(2, _delete(row, deletes, FSYNC_WAL)))
        changed = text(1, row) + records(2, mutations)
        if guard is None:
            await self._ask("mutateRow", table, record(2, changed))
            return True
        family, qualifier = _split(guard.column)
        checked = text(2, row) + text(3, family) + text(4, qualifier) + i32(5, _EQUAL)
        return bool(
            await self._ask(
                "checkAndMutate", table, checked + text(6, guard.expected) + record(7, changed)
            )
        )

    async def check_and_put(
        self, table: bytes, row: bytes, column: bytes, expected: bytes, value: bytes
    ) -> bool:
        """Compare and set one cell."""
        family, qualifier = _split(column)
        checked = text(2, row) + text(3, family) + text(4, qualifier)
        if expected:
            checked += text(5, expected)
        put = record(6, _put(row, {column: value}))
        return bool(await self._ask("checkAndPut", table, checked + put))

    async def increment(self, table: bytes, row: bytes, column: bytes, by: int = 1) -> int:
        """Raise a counter."""
        family, qualifier = _split(column)
        raised = records(2, [text(1, family) + text(2, qualifier) + i64(3, by)])
        told = await self._ask(
            "increment", table, record(2, text(1, row) + raised + i32(5, FSYNC_WAL))
        )
        return int.from_bytes(told[_CELLS][0][_VALUE], signed=True)

    async def get(
        self, table: bytes, rows: Sequence[bytes], columns: Sequence[bytes]
    ) -> dict[bytes, Cells]:
        """Return rows."""
        gets = [text(1, row) + records(2, _columns(columns)) for row in rows]
        if len(gets) == 1:
            found = [await self._ask("get", table, record(2, gets[0]))]
        else:
            found = await self._ask("getMultiple", table, records(2, gets)) if gets else []
        return {each[_ROW]: _cells(each) for each in found if each.get(_ROW)}

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
        """Return rows in order."""
        found: list[tuple[bytes, Cells]] = []
        while len(found) < limit:
            count = min(limit - len(found), SCAN_ROWS)
            wanted = text(1, start) + (text(2, stop) if stop else b"")
            wanted += records(3, _columns(columns)) + i32(4, count)
            if qualifier_prefix:
                quoted = qualifier_prefix.replace(b"'", b"''")
                wanted += text(7, b"ColumnPrefixFilter('%b')" % quoted)
            wanted += i32(15, count)
            told = await self._ask("getScannerResults", table, record(2, wanted) + i32(3, count))
            found += [(each[_ROW], _cells(each)) for each in told]
            if len(told) < count:
                break
            start = told[-1][_ROW] + b"\0"
        return found

    async def delete(self, table: bytes, rows: Sequence[tuple[bytes, Sequence[bytes]]]) -> None:
        """Delete columns. Do not wait for the disk."""
        deletes = [_delete(row, columns, SYNC_WAL) for row, columns in rows]
        if deletes:
            await self._ask("deleteMultiple", table, records(2, deletes))

    async def make_table(self, table: bytes, family: bytes, splits: Sequence[bytes]) -> bool:
        """Make a table, pre-split."""
        namespace, _, name = table.rpartition(b":")
        named = record(1, text(1, namespace or b"default") + text(2, name))
        if await self._gateways.ask("tableExists", call("tableExists") + named + STOP):
            return False
        families = records(2, [text(1, family) + i32(10, 1)])
        descriptor = record(1, named + families + i32(4, FSYNC_WAL))
        await self._gateways.ask(
            "createTable", call("createTable") + descriptor + texts(2, splits) + STOP
        )
        return True

    async def region_starts(self, table: bytes) -> list[bytes]:
        """Return the first key of each region."""
        found = await self._gateways.ask("getAllRegionLocations", region_locations(table))
        return sorted({b"", *(each[_REGION].get(_START_KEY, b"") for each in found)})

    async def tables(self) -> list[bytes]:
        """Return the names of all tables."""
        asked = call("getTableNamesByPattern") + begin(2, thrift.BOOL) + b"\0" + STOP
        found = await self._gateways.ask("getTableNamesByPattern", asked)
        names = [(each.get(1, b"default"), each[2]) for each in found]
        return sorted(name if space == b"default" else space + b":" + name for space, name in names)

    async def close(self) -> None:
        """Close the connections."""
        await self._gateways.close()


def _split(column: bytes) -> tuple[bytes, bytes]:
    family, _, qualifier = column.partition(b":")
    return family, qualifier


def _put(row: bytes, cells: Mapping[bytes, bytes]) -> bytes:
    values = []
    for column, value in cells.items():
        family, qualifier = _split(column)
        values.append(text(1, family) + text(2, qualifier) + text(3, value))
    return text(1, row) + records(2, values) + i32(6, FSYNC_WAL)


def _delete(row: bytes, columns: Sequence[bytes], durability: int) -> bytes:
    chosen = []
    for column in columns:
        family, qualifier = _split(column)
        chosen.append(text(1, family) + text(2, qualifier))
    return text(1, row) + records(2, chosen) + i32(4, _DELETE_COLUMNS) + i32(7, durability)


def _columns(columns: Sequence[bytes]) -> list[bytes]:
    chosen = []
    for column in columns:
        family, qualifier = _split(column)
        chosen.append(text(1, family) + (text(2, qualifier) if qualifier else b""))
    return chosen


def _cells(result: Any) -> Cells:
    return {cell[_FAMILY] + b":" + cell[_QUALIFIER]: cell[_VALUE] for cell in result[_CELLS]}
