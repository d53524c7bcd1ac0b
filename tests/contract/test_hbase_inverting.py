from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest

from broker.storage.hbase.gateways import GatewayAddress, Gateways
from broker.storage.hbase.schema import HBaseAdmin, Schema
from broker.storage.hbase.table import HBaseTable
from broker.storage.table import Table
from broker.testing.hbase_server import HBaseServer
from tests.kit.contract.inverting import InvertingContract


@pytest.mark.integration
class TestHBase(InvertingContract):
    @pytest.fixture
    async def table(self, hbase_server: HBaseServer) -> AsyncIterator[Table]:
        gateways = Gateways([GatewayAddress("127.0.0.1", hbase_server.thrift2_port)])
        schema = Schema("default", f"inverting_{secrets.token_hex(4)}_")
        admin = HBaseAdmin(gateways, schema)
        await admin.init(regions=2)
        yield HBaseTable(gateways, schema)
        await admin.remove()
        await gateways.close()
