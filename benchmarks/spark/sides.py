"""The sources and sinks of the sides: a topic of this broker, a Kafka topic with one partition, files, memory."""

from __future__ import annotations

import asyncio
import importlib
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.peers import OurServer
from benchmarks.spark.rows import payload
from broker.client import Client, SyncClient
from broker.local.servers.jvm import installed
from broker.testing.server_process import ServerProcess
from tests.kit.servers import KafkaServer

MESSAGES_AT_ONCE = 5_000
TOPIC = "rows"


class Source(Protocol):
    """A source that a query reads."""

    name: str

    @property
    def server(self) -> ServerProcess | None:
        """The server of the source; None: it has none."""

    def fill(self, spark: SparkSession, rows: int, size: int) -> None:
        """Make ``rows`` rows with payloads of ``size`` bytes."""

    def read(self, spark: SparkSession, at_once: int) -> DataFrame:
        """Return a stream of all rows, ``at_once`` in each micro-batch."""


class Tms:
    """A topic of this broker; Spark reads ``parts`` parts at the same time."""

    def __init__(self, server: OurServer, parts: int) -> None:
        self.name = f"tms, {parts} parts" if parts > 1 else "tms, 1 part"
        self.server: OurServer = server
        self._parts = parts

    def fill(self, spark: SparkSession, rows: int, size: int) -> None:
        """Publish the rows, once for all sides of the server."""
        with SyncClient(self.server.url) as client:
            if TOPIC in client.topics():
                return
            client.create_topic(TOPIC)
            for some in _requests(rows, size):
                client.publish(TOPIC, some)

    def read(self, spark: SparkSession, at_once: int) -> DataFrame:
        """Read the topic."""
        reader = spark.readStream.format("tms").options(
            url=self.server.url,
            topic=TOPIC,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=at_once,
            minPartitions=self._parts,
        )
        return reader.load()

    def follow(self, spark: SparkSession, topic: str) -> DataFrame:
        """Read the messages of a topic as they come."""
        options = {"url": self.server.url, "topic": topic, "startingOffsets": "earliest"}
        return spark.readStream.format("tms").options(**options).load()

    def write(self, frame: DataFrame, topic: str) -> DataStreamWriter:
        """Write into a topic."""
        options = {"url": self.server.url, "topic": topic}
        return frame.select("value").writeStream.format("tms").options(**options)

    async def create(self, topic: str) -> None:
        """Create a topic."""
        async with Client(self.server.url) as client:
            await client.create_topic(topic)

    @asynccontextmanager
    async def ends(self, into: str, out: str) -> AsyncIterator[Ends]:
        """Give a publisher to one topic and a consumer of another."""
        async with Client(self.server.url) as client:
            yield _OurEnds(client, into, out)


class Kafka:
    """A topic of Kafka with one partition."""

    def __init__(self, server: KafkaServer, name: str = "kafka") -> None:
        self.name = name
        self.server: KafkaServer = server

    def fill(self, spark: SparkSession, rows: int, size: int) -> None:
        """Produce the rows."""
        asyncio.run(self._fill(rows, size))

    async def _fill(self, rows: int, size: int) -> None:
        await self.create(TOPIC)
        producer = self._client("AIOKafkaProducer", acks="all", max_batch_size=1 << 20)
        await producer.start()
        try:
            for some in _requests(rows, size):
                batch = producer.create_batch()
                for one in some:
                    batch.append(key=None, value=one, timestamp=None)
                await (await producer.send_batch(batch, TOPIC, partition=0))
        finally:
            await producer.stop()

    def _client(self, kind: str, *topics: str, **options: Any) -> Any:
        module = importlib.import_module("aiokafka")
        return getattr(module, kind)(*topics, bootstrap_servers=self.server.bootstrap, **options)

    async def create(self, topic: str) -> None:
        """Create a topic with one partition."""
        admin = importlib.import_module("aiokafka.admin")
        client = admin.AIOKafkaAdminClient(bootstrap_servers=self.server.bootstrap)
        await client.start()
        try:
            await client.create_topics([admin.NewTopic(topic, 1, 1)])
        finally:
            await client.close()

    def _options(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.server.bootstrap}

    def read(self, spark: SparkSession, at_once: int) -> DataFrame:
        """Read the topic."""
        frame: DataFrame = self._reader(spark, TOPIC).option("maxOffsetsPerTrigger", at_once).load()
        return frame

    def _reader(self, spark: SparkSession, topic: str) -> Any:
        reader = spark.readStream.format("kafka").options(**self._options())
        return reader.options(subscribe=topic, startingOffsets="earliest")

    def follow(self, spark: SparkSession, topic: str) -> DataFrame:
        """Read the messages of a topic as they come."""
        frame: DataFrame = self._reader(spark, topic).load()
        return frame

    def write(self, frame: DataFrame, topic: str) -> DataStreamWriter:
        """Write into a topic."""
        writer = frame.select("value").writeStream.format("kafka").options(**self._options())
        return writer.option("topic", topic)

    @asynccontextmanager
    async def ends(self, into: str, out: str) -> AsyncIterator[Ends]:
        """Give a publisher to one topic and a consumer of another."""
        producer = self._client("AIOKafkaProducer", acks="all", linger_ms=0)
        consumer = self._client("AIOKafkaConsumer", out, auto_offset_reset="earliest")
        await producer.start()
        await consumer.start()
        try:
            yield _KafkaEnds(producer, consumer, into)
        finally:
            await consumer.stop()
            await producer.stop()


