"""``python -m benchmarks.spark [questions…] [--rows N] [--runs N] [--json FILE] [--page]``.

Questions: noop count copy latency; all of them if none is named. The sides take turns in one Spark session with
two threads. Servers, Spark and its Python processes share the machine's cores. Exits with 1 if a figure misses its
bound.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks import machine, report
from benchmarks.figures import Question, Run, Series, compare, judged
from benchmarks.harness import say
from benchmarks.spark import latency, queries
from benchmarks.spark import page as pages
from benchmarks.spark.bare import BareSource
from benchmarks.spark.sides import Bare, Files, FreeServer, Kafka, Source, Tms, fresh, kafka_jars
from tests.kit.servers import KafkaServer

QUESTIONS = ("noop", "count", "copy", "latency")
PAYLOAD_BYTES = 100
SHARES = 5
"""The number of micro-batches of a run; the first one does not count."""
PARTS = 2
KAFKA_MUST, KAFKA_AIM, BARE_MUST, BARE_AIM = 0.5, 1.0, 0.6, 0.8
LATENCY_MUST, LATENCY_AIM = 1.2, 1.0
CPU_MUST_US, CPU_AIM_US = 0.5, 0.2
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

OneRun = Callable[[], Run]


class Benchmark:
    """One Spark session, and the servers that it uses."""

    def __init__(self, options: argparse.Namespace, stack: ExitStack) -> None:
        """Start session and servers, and fill the topics."""
        self._runs = options.runs
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self._at_once = options.rows // SHARES
        self._spark = _session(self._folder)
        stack.callback(self._spark.stop)
        self._spark.dataSource.register(BareSource)
        server = stack.enter_context(FreeServer())
        synced = Kafka(stack.enter_context(KafkaServer()), "kafka, synced")
        kafka = Kafka(stack.enter_context(KafkaServer(syncs=False)))
        self._ours, self._one, self._kafka, self._synced = (
            Tms(server, PARTS),
            Tms(server, 1),
            kafka,
            synced,
        )
        self._others: list[Source] = [Files(self._folder), Bare()]
        self._sides: list[Source] = [self._ours, self._one, kafka, *self._others]
        for side in (*self._sides, synced) if "copy" in options.questions else self._sides:
            say(f"  filling {side.name}")
            side.fill(self._spark, options.rows, PAYLOAD_BYTES)

    def ask(self, name: str) -> Question:
        """Return the answer to one question."""
        match name:
            case "noop":
                return self._read(name, "source to noop", queries.to_noop)
            case "count":
                return self._read(name, "source to a count by 1,000 keys", queries.to_count)
            case "copy":
                return self._copy()
            case _:
                return self._latency()

    def _read(self, name: str, title: str, write: queries.Write) -> Question:
        question = Question(letter=name, title=title)
        turns: dict[str, OneRun] = {
            side.name: partial(self._one_reading, side, write) for side in self._sides
        }
        self._take_turns(question, turns, "rows/s")
        ours, kafka, bare = (
            question.named(side.name) for side in (self._ours, self._kafka, self._others[-1])
        )
        question.ratios += [
            compare(ours, kafka, must=KAFKA_MUST, aim=KAFKA_AIM),
            compare(question.named(self._one.name), kafka),
            compare(ours, question.named(self._others[0].name)),
        ]
        if name == "noop":
            question.ratios.append(compare(ours, bare, must=BARE_MUST, aim=BARE_AIM))
            cost_us = ours.median_of("server_cpu_us") or 0.0
            text = "the broker's processor time a row, us"
            question.ratios.append(
                judged(text, cost_us, must=CPU_MUST_US, aim=CPU_AIM_US, at_most=True)
            )
        return question

    def _one_reading(self, side: Source, write: queries.Write) -> Run:
        frame = side.read(self._spark, self._at_once)
        return queries.run(frame, write, side.server, self._folder)

    def _copy(self) -> Question:
        question = Question(letter="copy", title="source to sink")
        sides: dict[str, Tms | Kafka] = {
            "tms, exactly once": self._ours,
            "kafka, at least once": self._kafka,
            "kafka, at least once, synced": self._synced,
        }
        turns: dict[str, OneRun] = {
            name: partial(self._one_copy, side) for name, side in sides.items()
        }
        self._take_turns(question, turns, "rows/s")
        ours, kafka, synced = (question.named(name) for name in sides)
        question.ratios += [
            compare(ours, kafka, must=KAFKA_MUST, aim=KAFKA_AIM),
            compare(ours, synced),
        ]
        return question

    def _one_copy(self, side: Tms | Kafka) -> Run:
        topic = fresh("copy")
        asyncio.run(side.create(topic))
        frame = side.read(self._spark, self._at_once)
        return queries.run(frame, partial(side.write, topic=topic), side.server, self._folder)

    def _latency(self) -> Question:
        title = "end to end at 10 messages/s"
        question = Question(letter="latency", title=title)
        turns: dict[str, OneRun] = {
            side.name: partial(latency.measure, self._spark, side, self._folder, 200)
            for side in (self._ours, self._kafka)
        }
        self._take_turns(question, turns, "ms, p50")
        ours, kafka = (question.named(side.name) for side in (self._ours, self._kafka))
        ratio = compare(ours, kafka, must=LATENCY_MUST, aim=LATENCY_AIM, at_most=True)
        question.ratios.append(ratio)
        return question

    def _take_turns(self, question: Question, turns: dict[str, OneRun], unit: str) -> None:
        """Run each side in turn: once to warm it up, and then the wanted number of times."""
        series = {name: Series(name=name, unit=unit, runs_wanted=self._runs) for name in turns}
        question.series += series.values()
        for number in range(self._runs + 1):
            for name, turn in turns.items():
                made = turn()
                say(f"  {question.letter}, turn {number}: {name}: {made.value:,.0f} {unit}")
                if number:
                    series[name].runs.append(made)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; return the exit code."""
    options = _options(arguments)
    results: dict[str, Any] = machine.described() | {"rows": options.rows, "questions": []}
    with ExitStack() as stack:
        benchmark = Benchmark(options, stack)
        for name in options.questions:
            question = benchmark.ask(name)
            results["questions"].append(question.as_json())
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
        "spark.jars": kafka_jars(),
        "spark.local.dir": str(folder),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder}",
        "spark.driver.memory": "3g",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    }
    builder = SparkSession.builder.master("local[2]").appName("benchmarks.spark")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("FATAL")
    return spark


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("questions", nargs="*", choices=[*QUESTIONS, []], metavar="questions")
    parser.add_argument(
        "--rows", type=int, default=2_500_000, help="number of rows to read (2,500,000)"
    )
    parser.add_argument("--runs", type=int, default=3, help="turns of each side that count (3)")
    parser.add_argument("--page", action="store_true", help="write the page in docs as well")
    parser.add_argument("--json", type=Path, default=Path("data/benchmarks-spark.json"))
    options = parser.parse_args(arguments)
    options.questions = options.questions or list(QUESTIONS)
    return options


if __name__ == "__main__":
    sys.exit(main())
