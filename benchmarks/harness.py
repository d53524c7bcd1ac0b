"""Make the runs of a question: warm the sides, let them take turns A-B-C-C-B-A, and check each run for other load.

A question describes its *sides*: a name, a server, and a load that can run for some seconds. The harness warms each
side once. Then the sides take turns until each has enough runs in which no other program used the processor. The
harness gives up after three times as many turns. Every second turn goes backwards: a machine that gets slower or faster
meanwhile favours no side.

No process spins to keep the cores from halting. On Linux 6.18 a spinning process keeps a core until the next tick, even
with the lowest priority: a process that wakes up beside it belongs to another scheduling group. Then every sync of any
process takes 4 ms instead of 0.1 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import occupancy, syncs
from benchmarks.figures import Question, Run, Series, percentile
from benchmarks.load import Load
from broker.local.servers import ServerFailed, ServerMissing
from broker.testing.server_process import ServerProcess

ATTEMPTS_PER_RUN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The number and length of runs.

    CDAP's server needs the longest warm-up, once for each kind of request: after 20 s the spread of its runs was still
    80%. Runs are long if LevelDB compacts the data of the run, or if garbage collections take a good part of a second.
    Then each run has its share of both. There are more runs if they are short.
    """

    runs: int = 11
    long_runs: int = 5
    run_s: float = 2.0
    settle_s: float = 0.5
    warm_s: float = 3.0
    jvm_warm_s: float = 20.0
    cdap_warm_s: float = 90.0
    long_run_s: float = 12.0
    strace_s: float = 2.0
    attempts_per_run: int = ATTEMPTS_PER_RUN
    stored_messages: int = 5_000_000

    @classmethod
    def quick(cls) -> Plan:
        """Return a plan for a quick look in a minute or two, while you work on the code: not for conclusions."""
        return cls(
            runs=3,
            long_runs=3,
            run_s=1.5,
            settle_s=0.3,
            warm_s=2.0,
            jvm_warm_s=6.0,
            cdap_warm_s=12.0,
            long_run_s=1.5,
            strace_s=1.0,
            attempts_per_run=1,
            stored_messages=200_000,
        )