class Ends(Protocol):
    """The publisher before a query and the consumer behind it."""

    async def publish(self, payload: bytes) -> None:
        """Publish a message to the query's topic."""

    def arrivals(self) -> AsyncIterator[bytes]:
        """Yield the query's output, as it comes."""


class _OurEnds:
    def __init__(self, client: Client, into: str, out: str) -> None:
        self._client, self._into, self._out = client, into, out

    async def publish(self, payload: bytes) -> None:
        await self._client.publish(self._into, payload)

    async def arrivals(self) -> AsyncIterator[bytes]:
        async for message in self._client.tail(self._out):
            yield message.payload


class _KafkaEnds:
    def __init__(self, producer: Any, consumer: Any, into: str) -> None:
        self._producer, self._consumer, self._into = producer, consumer, into

    async def publish(self, payload: bytes) -> None:
        await self._producer.send_and_wait(self._into, payload)

    async def arrivals(self) -> AsyncIterator[bytes]:
        async for record in self._consumer:
            yield record.value


class Files:
    """Parquet files, one micro-batch in each."""

    name = "parquet files"
    server = None

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows = self._size = 0

    def fill(self, spark: SparkSession, rows: int, size: int) -> None:
        """Keep the numbers. The first read makes the files, for the size of its micro-batches."""
        self._rows, self._size = rows, size

    def read(self, spark: SparkSession, at_once: int) -> DataFrame:
        """Read the files."""
        path = str(self._folder / f"{at_once}")
        if not Path(path).exists():
            text = (
                f"rpad(concat(lpad(cast(id % 1000 as string), 4, '0'), ' ', id), {self._size}, 'x')"
            )
            rows = spark.range(0, self._rows, 1, max(self._rows // at_once, 1))
            rows.selectExpr(f"cast({text} as binary) as value").write.parquet(path)
        reader = spark.readStream.schema("value binary").option("maxFilesPerTrigger", 1)
        return reader.parquet(path)


class Bare:
    """The same Arrow batches from memory."""

    name = "bare Python source"
    server = None

    def __init__(self) -> None:
        self._rows = self._size = 0

    def fill(self, spark: SparkSession, rows: int, size: int) -> None:
        """Keep the numbers."""
        self._rows, self._size = rows, size

    def read(self, spark: SparkSession, at_once: int) -> DataFrame:
        """Read from memory."""
        reader = spark.readStream.format("bare").options(
            rows=self._rows, rowsPerTrigger=at_once, payloadBytes=self._size
        )
        return reader.load()


class FreeServer(OurServer):
    """``broker serve`` on any core, like Kafka and Spark."""

    def __init__(self, *flags: str) -> None:
        super().__init__(*flags)
        self._cpu = None


def fresh(name: str) -> str:
    """Return a new topic name."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


def kafka_jars() -> str:
    """Return the jars of Spark's own Kafka source. Raises ServerMissing."""
    folder = installed("spark-kafka")
    names = (folder / "classpath").read_text().split()
    return ",".join(str(folder / "lib" / name) for name in names)


def _requests(rows: int, size: int) -> Iterator[list[bytes]]:
    for first in range(0, rows, MESSAGES_AT_ONCE):
        stop = min(first + MESSAGES_AT_ONCE, rows)
        yield [payload(number, size) for number in range(first, stop)]
