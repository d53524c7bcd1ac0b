"""Every example of stream jobs publishes the expected messages, which were worked out by hand."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from broker.client import Message, SyncClient
from broker.testing.broker_process import BrokerProcess
from examples.streams import ages, running, word_count

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]
ALWAYS = {"orders_payments", "audit"}
"""These have functions of both kinds, windows, a join, a processor and several ends; the others run at night."""

NOON = "2026-01-01T12:00"


def offer(shop: str, article: str, second: int, price: int) -> dict[str, Any]:
    return {"article": article, "shop": shop, "time": f"{NOON}:0{second}Z", "price": price}


def rows(names: str, *found: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Return dicts with these names."""
    return [dict(zip(names.split(), values, strict=True)) for values in found]


# Of a keyed sink: [key, value].
EXPECTED: dict[str, dict[str, list[Any]]] = {
    "ages": {
        "examples/ages": rows("age users", (36, 1), (41, 1), (36, 2)),
        "examples/users-wrong": ["Cleo"],
    },
    "audit": {
        "examples/lineage-edges": rows(
            "from dataset to", ("importer", "raw", "cleaner"), ("cleaner", "clean", "report")
        ),
        "examples/usage": [["raw", 2], ["clean", 2]],
        "examples/triggers": [["run-1", {"start": "cleaner", "because_of": "run-1"}]],
    },
    "join_window": {
        "examples/advert-pairs": rows(
            "advert page user",
            ("x", "home", "ann"),
            ("x", "home", "bob"),
            ("x", "news", "ann"),
            ("x", "news", "bob"),
        )
    },
    "join_without_window": {
        "examples/stock-values": rows("article value", ("tea", 30), ("tea", 40), ("tea", 32))
    },
    "order_counts": {
        "examples/order-counts": rows(
            "customer orders start",
            ("ann", 1, "2026-01-01T11:59:40.000Z"),
            ("ann", 1, "2026-01-01T11:59:50.000Z"),
            ("ann", 2, f"{NOON}:00.000Z"),
            ("ann", 1, f"{NOON}:10.000Z"),
            ("ann", 1, f"{NOON}:20.000Z"),
            ("bob", 1, f"{NOON}:10.000Z"),
            ("bob", 1, f"{NOON}:20.000Z"),
            ("bob", 1, f"{NOON}:30.000Z"),
            ("ann", 1, "2026-01-01T12:01:10.000Z"),
            ("ann", 1, "2026-01-01T12:01:20.000Z"),
            ("ann", 1, "2026-01-01T12:01:30.000Z"),
        ),
        "examples/order-sums": [["ann@book", 30], ["bob@tool", 7], ["ann@tool", 5]],
    },
    "orders_payments": {
        "examples/orders-paid": rows("order amount paid", (1, 50, 50), (4, 1, 1)),
        "examples/orders-open": rows("order amount paid", (2, 80, 30), (3, 20, 0)),
    },
    "session_window_count": {
        "examples/session-counts": rows(
            "user count start end",
            ("a", 2, f"{NOON}:01.000Z", f"{NOON}:10.000Z"),
            ("b", 2, f"{NOON}:02.000Z", f"{NOON}:08.000Z"),
            ("a", 1, f"{NOON}:20.000Z", f"{NOON}:25.000Z"),
        )
    },
    "sliding_window_count": {
        "examples/click-counts": rows(
            "user count start",
            ("a", 2, f"{NOON}:02.000Z"),
            ("a", 2, f"{NOON}:04.000Z"),
            ("a", 1, f"{NOON}:06.000Z"),
            ("b", 1, f"{NOON}:06.000Z"),
            ("b", 1, f"{NOON}:08.000Z"),
        )
    },
    "user_sessions": {
        "examples/visits": rows(
            "user start pages",
            ("ann", f"{NOON}:00Z", ["home", "shoes", "cart"]),
            ("bob", f"{NOON}:10Z", ["home"]),
            ("bob", "2026-01-01T12:01:00Z", ["help"]),
        )
    },
    "window_avg": {
        "examples/average-grades": rows("subject average", ("art", 20.0), ("physics", 7.0))
    },
    "window_count": {
        "examples/event-counts": rows(
            "user count start",
            ("a", 2, f"{NOON}:00Z"),
            ("b", 1, f"{NOON}:00Z"),
            ("a", 1, f"{NOON}:10Z"),
        ),
        "examples/events-late": [{"user": "a", "time": f"{NOON}:08Z"}],
    },
    "window_min_max": {
        "examples/cheapest-offers": [
            ["tea", offer("Lou", "tea", 2, 3)],
            ["jam", offer("Kim", "jam", 4, 9)],
        ],
        "examples/dearest-offers": [
            ["tea", offer("Kim", "tea", 1, 4)],
            ["jam", offer("Kim", "jam", 4, 9)],
        ],
    },
    "window_sum": {
        "examples/transfer-sums": rows(
            "account cents start",
            ("a", 300, f"{NOON}:00.000Z"),
            ("b", 70, f"{NOON}:00.000Z"),
            ("a", 1, f"{NOON}:10.000Z"),
        )
    },
    "window_word_count": {
        "examples/window-word-counts": rows(
            "word count start",
            ("to", 2, f"{NOON}:00.000Z"),
            ("be", 2, f"{NOON}:00.000Z"),
            ("or", 1, f"{NOON}:00.000Z"),
            ("not", 1, f"{NOON}:00.000Z"),
            ("be", 1, f"{NOON}:15.000Z"),
        )
    },
    "word_count": {
        "examples/word-counts": [
            *(["to", 1], ["be", 1], ["or", 1], ["not", 1], ["to", 2], ["be", 2]),
            *(["that", 1], ["is", 1], ["the", 1], ["question", 1]),
        ]
    },
}


