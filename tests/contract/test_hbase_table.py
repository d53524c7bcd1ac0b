"""The contract of the table over a real HBase, and further properties of HBase that the broker needs.

All tests share one set of tables with a random prefix, because making tables takes a second.
"""

import random
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest
import thriftpy2
import thriftpy2.rpc

from broker.clock import SystemClock
from broker.config.sections import HBaseConfig
from broker.storage.call_health import CallOutcome
from broker.storage.hbase import requests
from broker.storage.hbase.gateways import GatewayAddress, Gateways
from broker.storage.hbase.schema import HBaseAdmin, Schema, salt_of
from broker.storage.hbase.store import init_hbase, open_hbase
from broker.storage.hbase.table import HBaseTable
from broker.storage.table import HEAD, Space, WriteUnknown
from broker.testing.hbase_server import HBaseServer
from tests.kit.contract.log import LogContract
from tests.kit.contract.table import Place, TableContract, column
from tests.kit.servers import thrift2_idl
from tests.unit.storage.hbase.fake import IDL

pytestmark = pytest.mark.integration

HOST = "127.0.0.1"
M = Space.MESSAGES
SCHEMA = Schema("default", f"contract_{secrets.token_hex(4)}_")
NAME = SCHEMA.name_of(M).encode()


class Harness:
    def __init__(self, server: HBaseServer) -> None:
        self.address = GatewayAddress(HOST, server.thrift2_port)

    async def open(self) -> HBaseTable:
        return HBaseTable(Gateways([self.address]), SCHEMA)


@pytest.fixture
async def harness(hbase_server: HBaseServer) -> Harness:
    gateways = Gateways([GatewayAddress(HOST, hbase_server.thrift2_port)])
    await HBaseAdmin(gateways, SCHEMA).init(regions=4)
    await gateways.close()
    return Harness(hbase_server)


class TestHBase(TableContract):
    pass


class TestLogOverHBase(LogContract):
    pass


@pytest.fixture
async def table(harness: Harness) -> AsyncIterator[HBaseTable]:
    opened = await harness.open()
    yield opened
    await opened.close()


@pytest.fixture
def row() -> bytes:
    return Place(secrets.token_hex(6)).key(M)


async def test_init_makes_the_tables_with_their_settings_once(hbase_server: HBaseServer) -> None:
    config = HBaseConfig(
        hbase_gateways=(f"{HOST}:{hbase_server.thrift2_port}",),
        hbase_namespace=f"n{secrets.token_hex(4)}",
        hbase_regions=3,
    )
    for made in (True, False):
        done = await init_hbase(config)
        assert [(each.made, each.regions) for each in done] == [
            (made, None),
            (made, 3),
            (made, 3),
            (made, 1),
        ]
        assert not any(each.problems for each in done), done
    calls: list[CallOutcome] = []
    opened = await open_hbase(config, SystemClock(), calls.append)
    assert await opened.change(Space.RECORDS, b"k", None, {HEAD: b"v"})
    await opened.close()
    assert {(each.call, each.kind) for each in calls} == {("admin", None), ("change", None)}


async def test_a_range_has_exactly_its_columns_for_any_bytes(table: HBaseTable, row: bytes) -> None:
    chance = random.Random(1)
    drawn = {
        bytes(chance.choices(b"'\\\"(),\0\xff\n =Aa", k=chance.randint(1, 5))) for _ in range(99)
    }
    names = sorted(drawn - {HEAD})
    assert await table.change(M, row, None, {HEAD: b"1", **{name: name for name in names}})
    for _ in range(60):
        first, last = sorted(chance.sample(names, 2))
        wanted = [name for name in names if first <= name <= last]
        assert await table.columns(M, row, first, last) == wanted
        found = await table.cells(M, row, first, last, cells_max=999, bytes_max=1 << 20)
        assert [name for name, _ in found.cells] == wanted


