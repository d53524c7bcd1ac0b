"""Compare three Kafka brokers with three of our nodes, each through its own Python client.

There are eight topics. Each has one producer that awaits one batch of 100 messages after the other. Kafka has one
partition for each topic, three replicas, ``acks=all`` and ``flush.messages=1``. So each replica syncs each batch.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from typing_extensions import override

from benchmarks import prepared
from benchmarks.before.sides import NOW
from benchmarks.figures import Question, compare
from benchmarks.harness import Bench, Side, not_measured
from benchmarks.load import Load
from broker.client import Client
from broker.local.servers import ServerFailed, ServerMissing
from tests.kit.servers import KafkaServer

BROKERS, MESSAGES = 3, 100
KAFKA = "three Kafka brokers"
_HEAP = ("-Xms512m", "-Xmx512m", "-XX:+UseG1GC")
_OWN = """
node.id={number}
controller.quorum.voters={voters}
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
"""

Publish = Callable[[str, Sequence[bytes]], Awaitable[Any]]


class Broker(KafkaServer):
    """One of three Kafka brokers."""

    def __init__(self, number: int) -> None:
        """Make the broker with this number; set ``voters`` before the start."""
        super().__init__(jvm_options=_HEAP)
        self.number = number
        self.voters = ""

    @property
    def vote(self) -> str:
        """The address at which the other brokers find it."""
        return f"{self.number}@127.0.0.1:{self._controller_port}"

    @override
    def command(self) -> Sequence[str]:
        command = super().command()
        self._configure()
        return command

    @override
    def _format(self, class_path: str, configuration: Path) -> None:
        self._configure()
        super()._format(class_path, configuration)

    def _configure(self) -> None:
        """Append this broker's settings to those of a single broker: the last ones count."""
        with (self.folder / "server.properties").open("a") as file:
            file.write(_OWN.format(number=self.number, voters=self.voters))


async def measure(bench: Bench, urls: Sequence[str], topics: Sequence[str]) -> Question:
    """Compare our nodes at ``urls`` with Kafka."""
    question = Question(letter="kafka", title=f"cluster: {len(topics)} topics x {MESSAGES}")
    sides = [Side(name=NOW, run=partial(_ours, urls, topics), warm_s=5.0)]
    brokers = [Broker(number + 1) for number in range(BROKERS)]
    for broker in brokers:
        broker.voters = ",".join(each.vote for each in brokers)
    with ExitStack() as started:
        for broker in brokers:
            started.callback(broker.close)
        try:
            await asyncio.gather(*(asyncio.to_thread(broker.start) for broker in brokers))
            others = bench.companions
            bench.companions = lambda: [*others(), *(broker.pid for broker in brokers)]
            await _create(brokers, topics)
            sides.append(Side(name=KAFKA, run=partial(_kafka, brokers, topics), warm_s=15.0))
        except (ServerMissing, ServerFailed) as error:
            not_measured(question, KAFKA, "msg/s", str(error))
        await bench.measure(question, sides)
    question.ratios.append(compare(question.named(NOW), question.named(KAFKA)))
    return question


def _bootstrap(brokers: Sequence[Broker]) -> str:
    return ",".join(broker.bootstrap for broker in brokers)


async def _create(brokers: Sequence[Broker], topics: Sequence[str]) -> None:
    admin = importlib.import_module("aiokafka.admin")
    client = admin.AIOKafkaAdminClient(bootstrap_servers=_bootstrap(brokers))
    await client.start()
    try:
        settings = {"flush.messages": "1", "min.insync.replicas": "2"}
        await client.create_topics(
            [admin.NewTopic(name, 1, BROKERS, topic_configs=settings) for name in topics]
        )
    finally:
        await client.close()


async def _kafka(brokers: Sequence[Broker], topics: Sequence[str], seconds: float) -> Load:
    aiokafka = importlib.import_module("aiokafka")
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=_bootstrap(brokers), acks="all", linger_ms=0, max_batch_size=1 << 18
    )

    async def publish(topic: str, payloads: Sequence[bytes]) -> None:
        batch = producer.create_batch()
        for payload in payloads:
            batch.append(key=None, value=payload, timestamp=None)
        await (await producer.send_batch(batch, topic, partition=0))

    await producer.start()
    try:
        return await _published(publish, topics, seconds)
    finally:
        await producer.stop()


async def _ours(urls: Sequence[str], topics: Sequence[str], seconds: float) -> Load:
    async with AsyncExitStack() as open_:
        client = await open_.enter_async_context(Client(urls))
        return await _published(client.publish, topics, seconds)


async def _published(publish: Publish, topics: Sequence[str], seconds: float) -> Load:
    """Publish one batch after the other to each topic, until the time is over."""
    pool = prepared.payloads(1_000)
    latencies = array("q")
    clock = time.perf_counter_ns
    deadline_ns = clock() + int(seconds * 1e9)

    async def producer(topic: str) -> None:
        at = 0
        while (began_ns := clock()) < deadline_ns:
            await publish(topic, pool[at : at + MESSAGES])
            if (ended_ns := clock()) < deadline_ns:
                latencies.append(ended_ns - began_ns)
            at = (at + MESSAGES) % len(pool)

    await asyncio.gather(*map(producer, topics))
    return Load(len(latencies) * MESSAGES, seconds, latencies)
