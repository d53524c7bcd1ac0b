"""What a gateway of HBase is asked for, and what it is left with."""

import asyncio
import re
import secrets
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import thriftpy2
import thriftpy2.rpc

from broker.clock import SystemClock
from broker.config import HBaseConfig
from broker.model import ROW_ID_MAX, ROW_ID_MIN, TopicId, row_id
from broker.storage import reading
from broker.storage.cells import Cell, CellsError, RowCells, Scanned, Table
from broker.storage.hbase_gateways import IDL, Address, Ended, Gateways
from broker.storage.hbase_cells import HBaseCells
from broker.storage.hbase_exchange import encode
from broker.storage.hbase_schema import HBaseAdmin, Schema
from broker.storage.hbase_store import init_hbase, open_hbase
from broker.storage.keys import LogId, log_prefix, prefix_end, row_key
from broker.storage.ports import Batch, Segment
from broker.testing.servers import HBaseGateway, HBaseServer, thrift2_idl

pytestmark = [pytest.mark.integration, pytest.mark.server("hbase")]

HOST = "127.0.0.1"
EPOCH = (1).to_bytes(8, "big")
LOG = LogId(TopicId("default", "notes"), 1)
START, STOP = log_prefix(LOG), prefix_end(log_prefix(LOG))
DEADLINE_S = 60


def schema() -> Schema:
    return Schema("default", f"gw_{secrets.token_hex(4)}_")


@asynccontextmanager
async def cells_of(port: int, **options) -> AsyncIterator[tuple[HBaseCells, Gateways]]:
    names = schema()
    patient = Gateways([Address(HOST, port)], call_s=DEADLINE_S)
    try:
        await HBaseAdmin(patient, names).init(regions=2)
    finally:
        await patient.close()
    gateways = Gateways([Address(HOST, port)], **options)
    try:
        yield HBaseCells(gateways, names), gateways
    finally:
        await gateways.close()


def rows(count: int, size: int) -> list[RowCells]:
    return [
        RowCells(row_key(LOG, row_id(ms, 0)), {b"p": Cell(2, b"x" * size), b"e": Cell(2, EPOCH)})
        for ms in range(1, count + 1)
    ]


async def test_the_tables_are_made_as_they_must_be(hbase_server: HBaseServer) -> None:
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
    calls: list[Ended] = []
    opened = await open_hbase(config, SystemClock(), calls.append)
    hold = await opened.logs.claim(LOG, "a")
    assert hold.before_server_ms is None
    assert hold.claimed_server_ms is not None
    again = await opened.logs.claim(LOG, "a")
    assert again.before_server_ms == hold.claimed_server_ms
    assert again.claimed_server_ms is not None
    assert again.claimed_server_ms >= again.before_server_ms
    assert abs(again.claimed_server_ms - SystemClock().now_ms()) < 60_000
    assert await opened.records.put_if(b"k", None, b"v") is not None
    await opened.close()
    assert {each.call for each in calls} == {"admin", "get", "check_and_put"}


@pytest.mark.parametrize("reverse", [False, True])
async def test_scans_are_bounded_where_they_are_made(
    hbase_server: HBaseServer, reverse: bool
) -> None:
    async with cells_of(hbase_server.thrift2_port) as (cells, _):
        await cells.put(Table.MESSAGES, rows(60, 20_000))
        for rows_max, bytes_max, wanted, more in (
            (100, 70_000, 3, True),
            (100, 1, 1, True),
            (2, 1 << 20, 2, True),
            (100, 1 << 22, 60, False),
        ):
            found = await cells.scan(
                Table.MESSAGES, START, STOP, rows_max=rows_max, bytes_max=bytes_max, reverse=reverse
            )
            assert (len(found.rows), found.more) == (wanted, more)
        keys = [row.key for row in found.rows]
        assert keys == sorted(keys, reverse=reverse)
        got = await cells.keys(Table.MESSAGES, START, STOP, rows_max=10, reverse=reverse)
        assert got == keys[:10]
        only = await cells.scan(
            Table.MESSAGES,
            START,
            STOP,
            rows_max=100,
            bytes_max=1 << 20,
            reverse=reverse,
            columns=(b"e", b"x"),
        )
        wanted_rows = [RowCells(key, {b"e": Cell(2, EPOCH)}) for key in keys]
        assert only == Scanned(wanted_rows, more=False)


