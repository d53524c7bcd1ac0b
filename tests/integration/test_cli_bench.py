"""``broker bench`` against a whole broker."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from broker.bench.loads import Load, publish_load, tail_load
from broker.client import Client, SyncClient, TopicNotFound
from broker.model import TopicId
from tests.kit.served import ServedNode

TOPIC = TopicId("bench", "t")
DEADLINE_S = 60


@pytest.fixture(scope="module")
def node() -> Iterator[ServedNode]:
    with ServedNode() as node:
        with SyncClient(node.url) as client:
            client.create_topic(TOPIC)
        yield node


async def test_each_acknowledged_message_is_counted(node: ServedNode) -> None:
    async with Client(node.url) as client:
        before = (await client.stats(TOPIC))["published"]
        told = await publish_load(client, Load(TOPIC, 50, None, 0.2, 3, 10))
        assert (await client.stats(TOPIC))["published"] - before == told["messages"] > 0
    assert told["bytes"] == 50 * told["messages"]
    assert told["latency_ms"]["p50"] <= told["latency_ms"]["p99"] <= told["latency_ms"]["max"]
    assert (told["errors"], told["interrupted"]) == ({}, False)
    assert told["asked"]["batch"] == 10


async def test_a_rate_limits_the_number_of_publishes(node: ServedNode) -> None:
    async with Client(node.url) as client:
        told = await publish_load(client, Load(TOPIC, 50, 100.0, 0.3, 4, 1))
    assert 0 < told["messages"] <= 30


async def test_a_tail_measures_the_latency_of_stamped_messages(node: ServedNode) -> None:
    async with Client(node.url) as client:
        await client.publish(TOPIC, b"before")
        tailing = asyncio.ensure_future(tail_load(client, TOPIC, DEADLINE_S))
        received = 0.0
        async with asyncio.timeout(DEADLINE_S):
            while not received:  # The tail misses messages from before its begin.
                await client.publish(TOPIC, b"without a stamp")
                await publish_load(client, Load(TOPIC, 50, None, 0.1, 2, 1))
                received = (await client.stats(TOPIC))["rates"]["poll_per_s"]
        tailing.cancel()
        told = await tailing
    assert told["interrupted"]
    assert told["messages"] > 0
    assert told["latency_ms"]["p50"] > 0


async def test_a_missing_topic_is_an_error_before_the_measurement(node: ServedNode) -> None:
    async with Client(node.url) as client:
        for work in (
            publish_load(client, Load(TopicId("bench", "none"), 50, None, 60, 1, 1)),
            tail_load(client, TopicId("bench", "none"), 60),
        ):
            with pytest.raises(TopicNotFound):
                await work


@pytest.mark.parametrize("command", ["publish", "tail"])
def test_an_interrupt_ends_it_with_the_figures_so_far(node: ServedNode, command: str) -> None:
    words = ["bench", command, "bench/t", "--seconds", "600", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "broker.cli", *words],
        env={**os.environ, "BROKER_URL": node.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "messages/s" in line, line
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=DEADLINE_S)
    told = json.loads(out)
    assert (process.returncode, told["interrupted"]) == (130, True)
    assert (told["messages"] > 0) is (command == "publish")
