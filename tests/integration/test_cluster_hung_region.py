"""Two nodes on an HBase with one region that does not answer: topics of other regions go on."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from broker.client import BrokerError, Client
from broker.local import LocalCluster, Sizes
from broker.local.cluster import REGIONS_LOCAL
from broker.model import TopicId
from broker.storage.hbase.schema import Schema
from broker.storage.keys import topic_prefix
from broker.storage.table import Space
from broker.testing.hbase_server import HBaseServer
from tests.integration.stalling import HOST, stalling
from tests.kit.serving import eventually

pytestmark = [
    pytest.mark.integration,
    pytest.mark.server("hbase"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

DEADLINE_S = 60.0
WELL_S = 5.0
"""Half of a storage call's timeout. A request that waits for a hanging call takes longer."""
PUBLISHES = 100
PUBLISHERS = 4
"""The number of publishers to each topic of the hanging region, through each node."""


def topics() -> tuple[list[str], str]:
    """Return topics of one region, and one of another."""
    schema = Schema(regions=REGIONS_LOCAL)
    places: dict[str, str] = {}
    for number in range(200):
        topic = TopicId("hung", f"t{number}")
        places[str(topic).replace(":", "/")] = schema.place_of(
            Space.MESSAGES, topic_prefix(topic)
        ).region
    hung = places["hung/t0"]
    in_it = [name for name, region in places.items() if region == hung]
    return in_it[:20], next(name for name, region in places.items() if region != hung)


async def publish(client: Client, topic: str, acknowledged: list[str]) -> None:
    """Publish again and again, and ignore errors."""
    while True:
        with suppress(BrokerError):
            await client.publish(topic, "message")
            acknowledged.append(topic)


async def test_a_region_that_hangs_leaves_other_topics_their_writes(
    hbase_server: HBaseServer,
) -> None:
    hung, well = topics()
    names = [topic.rpartition("/")[2].encode() + b":" for topic in hung]
    hangs = asyncio.Event()

    def is_stalled(data: bytes) -> bool:
        return hangs.is_set() and any(name in data for name in names)

    async with stalling(hbase_server.thrift2_port, is_stalled) as port:
        settings = {"hbase.hbase_gateways": [f"{HOST}:{port}"]}
        cluster = LocalCluster(Sizes(nodes=2), gateway=hbase_server.gateway, settings=settings)
        await asyncio.to_thread(cluster.start)
        try:
            urls = cluster.urls
            await go_on(urls, hung, well, hangs)
        finally:
            await asyncio.to_thread(cluster.close)


async def go_on(urls: list[str], hung: list[str], well: str, hangs: asyncio.Event) -> None:
    acknowledged: list[str] = []
    # Each client knows one node, which forwards requests for topics of the other node.
    clients = [Client([url], deadline_s=DEADLINE_S, follow_leaders=False) for url in urls]
    prompt = [Client([url], deadline_s=WELL_S, follow_leaders=False) for url in urls]
    try:
        for topic in (*hung, well):
            await clients[0].create_topic(topic)
        publishing = [
            asyncio.create_task(publish(client, topic, acknowledged))
            for client in clients
            for topic in hung * PUBLISHERS
        ]
        await eventually(
            lambda: set(acknowledged) == set(hung),
            lambda: f"{len(set(acknowledged))} of {len(hung)} topics are led",
            DEADLINE_S,
        )
        hangs.set()
        for number in range(PUBLISHES):
            await prompt[number % 2].publish(well, str(number))
        messages = [message.payload.decode() for message in await clients[0].poll(well)]
        assert messages == [str(number) for number in range(PUBLISHES)]
        hangs.clear()
        acknowledged.clear()
        await eventually(
            lambda: set(acknowledged) == set(hung),
            lambda: f"{len(set(acknowledged))} of {len(hung)} topics came back",
            DEADLINE_S,
        )
        for task in publishing:
            task.cancel()
        await asyncio.gather(*publishing, return_exceptions=True)
    finally:
        for client in (*clients, *prompt):
            await client.close()