Runner = Callable[[float], Awaitable[Load]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a question. ``figure`` makes a run's value of its load; the default is a rate."""

    name: str
    run: Runner
    server: ServerProcess | None = None
    unit: str = "msg/s"
    warm_s: float | None = None
    count_syncs: bool = False
    figure: Callable[[Load], float] | None = None


class Bench:
    """Starts servers, makes runs, and prints its progress."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.folder = Path()
        self._servers: dict[str, ServerProcess] = {}
        self._absent: dict[str, str] = {}
        self._exit = ExitStack()
        self.companions: Callable[[], Sequence[int]] = tuple
        """Returns further processes that belong to the measured system."""

    def close(self) -> None:
        """End all servers."""
        self._exit.close()

    # Servers.

    async def server(self, name: str, make: Callable[[], ServerProcess]) -> ServerProcess | None:
        """Return a started server, the same one for the same name; None if it can't be started."""
        if name in self._absent:
            return None
        if name not in self._servers:
            try:
                self.freeze_all()
                server = await asyncio.to_thread(self._exit.enter_context, make())
            except (ServerMissing, ServerFailed) as error:
                self._absent[name] = str(error)
                say(f"  {name}: not measured: {error}")
                return None
            self._servers[name] = server
            say(f"  {name} started in {server.start_s:.1f} s")
        return self._servers[name]

    def absent(self, name: str) -> str:
        """Return why a server can't be started."""
        return self._absent.get(name, "")

    def stop(self, name: str) -> None:
        """End a server before the others."""
        server = self._servers.pop(name, None)
        if server is not None:
            server.resume()
            server.close()

    def freeze_all(self) -> None:
        """Freeze all servers."""
        for server in self._servers.values():
            if server.running:
                server.suspend()

    @asynccontextmanager
    async def awake(self, server: ServerProcess | None) -> AsyncIterator[None]:
        """Let only one server run inside the block."""
        self.freeze_all()
        if server is not None:
            server.resume()
        try:
            yield
        finally:
            if server is not None and server.running:
                server.suspend()

    # Runs.

    async def measure(
        self, question: Question, sides: Sequence[Side], *, run_s: float | None = None
    ) -> None:
        """Warm all sides, let them take turns, and put their figures into the question."""
        plan = self.plan
        runs, run_s = (plan.runs, plan.run_s) if run_s is None else (plan.long_runs, run_s)
        warm_s = sum(plan.warm_s if side.warm_s is None else side.warm_s for side in sides)
        runs_s = runs * len(sides) * (run_s + plan.settle_s)
        say(f"  {len(sides)} sides: about {warm_s + runs_s:.0f} s, more if runs are kept apart")
        series = {side.name: self._series(question, side, runs) for side in sides}
        for side in sides:
            await self._warm(side, series[side.name])
        for turn in range(runs * plan.attempts_per_run):
            # Every side runs in every turn: only runs of the same turn are compared.
            for side in sides if turn % 2 == 0 else reversed(sides):
                one = series[side.name]
                one.runs.append(await self._run(side, run_s))
                say(f"  {turn + 1:2}  {side.name:32} {_line(one.runs[-1], side.unit)}")
            if kept_turns(series.values()) >= runs:
                break

    def _series(self, question: Question, side: Side, runs: int) -> Series:
        series = Series(name=side.name, unit=side.unit, runs_wanted=runs)
        question.series.append(series)
        return series

    async def _warm(self, side: Side, series: Series) -> None:
        seconds = self.plan.warm_s if side.warm_s is None else side.warm_s
        async with self.awake(side.server):
            if seconds:
                say(f"  warming {side.name} for {seconds:.0f} s")
                await side.run(seconds)
            if side.count_syncs and side.server is not None:
                strace_s = self.plan.strace_s
                series.acks_per_sync = await syncs.acks_per_sync(
                    side.server.pid, side.run, strace_s
                )

    def snapshot(self) -> occupancy.Snapshot:
        """Return the processor time of the machine and of our processes so far."""
        servers = (server.pid for server in self._servers.values())
        pids = [os.getpid(), *servers, *self.companions()]
        return occupancy.snapshot(time.monotonic(), pids)

    def objection(self, before: occupancy.Snapshot) -> str:
        """Return why a measurement since ``before`` does not count; empty if it counts."""
        after = occupancy.snapshot(time.monotonic(), before.processes_s)
        return occupancy.objection(before, after)

    async def _run(self, side: Side, run_s: float) -> Run:
        async with self.awake(side.server):
            if self.plan.settle_s and side.warm_s != 0:
                await side.run(self.plan.settle_s)
            gc.collect()
            before = self.snapshot()
            load = await side.run(run_s)
            after = occupancy.snapshot(time.monotonic(), before.processes_s)
        cpu_us = None
        if side.server is not None and load.units:
            pid = side.server.pid
            cpu_us = 1e6 * (after.processes_s[pid] - before.processes_s[pid]) / load.units
        ordered = sorted(load.latencies_ns)
        value = side.figure(load) if side.figure is not None else load.units / load.seconds
        return Run(
            value=value,
            p50_ms=percentile(ordered, 0.50) / 1e6 if ordered else None,
            p99_ms=percentile(ordered, 0.99) / 1e6 if ordered else None,
            server_cpu_us=cpu_us,
            apart=occupancy.objection(before, after),
        )


def kept_turns(sides: Iterable[Series]) -> int:
    """Return the number of turns in which the runs of all sides were kept."""
    turns = zip(*(side.runs for side in sides), strict=True)
    return sum(not any(run.apart for run in turn) for turn in turns)


def p50_ms(latencies_ns: Sequence[int]) -> float:
    """Return the p50 in ms: the figure of a run if the question is about the time of one request."""
    return percentile(sorted(latencies_ns), 0.50) / 1e6


def p50_of(load: Load) -> float:
    """Return the p50 of a load in ms."""
    return p50_ms(load.latencies_ns)


def not_measured(question: Question, name: str, unit: str, why: str) -> Series:
    """Put a side into the question that could not be measured."""
    series = Series(name=name, unit=unit, absent=why)
    question.series.append(series)
    return series


def _line(run: Run, unit: str) -> str:
    parts = [f"{run.value:12,.2f} {unit}" if run.value < 100 else f"{run.value:12,.0f} {unit}"]
    if run.p50_ms is not None and run.p99_ms is not None:
        parts.append(f"p50 {run.p50_ms:.2f} ms, p99 {run.p99_ms:.2f} ms")
    if run.server_cpu_us is not None:
        parts.append(f"{run.server_cpu_us:.1f} us of server")
    return ", ".join(parts) + (f"   APART: {run.apart}" if run.apart else "")


def say(line: str) -> None:
    """Print a line at once; ignore a closed pipe."""
    with contextlib.suppress(BrokenPipeError):
        print(line, flush=True)
