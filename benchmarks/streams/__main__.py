"""``python -m benchmarks.streams [questions…] [--scale X] [--runs N] [--json FILE] [--page]``.

Questions: sql window join keyed python; all of them if none is named. The sides take turns in one Spark session
with two threads. The broker, Spark and its Python processes share the machine's cores. Exits with 1 if a figure misses
its bound. Fails if the sides of a question publish different numbers of messages.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks import machine, occupancy, report
from benchmarks.figures import Question, Run, Series, compare
from benchmarks.harness import say
from benchmarks.spark.sides import FreeServer
from benchmarks.streams import hand, here
from benchmarks.streams import page as pages
from benchmarks.streams.hand import Place
from benchmarks.streams.payloads import payload
from broker.client import SyncClient
from broker.streams import Job

SHARES: Final = 3
"""The number of micro-batches of a run. The first one starts processes and compiles code, and does not count."""
MUST: Final = 0.9
MESSAGES_AT_ONCE: Final = 5_000
HERE, BY_HAND = "here", "by hand"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@dataclass(frozen=True)
class Asked:
    """A question: its sides, and the number of messages in each of its topics."""

    title: str
    messages: int
    topics: Sequence[str]
    built: Callable[..., Job]
    written: dict[str, Callable[..., DataStreamWriter]]
    must: float | None
    equal: Sequence[str] = (BY_HAND,)
    """The sides by hand that must publish the same number of messages as the job."""


QUESTIONS: Final = {
    "sql": Asked(
        "stateless: filter and map, in SQL",
        300_000,
        ["large"],
        here.stateless_sql,
        {BY_HAND: hand.stateless_sql},
        MUST,
    ),
    "window": Asked(
        "windowed count",
        300_000,
        ["large"],
        here.windowed_count,
        {BY_HAND: hand.windowed_count},
        MUST,
    ),
    "join": Asked(
        "windowed join, all pairs",
        60_000,
        ["small", "other"],
        here.windowed_join,
        {BY_HAND: hand.windowed_join},
        MUST,
    ),
    "keyed": Asked(
        "keyed count, a result for each record",
        60_000,
        ["small"],
        here.keyed_count,
        {BY_HAND: hand.keyed_count, "groupBy by hand": hand.grouped_count},
        None,
    ),
    "python": Asked(
        "stateless: filter and map, in Python",
        150_000,
        ["middle"],
        here.stateless_python,
        {BY_HAND: hand.stateless_python},
        None,
    ),
}


class Timed(NamedTuple):
    """A run, and the number of messages that it published; None: they were not counted."""

    run: Run
    published: int | None


class Benchmark:
    """One session and one broker."""

    def __init__(self, options: argparse.Namespace, stack: ExitStack) -> None:
        """Start the session and the broker."""
        self._runs = options.runs
        self._scale = options.scale
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self._spark = _session(self._folder)
        stack.callback(self._spark.stop)
        self._server = stack.enter_context(FreeServer())
        self._client = stack.enter_context(SyncClient(self._server.url))
        self._filled: dict[str, int] = {}

    def ask(self, name: str) -> Question:
        """Return the answer to a question. Raises RuntimeError if the sides publish different numbers."""
        asked = QUESTIONS[name]
        messages = int(asked.messages * self._scale)
        for topic in asked.topics:
            self._fill(topic, messages)
        question = Question(letter=name, title=asked.title)
        sides = [HERE, *asked.written]
        question.series += [
            Series(name=side, unit="records/s", runs_wanted=self._runs) for side in sides
        ]
        for number in range(self._runs + 1):
            published = {}
            for side in sides if number % 2 else reversed(sides):
                run, published[side] = self._turn(asked, side, messages, counts=not number)
                say(f"  {name}, turn {number}: {side}: {run.value:,.0f} records/s")
                if number:
                    question.named(side).runs.append(run)
            if not number:
                say(f"  {name}: published {published}")
            if any(published[side] != published[HERE] for side in asked.equal):
                raise RuntimeError(
                    f"The sides published different numbers of messages: {published}"
                )
        question.ratios += [
            compare(
                question.named(HERE),
                question.named(side),
                must=asked.must if side == BY_HAND else None,
            )
            for side in asked.written
        ]
        return question

    def _fill(self, topic: str, messages: int) -> None:
        if topic in self._filled:
            return
        say(f"  filling {topic}")
        self._client.create_topic(topic)
        for first in range(0, messages, MESSAGES_AT_ONCE):
            numbers = range(first, min(first + MESSAGES_AT_ONCE, messages))
            self._client.publish(topic, [payload(number) for number in numbers])
        self._filled[topic] = messages

    def _turn(self, asked: Asked, side: str, messages: int, *, counts: bool) -> Timed:
        out = f"out-{uuid.uuid4().hex[:8]}"
        self._client.create_topic(out)
        checkpoint = Path(tempfile.mkdtemp(dir=self._folder))
        at_once = messages // SHARES
        before_s = occupancy.process_s(self._server.pid)
        try:
            if side == HERE:
                job = asked.built(*asked.topics, out, at_once)
                job.run_available(self._spark, checkpoint=str(checkpoint), url=self._server.url)
                progress = checkpoint / job.graph.ends[0].name
            else:
                place = Place(self._spark, self._server.url, at_once)
                writer = asked.written[side](place, *asked.topics, out)
                writer = writer.option("checkpointLocation", str(checkpoint))
                writer.trigger(availableNow=True).start().awaitTermination()
                progress = checkpoint
            seconds = _seconds(progress)
        finally:
            shutil.rmtree(checkpoint, ignore_errors=True)
        records = messages * len(asked.topics)
        cpu_us = (occupancy.process_s(self._server.pid) - before_s) / records * 1e6
        value = records * (SHARES - 1) / SHARES / seconds
        published = sum(1 for _ in self._client.poll(out)) if counts else None
        self._client.delete_topic(out)
        return Timed(Run(value=value, server_cpu_us=cpu_us), published)


def _seconds(checkpoint: Path) -> float:
    """Return the time of all micro-batches after the first: from the first commit to the last.

    A last micro-batch without records, which only closes windows, does not count.
    """
    first, last = (checkpoint / "commits" / str(number) for number in (0, SHARES - 1))
    return (last.stat().st_mtime_ns - first.stat().st_mtime_ns) / 1e9


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; return the exit code."""
    options = _options(arguments)
    results: dict[str, Any] = machine.described() | {"scale": options.scale, "questions": []}
    results |= {"shares": SHARES, "load_before": os.getloadavg()[0]}
    with ExitStack() as stack:
        benchmark = Benchmark(options, stack)
        for name in options.questions:
            question = benchmark.ask(name)
            results["questions"].append(question.as_json())
            results["load_after"] = os.getloadavg()[0]
            report.save(results, options.json)
            say(report.as_text({"questions": [question.as_json()]}))
    if options.page:
        pages.main(options.json)
    return report.exit_code(results)


def _session(folder: Path) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(folder),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder}",
        "spark.driver.memory": "1g",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }
    builder = SparkSession.builder.master("local[2]").appName("benchmarks.streams")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("FATAL")
    return spark


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__)
    parser.add_argument("questions", nargs="*", choices=[*QUESTIONS, []], metavar="questions")
    parser.add_argument("--scale", type=float, default=1.0, help="times as many messages (1.0)")
    parser.add_argument("--runs", type=int, default=3, help="turns of each side that count (3)")
    parser.add_argument("--page", action="store_true", help="write the page in docs as well")
    parser.add_argument("--json", type=Path, default=Path("data/benchmarks-streams.json"))
    options = parser.parse_args(arguments)
    options.questions = options.questions or list(QUESTIONS)
    return options


if __name__ == "__main__":
    sys.exit(main())
