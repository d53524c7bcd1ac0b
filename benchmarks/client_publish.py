"""(a) 64 concurrent single-message publishes, each awaited, through each Python client.

Each client runs in the fastest way of its documentation, on uvloop:

* Ours sends concurrent publishes together, which is its default. A second side has this switched off.
* aiokafka uses ``acks=all`` and no linger, and sends the messages that have gathered.
* redis-py's asyncio client uses hiredis, and a connection for each publisher.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from array import array
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from benchmarks import peers, prepared
from benchmarks.figures import Question, best, compare
from benchmarks.harness import Bench, Side, not_measured
from benchmarks.load import Load
from broker.client import Client
from tests.kit.servers import KafkaServer, RedisServer

PUBLISHERS = 64
TOPIC = "bench-a"
OURS, ALONE = "ours", "ours, coalescing off"
KAFKA, REDIS = "Kafka, aiokafka", "Redis, redis-py"

Publish = Callable[[bytes], Awaitable[Any]]


async def _publishers(publish: Publish, seconds: float) -> Load:
    """Run all publishers, each of which awaits each message, until the time is over."""
    payloads = prepared.payloads(512)
    latencies = array("q")
    clock, note = time.perf_counter_ns, latencies.append
    deadline_ns = clock() + int(seconds * 1e9)

    async def publisher(number: int) -> None:
        at = number
        while (began_ns := clock()) < deadline_ns:
            await publish(payloads[at % 512])
            ended_ns = clock()
            if ended_ns < deadline_ns:
                note(ended_ns - began_ns)
            at += 1

    await asyncio.gather(*(publisher(number) for number in range(PUBLISHERS)))
    return Load(len(latencies), seconds, latencies)


async def ours_published(server: peers.OurServer, seconds: float) -> Load:
    """Publish through our client."""
    async with Client(server.url) as client:
        await client.create_topic(TOPIC, if_exists="keep")
        return await _publishers(partial(client.publish, TOPIC), seconds)


async def _alone(server: peers.OurServer, seconds: float) -> Load:
    async with Client(server.url) as client:
        await client.create_topic(TOPIC, if_exists="keep")
        return await _publishers(partial(client.publish, TOPIC, coalesce=False), seconds)


async def _kafka(server: KafkaServer, seconds: float) -> Load:
    aiokafka = importlib.import_module("aiokafka")
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=server.bootstrap, acks="all", linger_ms=0, max_batch_size=1 << 18
    )
    await producer.start()
    try:
        await producer.send_and_wait(TOPIC, b"the topic is there")
        return await _publishers(partial(producer.send_and_wait, TOPIC), seconds)
    finally:
        await producer.stop()


async def _redis(server: RedisServer, seconds: float) -> Load:
    redis = importlib.import_module("redis.asyncio")
    async with redis.Redis(port=server.port, max_connections=PUBLISHERS) as client:

        def publish(payload: bytes) -> Awaitable[Any]:
            answer: Awaitable[Any] = client.xadd(TOPIC, {b"p": payload})
            return answer

        return await _publishers(publish, seconds)


async def measure(bench: Bench) -> Question:
    """Measure all sides, and return their figures."""
    question = Question(
        letter="a", title=f"{PUBLISHERS} concurrent single-message publishes, Python clients"
    )
    sides: list[Side] = []
    ours = await bench.server("ours", peers.OurServer)
    assert isinstance(ours, peers.OurServer)
    sides.append(Side(name=OURS, run=partial(ours_published, ours), server=ours, count_syncs=True))
    for name, make, run in ((KAFKA, peers.kafka, _kafka), (REDIS, peers.redis, _redis)):
        server = await bench.server(name, make)
        if server is None:
            not_measured(question, name, "msg/s", bench.absent(name))
        else:
            load: Any = run
            warm_s = bench.plan.jvm_warm_s if name == KAFKA else None
            sides.append(
                Side(
                    name=name,
                    run=partial(load, server),
                    server=server,
                    warm_s=warm_s,
                    count_syncs=True,
                )
            )
    sides.append(Side(name=ALONE, run=partial(_alone, ours), server=ours, count_syncs=True))
    await bench.measure(question, sides)
    judge(question)
    return question


def judge(question: Question) -> None:
    """Compare our figures with those of the peers."""
    ours = question.named(OURS)
    rivals = [question.named(KAFKA), question.named(REDIS)]
    fastest = best(rivals)
    for rival in rivals:
        judged = fastest is None or rival is fastest
        must, aim = (1.2, 2.0) if judged else (None, None)
        question.ratios.append(compare(ours, rival, must=must, aim=aim))
    question.ratios.append(compare(ours, question.named(ALONE)))
