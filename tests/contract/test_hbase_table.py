"""The contract of the table over a real HBase: all tests share one set of tables with a random prefix."""

import secrets

import pytest

from broker.storage.hbase.gateways import Address, Gateways
from broker.storage.hbase.schema import HBaseAdmin, Schema
from broker.storage.hbase.table import HBaseTable
from broker.testing.contract.table import TableContract
from broker.testing.servers import HBaseServer

pytestmark = pytest.mark.integration

SCHEMA = Schema("default", f"contract_{secrets.token_hex(4)}_")


class Harness:
    def __init__(self, server: HBaseServer) -> None:
        self._address = Address("127.0.0.1", server.thrift2_port)

    async def open(self) -> HBaseTable:
        return HBaseTable(Gateways([self._address]), SCHEMA)


class TestHBase(TableContract):
    @pytest.fixture
    async def harness(self, hbase_server: HBaseServer) -> Harness:
        gateways = Gateways([Address("127.0.0.1", hbase_server.thrift2_port)])
        await HBaseAdmin(gateways, SCHEMA).init(regions=4)
        await gateways.close()
        return Harness(hbase_server)
