"""The broker leaves no open scanner at a gateway of HBase, and uses no connection that the gateway has closed."""

import asyncio
import re
import secrets
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import thriftpy2
import thriftpy2.rpc

from broker.clock import SystemClock
from broker.errors import BrokerError
from broker.local.servers import HBaseGateway, HBaseServer, thrift2_idl
from broker.model import ROW_ID_MAX, ROW_ID_MIN, TopicId, row_id
from broker.storage.call_health import CallOutcome
from broker.storage.hbase.gateways import GatewayAddress, Gateways
from broker.storage.hbase.schema import HBaseAdmin, Schema
from broker.storage.hbase.table import HBaseTable
from broker.storage.keys import LogId, page_key
from broker.storage.log import Logs
from broker.storage.table import HEAD, Cell, Space
from chaos.bare import append, rows_of
from tests.integration.stalling import stalling
from tests.kit.serving import eventually

pytestmark = [pytest.mark.integration, pytest.mark.server("hbase")]

HOST = "127.0.0.1"
LOG = LogId(TopicId("default", "notes"), 1)
FIRST, LAST = page_key(LOG, ROW_ID_MIN), page_key(LOG, ROW_ID_MAX)
DEADLINE_S = 60


@asynccontextmanager
async def tables(port: int, **options: Any) -> AsyncIterator[tuple[HBaseTable, Gateways, Schema]]:
    names = Schema("default", f"gw_{secrets.token_hex(4)}_", regions=2)
    patient = Gateways([GatewayAddress(HOST, port)], call_s=DEADLINE_S)
    try:
        await HBaseAdmin(patient, names).init(regions=2)
    finally:
        await patient.close()
    gateways = Gateways([GatewayAddress(HOST, port)], **options)
    try:
        yield HBaseTable(gateways, names), gateways, names
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
    async with tables(hbase_server.thrift2_port) as (table, _, names):
        heads = {page_key(LOG, row_id(ms, 0)): b"x" * 200 for ms in range(1, 301)}
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
            ) as (table, gateways, _):
                await asyncio.gather(*(table.get(Space.MESSAGES, FIRST, [HEAD]) for _ in range(2)))
                lines = [line for one in gateways._gateways for line in one.ready]
                assert lines
                await eventually(
                    lambda lines=lines: not any(line.is_silent() for line in lines),
                    lambda lines=lines: f"{len(lines)} connections were not cut",
                )
                await asyncio.gather(*(table.get(Space.MESSAGES, FIRST, [HEAD]) for _ in range(4)))
            assert [each.kind for each in told] == [None] * len(told), told


async def test_a_region_that_hangs_leaves_other_topics_their_writes(
    hbase_server: HBaseServer,
) -> None:
    """Many topics of the hanging region retry again and again; all calls for the other topic succeed."""
    topics = [TopicId("default", f"hangs-{number}") for number in range(200)]
    region_of = Schema(regions=2).place_of
    first, others = LogId(topics[0], 1), [LogId(topic, 1) for topic in topics[1:]]
    hung = region_of(Space.MESSAGES, page_key(first, ROW_ID_MIN)).region
    in_it = [
        log for log in others if region_of(Space.MESSAGES, page_key(log, ROW_ID_MIN)).region == hung
    ]
    well = next(log for log in others if log not in in_it)
    names = [str(log.topic.topic).encode() + b":" for log in in_it]

    async def claim(logs: Logs, log: LogId) -> None:
        while True:
            with suppress(BrokerError):
                await logs.claim(log, "one")

    async with (
        stalling(
            hbase_server.thrift2_port, lambda data: any(name in data for name in names)
        ) as port,
        tables(hbase_server.thrift2_port) as (_, _, schema),
    ):
        gateways = Gateways([GatewayAddress(HOST, port)], call_s=2)
        logs = Logs(HBaseTable(gateways, schema), SystemClock(), call_s=2)
        asking = [asyncio.create_task(claim(logs, log)) for log in in_it[:64]]
        await eventually(
            lambda: gateways._turns.under_way >= 12,
            lambda: f"{gateways._turns.under_way} calls are under way",
        )
        hold = await logs.claim(well, "one")
        ids = [row_id(number, 0) for number in range(1, 101)]
        for row in ids:
            await append(hold, [row], [b"payload"])
        assert [row.id for row in await rows_of(logs, well)] == ids
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await gateways.close()
