"""Topics as sources of real queries: every message once and in order, read in parallel partitions."""

import socket
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import window
from pyspark.sql.streaming import DataStreamReader, StreamingQuery

from broker.client import Message, SyncClient
from broker.model import Snapshot
from broker.testing.broker_process import BrokerProcess
from broker.wire.transaction import encode_transaction

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

DEADLINE_S = 60


def payloads(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def values(frame: DataFrame) -> list[bytes]:
    return [bytes(row.value) for row in frame.collect()]


def publish(client: SyncClient, topic: str, count: int, first: int = 0) -> list[Message]:
    """Publish in several requests, and return the messages that a consumer sees."""
    for start in range(first, first + count, 500):
        client.publish(topic, payloads(min(500, first + count - start), start))
    return client.poll(topic)


@pytest.fixture
def read(spark: SparkSession, broker: BrokerProcess, topic: str):
    return spark.read.format("tms").option("url", broker.url).option("topic", topic)


class TestBatch:
    def test_a_topic_is_read_whole_and_in_order(self, read, client, topic) -> None:
        messages = publish(client, topic, 5_000)
        frame = read.option("minPartitions", "4").load()
        rows = frame.selectExpr("*", "spark_partition_id() AS part", "unix_millis(timestamp) AS ms")
        found = rows.collect()
        assert [Message(bytes(row.id), bytes(row.value)) for row in found] == messages
        assert [row.ms for row in found] == [message.timestamp_ms for message in messages]
        assert {row.topic for row in found} == {topic}
        assert {row.part for row in found} == {0, 1, 2, 3}

    def test_ids_bound_the_messages_that_are_read(self, read, client, topic) -> None:
        messages = publish(client, topic, 100)
        first, last = messages[10].id.hex(), messages[90].id.hex()
        frame = read.option("startingOffsets", first).option("endingOffsets", last).load()
        assert values(frame) == payloads(80, 10)

    def test_times_bound_the_messages_that_are_read(self, read, client, topic) -> None:
        publish(client, topic, 10)
        messages = publish(client, topic, 10, 10)
        first, last = messages[5].timestamp_ms, messages[15].timestamp_ms
        frame = read.option("startingTimestamp", first).option("endingTimestamp", last).load()
        expected = [m.payload for m in messages if first <= m.timestamp_ms < last]
        assert values(frame) == expected

    def test_an_empty_range_has_no_rows(self, read, client, topic) -> None:
        assert values(read.load()) == []
        messages = publish(client, topic, 10)
        frame = read.option("startingOffsets", messages[5].id.hex())
        assert values(frame.option("endingOffsets", messages[2].id.hex()).load()) == []

    def test_a_query_may_choose_columns(self, read, client, topic) -> None:
        publish(client, topic, 3)
        frame = read.schema("value BINARY, topic STRING").load()
        assert [(bytes(row.value), row.topic) for row in frame.collect()] == [
            (payload, topic) for payload in payloads(3)
        ]

    def test_filters_narrow_the_range(self, spark, read, client, topic) -> None:
        messages = publish(client, topic, 1_000)
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        try:
            frame = read.option("pushDownFilters", "true").option("minPartitions", "1").load()
            bound = messages[700].id.hex()
            found = frame.where(f"id > X'{bound}' AND id <= X'{messages[800].id.hex()}'")
            assert values(found) == payloads(100, 701)
            first, last = messages[0].timestamp_ms + 1, messages[-1].timestamp_ms
            within = (
                f"timestamp >= timestamp_millis({first}) AND timestamp < timestamp_millis({last})"
            )
            found = frame.where(within)
            assert values(found) == [m.payload for m in messages if first <= m.timestamp_ms < last]
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")

    def test_a_transaction_sees_no_message_behind_one_in_progress(
        self, read, client, topic
    ) -> None:
        pointer = time.time_ns()
        publish(client, topic, 5)
        client.publish(topic, [b"mine"], pointer=pointer)
        client.publish(topic, [b"open"], pointer=pointer + 5)
        publish(client, topic, 5, 5)
        assert len(values(read.load())) == 12
        snapshot = Snapshot(transaction_id=pointer + 9, read_pointer=pointer + 1)
        text = encode_transaction(snapshot).hex()
        frame = read.option("isolation", "transactional").option("snapshot", text).load()
        assert values(frame) == [*payloads(5), b"mine"]

    def test_an_option_that_is_not_known_is_refused(self, read) -> None:
        with pytest.raises(AnalysisException, match="does not know the option 'startingoffset'"):
            read.option("startingOffset", "earliest").load().collect()


class Streams:
    """Streaming queries of one test, with their own folders."""

    def __init__(self, source: DataStreamReader, folder: Path) -> None:
        self.source = source
        self._folder = folder
        self._queries: list[StreamingQuery] = []

    def start(self, name: str, **options: str) -> StreamingQuery:
        """Start a query that keeps its rows in a table in memory; a query with the same name continues it."""
        frame = self.source.options(**options).load()
        writer = frame.writeStream.format("memory").queryName(name)
        query = writer.option("checkpointLocation", str(self._folder / name)).start()
        self._queries.append(query)
        return query

    def all(self, name: str, **options: str) -> StreamingQuery:
        """Run a query over all available messages."""
        frame = self.source.options(**options).load()
        writer = frame.writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self._folder / name)).start()
        assert query.awaitTermination(DEADLINE_S)
        return query

    def stop(self) -> None:
        for query in self._queries:
            query.stop()


