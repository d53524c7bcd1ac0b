"""Named cursors and a subscriber in a cluster of real processes: any node answers, and leadership moves."""

from __future__ import annotations

import asyncio

import pytest

from broker.client import Client, CursorMoved, Message, NotFound, admin
from broker.local import LocalCluster
from broker.model import TopicId

pytestmark = [
    pytest.mark.integration,
    pytest.mark.server("hbase"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

DEADLINE_S = 60.0
TOPIC = TopicId("subscriber", "moved")


async def test_readers_race_through_all_nodes_and_a_subscriber_follows_its_topic(
    shared_cluster: LocalCluster,
) -> None:
    handled: asyncio.Queue[bytes] = asyncio.Queue()

    async def handle(message: Message) -> None:
        await handled.put(message.payload)

    nodes = [Client(url, follow_leaders=False) for url in shared_cluster.urls]
    async with nodes[0] as first, nodes[1] as second, nodes[2] as third:
        await first.create_topic(TOPIC)
        puts = [
            client.cursors.put(TOPIC, "raced", None, expected=None, data=f"reader {number}")
            for number, client in enumerate([first, second, third] * 2)
        ]
        done = await asyncio.gather(*puts, return_exceptions=True)
        [won] = [each for each in done if not isinstance(each, BaseException)]
        assert {type(each) for each in done if isinstance(each, BaseException)} == {CursorMoved}
        assert [await client.cursors.get(TOPIC, "raced") for client in nodes] == [
            won._replace(lag=(0, 0, None))
        ] * 3
        assert await second.cursors.delete(TOPIC, "raced")
        with pytest.raises(NotFound):
            await third.cursors.get(TOPIC, "raced")

        subscriber = third.subscriber(TOPIC, "s", handle, place_messages_max=5)
        running = asyncio.create_task(subscriber.run())
        seen = []
        for number, url in enumerate(shared_cluster.urls):
            await first.ask(admin.pin(TOPIC, url))
            await first.publish(TOPIC, [b"%d %d" % (number, each) for each in range(10)])
            async with asyncio.timeout(DEADLINE_S):
                seen += [await handled.get() for _ in range(10)]
        subscriber.stop()
        await running
        assert seen == [b"%d %d" % (number, each) for number in range(3) for each in range(10)]
        assert (await second.cursors.get(TOPIC, "s")).lag.messages == 0
        await first.ask(admin.unpin(TOPIC))
        await first.delete_topic(TOPIC)
        await first.create_topic(TOPIC)
        assert await second.cursors.list(TOPIC) == []
