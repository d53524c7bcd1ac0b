"""The workload ``rowlog``: processors of a rowlog over a real HBase, which are killed and stopped, and what they stand on.

It needs no broker, so it is a run of its own beside those of ``run``: writers in this process, workers each in
one (broker/testing/rowlog_worker.py), a cluster of HBase and ZooKeeper processes, and one fault at a time::

    kill        SIGKILL of a worker, which comes back
    pause       SIGSTOP of a worker for longer than its session; it goes on
    gateway     SIGKILL of a Thrift-2 gateway
    region      SIGKILL of a region server: its regions move
    zookeeper   SIGKILL of ZooKeeper, which comes back with its data

When all is healed and worked off, the history is judged (broker/testing/checkers/rowlog.py): at least once per
subscription, no two of a row in flight, per-row order, nothing lost.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Final, NamedTuple

from broker.clock import SystemClock
from broker.errors import BrokerError
from broker.rowlog import RowLog, Subscription
from broker.rowlog.table import TableError
from broker.rowlog.thrift2 import Thrift2Rows
from broker.testing.checkers.rowlog import violations
from broker.testing.cluster import LocalCluster, Member
from broker.testing.rowlog_workers import Workers

FAULTS: Final = ("kill", "pause", "gateway", "region", "zookeeper")
NAMES: Final = ("a", "b")
WORKERS: Final = ("one", "two", "three")
WRITERS: Final = 2
ROWS: Final = 8
SESSION_MS: Final = 2_000
TABLE: Final = "chaos"
ID: Final = "chaos"
PUT_EVERY_S: Final = 0.05
HEALTHY_S: Final = 4.0
DOWN_S: Final = (0.5, 4.0)
DONE_S: Final = 120.0
"""How long working everything off may take when all is healed."""


class Done(NamedTuple):
    """What came of a run."""

    wrong: list[str]
    puts: int
    unknown: int
    begun: int
    faults: dict[str, int]


class Run:
    """Writers, workers and faults on one cluster."""

    def __init__(self, cluster: LocalCluster, seed: int) -> None:
        """Draw everything from ``seed``."""
        self._cluster = cluster
        self._chance = random.Random(seed)
        self._clock = SystemClock()
        self._gateways = [each.place.address for each in cluster.gateways]
        self._zookeepers = [each.place.address for each in cluster.zookeepers]
        self._stop = asyncio.Event()
        self._unknown = 0
        self._faults = dict.fromkeys(FAULTS, 0)
        self._workers = Workers(
            {
                "thrift2": self._gateways,
                "zookeeper": ",".join(self._zookeepers),
                "table": TABLE,
                "id": ID,
                "subscriptions": list(NAMES),
                "session_timeout_ms": SESSION_MS,
                "fails": 0.1,
            }
        )

    async def run(self, seconds: float, faults: Sequence[str]) -> Done:
        """Work, break, heal, wait until all is done, and judge."""
        rows = Thrift2Rows(self._gateways)
        await rows.make_table(TABLE.encode(), b"rowlog", [])
        await rows.close()
        async with self._log() as log:
            for name in NAMES:
                await log.subscribe(Subscription(name, max_tries=0, backoff_ms_first=100))
        for name in WORKERS:
            await self._workers.start(name)
        writing = [asyncio.create_task(self._write(number)) for number in range(WRITERS)]
        try:
            await self._workers.until(lambda: bool(self._workers.leader), 60.0)
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                await self._clock.sleep(HEALTHY_S)
                await self._break(self._chance.choice(faults))
            self._stop.set()
            await asyncio.gather(*writing)
            await self._revive()
            with suppress(AssertionError):
                await self._workers.until(lambda: self._workers.is_done(NAMES), DONE_S)
        finally:
            self._stop.set()
            for task in writing:
                task.cancel()
            await self._workers.close()
        history = self._workers.history
        return Done(
            violations(history, NAMES),
            sum(each.kind == "put" for each in history),
            self._unknown,
            sum(each.kind == "begin" for each in history),
            self._faults,
        )

    def _log(self) -> RowLog:
        return RowLog(
            None,
            TABLE,
            id=ID,
            synced=True,
            thrift2=self._gateways,
            zookeeper=self._zookeepers,
            session_timeout_ms=SESSION_MS,
        )

    async def _write(self, number: int) -> None:
        """Put messages into rows that no other writer has, one after the other."""
        rows = [b"row-%d-%d" % (number, each) for each in range(ROWS)]
        async with self._log() as log:
            while not self._stop.is_set():
                try:
                    message = await log.put(
                        self._chance.choice(rows), {b"rowlog:value": b"1"}, b"payload"
                    )
                except (BrokerError, TableError):
                    self._unknown += 1
                else:
                    self._workers.note_put(message)
                await self._clock.sleep(PUT_EVERY_S * self._chance.random() * 2)

    async def _break(self, fault: str) -> None:
        """Let one fault come and go."""
        self._faults[fault] += 1
        down_s = self._chance.uniform(*DOWN_S)
        if fault in {"kill", "pause"}:
            await self._break_worker(fault, down_s)
            return
        member = self._chance.choice(
            {
                "gateway": self._cluster.gateways,
                "region": self._cluster.region_servers,
                "zookeeper": self._cluster.zookeepers,
            }[fault]
        )
        await asyncio.to_thread(member.kill)
        await self._clock.sleep(down_s)
        await asyncio.to_thread(_started, member)
        await self._revive()

    async def _break_worker(self, fault: str, down_s: float) -> None:
        leads = self._workers.leader if self._chance.random() < 0.7 else ""
        name = leads or self._chance.choice(WORKERS)
        if fault == "kill":
            self._workers.signal(name, SIGKILL)
            await self._workers.processes[name].wait()
            await self._clock.sleep(down_s)
            await self._workers.start(name)
            return
        self._workers.signal(name, SIGSTOP)
        await self._clock.sleep(SESSION_MS / 1000 + down_s)
        self._workers.signal(name, SIGCONT)

    async def _revive(self) -> None:
        """Start workers again that ended by themselves."""
        for name, process in list(self._workers.processes.items()):
            if process.returncode is not None:
                await self._workers.start(name)


def _started(member: Member) -> None:
    member.start()
