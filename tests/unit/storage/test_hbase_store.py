"""Opening the stores by the configuration. tests/contract runs them against HBase itself."""

import socket
from collections.abc import Iterator

import pytest

from broker.clock import SystemClock
from broker.config import Durability, HBaseConfig
from broker.errors import Unavailable
from broker.storage.hbase_gateways import Ended
from broker.storage.hbase_schema import Schema
from broker.storage.hbase_store import init_hbase, open_hbase, schema_of
from tests.unit.storage.served_gateway import Served, serving


@pytest.fixture
def server() -> Iterator[Served]:
    with serving() as served:
        yield served


def config(server: Served) -> HBaseConfig:
    host, port = server.address
    return HBaseConfig(hbase_gateways=(f"{host}:{port}",), hbase_regions=3)


async def test_without_tables_it_says_what_to_run(server: Served) -> None:
    with pytest.raises(Unavailable, match=r"broker_messages, .*broker storage init"):
        await open_hbase(config(server), SystemClock())


async def test_with_its_tables_it_opens_and_each_call_is_told_of(server: Served) -> None:
    assert [made.regions for made in await init_hbase(config(server))] == [None, 3, 3, 1]
    calls: list[Ended] = []
    opened = await open_hbase(config(server), SystemClock(), calls.append)
    assert opened.logs.row_bytes_max == 1 << 20
    await opened.close()
    assert [each.kind for each in calls] == [None] * 3


async def test_nobody_there_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    nobody = HBaseConfig(
        hbase_gateways=(f"127.0.0.1:{port}",), hbase_call_s=0.2, hbase_connect_s=0.1
    )
    with pytest.raises(Unavailable, match="no gateway"):
        await open_hbase(nobody, SystemClock())
    with pytest.raises(Unavailable, match="no gateway"):
        await init_hbase(nobody)


def test_the_configuration_names_the_tables() -> None:
    chosen = HBaseConfig(
        hbase_namespace="n", hbase_table_prefix="p_", durability=Durability.FLUSHED
    )
    assert schema_of(chosen) == Schema("n", "p_", Durability.FLUSHED)
