"""``python -m benchmarks.transactions [--quick] [--json FILE] [--page]``.

(rate) short transactions of one publish each at 64 clients, beside the same publishes without a transaction;
(service) start and commit alone through Tephra's interface, beside Tephra's own server;
(seen) the time from the return of a commit until a transactional subscriber has the message.

There is one node with LevelDB, on core 0. The clients run in separate processes. Sides take turns. Exits with 1 if a
figure misses its bound.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import machine, occupancy, report
from benchmarks.figures import Question, Run, Series, compare, judged, percentile
from benchmarks.harness import say
from benchmarks.peers import LOAD_CPU, SERVER_CPU, OurServer
from benchmarks.transactions import page as pages
from benchmarks.transactions.worker import Task, Times
from broker.client import SyncClient
from broker.local.servers import ServerMissing, free_ports
from tests.kit.servers import TephraClient

CLIENTS: Final = 64
PROCESSES: Final = 2
SEEN_MS_MAX: Final = 20.0
LIGHT_PAUSE_S: Final = 0.1
WARM_PART: Final = 0.25
"""The part of each run, at its start, that does not count."""
TRANSACTIONS, PUBLISHES = "a transaction with one publish", "the same publish alone"
OURS, TEPHRA = "ours, start and commit", "Tephra's server, start and commit"
LIGHT, BUSY = "light load (1 client, ten a second)", f"{CLIENTS} clients without a pause"


@dataclass(frozen=True)
class Plan:
    """The number and length of runs, and the number of clients."""

    runs: int = 5
    run_s: float = 3.0
    clients: int = CLIENTS
    processes: int = PROCESSES


QUICK: Final = Plan(runs=1, run_s=0.5, clients=4, processes=1)


class Worker:
    """A process of clients."""

    def __init__(self, task: Task) -> None:
        command = [sys.executable, "-m", "benchmarks.transactions.worker", task.as_json()]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > LOAD_CPU:
            os.sched_setaffinity(self._process.pid, {LOAD_CPU})

    def wait_ready(self) -> None:
        """Wait until its clients are connected. Raises RuntimeError if the process ended."""
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError(f"A process of clients ended with {self._process.wait()}.")

    def say(self, line: str) -> None:
        """Send it a line: to start its clients, or with the number of messages for a follower."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def times(self) -> Times:
        """Return its times. Raises RuntimeError if the process failed."""
        output, _ = self._process.communicate()
        if self._process.returncode:
            raise RuntimeError(f"A process of clients ended with {self._process.returncode}.")
        times: Times = json.loads(output)
        return times

    def close(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def together(stack: ExitStack, tasks: Sequence[Task]) -> list[Worker]:
    """Start tasks at the same moment."""
    workers = [Worker(task) for task in tasks]
    for worker in workers:
        stack.callback(worker.close)
    for worker in workers:
        worker.wait_ready()
    for worker in workers:
        worker.say("go")
    return workers


class Benchmark:
    """One node, and Tephra's own server if it is installed."""

    def __init__(self, plan: Plan, stack: ExitStack) -> None:
        """Start the servers."""
        self._plan = plan
        (self._thrift_port,) = free_ports(1)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        config = folder / "broker.toml"
        config.write_text(f"[transactions]\nthrift_port = {self._thrift_port}\n")
        server = OurServer("--config", str(config), folder=folder)
        self._server = stack.enter_context(server)
        self._client = stack.enter_context(SyncClient(self._server.url))
        self._tephra_port: int | None = None
        self._absent = ""
        try:
            client = stack.enter_context(TephraClient())
            os.sched_setaffinity(client.pid, {SERVER_CPU})
            self._tephra_port = client.serve()
        except ServerMissing as missing:
            self._absent = str(missing)
        self._topics = 0

    def rate(self) -> Question:
        """Measure short transactions, and publishes without transactions."""
        question = self._question(
            "rate", f"short transactions, {self._plan.clients} clients", PUBLISHES, TRANSACTIONS
        )
        for _ in range(self._plan.runs):
            for name, kind in ((TRANSACTIONS, "transact"), (PUBLISHES, "publish")):
                self._add(question.named(name), self._tasks(kind, self._server.url, self._topic()))
        question.ratios.append(compare(question.named(TRANSACTIONS), question.named(PUBLISHES)))
        return question

    def service(self) -> Question:
        """Measure start and commit alone."""
        title = f"the service alone, through Tephra's interface, {self._plan.clients} clients"
        question = self._question("service", title, OURS, TEPHRA)
        question.named(TEPHRA).absent = self._absent
        for _ in range(self._plan.runs):
            for name, port in ((OURS, self._thrift_port), (TEPHRA, self._tephra_port)):
                if port is not None:
                    self._add(question.named(name), self._tasks("thrift", str(port)))
        question.ratios.append(compare(question.named(OURS), question.named(TEPHRA)))
        return question

    def seen(self) -> Question:
        """Measure the time from a commit's return until a subscriber has the message."""
        question = self._question(
            "seen", "from the return of commit to the handler of a subscriber", LIGHT, BUSY
        )
        for one in question.series:
            one.unit = "ms"
        for _ in range(self._plan.runs):
            topic = self._topic()
            light = self._task("transact", topic, clients=1, pause_s=LIGHT_PAUSE_S)
            question.named(LIGHT).runs.append(self._followed([light], topic))
            topic = self._topic()
            busy = self._tasks("transact", self._server.url, topic)
            question.named(BUSY).runs.append(self._followed(busy, topic))
        text = f"p50 in ms, {LIGHT}"
        median = question.named(LIGHT).median
        assert median is not None
        question.ratios.append(judged(text, median, must=SEEN_MS_MAX, at_most=True))
        return question

    # --- Inside -----------------------------------------------------------------------------------

    def _question(self, letter: str, title: str, *names: str) -> Question:
        runs = self._plan.runs
        series = [Series(name=name, unit="tx/s", runs_wanted=runs) for name in names]
        return Question(letter=letter, title=title, series=series)

    def _topic(self) -> str:
        self._topics += 1
        topic = f"bench-{self._topics}"
        self._client.create_topic(topic)
        return topic

    def _task(self, kind: str, topic: str, **more: Any) -> Task:
        return Task(
            kind=kind, where=self._server.url, topic=topic, seconds=self._plan.run_s, **more
        )

    def _tasks(self, kind: str, where: str, topic: str = "") -> list[Task]:
        plan = self._plan
        clients = plan.clients // plan.processes
        return [
            Task(
                kind=kind,
                where=where,
                topic=topic,
                clients=clients,
                first=number << 40,
                seconds=plan.run_s,
            )
            for number in range(plan.processes)
        ]

    def _add(self, series: Series, tasks: Sequence[Task]) -> None:
        """Run tasks, and add their rate to a series."""
        with ExitStack() as stack:
            workers = together(stack, tasks)
            before_s = occupancy.process_s(self._server.pid)
            times = [each for worker in workers for each in worker.times()]
            cpu_s = occupancy.process_s(self._server.pid) - before_s
        series.runs.append(_rate(times, self._plan.run_s, cpu_s if series.name != TEPHRA else None))
        say(f"  {series.name}: {series.runs[-1].value:,.0f} {series.unit}")

    def _followed(self, tasks: Sequence[Task], topic: str) -> Run:
        """Run tasks while a subscriber follows. Raises RuntimeError if it did not get all messages."""
        with ExitStack() as stack:
            (follower,) = together(stack, [self._task("follow", topic)])
            returned = [each for worker in together(stack, tasks) for each in worker.times()]
            follower.say(str(len(returned)))
            seen = {number: at_ns for at_ns, number in follower.times()}
        missing = [number for _, _, number in returned if number not in seen]
        if missing:
            raise RuntimeError(f"The subscriber has not seen {len(missing)} committed messages.")
        counts_ns = _counts_ns(returned, self._plan.run_s)
        # The handler may have the message before the commit's answer arrives. Count this as 0.
        waits = sorted(
            max(seen[number] - ended_ns, 0)
            for _, ended_ns, number in returned
            if ended_ns >= counts_ns
        )
        p50, p99 = (percentile(waits, part) / 1e6 for part in (0.50, 0.99))
        say(f"  seen after {p50:.2f} ms (p50), {p99:.2f} ms (p99), of {len(waits)}")
        return Run(value=p50, p50_ms=p50, p99_ms=p99)


def _counts_ns(times: Times, run_s: float) -> int:
    return min(began_ns for began_ns, _, _ in times) + int(run_s * WARM_PART * 1e9)


def _rate(times: Times, run_s: float, cpu_s: float | None) -> Run:
    """Return the rate of the calls that returned in the counted part of the run."""
    from_ns = _counts_ns(times, run_s)
    through_ns = from_ns + int(run_s * (1 - WARM_PART) * 1e9)
    took = sorted(ended - began for began, ended, _ in times if from_ns <= ended < through_ns)
    return Run(
        value=len(took) / (run_s * (1 - WARM_PART)),
        p50_ms=percentile(took, 0.50) / 1e6,
        p99_ms=percentile(took, 0.99) / 1e6,
        server_cpu_us=None if cpu_s is None else cpu_s / len(times) * 1e6,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; return the exit code."""
    options = _options(arguments)
    plan = QUICK if options.quick else Plan()
    results: dict[str, Any] = machine.described()
    results |= {"quick": options.quick, "load_before": os.getloadavg()[0]}
    with ExitStack() as stack:
        benchmark = Benchmark(plan, stack)
        asked = (benchmark.rate, benchmark.service, benchmark.seen)
        questions = [question() for question in asked]
    results["questions"] = [question.as_json() for question in questions]
    say(report.as_text(results))
    report.save(results, options.json)
    if options.page:
        pages.main(options.json)
    return report.exit_code(results)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transactions", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short look, not for conclusions")
    parser.add_argument("--page", action="store_true", help="write the page in docs as well")
    parser.add_argument("--json", type=Path, default=Path("data/benchmarks-transactions.json"))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
