"""Stateful queries over topics: joins, session windows, duplicates; plain Python checks each result.

A message is a key and a second. The last messages have such late times that every window before them closes. (No query
filters them out: Spark would filter before it reads the time.)
"""

import random
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, expr, session_window, split, timestamp_seconds

from broker.client import SyncClient
from broker.testing.broker_process import BrokerProcess

pytestmark = [pytest.mark.integration, pytest.mark.nightly, pytest.mark.timeout(300)]

DEADLINE_S = 110
KEYS = "abcdefgh"
LATE = ("z", 10_000)
Event = tuple[str, int]


@pytest.fixture
def topics(client: SyncClient, topic: str) -> tuple[str, str, str]:
    """Two topics, and one for the result."""
    names = (f"{topic}-left", f"{topic}-right", f"{topic}-out")
    for name in names:
        client.create_topic(name)
    return names


@pytest.fixture
def events(client: SyncClient, topics: tuple[str, str, str]) -> tuple[list[Event], list[Event]]:
    """Publish events in the order of their times, in two parts, and then messages with very late times."""
    draw = random.Random(3)
    sides: list[list[Event]] = []
    for topic in topics[:2]:
        times = sorted(draw.sample(range(1, 200), 40))
        events = [(draw.choice(KEYS), second) for second in times]
        for portion in (events[:20], events[20:], [LATE]):
            client.publish(topic, [f"{key} {second}" for key, second in portion])
        sides.append([*events, LATE])
    return sides[0], sides[1]


@pytest.fixture
def run(spark: SparkSession, client: SyncClient, broker: BrokerProcess, topics, tmp_path: Path):
    """Return a function that runs a query over both topics, and returns its messages."""

    def read(topic: str) -> DataFrame:
        source = spark.readStream.format("tms").option("url", broker.url).option("topic", topic)
        source = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 15)
        words = split(col("value").cast("string"), " ")
        frame = source.load().select(words[0].alias("key"), words[1].cast("long").alias("second"))
        return frame.select("*", timestamp_seconds("second").alias("time"))

    def run(query) -> list[str]:
        left, right = (read(topic).withWatermark("time", "10 seconds") for topic in topics[:2])
        writer = query(left, right).writeStream.format("tms").option("url", broker.url)
        writer = writer.option("topic", topics[2]).option("checkpointLocation", str(tmp_path))
        done = writer.trigger(availableNow=True).start()
        assert done.awaitTermination(DEADLINE_S), done.status
        return sorted(message.payload.decode() for message in client.poll(topics[2]))

    return run


def pairs(left: list[Event], right: list[Event]) -> list[tuple[Event, Event]]:
    return [(a, b) for a in left for b in right if a[0] == b[0] and 0 <= b[1] - a[1] <= 20]


def joined(kind: str):
    def query(left: DataFrame, right: DataFrame) -> DataFrame:
        within = expr(
            "l.key = r.key AND r.time >= l.time AND r.time <= l.time + interval 20 seconds"
        )
        both = left.alias("l").join(right.alias("r"), within, kind)
        return both.selectExpr(
            "concat_ws(' ', l.key, l.second, coalesce(CAST(r.second AS STRING), 'none')) AS value"
        )

    return query


def test_an_inner_join_has_every_pair_once(run, events) -> None:
    expected = [f"{a[0]} {a[1]} {b[1]}" for a, b in pairs(*events)]
    assert len(expected) > 5
    assert run(joined("inner")) == sorted(expected)


def test_a_left_outer_join_also_has_events_without_a_partner(run, events) -> None:
    found = pairs(*events)
    expected = [f"{a[0]} {a[1]} {b[1]}" for a, b in found]
    alone = [f"{a[0]} {a[1]} none" for a in events[0] if a not in {pair[0] for pair in found}]
    assert alone
    assert run(joined("leftOuter")) == sorted(expected + alone)


def test_session_windows_close_after_a_pause(run, events) -> None:
    def query(left: DataFrame, right: DataFrame) -> DataFrame:
        sessions = left.groupBy(session_window("time", "15 seconds"), "key").count()
        return sessions.selectExpr(
            "concat_ws(' ', key, unix_seconds(session_window.start), count) AS value"
        )

    expected: list[str] = []
    for key in KEYS:
        session: list[int] = []
        for second in [*(second for name, second in events[0] if name == key), 10**9]:
            if session and second >= session[-1] + 15:
                expected.append(f"{key} {session[0]} {len(session)}")
                session = []
            session.append(second)
    assert run(query) == sorted(expected)


def test_duplicates_in_two_topics_are_dropped(run, client, topics, events) -> None:
    def query(left: DataFrame, right: DataFrame) -> DataFrame:
        both = left.union(right).dropDuplicates(["key", "second", "time"])
        return both.selectExpr("concat_ws(' ', key, second) AS value")

    expected = Counter({f"{key} {second}" for side in events for key, second in side})
    assert Counter(run(query)) == expected
