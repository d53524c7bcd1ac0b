"""The rows of a rowlog in a real HBase, through both kinds of gateway."""

import secrets
from collections.abc import AsyncIterator, Iterator

import happybase
import pytest

from broker.clock import SystemClock
from broker.rowlog.thrift1 import Thrift1Rows
from broker.rowlog.thrift2 import Thrift2Rows
from broker.testing.hbase_server import HBaseServer
from tests.kit.contract.rowtable import Opened, RowLocksContract, RowTableContract

pytestmark = pytest.mark.integration

HOST = "127.0.0.1"
TABLE = f"rows{secrets.token_hex(4)}".encode()


@pytest.fixture
def table(hbase_server: HBaseServer) -> bytes:
    connection = happybase.Connection(HOST, hbase_server.thrift1_port)
    if TABLE not in connection.tables():
        connection.create_table(TABLE, {"d": {"max_versions": 1}, "rowlog": {"max_versions": 1}})
    connection.close()
    return TABLE


@pytest.fixture
def pool(hbase_server: HBaseServer) -> Iterator[happybase.ConnectionPool]:
    made = happybase.ConnectionPool(4, host=HOST, port=hbase_server.thrift1_port, timeout=10_000)
    yield made
    for _ in range(4):
        made._queue.get_nowait().close()


class TestThrift1(RowTableContract, RowLocksContract):
    @pytest.fixture
    async def opened(self, pool: happybase.ConnectionPool, table: bytes) -> AsyncIterator[Opened]:
        rows = Thrift1Rows(pool, SystemClock(), threads=4)
        yield Opened(rows, table)
        await rows.close()


class TestThrift2(RowTableContract, RowLocksContract):
    @pytest.fixture
    async def opened(self, hbase_server: HBaseServer, table: bytes) -> AsyncIterator[Opened]:
        rows = Thrift2Rows([f"{HOST}:{hbase_server.thrift2_port}"])
        yield Opened(rows, table)
        await rows.close()
