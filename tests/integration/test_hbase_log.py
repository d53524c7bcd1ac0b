"""What the log store promises over a real HBase: synced before acknowledged, there after a kill."""

import asyncio
import re
import secrets
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker import guards
from broker.clock import SystemClock
from broker.config import Durability
from broker.errors import BrokerError
from broker.model import ROW_ID_MAX, ROW_ID_MIN, RowId, TopicId, row_id, timestamp_of
from broker.storage.hbase_gateways import Address, Gateways
from broker.storage.hbase_cells import HBaseCells
from broker.storage.hbase_schema import HBaseAdmin, Schema
from broker.storage.keys import LogId
from broker.storage.ports import Batch, Hold, Segment
from broker.storage.tables import TableLogStore
from broker.testing.servers import HBaseServer

pytestmark = [pytest.mark.integration, pytest.mark.slow]

LOGS = [LogId(TopicId("default", f"notes{number}"), 1) for number in range(4)]
COMMITS = 40
DEADLINE_S = 90


@asynccontextmanager
async def opened(
    server: HBaseServer, durability: Durability = Durability.FSYNC
) -> AsyncIterator[TableLogStore]:
    """A log store with tables of its own."""
    gateway = Gateways([Address("127.0.0.1", server.thrift2_port)])
    schema = Schema("default", f"log_{secrets.token_hex(4)}_", durability)
    await HBaseAdmin(gateway, schema).init(regions=2)
    yield TableLogStore(HBaseCells(gateway, schema), SystemClock(), call_s=60)
    await gateway.close()


def batch(first_ms: int, rows: int) -> Batch:
    ids = [row_id(first_ms + number, 0) for number in range(rows)]
    return Batch([Segment(ids, [b"payload of " + row for row in ids])], ids[-1])


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
            # It says how many threads it follows when it has all of them.
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


async def commits(store: TableLogStore, first: int = 0) -> None:
    """Append one batch after the other: each is two synced writes, rows and control row."""
    hold = await store.claim(LOGS[0], "a")
    for number in range(first + 1, first + COMMITS + 1):
        await store.append(hold, batch(1000 * number, 5))


def demand_synced(report: Path, commits: int) -> None:
    """What is acknowledged is on disk: no commit shares its syncs with another that came later."""
    assert counted(report) >= 2 * commits, f"{counted(report)} syncs for {commits} commits"


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
async def test_rows_and_commits_are_synced_unless_durability_says_otherwise(
    hbase_server: HBaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The demand must fail for stores that leave a sync out, or all of them."""
    monkeypatch.setenv("BROKER_TESTING", "1")
    synced, rows_unsynced, flushed = (tmp_path / name for name in ("one", "two", "three"))
    async with opened(hbase_server) as store:
        async with syncs_counted(hbase_server, synced):
            await commits(store)
        async with syncs_counted(hbase_server, rows_unsynced):
            with guards.without("row-sync"):
                await commits(store, COMMITS)
    async with (
        opened(hbase_server, Durability.FLUSHED) as store,
        syncs_counted(hbase_server, flushed),
    ):
        await commits(store)
    demand_synced(synced, COMMITS)
    for report in (rows_unsynced, flushed):
        with pytest.raises(AssertionError, match=f"syncs for {COMMITS} commits"):
            demand_synced(report, COMMITS)
    assert counted(rows_unsynced) >= COMMITS
    assert counted(flushed) < COMMITS


class Writer:
    """Appends to one log until told to stop, and claims it again whenever it must."""

    def __init__(self, store: TableLogStore, log: LogId) -> None:
        self.acknowledged: list[RowId] = []
        self.refused: set[RowId] = set()
        self.appended = asyncio.Condition()
        self.stopped = False
        self._store = store
        self._log = log
        self._next_ms = 1000

    async def run(self) -> None:
        hold: Hold | None = None
        while not self.stopped:
            try:
                if hold is None or hold.done:
                    hold = await self._store.claim(self._log, "a")
                await self._append(hold)
            except BrokerError:
                continue  # What it says of the batch is kept; the server comes back.

    async def _append(self, hold: Hold) -> None:
        this = batch(max(self._next_ms, timestamp_of(hold.control.pointer) + 1), 7)
        self._next_ms = timestamp_of(this.last) + 1
        try:
            await self._store.append(hold, this)
        except BrokerError as error:
            if error.outcome == "refused":
                self.refused.update(this.segments[0].ids)
            raise
        self.acknowledged += this.segments[0].ids
        async with self.appended:
            self.appended.notify_all()

    async def more(self, rows: int) -> None:
        """Wait until that many more rows are acknowledged."""
        wanted = len(self.acknowledged) + rows
        async with asyncio.timeout(DEADLINE_S), self.appended:
            await self.appended.wait_for(lambda: len(self.acknowledged) >= wanted)


@pytest.mark.nightly
@pytest.mark.server("hbase")
async def test_what_was_acknowledged_is_there_after_a_kill() -> None:
    with HBaseServer() as server:
        async with opened(server) as store:
            writers = [Writer(store, log) for log in LOGS]
            running = asyncio.gather(*(writer.run() for writer in writers))
            await asyncio.gather(*(writer.more(300) for writer in writers))
            server.kill()
            await asyncio.to_thread(server.start)
            await asyncio.gather(*(writer.more(100) for writer in writers))
            for writer in writers:
                writer.stopped = True
            await running
            for writer, log in zip(writers, LOGS, strict=True):
                page = await store.scan(
                    log, ROW_ID_MIN, ROW_ID_MAX, rows_max=1 << 20, bytes_max=1 << 26
                )
                found = {row.id: row.payload for row in page.rows}
                assert all(found.get(row) == b"payload of " + row for row in writer.acknowledged)
                assert not writer.refused & found.keys()
                assert list(found) == sorted(found)
