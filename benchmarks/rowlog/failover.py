"""Measure how long a rowlog has no processor after a kill. The promise is the session time-out and 1 s.

    python -m benchmarks.rowlog.failover [--kills 10] [--json FILE]

Two processes are candidates (chaos/rowlog_worker.py). The benchmark kills the processing one with SIGKILL, and puts a
message. It measures the time from the kill until the listener of the other process gets that message. Then it starts
the killed process again. In this time ZooKeeper must notice the death, by silence alone. The other process must take
the lease, raise the epoch, and scan the index. The kill comes at a random moment between two heartbeats of the session.
The exit status is 1 if the longest time is above the promise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import happybase

from broker import logs
from broker.clock import SystemClock
from broker.config.sections import LogLevel, LogsConfig
from broker.rowlog import RowLog, Subscription
from broker.testing.hbase_server import HBaseServer
from chaos.rowlog_workers import Workers
from tests.kit.servers import ZooKeeperServer

HOST: Final = "127.0.0.1"
SESSION_TIMEOUT_MS: Final = 4_000
BEYOND_S: Final = 1.0
"""The promised time after the session time-out."""
KILLS: Final = 10
TABLE: Final = "failover"
NAMES: Final = ("one", "two")


async def _taken_over(log: RowLog, workers: Workers, row: bytes) -> float:
    """Kill the processor, and return the seconds until another one calls its listener."""
    killed = workers.leader
    other = next(name for name in NAMES if name != killed)
    killed_ns = time.monotonic_ns()
    workers.signal(killed, signal.SIGKILL)
    await workers.processes[killed].wait()
    message = await log.put(row, payload=b"x")
    assert message is not None, "there is a subscription"
    name = row.decode()

    def began() -> list[int]:
        lines = (each for each in workers.history if (each.kind, each.process) == ("begin", other))
        return [each.time_ns for each in lines if each.row == name]

    await workers.until(lambda: bool(began()), 60.0)
    seconds = (began()[0] - killed_ns) / 1e9
    workers.ready.discard(killed)
    await workers.start(killed)
    await workers.until(lambda: killed in workers.ready, 60.0)
    return seconds


async def _measured(hbase: HBaseServer, zookeeper: ZooKeeperServer, kills: int) -> list[float]:
    pool = happybase.ConnectionPool(4, host=HOST, port=hbase.thrift1_port, timeout=30_000)
    with pool.connection() as connection:
        connection.create_table(TABLE, {"rowlog": {"max_versions": 1}})
    workers = Workers(
        {
            "thrift1": hbase.thrift1_port,
            "zookeeper": [zookeeper.hosts],
            "table": TABLE,
            "id": TABLE,
            "subscriptions": ["a"],
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "takes_s": 0.0,
        }
    )
    clock, seconds = SystemClock(), []
    log = RowLog(pool, TABLE, id=TABLE, zookeeper=[zookeeper.hosts], threads=4)
    try:
        async with log:
            await log.subscribe(Subscription("a"))
            for name in NAMES:
                await workers.start(name)
            await workers.until(lambda: bool(workers.leader) and len(workers.ready) == 2, 60.0)
            for number in range(kills):
                await clock.sleep(random.uniform(0.5, 0.5 + SESSION_TIMEOUT_MS / 1000))
                seconds.append(await _taken_over(log, workers, b"%d" % number))
    finally:
        await workers.close()
    return seconds


def measure(hbase: HBaseServer, zookeeper: ZooKeeperServer, kills: int = KILLS) -> dict[str, Any]:
    """Kill a processor ``kills`` times, and return the figures."""
    return figures_of(asyncio.run(_measured(hbase, zookeeper, kills)))


def figures_of(seconds: Sequence[float]) -> dict[str, Any]:
    """Return the figures; ``within_bound`` is True if the promise was kept each time."""
    bound_s = SESSION_TIMEOUT_MS / 1000 + BEYOND_S
    return {
        "kills": len(seconds),
        "p50_s": round(statistics.median(seconds), 2),
        "max_s": round(max(seconds), 2),
        "session_timeout_s": SESSION_TIMEOUT_MS / 1000,
        "bound_s": bound_s,
        "within_bound": max(seconds) <= bound_s,
    }


def main() -> None:
    """Read the command line, measure, print, and exit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--json", type=Path)
    words = parser.parse_args()
    with ExitStack() as stack:
        stack.enter_context(logs.writing(LogsConfig(log_level=LogLevel.WARNING)))
        hbase = stack.enter_context(HBaseServer())
        zookeeper = stack.enter_context(ZooKeeperServer())
        figures = measure(hbase, zookeeper, words.kills)
    print(json.dumps(figures, indent=2))
    if words.json is not None:
        words.json.write_text(json.dumps(figures, indent=2) + "\n")
    sys.exit(0 if figures["within_bound"] else 1)


if __name__ == "__main__":
    main()