async def test_a_deleted_cell_hides_later_writes_to_it(table: HBaseTable, row: bytes) -> None:
    """This is why the broker never writes a row or a column again after its deletion."""
    await table.change(M, row, None, {HEAD: b"1", column(1): b"1", column(2): b"2"})
    await table.change(M, row, b"1", {HEAD: b"2"}, [column(1)])
    await table.change(M, row, b"2", {HEAD: b"3", column(1): b"again"})
    assert await table.columns(M, row, b"e", b"f") == [column(2)]
    await table.change(M, row, b"3", {HEAD: b"4"}, clear=True)
    await table.change(M, row, b"4", {HEAD: b"5", column(3): b"hidden"})
    assert await table.columns(M, row, b"e", b"f") == []
    await table.delete(M, [row])
    assert await table.change(M, row, None, {HEAD: b"hidden"})
    assert await table.get(M, row, [HEAD]) == {}


async def test_changes_and_deletes_win_over_cells_with_a_later_timestamp(
    table: HBaseTable, harness: Harness, row: bytes
) -> None:
    """Another server's clock was ahead. Readers see the cells of the next change nevertheless."""
    ahead = 1 << 45
    put = IDL.TPut(
        row=salt_of(row) + row,
        columnValues=[
            IDL.TColumnValue(family=family, qualifier=name, value=b"1", timestamp=ahead)
            for family, name in ((b"h", HEAD), (b"e", column(1)))
        ],
    )
    client = thriftpy2.rpc.make_client(IDL.THBaseService, *harness.address)
    client.put(NAME, put)
    client.close()
    assert await table.change(M, row, b"1", {HEAD: b"2", column(1): b"2"})
    assert await table.change(M, row, b"2", {HEAD: b"3", column(1): b"3"}, [column(9)])
    found = await table.get(M, row, [HEAD, column(1)])
    assert found == {HEAD: (b"3", ahead), column(1): (b"3", ahead)}
    assert await table.change(M, row, b"3", {HEAD: b"4", column(2): b"4"}, [column(1)])
    assert await table.columns(M, row, b"e", b"f") == [column(2)]
    assert await table.change(M, row, b"4", {HEAD: b"5"}, clear=True)
    assert await table.columns(M, row, b"e", b"f") == []
    await table.delete(M, [row])
    assert await table.get(M, row, [HEAD]) == {}


async def test_the_outcome_of_a_call_to_a_missing_table_is_unknown(
    harness: Harness, row: bytes
) -> None:
    gateways = Gateways([harness.address])
    for request in (
        requests.get(b"nothing", row, [HEAD]),
        requests.check_and_put(b"nothing", row, None, {HEAD: b"1"}, requests.FSYNC_WAL),
    ):
        with pytest.raises(WriteUnknown, match=r"nothing"):
            await gateways.ask("get", request)
    await gateways.close()


# The Thrift definition that the tests of requests.py use.


def specs(definition: Any) -> dict[str, dict[int, Any]]:
    """Return the fields of every struct, argument list and result by their numbers."""
    service = definition.THBaseService
    names = [name + end for name in service.thrift_services for end in ("_args", "_result")]
    meta = definition.__thrift_meta__
    structs = [*meta["structs"], *meta["exceptions"], *meta["unions"]]
    structs += [getattr(service, name) for name in names]
    return {struct.__name__: struct.thrift_spec for struct in structs}


def plain(spec: Any) -> Any:
    """Return a field's type and name; a struct becomes its name, so that two definitions compare."""
    if isinstance(spec, tuple):
        return tuple(plain(part) for part in spec)
    return getattr(spec, "__name__", spec)


@pytest.mark.server("hbase")
def test_the_short_definition_agrees_with_the_gateways_definition() -> None:
    whole = thriftpy2.load(str(thrift2_idl()), module_name="whole_thrift")
    original = specs(whole)
    assert "TMutation" in original
    for name, fields in specs(IDL).items():
        for number, spec in fields.items():
            assert plain(spec) == plain(original[name][number]), f"{name}.{number}"
    for name in ("TDurability", "TDeleteType", "TCompareOp", "TThriftServerType"):
        assert getattr(IDL, name)._NAMES_TO_VALUES == getattr(whole, name)._NAMES_TO_VALUES
