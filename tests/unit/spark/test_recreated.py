"""A streaming query and a topic that is deleted and created again, with a broker in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from broker.client import Settings, SyncClient, TopicRecreated
from broker.model import PublishRequest, TopicId
from broker.spark.format_options import source_options
from broker.spark.record_batches import SCHEMA, arrow_schema
from broker.spark.stream import TmsStreamReader
from tests.kit.serving import Broker, Http

TOPIC, OTHER = TopicId("default", "t"), TopicId("default", "other")
ALL = ReadAllAvailable()


@pytest.fixture
async def reader_of(http: Http) -> AsyncIterator[Callable[..., TmsStreamReader]]:
    """Returns a reader of a topic, for these options."""
    with SyncClient(http.url) as client:

        def connect(_: Settings) -> SyncClient:
            return client

        def make(topic: str = "t", **options: str) -> TmsStreamReader:
            given = {"url": http.url, "topic": topic, "startingOffsets": "earliest", **options}
            wanted = source_options(given, streaming=True)
            return TmsStreamReader(wanted, arrow_schema(SCHEMA), connect=connect)

        yield make


async def publish(broker: Broker, topic: TopicId, *payloads: bytes) -> None:
    await broker.topics.publish(topic, PublishRequest(None, list(payloads)))


def read(reader: TmsStreamReader, start: Any, end: Any) -> list[bytes]:
    return [
        value
        for part in reader.partitions(start, end)
        for batch in reader.read(part)
        for value in batch.column("value").to_pylist()
    ]


async def test_a_checkpoint_is_of_one_generation_of_one_topic(
    broker: Broker, reader_of: Callable[..., TmsStreamReader]
) -> None:
    await publish(broker, TOPIC, b"1", b"2")

    def first() -> tuple[Any, Any, Any]:
        reader = reader_of()
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        parts = list(reader.partitions(start, end))
        assert read(reader, start, end) == [b"1", b"2"]
        return start, json.loads(json.dumps(end)), parts

    start, end, parts = await asyncio.to_thread(first)
    assert (end["topic"], end["generation"]) == ("default/t", 1)
    await broker.topics.create(OTHER, {"ttl": "1000"})
    await publish(broker, OTHER, b"other")
    await broker.topics.delete(TOPIC)
    await broker.topics.create(TOPIC, {"ttl": "1000"})
    await publish(broker, TOPIC, b"new")

    def later() -> None:
        restarted = reader_of(failOnDataLoss="false")
        for use in (
            lambda: restarted.latestOffset(end, ALL),
            lambda: restarted.partitions(start, end),
        ):
            with pytest.raises(ValueError, match=r"generation 1.*generation 2.*new checkpoint"):
                use()
        with pytest.raises(TopicRecreated):
            list(restarted.read(parts[0]))
        with pytest.raises(ValueError, match="belongs to the topic default/t"):
            reader_of("other").latestOffset(end, ALL)
        fresh = reader_of()
        begin = fresh.initialOffset()
        assert read(fresh, begin, fresh.latestOffset(begin, ALL)) == [b"new"]
        at = f"{end['id']}@1"
        with pytest.raises(TopicRecreated):
            reader_of(startingOffsets=at).initialOffset()

    await asyncio.to_thread(later)
