"""Measure puts, processing, wake-ups and idling of a rowlog, beside bare puts of the same rows by the same pool.

    python -m benchmarks.rowlog [--puts 3000] [--rounds 3] [--kills 10] [--json FILE]

It starts HBase and ZooKeeper, and warms their JVMs first. Bare puts and puts of the rowlog take turns, with the same
number of threads. The figures are medians over the rounds. A put of a rowlog with two subscriptions is four writes and
an increment. The rowlog makes up for it, as it sends waiting writes together. failover.py measures failover. The exit
status is 1 if a failover takes longer than the promised time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import happybase

from benchmarks.rowlog import failover
from broker import logs
from broker.config.sections import LogLevel, LogsConfig
from broker.rowlog import Message, RowLog, Subscription
from broker.testing.hbase_server import HBaseServer
from tests.kit.servers import ZooKeeperServer

HOST = "127.0.0.1"
THREADS = 8
TASKS = 128
VALUE = bytes(256)
WAKEUPS = 100
IDLE_S = 20.0
IDLE_COUNT = "scans"


class Bench:
    """The servers, and the figures."""

    def __init__(self, hbase: HBaseServer, zookeeper: ZooKeeperServer, puts: int) -> None:
        """Make the table."""
        self._zookeeper = zookeeper.hosts
        self._puts = puts
        self.pool = happybase.ConnectionPool(
            2 * THREADS, host=HOST, port=hbase.thrift1_port, timeout=30_000
        )
        with self.pool.connection() as connection:
            connection.create_table("rows", {each: {"max_versions": 1} for each in ("d", "rowlog")})
        self._numbers = iter(range(1 << 40))

    def _rows(self, count: int) -> list[bytes]:
        return [b"%08x" % (next(self._numbers) * 2_654_435_761 % 2**32) for _ in range(count)]

    def log(self, name: str, **options: Any) -> RowLog:
        """Return a rowlog; ``options`` give it its own log byte."""
        return RowLog(
            self.pool,
            "rows",
            id=name,
            zookeeper=[self._zookeeper],
            threads=THREADS,
            session_timeout_ms=4_000,
            **options,
        )

    def bare(self, threads: int) -> float:
        """Return puts a second; each call puts one row."""
        rows = self._rows(self._puts)

        def put(row: bytes) -> None:
            with self.pool.connection() as connection:
                connection.table("rows").put(row, {b"d:value": VALUE})

        with ThreadPoolExecutor(threads) as executor:
            began = time.perf_counter()
            list(executor.map(put, rows))
            return len(rows) / (time.perf_counter() - began)

    async def puts(self, log: RowLog, tasks: int) -> float:
        """Return the rowlog's puts a second, by many tasks."""
        rows = iter(self._rows(self._puts))

        async def work(rows: Iterator[bytes]) -> None:
            for row in rows:
                await log.put(row, {b"d:value": VALUE}, VALUE)

        began = time.perf_counter()
        await asyncio.gather(*(work(rows) for _ in range(tasks)))
        return self._puts / (time.perf_counter() - began)

    async def processed(self, count: int) -> float:
        """Return the number of messages that ten listeners process in a second."""
        async with self.log("processed", log_byte=5) as log:
            await log.subscribe(Subscription("a", parallel=10))
            await asyncio.gather(*(log.put(row, payload=VALUE) for row in self._rows(count)))
            left, ended = count, asyncio.Event()

            async def listen(_: Message) -> bool:
                nonlocal left
                left -= 1
                if not left:
                    ended.set()
                return True

            log.listen("a", listen)
            began = time.perf_counter()
            await log.start()
            await ended.wait()
            return count / (time.perf_counter() - began)

    async def wakeups(self) -> list[float]:
        """Return the seconds from the end of a put by one rowlog to the call of a listener of another."""
        seconds: list[float] = []
        async with (
            self.log("wakeups", log_byte=6) as log,
            self.log("wakeups", log_byte=6) as writer,
        ):
            await log.subscribe(Subscription("a"))
            heard: asyncio.Queue[float] = asyncio.Queue()

            async def listen(_: Message) -> bool:
                heard.put_nowait(time.perf_counter())
                return True

            log.listen("a", listen)
            await log.start()
            for row in self._rows(WAKEUPS + 10):
                await writer.put(row, payload=VALUE)
                ended = time.perf_counter()
                seconds.append(await heard.get() - ended)
        return sorted(seconds[10:])

    async def idle(self) -> dict[str, float]:
        """Return the cost of an idle processor with two subscriptions."""
        async with self.log("idle", log_byte=7) as log:
            for name in ("a", "b"):
                await log.subscribe(Subscription(name))
                log.listen(name, _nothing)
            await log.start()
            await log.clock.sleep(2.0)
            before, scans = time.process_time(), self._scans(log)
            await log.clock.sleep(IDLE_S)
            return {
                "processor_ms_per_s": 1000 * (time.process_time() - before) / IDLE_S,
                "scans_per_s": (self._scans(log) - scans) / IDLE_S,
            }

    @staticmethod
    def _scans(log: RowLog) -> float:
        return sum(value for (name, _), value in log.figures.values.items() if name == IDLE_COUNT)


async def _nothing(_: Message) -> bool:
    return True


def measured(bench: Bench, rounds: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Return all figures."""

    async def in_turns() -> list[tuple[float, float]]:
        async with bench.log("puts") as log:
            for name in ("a", "b"):
                await log.subscribe(Subscription(name))
            figures = []
            for number in range(rounds + 1):
                bare = await asyncio.to_thread(bench.bare, THREADS)
                ours = await bench.puts(log, TASKS)
                tell(
                    f"puts: bare {bare:,.0f}/s, rowlog {ours:,.0f}/s{'' if number else ' (warming)'}"
                )
                figures.append((bare, ours))
            return figures[1:]

    turns = asyncio.run(in_turns())
    bare, ours = (statistics.median(each) for each in zip(*turns, strict=True))
    processed = asyncio.run(bench.processed(2_000))
    wakeups = asyncio.run(bench.wakeups())
    return {
        "bare_puts_per_s": round(bare),
        "puts_per_s": round(ours),
        "puts_beside_bare": round(statistics.median(each[1] / each[0] for each in turns), 2),
        "processed_per_s": round(processed),
        "wakeup_ms_p50": round(1000 * statistics.median(wakeups), 1),
        "wakeup_ms_p99": round(1000 * wakeups[int(len(wakeups) * 0.99) - 1], 1),
        "idle": {name: round(each, 2) for name, each in asyncio.run(bench.idle()).items()},
    }


def main() -> None:
    """Read the command line, measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--puts", type=int, default=3_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=failover.KILLS)
    parser.add_argument("--json", type=Path)
    words = parser.parse_args()
    with ExitStack() as stack:
        stack.enter_context(logs.writing(LogsConfig(log_level=LogLevel.WARNING)))
        hbase = stack.enter_context(HBaseServer())
        zookeeper = stack.enter_context(ZooKeeperServer())
        figures = measured(Bench(hbase, zookeeper, words.puts), words.rounds, print)
        figures["failover"] = failover.measure(hbase, zookeeper, words.kills)
    print(json.dumps(figures, indent=2))
    if words.json is not None:
        words.json.write_text(json.dumps(figures, indent=2) + "\n")
    sys.exit(0 if figures["failover"]["within_bound"] else 1)


if __name__ == "__main__":
    main()
