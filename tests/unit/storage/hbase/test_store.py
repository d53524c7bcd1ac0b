"""Opening the table by the configuration, with the fake gateway. tests/contract uses HBase itself."""

import socket
from collections.abc import Iterator

import pytest

from broker.clock import SystemClock
from broker.config.sections import Durability, HBaseConfig
from broker.errors import Unavailable
from broker.storage.call_health import CallOutcome
from broker.storage.hbase.schema import Schema
from broker.storage.hbase.store import init_hbase, open_hbase, schema_of
from broker.storage.table import HEAD, Space
from tests.unit.storage.hbase.fake import IDL, Served, serving


@pytest.fixture
def server() -> Iterator[Served]:
    with serving() as served:
        yield served


def config(server: Served) -> HBaseConfig:
    host, port = server.address
    return HBaseConfig(hbase_gateways=(f"{host}:{port}",), hbase_regions=3)


async def test_without_tables_the_error_names_the_command_to_run(server: Served) -> None:
    with pytest.raises(Unavailable, match=r"broker_messages, .*broker storage init"):
        await open_hbase(config(server), SystemClock())


async def test_with_its_tables_it_opens_and_each_call_is_observed(server: Served) -> None:
    assert [made.regions for made in await init_hbase(config(server))] == [None, 3, 3, 1]
    calls: list[CallOutcome] = []
    table = await open_hbase(config(server), SystemClock(), calls.append)
    assert await table.change(Space.RECORDS, b"k", None, {HEAD: b"v"})
    await table.close()
    assert [(each.call, each.kind) for each in calls] == [
        *[("admin", None)] * 6,
        ("change", None),
    ]


async def test_a_gateway_that_is_not_ready_is_asked_again(server: Served) -> None:
    await init_hbase(config(server))
    exists, asked = server.hbase.tableExists, []

    def not_yet(name):
        asked.append(name)
        if len(asked) == 1:
            raise IDL.TIOError(message="the master is initializing")
        return exists(name)

    server.hbase.tableExists = not_yet
    table = await open_hbase(config(server), SystemClock())
    await table.close()
    assert len(asked) == 4


@pytest.mark.slow
async def test_without_any_gateway_opening_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    unreachable = HBaseConfig(
        hbase_gateways=(f"127.0.0.1:{port}",), hbase_call_s=0.2, hbase_connect_s=0.1
    )
    with pytest.raises(Unavailable, match="no gateway"):
        await open_hbase(unreachable, SystemClock())
    with pytest.raises(Unavailable, match="no gateway"):
        await init_hbase(unreachable)


def test_the_configuration_names_the_tables() -> None:
    chosen = HBaseConfig(
        hbase_namespace="n", hbase_table_prefix="p_", durability=Durability.FLUSHED
    )
    assert schema_of(chosen) == Schema("n", "p_", Durability.FLUSHED)
