"""The broker leaves no open scanner at a gateway of HBase, and uses no connection that the gateway has closed."""

import asyncio
import re
import secrets
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import thriftpy2
import thriftpy2.rpc

from broker.model import LOG_KEY_MAX, LOG_KEY_MIN, TopicId, log_key
from broker.storage.call_health import CallOutcome
from broker.storage.hbase.gateways import GatewayAddress, Gateways
from broker.storage.hbase.schema import HBaseAdmin, Schema
from broker.storage.hbase.table import HBaseTable
from broker.storage.keys import LogId, page_key
from broker.storage.table import HEAD, Cell, Space
from broker.testing.hbase_server import HBaseServer
from tests.kit.servers import HBaseGateway, thrift2_idl

pytestmark = [pytest.mark.integration, pytest.mark.server("hbase")]

HOST = "127.0.0.1"
LOG = LogId(TopicId("default", "notes"), 1)
FIRST, LAST = page_key(LOG, LOG_KEY_MIN), page_key(LOG, LOG_KEY_MAX)
DEADLINE_S = 60


@asynccontextmanager
async def tables(port: int, **options: Any) -> AsyncIterator[tuple[HBaseTable, Schema]]:
    names = Schema("default", f"gw_{secrets.token_hex(4)}_", regions=2)
    patient = Gateways([GatewayAddress(HOST, port)], call_s=DEADLINE_S)
    try:
        await HBaseAdmin(patient, names).init(regions=2)
    finally:
        await patient.close()
    gateways = Gateways([GatewayAddress(HOST, port)], **options)
    try:
        yield HBaseTable(gateways, names), names
    finally:
        await gateways.close()


def open_scanners(server: HBaseServer) -> int:
    """Count the open scanners of the region server, after a garbage collection."""
    done = subprocess.run(
        ["jcmd", str(server.pid), "GC.class_histogram"],
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    )
    counts = re.findall(r"(\d+) +\d+ +\S*RSRpcServices\$RegionScannerHolder\b", done.stdout)
    return sum(map(int, counts))


@pytest.mark.skipif(shutil.which("jcmd") is None, reason="the JDK's jcmd is not installed")
async def test_no_scanner_is_left_open(hbase_server: HBaseServer) -> None:
    """Scans that end, scans that stop at a limit, and abandoned scans."""
    async with tables(hbase_server.thrift2_port) as (table, names):
        heads = {page_key(LOG, log_key(ms, 0)): b"x" * 200 for ms in range(1, 301)}
        await table.put(Space.MESSAGES, heads)
        before = open_scanners(hbase_server)

        async def scan(number: int) -> list[tuple[bytes, Cell]]:
            return await table.scan(
                Space.MESSAGES,
                FIRST,
                LAST,
                limit=(3, 50, 1000)[number % 3],
                reverse=number % 5 == 0,
            )

        async def abandon(number: int) -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await scan(number)

        found = await asyncio.gather(*(scan(number) for number in range(120)))
        assert [len(each) for each in found[:3]] == [3, 50, 300]
        await asyncio.gather(*(abandon(number) for number in range(30)))
        await asyncio.gather(*(scan(number) for number in range(16)))
        assert open_scanners(hbase_server) <= before

        # The count with one open scanner.
        whole = thriftpy2.load(str(thrift2_idl()), module_name="scanners_thrift")
        port = hbase_server.thrift2_port
        client = thriftpy2.rpc.make_client(whole.THBaseService, HOST, port, timeout=30_000)
        name = names.name_of(Space.MESSAGES).encode()
        left = [client.openScanner(name, whole.TScan(caching=1)) for _ in range(before + 1)]
        for scanner in left:
            client.getScannerRows(scanner, 1)
        assert open_scanners(hbase_server) > before
        for scanner in left:
            client.closeScanner(scanner)
        client.close()


async def idle_connections_are_cut(port: int) -> None:
    """Wait until the gateway has cut all connections that are idle now: it cuts those of this function later."""
    async with asyncio.timeout(DEADLINE_S):
        for _ in range(2):
            reader, writer = await asyncio.open_connection(HOST, port)
            assert await reader.read() == b""
            writer.close()


async def test_a_connection_that_the_gateway_cuts_when_idle_fails_no_call(
    hbase_server: HBaseServer,
) -> None:
    """The gateway's minute is half a second here. The pool's idle limit is below it, or far above it."""
    cut = {"hbase.thrift.server.socket.read.timeout": "500"}
    with HBaseGateway(hbase_server, overrides=cut) as gateway:
        for idle_s in (0.25, 30):
            told: list[CallOutcome] = []
            async with tables(
                gateway.port, idle_s=idle_s, connections_max=2, observe=told.append
            ) as (table, _):
                await asyncio.gather(*(table.get(Space.MESSAGES, FIRST, [HEAD]) for _ in range(2)))
                await idle_connections_are_cut(gateway.port)
                await asyncio.gather(*(table.get(Space.MESSAGES, FIRST, [HEAD]) for _ in range(4)))
            assert [each.kind for each in told] == [None] * len(told), told