def value_of(message: Message) -> Any:
    """Return a message's value, with its key if it has one."""
    text = message.payload.decode()
    value = json.loads(text) if text[0] in '{["-0123456789' else text
    return value if message.key is None else [message.key.decode(), value]


def in_order(values: list[Any]) -> list[Any]:
    return sorted(values, key=json.dumps)


def test_every_example_is_known() -> None:
    assert sorted(EXPECTED) == running.NAMES


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in ALWAYS else pytest.mark.nightly) for n in running.NAMES],
)
def test_an_example_publishes_the_expected_messages(
    name: str, spark: SparkSession, client: SyncClient, broker: BrokerProcess, tmp_path: Path
) -> None:
    found = running.run(name, spark, client, broker.url, str(tmp_path))
    said = {topic: in_order(list(map(value_of, found[topic]))) for topic in found}
    assert said == {topic: in_order(values) for topic, values in EXPECTED[name].items()}
    assert client.topics("examples") == []


@pytest.mark.nightly
def test_words_may_be_counted_from_now_on_and_printed(
    spark: SparkSession,
    client: SyncClient,
    broker: BrokerProcess,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    job = word_count.job("latest", prints=True)
    client.create_topic(word_count.LINES)
    try:
        client.publish(word_count.LINES, ["before"])
        job.run_available(spark, checkpoint=str(tmp_path), url=broker.url)
        client.publish(word_count.LINES, ["Now now"])
        job.run_available(spark, checkpoint=str(tmp_path), url=broker.url)
    finally:
        client.delete_topic(word_count.LINES)
    assert capfd.readouterr().out.splitlines() == ['["now",1]', '["now",2]']


def test_users_are_text_both_ways() -> None:
    user = ages.User("Ada", 36)
    assert ages.UserText().deserialize(ages.UserText().serialize(user)) == user


@pytest.mark.nightly
def test_an_example_runs_by_one_command(broker: BrokerProcess, client: SyncClient) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.streams", "word_count", "--url", broker.url],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "flat_map-1  str.split()" in done.stdout
    assert '["be",2]' in done.stdout
    assert client.topics("examples") == []
