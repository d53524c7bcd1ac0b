"""Logs over a real HBase: appends are synced before they are acknowledged (test_hbase_kills.py kills the servers)."""

import asyncio
import re
import secrets
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker.clock import SystemClock
from broker.config.sections import Durability
from broker.model import TopicId, log_key
from broker.storage.hbase.gateways import GatewayAddress, Gateways
from broker.storage.hbase.schema import HBaseAdmin, Schema
from broker.storage.hbase.table import HBaseTable
from broker.storage.keys import LogId
from broker.storage.log import Logs
from broker.testing.hbase_server import HBaseServer
from chaos.bare import append

pytestmark = [pytest.mark.integration, pytest.mark.slow]

LOG = LogId(TopicId("default", "notes"), 1)
COMMITS = 400
"""Far more than the syncs that HBase makes by itself meanwhile: it writes its own tables, also after ours were made."""
DEADLINE_S = 90


@asynccontextmanager
async def opened(
    server: HBaseServer, durability: Durability = Durability.FSYNC
) -> AsyncIterator[Logs]:
    """Give logs in new tables."""
    gateway = Gateways([GatewayAddress("127.0.0.1", server.thrift2_port)])
    schema = Schema("default", f"log_{secrets.token_hex(4)}_", durability)
    await HBaseAdmin(gateway, schema).init(regions=2)
    yield Logs(HBaseTable(gateway, schema), SystemClock(), call_s=60)
    await gateway.close()


@asynccontextmanager
async def syncs_counted(server: HBaseServer, report: Path) -> AsyncIterator[None]:
    """Count the server's syncs into ``report`` with strace."""
    command = ["strace", "-f", "-c", "-e", "trace=fsync,fdatasync", "-p", str(server.pid)]
    tracer = await asyncio.create_subprocess_exec(
        *command, "-o", str(report), stderr=asyncio.subprocess.PIPE
    )
    assert tracer.stderr is not None
    try:
        async with asyncio.timeout(DEADLINE_S):
            # strace prints the number of threads when it follows all of them.
            assert b"attached" in await tracer.stderr.readline()
            yield
    finally:
        tracer.send_signal(signal.SIGINT)
        await tracer.communicate()


def counted(report: Path) -> int:
    """Return the calls that strace counted: the number before the name of each."""
    lines = re.findall(
        r"^.* (\d+) +(?:\d+ +)?(?:fsync|fdatasync)$", report.read_text(), re.MULTILINE
    )
    return sum(int(calls) for calls in lines)


async def commits(logs: Logs) -> None:
    """Append one batch after the other: each is one synced write."""
    hold = await logs.claim(LOG, "a")
    for number in range(1, COMMITS + 1):
        ids = [log_key(number, place) for place in range(5)]
        await append(hold, ids, [b"payload of " + row for row in ids])


def demand_synced(report: Path, commits: int) -> None:
    """Check that acknowledged commits are on disk: each commit needs its own sync."""
    assert counted(report) >= commits, f"{counted(report)} syncs for {commits} commits"


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
async def test_appends_are_synced_unless_durability_says_otherwise(
    hbase_server: HBaseServer, tmp_path: Path
) -> None:
    """The check must fail for logs without synced writes."""
    synced, flushed = tmp_path / "synced", tmp_path / "flushed"
    for durability, report in ((Durability.FSYNC, synced), (Durability.FLUSHED, flushed)):
        async with opened(hbase_server, durability) as logs, syncs_counted(hbase_server, report):
            await commits(logs)
    demand_synced(synced, COMMITS)
    with pytest.raises(AssertionError, match=f"syncs for {COMMITS} commits"):
        demand_synced(flushed, COMMITS)


async def test_a_claim_tells_when_the_server_wrote_it(hbase_server: HBaseServer) -> None:
    async with opened(hbase_server) as logs:
        first, again = await logs.claim(LOG, "a"), await logs.claim(LOG, "b")
    assert first.before_server_ms is None
    assert first.claimed_server_ms is not None
    assert again.before_server_ms == first.claimed_server_ms
    assert again.claimed_server_ms is not None
    assert again.claimed_server_ms >= again.before_server_ms
    assert abs(again.claimed_server_ms - SystemClock().now_ms()) < 60_000
