"""Jobs that can be killed at each step of their sinks, and a check of their output.

A sink's client here reports each step to a gate in the test's process, and goes on when the gate allows it. So a test
holds a job at a step, and kills any process there::

    begun      a stage was begun             after the publish, before Spark notes that the batch is done:
    stored     rows were stored in it            published
    publishing before the publish

There are two jobs: one copies a topic, the other counts words with state in RocksDB. Both read the same topic; each
message is a word and a number.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

from broker.client import SyncClient
from broker.client.values import Settings
from broker.spark import TmsDataSource, publish, sink
from broker.spark.clients import client_of
from broker.spark.format_options import sink_options
from broker.spark.sink import TmsBatchWriter, TmsStreamWriter

STEPS = ("begun", "stored", "publishing", "published")
GATE = "TEST_SPARK_GATE"
"""The environment variable with the gate's port."""
DEADLINE_S = 60.0
FEW = "TEST_SPARK_FEW"
"""The environment variable with the number of bytes that a task hands over without storing them; 0 by default."""
sink.FEW_BYTES_MAX = int(os.environ.get(FEW, "0"))
WORDS = ("anna", "ben", "carl", "dora", "emil")


class Held(NamedTuple):
    """A process that the gate holds at a step."""

    step: str
    topic: str
    pid: int
    connection: socket.socket

    def go(self) -> None:
        """Let it go on."""
        with self.connection:
            self.connection.sendall(b"go")

    def kill(self) -> None:
        """Kill it; it may have ended already, together with another killed process."""
        with self.connection, suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class Gate:
    """The server to which steps are reported; a context manager. It holds only the steps that a test waits for."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._wanted: tuple[str, str] | None = None
        self._held: queue.Queue[Held] = queue.Queue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.seen: Counter[tuple[str, str]] = Counter()

    def __enter__(self) -> Self:
        os.environ[GATE] = str(self._server.getsockname()[1])
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(DEADLINE_S)

    def hold(self, step: str, topic: str) -> None:
        """Hold the next process that reaches a step of a topic's job."""
        self._wanted = step, topic

    def held(self, deadline_s: float = DEADLINE_S) -> Held:
        """Wait until the gate holds a process."""
        try:
            return self._held.get(timeout=deadline_s)
        except queue.Empty:
            raise AssertionError(f"no process came to {self._wanted}; seen: {self.seen}") from None

    def _run(self) -> None:
        with suppress(OSError):  # The server was closed.
            while True:
                connection, _ = self._server.accept()
                step, topic, pid = connection.makefile().readline().split()
                self.seen[step, topic] += 1
                held = Held(step, topic, int(pid), connection)
                if self._wanted == (step, topic):
                    self._wanted = None
                    self._held.put(held)
                else:
                    with suppress(OSError):  # It was killed meanwhile.
                        held.go()


def reach(step: str, topic: str) -> None:
    """Report a step, and wait for the gate; without one, go on."""
    port = int(os.environ.get(GATE, "0"))
    with suppress(ConnectionError):
        if port:
            with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as connection:
                connection.sendall(f"{step} {topic} {os.getpid()}\n".encode())
                connection.recv(2)


class SteppingStage:
    """A stage that reports its stores."""

    def __init__(self, stage: Any, topic: str) -> None:
        self.id = stage.id
        self._stage = stage
        self._topic = topic

    def store(self, messages: Sequence[bytes], **given: Any) -> None:
        self._stage.store(messages, **given)
        reach("stored", self._topic)


class SteppingClient:
    """A client that reports a sink's calls."""

    def __init__(self, client: SyncClient) -> None:
        self._client = client

    @contextmanager
    def stage(self, topic: str) -> Iterator[SteppingStage]:
        with self._client.stage(topic) as stage:
            reach("begun", topic)
            yield SteppingStage(stage, topic)

    def publish(self, topic: str, messages: Sequence[bytes], **given: Any) -> None:
        reach("publishing", topic)
        self._client.publish(topic, messages, **given)
        reach("published", topic)

    def publish_stages(self, topic: str, stages: Sequence[str], **given: Any) -> None:
        reach("publishing", topic)
        self._client.publish_stages(topic, stages, **given)
        reach("published", topic)