def taken(client: SyncClient, topic: str, count: int, query: StreamingQuery) -> list[bytes]:
    """Return a query's messages in a topic, once there are so many."""
    found: list[Message] = []
    ends = time.monotonic() + DEADLINE_S
    while len(found) < count:
        assert query.isActive, query.exception()
        assert time.monotonic() < ends, f"{len(found)} of {count} messages: {query.lastProgress}"
        last = found[-1].id if found else None
        found += client.poll(topic, last, inclusive=False, wait_s=1)
    return [message.payload for message in found]


@pytest.fixture
def streams(spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path):
    source = spark.readStream.format("tms").option("url", broker.url).option("topic", topic)
    streams = Streams(source, tmp_path)
    yield streams
    streams.stop()


class TestStream:
    def test_new_messages_are_read_in_order(self, spark, client, topic, streams) -> None:
        publish(client, topic, 2_000)
        query = streams.start("in_order", startingOffsets="earliest", minPartitions="3")
        query.processAllAvailable()
        for first in range(2_000, 6_000, 1_000):
            publish(client, topic, 1_000, first)
            query.processAllAvailable()
        rows = spark.table("in_order").collect()
        assert [Message(bytes(row.id), bytes(row.value)) for row in rows] == client.poll(topic)
        assert len(rows) == 6_000

    def test_available_messages_are_read_in_limited_batches(self, client, topic, streams) -> None:
        for first in range(0, 1_000, 100):
            client.publish(topic, payloads(100, first))
        query = streams.all("limited", startingOffsets="earliest", maxOffsetsPerTrigger="300")
        rows = [progress.numInputRows for progress in query.recentProgress]
        assert [count for count in rows if count] == [300, 300, 300, 100]

    def test_a_query_goes_on_where_its_checkpoint_says(self, client, topic, streams) -> None:
        publish(client, topic, 700)
        streams.all("resumed", startingOffsets="earliest")
        publish(client, topic, 300, 700)
        query = streams.all("resumed", startingOffsets="earliest")
        assert sum(progress.numInputRows for progress in query.recentProgress) == 300
        query = streams.all("resumed", startingOffsets="earliest")
        assert sum(progress.numInputRows for progress in query.recentProgress) == 0

    def test_an_option_of_batches_is_refused(self, streams) -> None:
        with pytest.raises(StreamingQueryException, match="endingOffsets is for batch queries"):
            streams.all("refused", endingOffsets="latest")

    def test_latest_loses_nothing_when_the_first_batch_fails(
        self, spark, client, topic, streams, tmp_path
    ) -> None:
        def run(sink) -> StreamingQuery:
            writer = streams.source.load().writeStream.foreachBatch(sink)
            return writer.option("checkpointLocation", str(tmp_path / "latest")).start()

        def fails(frame: DataFrame, batch_id: int) -> None:
            raise ValueError(f"batch {batch_id} fails")

        publish(client, topic, 50)
        with pytest.raises(StreamingQueryException, match="batch 0 fails"):
            run(fails).awaitTermination(DEADLINE_S)
        publish(client, topic, 50, 50)

        batches: dict[int, list[bytes]] = {}
        query = run(lambda frame, batch_id: batches.update({batch_id: values(frame)}))
        query.processAllAvailable()
        query.stop()
        assert batches == {0: [], 1: payloads(50, 50)}

    def test_the_last_window_of_a_silent_topic_is_emitted(
        self, client, topic, streams, broker, tmp_path
    ) -> None:
        """Heartbeats move the watermark, and no window counts them."""
        messages = publish(client, topic, 100)
        output = f"{topic}-windows"
        client.create_topic(output)
        given = {"startingOffsets": "earliest", "heartbeatInterval": "200ms"}
        frame = streams.source.options(**given).load().withWatermark("timestamp", "1 second")
        frame = frame.where("value IS NOT NULL OR timestamp IS NULL")
        counts = frame.groupBy(window("timestamp", "1 second")).count()
        counts = counts.selectExpr("concat_ws(' ', unix_seconds(window.start), count) AS value")
        writer = counts.writeStream.format("tms").option("url", broker.url).option("topic", output)
        query = writer.option("checkpointLocation", str(tmp_path / "silent")).start()
        try:
            expected = Counter(message.timestamp_ms // 1000 for message in messages)
            found = taken(client, output, len(expected), query)
        finally:
            query.stop()
        lines = [f"{second} {count}".encode() for second, count in sorted(expected.items())]
        assert sorted(found) == lines
        assert client.poll(topic) == messages, "the topic was silent"

    def test_a_transactions_stream_ends_before_a_message_in_progress(
        self, spark, client, topic, streams
    ) -> None:
        pointer = time.time_ns()
        publish(client, topic, 5)
        client.publish(topic, [b"open"], pointer=pointer + 5)
        publish(client, topic, 5, 5)
        snapshot = Snapshot(transaction_id=pointer + 9, read_pointer=pointer + 1)
        given = {"isolation": "transactional", "snapshot": encode_transaction(snapshot).hex()}
        query = streams.all("held", startingOffsets="earliest", **given)
        assert sum(progress.numInputRows for progress in query.recentProgress) == 5
        committed = Snapshot(transaction_id=pointer + 9, read_pointer=pointer + 8)
        given["snapshot"] = encode_transaction(committed).hex()
        query = streams.all("held", startingOffsets="earliest", **given)
        assert sum(progress.numInputRows for progress in query.recentProgress) == 6


@pytest.mark.parametrize("outage_s", [0, pytest.param(60, marks=pytest.mark.nightly)])
def test_a_query_outlives_an_outage_of_the_broker(
    spark: SparkSession, tmp_path: Path, outage_s: float
) -> None:
    """The broker is down until the query has tried to connect; a socket at its address notices that."""
    with BrokerProcess(tmp_path / "data") as broker, SyncClient(broker.url) as client:
        client.create_topic("t")
        publish(client, "t", 10)
        source = spark.readStream.format("tms").option("url", broker.url).option("topic", "t")
        writer = source.option("startingOffsets", "earliest").load().writeStream
        query = writer.format("memory").queryName(f"outage{outage_s}").start()
        try:
            query.processAllAvailable()
            broker.kill()
            with socket.create_server(("127.0.0.1", broker.port)) as instead:
                instead.settimeout(DEADLINE_S)
                attempts, ends = 0, time.monotonic() + outage_s
                while attempts < 3 or time.monotonic() < ends:
                    instead.accept()[0].close()
                    attempts += 1
            broker.start()
            publish(client, "t", 10, 10)
            query.processAllAvailable()
            assert query.isActive
            rows = spark.table(f"outage{outage_s}").collect()
            assert [bytes(row.value) for row in rows] == payloads(20)
        finally:
            query.stop()
