"""The log store and the record store over a real HBase.

Making tables takes a second, and a key that was deleted must not be written again. So all tests share one
set of tables with a random prefix, and each test has topics and records of its own: ``Apart`` and
``RecordsApart`` put the test's number in front of every key.
"""

import itertools
import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import thriftpy2
from typing_extensions import override

from broker.clock import SystemClock
from broker.storage.cells import Columns, RowCells, Scanned, Table
from broker.storage.hbase_gateways import IDL, Address, Gateways
from broker.storage.hbase_cells import HBaseCells
from broker.storage.hbase_records import HBaseRecordStore
from broker.storage.hbase_schema import HBaseAdmin, Schema
from broker.storage.ports import Record
from broker.storage.tables import TableLogStore
from broker.testing.contract.log_lifecycle import LogStoreContract
from broker.testing.contract.record_store import RecordStoreContract
from broker.testing.servers import HBaseServer, thrift2_idl

pytestmark = pytest.mark.integration

SCHEMA = Schema("default", f"contract_{secrets.token_hex(4)}_")
CALL_S = 30.0
NUMBERS = itertools.count()


class Apart(HBaseCells):
    """Cells in which every namespace begins with the same mark."""

    def __init__(self, gateway: Gateways, mark: bytes) -> None:
        super().__init__(gateway, SCHEMA)
        self._mark = mark

    @override
    async def put(self, table: Table, rows: Sequence[RowCells], *, synced: bool = True) -> None:
        marked = [RowCells(self._mark + row.key, row.columns) for row in rows]
        await super().put(table, marked, synced=synced)

    @override
    async def get(self, table: Table, key: bytes) -> Columns | None:
        return await super().get(table, self._mark + key)

    @override
    async def check_and_put(
        self, table: Table, key: bytes, expected: bytes | None, value: bytes
    ) -> bool:
        return await super().check_and_put(table, self._mark + key, expected, value)

    @override
    async def scan(
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
        rows, more = await super().scan(
            table,
            self._mark + start,
            self._mark + stop,
            rows_max=rows_max,
            bytes_max=bytes_max,
            reverse=reverse,
            columns=columns,
        )
        return Scanned(
            [RowCells(row.key.removeprefix(self._mark), row.columns) for row in rows], more
        )

    @override
    async def keys(
        self, table: Table, start: bytes, stop: bytes, *, rows_max: int, reverse: bool = False
    ) -> list[bytes]:
        keys = await super().keys(
            table, self._mark + start, self._mark + stop, rows_max=rows_max, reverse=reverse
        )
        return [key.removeprefix(self._mark) for key in keys]

    @override
    async def delete(self, table: Table, keys: Sequence[bytes]) -> None:
        await super().delete(table, [self._mark + key for key in keys])

    @override
    async def weigh(self, table: Table, start: bytes, stop: bytes) -> tuple[int, int]:
        rows, size = await super().weigh(table, self._mark + start, self._mark + stop)
        return rows, size - rows * len(self._mark)


class RecordsApart(HBaseRecordStore):
    """Records whose keys begin with the same mark."""

    def __init__(self, gateway: Gateways, mark: bytes) -> None:
        super().__init__(gateway, SCHEMA, SystemClock(), call_s=CALL_S)
        self._mark = mark

    @override
    async def get(self, key: bytes) -> Record | None:
        return await super().get(self._mark + key)

    @override
    async def put_if(self, key: bytes, expected: bytes | None, value: bytes) -> bytes | None:
        return await super().put_if(self._mark + key, expected, value)

    @override
    async def scan_prefix(self, prefix: bytes) -> list[tuple[bytes, Record]]:
        found = await super().scan_prefix(self._mark + prefix)
        return [(key.removeprefix(self._mark), record) for key, record in found]


@pytest.fixture
async def gateway(hbase_server: HBaseServer) -> AsyncIterator[Gateways]:
    opened = Gateways([Address("127.0.0.1", hbase_server.thrift2_port)])
    yield opened
    await opened.close()


@pytest.fixture
def mark() -> bytes:
    return b"%d-" % next(NUMBERS)


class TestLogs(LogStoreContract):
    @pytest.fixture
    async def harness(self, gateway: Gateways, mark: bytes) -> "LogHarness":
        await HBaseAdmin(gateway, SCHEMA).init(regions=4)
        return LogHarness(gateway, mark)


class LogHarness:
    def __init__(self, gateway: Gateways, mark: bytes) -> None:
        self._gateway = gateway
        self._mark = mark

    async def open(self) -> TableLogStore:
        return TableLogStore(Apart(self._gateway, self._mark), SystemClock(), call_s=CALL_S)


class TestRecords(RecordStoreContract):
    @pytest.fixture
    async def harness(self, gateway: Gateways, mark: bytes) -> "RecordHarness":
        return RecordHarness(gateway, mark)


class RecordHarness:
    def __init__(self, gateway: Gateways, mark: bytes) -> None:
        self._gateway = gateway
        self._mark = mark

    async def open(self) -> HBaseRecordStore:
        await HBaseAdmin(self._gateway, SCHEMA).init(regions=4)
        return RecordsApart(self._gateway, self._mark)

    async def close(self) -> None:
        pass


def specs(definition: Any) -> dict[str, dict[int, Any]]:
    """Return the fields of every struct, argument list and result by their numbers."""
    service = definition.THBaseService
    names = [name + end for name in service.thrift_services for end in ("_args", "_result")]
    structs = [*definition.__thrift_meta__["structs"], *definition.__thrift_meta__["exceptions"]]
    structs += [getattr(service, name) for name in names]
    return {struct.__name__: struct.thrift_spec for struct in structs}


def plain(spec: Any) -> Any:
    """Return a field's type and name; a struct by its name, whoever defines it."""
    if isinstance(spec, tuple):
        return tuple(plain(part) for part in spec)
    return getattr(spec, "__name__", spec)


@pytest.mark.server("hbase")
def test_the_shortened_definition_says_what_the_gateways_says() -> None:
    whole = thriftpy2.load(str(thrift2_idl()), module_name="whole_thrift")
    original = specs(whole)
    for name, fields in specs(IDL).items():
        for number, spec in fields.items():
            assert plain(spec) == plain(original[name][number]), f"{name}.{number}"
    assert IDL.TDurability._NAMES_TO_VALUES == whole.TDurability._NAMES_TO_VALUES
