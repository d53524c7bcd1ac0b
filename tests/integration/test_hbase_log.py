"""Logs over a real HBase: appends are synced before they are acknowledged, and survive a kill."""

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
from broker.errors import BrokerError
from broker.local.servers import HBaseServer
from broker.model import RowId, TopicId, row_id, timestamp_of
from broker.storage.hbase.gateways import GatewayAddress, Gateways
from broker.storage.hbase.schema import HBaseAdmin, Schema
from broker.storage.hbase.table import HBaseTable
from broker.storage.hold import LogHold
from broker.storage.keys import LogId
from broker.storage.log import Logs
from chaos.bare import append, rows_of

pytestmark = [pytest.mark.integration, pytest.mark.slow]

LOGS = [LogId(TopicId("default", f"notes{number}"), 1) for number in range(4)]
COMMITS = 40
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


def ids_from(first_ms: int, rows: int) -> list[RowId]:
    return [row_id(first_ms + number, 0) for number in range(rows)]


def payloads(ids: list[RowId]) -> list[bytes]:
    return [b"payload of " + row for row in ids]


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
    hold = await logs.claim(LOGS[0], "a")
    for number in range(1, COMMITS + 1):
        ids = ids_from(1000 * number, 5)
        await append(hold, ids, payloads(ids))


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
        first, again = await logs.claim(LOGS[0], "a"), await logs.claim(LOGS[0], "b")
    assert first.before_server_ms is None
    assert first.claimed_server_ms is not None
    assert again.before_server_ms == first.claimed_server_ms
    assert again.claimed_server_ms is not None
    assert again.claimed_server_ms >= again.before_server_ms
    assert abs(again.claimed_server_ms - SystemClock().now_ms()) < 60_000


class Writer:
    """Appends to one log until told to stop, and claims it again whenever it must."""

    def __init__(self, logs: Logs, log: LogId) -> None:
        self.acknowledged: list[RowId] = []
        self.refused: set[RowId] = set()
        self.appended = asyncio.Condition()
        self.stopped = False
        self._logs = logs
        self._log = log
        self._next_ms = 1000

    async def run(self) -> None:
        hold: LogHold | None = None
        while not self.stopped:
            try:
                if hold is None or hold.done:
                    hold = await self._logs.claim(self._log, "a")
                await self._append(hold)
            except BrokerError:
                continue  # The outcome of the batch is recorded; the server comes back.

    async def _append(self, hold: LogHold) -> None:
        ids = ids_from(max(self._next_ms, timestamp_of(hold.pointer) + 1), 7)
        self._next_ms = timestamp_of(ids[-1]) + 1
        try:
            await append(hold, ids, payloads(ids))
        except BrokerError as error:
            if error.outcome == "refused":
                self.refused.update(ids)
            raise
        self.acknowledged += ids
        async with self.appended:
            self.appended.notify_all()

    async def more(self, rows: int) -> None:
        """Wait until that many more rows are acknowledged."""
        wanted = len(self.acknowledged) + rows
        async with asyncio.timeout(DEADLINE_S), self.appended:
            await self.appended.wait_for(lambda: len(self.acknowledged) >= wanted)


@pytest.mark.nightly
@pytest.mark.server("hbase")
async def test_acknowledged_messages_are_there_after_a_kill() -> None:
    with HBaseServer() as server:
        async with opened(server) as logs:
            writers = [Writer(logs, log) for log in LOGS]
            running = asyncio.gather(*(writer.run() for writer in writers))
            await asyncio.gather(*(writer.more(300) for writer in writers))
            server.kill()
            await asyncio.to_thread(server.start)
            await asyncio.gather(*(writer.more(100) for writer in writers))
            for writer in writers:
                writer.stopped = True
            await running
            for writer, log in zip(writers, LOGS, strict=True):
                found = {row.id: row.payload for row in await rows_of(logs, log)}
                assert all(found.get(row) == b"payload of " + row for row in writer.acknowledged)
                assert not writer.refused & found.keys()
                assert list(found) == sorted(found)
