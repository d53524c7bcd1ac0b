"""The client in a cluster of real processes sends requests to leaders directly, and follows them."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from broker.client import Client, admin
from broker.local import LocalCluster
from broker.model import TopicId
from broker.testing.local_state import state_of
from tests.integration.leaders import DEADLINE_S, until_led

pytestmark = [
    pytest.mark.integration,
    pytest.mark.server("hbase"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

PUBLISHERS = 4


@pytest.fixture
def cluster(shared_cluster: LocalCluster) -> LocalCluster:
    return shared_cluster


async def forwarded(cluster: LocalCluster) -> int:
    """Return the number of requests that all nodes together have forwarded."""
    count = 0.0
    async with aiohttp.ClientSession() as session:
        for url in cluster.urls:
            async with session.get(f"{url}/metrics") as reply:
                lines = (await reply.text()).splitlines()
            told = [line for line in lines if line.startswith("broker_forwarded_total{")]
            count += sum(float(line.rpartition(" ")[2]) for line in told)
    return int(count)


class Publishers:
    """Publishers to one topic; each sends one request after the other, and half of them share requests."""

    def __init__(self, cluster: LocalCluster, client: Client, topic: str) -> None:
        self.acknowledged: list[bytes] = []
        self._cluster = cluster
        self._client = client
        self._topic = topic
        self._stop = asyncio.Event()
        self._changed = asyncio.Condition()

    async def run(self, name: int) -> None:
        number = 0
        while not self._stop.is_set():
            payload = b"%d-%d" % (name, number)
            await self._client.publish(self._topic, payload, coalesce=bool(name % 2))
            number += 1
            async with self._changed:
                self.acknowledged.append(payload)
                self._changed.notify_all()

    async def more(self, count: int) -> None:
        """Wait until so many more are acknowledged."""
        until = len(self.acknowledged) + count
        try:
            async with asyncio.timeout(DEADLINE_S), self._changed:
                await self._changed.wait_for(lambda: len(self.acknowledged) >= until)
        except TimeoutError:
            told = f"{len(self.acknowledged)} acknowledged, not {until}, in {DEADLINE_S:g} s"
            raise AssertionError(f"{told}; {state_of(self._cluster)}") from None

    def stop(self) -> None:
        self._stop.set()


def by_publisher(payloads: list[bytes]) -> dict[bytes, list[int]]:
    order: dict[bytes, list[int]] = {}
    for payload in payloads:
        name, _, number = payload.partition(b"-")
        order.setdefault(name, []).append(int(number))
    return order


async def test_nothing_is_forwarded_after_the_first_requests(cluster: LocalCluster) -> None:
    topics = [f"client/stable-{number}" for number in range(6)]
    for given in ([cluster.urls[0]], cluster.urls):
        async with Client(given) as client:
            for topic in topics:
                await client.create_topic(topic, if_exists="keep")
                await client.publish(topic, b"first")
            before = await forwarded(cluster)
            for topic in topics:
                await asyncio.gather(*[client.publish(topic, b"together") for _ in range(20)])
                await client.publish(topic, [b"two", b"messages"])
                await client.poll(topic, wait_s=1.0)
                await client.browse(topic)
                await client.stats(topic)
                events = client.events(topic)
                await anext(events)
                await events.aclose()
            assert await forwarded(cluster) == before


async def test_a_move_costs_no_more_forwards_than_requests_under_way(cluster: LocalCluster) -> None:
    topic = "client/moved"
    async with Client(cluster.urls) as client, asyncio.TaskGroup() as tasks:
        await client.create_topic(topic)
        publishers = Publishers(cluster, client, topic)
        for name in range(PUBLISHERS):
            tasks.create_task(publishers.run(name))
        await publishers.more(50)
        async with Client(cluster.urls) as operator:
            leader = await operator.leader(topic)
            other = next(url for url in cluster.urls if url != leader.url)
            before = await forwarded(cluster)
            await operator.ask(admin.pin(TopicId("client", "moved"), other))
            while (await operator.leader(topic)).url != other:
                await publishers.more(20)
            await publishers.more(100)
            settled = await forwarded(cluster)
            await publishers.more(100)
            assert await forwarded(cluster) == settled
            # In addition to the publishers' requests, the operator's own request may have been in flight.
            assert settled - before <= PUBLISHERS + 1
        publishers.stop()
    async with Client(cluster.urls) as reader:
        found = [message.payload for message in await reader.poll(topic)]
    assert sorted(found) == sorted(publishers.acknowledged)
    assert all(order == sorted(order) for order in by_publisher(found).values())


async def test_a_restart_and_a_kill_of_the_leader_are_no_errors(cluster: LocalCluster) -> None:
    """A planned restart without keys; a kill with the client's own keys."""
    for topic, idempotent in (("client/restarted", False), ("client/killed", True)):
        async with Client(cluster.urls, idempotent=idempotent, deadline_s=60.0) as client:
            async with asyncio.TaskGroup() as tasks:
                await client.create_topic(topic)
                publishers = Publishers(cluster, client, topic)
                for name in range(8):
                    tasks.create_task(publishers.run(name))
                await publishers.more(100)
                url = (await client.leader(topic)).url
                node = next(node for node in cluster.nodes if node.url == url)
                await asyncio.to_thread(node.kill if idempotent else node.stop)
                await publishers.more(100)
                await asyncio.to_thread(node.start)
                await until_led(cluster, client, topic, url)
                await publishers.more(100)
                publishers.stop()
            found = [message.payload for message in await client.poll(topic)]
        assert sorted(found) == sorted(publishers.acknowledged)
        assert all(order == sorted(order) for order in by_publisher(found).values())
