"""Topics as sinks of real queries: every row once, in order, and no row is visible before all are stored."""

from datetime import datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from broker.client import Browsed, NewMessage, SyncClient
from broker.spark import publish
from broker.testing.broker_process import BrokerProcess

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

DEADLINE_S = 60


def payloads(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def published(client: SyncClient, topic: str) -> list[bytes]:
    return [message.payload for message in client.poll(topic)]


def life_s(row: Browsed) -> float:
    assert row.expires_at is not None
    return datetime.fromisoformat(row.expires_at).timestamp() - row.timestamp_ms / 1000


class TestBatch:
    @pytest.fixture
    def write(self, broker: BrokerProcess, topic: str):
        def write(frame: DataFrame, **options: str) -> None:
            writer = frame.write.format("tms").option("url", broker.url).option("topic", topic)
            writer.options(**options).mode("append").save()

        return write

    def test_a_result_is_published_in_the_order_of_partitions(
        self, spark, client, topic, write
    ) -> None:
        write(spark.range(0, 30_000, 1, 3).selectExpr("CAST(id AS STRING) AS value"))
        assert published(client, topic) == payloads(30_000)

    def test_a_result_with_a_key_is_published_once(self, spark, client, topic, write) -> None:
        frame = spark.range(0, 10, 1, 2).selectExpr("CAST(CAST(id AS STRING) AS BINARY) AS value")
        for _ in range(2):
            write(frame, dedupKey="nightly/1")
        assert published(client, topic) == payloads(10)
        write(frame)
        assert published(client, topic) == payloads(10) * 2

    def test_rows_name_their_topics_and_lives(self, spark, client, broker, topic) -> None:
        other = f"{topic}-other"
        client.create_topic(other)
        frame = spark.createDataFrame(
            [("1", topic, 60), ("2", other, None), ("3", topic, None)],
            "value STRING, topic STRING, ttl INT",
        ).coalesce(1)
        frame.write.format("tms").option("url", broker.url).mode("append").save()
        assert published(client, topic) == [b"1", b"3"]
        assert published(client, other) == [b"2"]
        rows = client.browse(topic).messages
        lives = {row.payload: life_s(row) for row in rows if row.kind == "stored"}
        assert lives == {b"1": 60, b"3": client.topic(topic).ttl_s}

    @pytest.mark.parametrize("count", [3, 3_000], ids=["few", "staged"])
    def test_keys_and_headers_are_written_and_read(
        self, spark, client, broker, topic, write, count
    ) -> None:
        expected = [
            (b"k%d" % n if n % 3 else None, {"n": b"%d" % n, "raw": b"\xff"} if n % 2 else {})
            for n in range(count)
        ]
        write(
            spark.range(0, count, 1, 2).selectExpr(
                "CAST(id AS STRING) AS value",
                "IF(id % 3 = 0, NULL, 'k' || id) AS key",
                "IF(id % 2 = 0, NULL, map('n', CAST(CAST(id AS STRING) AS BINARY), 'raw', X'ff'))"
                " AS headers",
            )
        )
        assert [message[1:] for message in client.poll(topic)] == [
            (b"%d" % n, *each) for n, each in enumerate(expected)
        ]
        source = spark.read.format("tms").option("url", broker.url).option("topic", topic).load()
        rows = source.select("value", "key", "headers").collect()
        assert [(row.key, row.headers) for row in rows] == [
            (key, headers or None) for key, headers in expected
        ]
        raw = source.where("headers['n'] IS NOT NULL").selectExpr("headers['raw'] AS raw")
        assert [row.raw for row in raw.collect()] == [b"\xff"] * (count // 2)
        write(source)  # Unchanged: a source and a sink have the same columns.
        again = client.poll(topic)
        assert [message[1:] for message in again] == [m[1:] for m in again[:count]] * 2

    def test_a_query_that_fails_publishes_no_row(self, spark, client, topic, write) -> None:
        frame = spark.range(0, 60_000, 1, 2).selectExpr(
            "IF(id = 59999, raise_error('no'), CAST(id AS STRING)) AS value"
        )
        with pytest.raises(Exception, match="no"):
            write(frame)
        assert published(client, topic) == []

    def test_rows_that_can_not_be_published_are_refused(self, spark, broker, topic) -> None:
        frame = spark.range(3)
        writer = frame.write.format("tms").option("url", broker.url).option("topic", topic)
        with pytest.raises(Exception, match=r"publish the column id|the column value"):
            writer.mode("append").save()
        values = frame.selectExpr("CAST(id AS STRING) AS value")
        writer = values.write.format("tms").option("url", broker.url).option("topic", topic)
        with pytest.raises(Exception, match="never overwritten"):
            writer.mode("overwrite").save()


class TestStream:
    @pytest.fixture
    def target(self, client: SyncClient, topic: str) -> str:
        name = f"{topic}-out"
        client.create_topic(name)
        return name

    @pytest.fixture
    def run(self, spark: SparkSession, broker: BrokerProcess, topic: str, target, tmp_path: Path):
        """Return a function that runs a query over all available messages, on one checkpoint."""

        def run(change=None, mode: str = "append", sink=None, **options: str) -> None:
            source = spark.readStream.format("tms").option("url", broker.url)
            frame = source.option("topic", topic).option("startingOffsets", "earliest").load()
            writer = (frame if change is None else change(frame)).writeStream.outputMode(mode)
            if sink is None:
                writer = writer.format("tms").option("url", broker.url).option("topic", target)
            else:
                writer = writer.foreachBatch(sink)
            writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
            query = writer.options(**options).trigger(availableNow=True).start()
            assert query.awaitTermination(DEADLINE_S)

        return run

    def test_a_topic_is_copied_with_keys_and_headers(self, client, topic, target, run) -> None:
        client.publish(topic, [NewMessage("1", "k", {"h": "x"}), "2"])
        run()
        client.publish(topic, [NewMessage("3", b"")] * 2)
        run(lambda frame: frame.drop("id"))
        assert [message[1:] for message in client.poll(target)] == [
            message[1:] for message in client.poll(topic)
        ]
        client.publish(topic, NewMessage("4", "k", {"h": "x"}))
        run(lambda frame: frame.selectExpr("value", "map('text', 'grün') AS headers"))
        assert client.poll(target)[-1][1:] == (b"4", None, {"text": "grün".encode()})

    def test_a_topic_is_copied(self, client, topic, target, run) -> None:
        client.publish(topic, payloads(3_000))
        run()
        client.publish(topic, payloads(3_000, 3_000))
        run()
        assert published(client, target) == payloads(6_000)

    def test_in_complete_mode_each_batch_publishes_the_whole_result(
        self, client, topic, target, run
    ) -> None:
        def count(frame: DataFrame) -> DataFrame:
            counts = frame.groupBy("topic").count()
            return counts.selectExpr("CAST(count AS STRING) AS value")

        for _ in range(2):
            client.publish(topic, payloads(5))
            run(count, "complete")
        assert published(client, target) == [b"5", b"10"]

    def test_foreach_batch_publishes_updates_once(self, client, broker, topic, target, run) -> None:
        def update(frame: DataFrame, batch_id: int) -> None:
            rows = frame.coalesce(1).sort("value")
            for _ in range(2):
                publish(rows, batch_id, url=broker.url, topic=target)

        def count(frame: DataFrame) -> DataFrame:
            words = frame.selectExpr("CAST(value AS STRING) AS word").groupBy("word").count()
            return words.selectExpr("word || ' ' || count AS value")

        client.publish(topic, [b"a", b"b", b"a"])
        run(count, "update", update)
        client.publish(topic, [b"a"])
        run(count, "update", update)
        assert published(client, target) == [b"a 2", b"b 1", b"a 3"]