async def test_rows_that_do_not_count_are_passed_without_reading_their_payloads(
    hbase_server: HBaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SCAN_BYTES_MAX", 1 << 16)
    config = HBaseConfig(
        hbase_gateways=(f"{HOST}:{hbase_server.thrift2_port}",),
        hbase_table_prefix=f"dead_{secrets.token_hex(4)}_",
        hbase_regions=1,
    )
    await init_hbase(config)
    opened = await open_hbase(config, SystemClock())
    hold = await opened.logs.claim(LOG, "a")
    await opened.logs.append(hold, Batch([Segment([row_id(1, 0)], [b"1"])], row_id(1, 0)))
    gateways = Gateways([Address(HOST, hbase_server.thrift2_port)])
    dead = HBaseCells(gateways, Schema("default", config.hbase_table_prefix))
    await dead.put(Table.MESSAGES, rows(200, 5_000)[1:])
    await gateways.close()
    later = await opened.logs.claim(LOG, "b")
    await opened.logs.append(later, Batch([Segment([row_id(999, 0)], [b"2"])], row_id(999, 0)))
    for reverse in (False, True):
        page = await opened.logs.scan(
            LOG, ROW_ID_MIN, ROW_ID_MAX, rows_max=10, bytes_max=1 << 20, reverse=reverse
        )
        assert [row.payload for row in page.rows] == ([b"2", b"1"] if reverse else [b"1", b"2"])
    await opened.close()


# What is left behind.


def open_scanners(server: HBaseServer) -> int:
    """Count the scanners that the region server keeps for somebody, after a collection."""
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
    """Scans that end, that are cut by a bound, and that nobody waits for any more."""
    async with cells_of(hbase_server.thrift2_port) as (cells, _):
        await cells.put(Table.MESSAGES, rows(300, 200))
        before = open_scanners(hbase_server)

        async def scan(number: int) -> Scanned:
            return await cells.scan(
                Table.MESSAGES,
                START,
                STOP,
                rows_max=(3, 50, 1000)[number % 3],
                bytes_max=(1, 1 << 20)[number % 2],
                reverse=number % 5 == 0,
            )

        async def abandon(number: int) -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await scan(number)

        await asyncio.gather(*(scan(number) for number in range(120)))
        await asyncio.gather(*(abandon(number) for number in range(30)))
        await asyncio.gather(*(scan(number) for number in range(16)))
        assert open_scanners(hbase_server) <= before

        # What the count is when one is left open.
        whole = thriftpy2.load(str(thrift2_idl()), module_name="scanners_thrift")
        port = hbase_server.thrift2_port
        client = thriftpy2.rpc.make_client(whole.THBaseService, HOST, port, timeout=30_000)
        name = cells._tables[Table.MESSAGES]._name
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
    """Its minute is half a second here; the pool is told a bound under it, or one far over it."""
    cut = {"hbase.thrift.server.socket.read.timeout": "500"}
    with HBaseGateway(hbase_server, overrides=cut) as gateway:
        for idle_s in (0.25, 30):
            told: list[Ended] = []
            async with cells_of(
                gateway.port, idle_s=idle_s, connections_max=2, observe=told.append
            ) as (cells, gateways):
                await asyncio.gather(*(cells.get(Table.MESSAGES, START) for _ in range(2)))
                await asyncio.to_thread(await_cut, gateways)
                await asyncio.gather(*(cells.get(Table.MESSAGES, START) for _ in range(4)))
            assert [each.kind for each in told] == [None] * len(told), told


def await_cut(gateways: Gateways) -> None:
    """Wait until the gateway has ended the connections that are idle."""
    deadline = threading.Event()
    (gateway,) = gateways._connections._gateways
    waiting = [*gateway.idle, *gateway.ready]
    assert waiting
    for _ in range(DEADLINE_S * 20):
        if not any(connection.is_silent() for connection in waiting):
            return
        deadline.wait(0.05)
    raise AssertionError(f"{len(waiting)} connections were not cut")


async def test_a_reply_of_an_exception_keeps_the_connection(hbase_server: HBaseServer) -> None:
    told: list[Ended] = []
    async with cells_of(hbase_server.thrift2_port, connections_max=1, observe=told.append) as (
        cells,
        gateways,
    ):
        await cells.get(Table.MESSAGES, START)
        (gateway,) = gateways._connections._gateways
        (connection,) = gateway.ready
        with pytest.raises(CellsError, match=r"^nothing$"):
            await gateways.ask("get", "get", encode("get", (b"nothing", IDL.TGet(row=b"k"))))
        await cells.get(Table.MESSAGES, START)
        assert list(gateway.ready) == [connection]
    assert [each.kind for each in told[-3:]] == [None, "told", None]


async def test_rows_of_the_next_batch_are_under_way_while_one_is_committed(
    hbase_server: HBaseServer,
) -> None:
    """Seen from the calls of two appends: the second's rows are sent before the first's commit ends."""
    config = HBaseConfig(
        hbase_gateways=(f"{HOST}:{hbase_server.thrift2_port}",),
        hbase_table_prefix=f"pipe_{secrets.token_hex(4)}_",
        hbase_regions=1,
    )
    await init_hbase(config)
    opened = await open_hbase(config, SystemClock())
    order: list[str] = []
    hold = await opened.logs.claim(LOG, "a")
    cells = opened.logs._cells
    put, check = cells.put, cells.check_and_put
    second_sent = asyncio.Event()

    async def noted_put(*arguments, **options) -> None:
        order.append("rows")
        if order.count("rows") == 2:
            second_sent.set()
        await put(*arguments, **options)

    async def slow_check(*arguments) -> bool:
        order.append("commit")
        async with asyncio.timeout(DEADLINE_S):
            await second_sent.wait()
        return await check(*arguments)

    cells.put, cells.check_and_put = noted_put, slow_check
    await asyncio.gather(
        *(
            opened.logs.append(hold, Batch([Segment([row_id(ms, 0)], [b"x"])], row_id(ms, 0)))
            for ms in (10, 20)
        )
    )
    assert order == ["rows", "commit", "rows", "commit"]
    page = await opened.logs.scan(LOG, ROW_ID_MIN, ROW_ID_MAX, rows_max=9, bytes_max=99)
    assert len(page.rows) == 2
    await opened.close()
