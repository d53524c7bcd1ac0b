"""The check of a store over a real HBase: without damage, with damage, and beside a writer."""

import asyncio
import secrets
from collections.abc import AsyncIterator

import pytest

from broker.model import LOG_KEY_MIN
from broker.storage.check import verify
from broker.storage.hbase.gateways import GatewayAddress, Gateways
from broker.storage.hbase.schema import HBaseAdmin, Schema
from broker.storage.hbase.table import HBaseTable
from broker.storage.keys import LogId, page_key
from broker.storage.log import Logs
from broker.storage.sweep import clear_below_floor, raise_floor
from broker.storage.table import Space
from broker.testing.hbase_server import HBaseServer
from tests.kit.full_store import BOUNDS, FULL, Filler, StillClock

pytestmark = pytest.mark.integration

LOG = LogId(FULL, 1)


@pytest.fixture
async def logs(hbase_server: HBaseServer) -> AsyncIterator[Logs]:
    gateways = Gateways([GatewayAddress("127.0.0.1", hbase_server.thrift2_port)])
    schema = Schema("default", f"check_{secrets.token_hex(4)}_")
    admin = HBaseAdmin(gateways, schema)
    await admin.init(regions=2)
    logs = Logs(HBaseTable(gateways, schema), StillClock(), bounds=BOUNDS)
    await Filler(logs).fill()
    yield logs
    await admin.remove()
    await logs.close()


async def test_a_full_store_has_no_problems_until_a_page_is_deleted(logs: Logs) -> None:
    report = await verify(logs)
    assert report.problems == []
    assert (report.topics, report.payload_logs) == (8, 6)
    await logs.table.delete(Space.MESSAGES, [page_key(LOG, LOG_KEY_MIN)])
    report = await verify(logs)
    assert any("the pages before it are missing" in line for line in report.problems)


async def test_a_check_finds_no_problems_beside_a_writer(logs: Logs) -> None:
    filler = Filler(logs)
    writing = asyncio.create_task(_keep_writing(filler))
    while not writing.done():
        assert (await verify(logs)).problems == []
    await writing


async def _keep_writing(filler: Filler) -> None:
    hold = await filler.logs.claim(LOG, "writer")
    ids = filler.ids(1)
    while ids[0] <= hold.pointer:
        ids = filler.ids(1)
    for number in range(30):
        ids = await filler.append(hold)
        await filler.append(hold, key=f"busy {number}")
        if number % 10 == 9:
            await raise_floor(hold, ids[0])
            await clear_below_floor(filler.logs.resolver, hold, 99)
    hold.end()