def stepping_client(settings: Settings) -> Any:
    return SteppingClient(client_of(settings))


class MortalSource(TmsDataSource):
    """The format tms whose sinks report their steps."""

    def writer(self, schema: StructType, overwrite: bool) -> TmsBatchWriter:
        super().writer(schema, overwrite)  # It refuses what can't be written.
        return TmsBatchWriter(sink_options(self.options, streaming=False), schema, stepping_client)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TmsStreamWriter:  # noqa: N802
        return TmsStreamWriter(sink_options(self.options, streaming=True), schema, stepping_client)


class Jobs:
    """The two jobs over one topic, each with a topic for its output and a checkpoint.

    Args:
        url: the broker.
        words: the topic that they read; their output topics have its name with a suffix.
        folder: the folder of the checkpoints.
        counting: True if the second job exists.
    """

    def __init__(self, url: str, words: str, folder: Path, *, counting: bool = True) -> None:
        self.counting = counting
        self.url = url
        self.words = words
        self.copies = f"{words}-copies"
        self.counts = f"{words}-counts"
        self.folder = folder

    def outputs(self) -> tuple[str, ...]:
        return (self.copies, self.counts) if self.counting else (self.copies,)

    def start(self, spark: SparkSession, output: str) -> StreamingQuery:
        """Start the job with that output, or continue it."""
        spark.dataSource.register(MortalSource)
        source = spark.readStream.format("tms").option("url", self.url)
        source = source.option("topic", self.words).option("startingOffsets", "earliest")
        frame = source.option("minPartitions", "2").load()
        job = self._copy(frame) if output == self.copies else self._count(frame)
        return job.option("checkpointLocation", str(self.folder / output)).start()

    def _copy(self, frame: DataFrame) -> Any:
        writer = frame.writeStream.format("tms").option("url", self.url)
        return writer.option("topic", self.copies)

    def _count(self, frame: DataFrame) -> Any:
        url, topic = self.url, self.counts

        def update(batch: DataFrame, batch_id: int) -> None:
            publish(batch, batch_id, url=url, topic=topic)

        words = frame.selectExpr("split(CAST(value AS STRING), ' ')[0] AS word")
        counts = words.groupBy("word").count().selectExpr("word || ' ' || count AS value")
        return counts.writeStream.outputMode("update").foreachBatch(update)

    # --- Their input, and the check of their output ---------------------------------------------

    def create(self, client: SyncClient) -> None:
        for topic in (self.words, *self.outputs()):
            client.create_topic(topic)

    def publish(self, client: SyncClient, count: int) -> None:
        """Publish so many more words, in several requests."""
        first = len(self._values(client, self.words))
        words = [f"{WORDS[n * n % 11 % 5]} {n}" for n in range(first, first + count)]
        for begin in range(0, count, 20):
            client.publish(self.words, words[begin : begin + 20])

    def check(self, client: SyncClient) -> None:
        """Check that the outputs have all words, in order, and no word twice."""
        words = self._values(client, self.words)
        assert self._values(client, self.copies) == words
        if self.counting:
            self._check_counts(client, words)

    def _check_counts(self, client: SyncClient, words: list[bytes]) -> None:
        counts: dict[str, int] = {}
        for value in self._values(client, self.counts):
            word, count = value.decode().split()
            assert int(count) > counts.get(word, 0), f"{value!r} after {counts}"
            counts[word] = int(count)
        assert counts == Counter(value.decode().split()[0] for value in words)

    @staticmethod
    def _values(client: SyncClient, topic: str) -> list[bytes]:
        return [message.payload for message in client.poll(topic)]
