"""A topic of a cluster of real processes as the index of a rowlog, while the topic's leadership moves."""

from __future__ import annotations

from collections import defaultdict

import pytest

from broker.client import Client, admin
from broker.local import LocalCluster
from broker.model import TopicId
from broker.rowlog import Message, RowLog, Subscription, topic_index
from broker.rowlog.memory import MemoryRows
from tests.unit.rowlog.world import TABLE, Heard

pytestmark = [
    pytest.mark.integration,
    pytest.mark.server("hbase"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

TOPIC = TopicId("rowlog", "hints")
ROWS = [b"a", b"b", b"c"]


def by_row(messages: list[Message]) -> dict[bytes, list[int]]:
    found = defaultdict(list)
    for each in messages:
        found[each.row].append(each.seq)
    return found


async def test_hints_go_through_a_topic_whose_leader_changes(shared_cluster: LocalCluster) -> None:
    urls = shared_cluster.urls
    heard = Heard()
    async with Client(urls) as client:
        await client.create_topic(TOPIC)
        async with RowLog(
            None,
            TABLE.decode(),
            id="mq",
            rows=MemoryRows({TABLE: {}}),
            index=topic_index(client, "rowlog/hints"),
        ) as log:
            await log.subscribe(Subscription("a"))
            log.listen("a", heard)
            await log.start()
            for number, url in enumerate(urls, 1):
                await client.ask(admin.pin(TOPIC, url))
                for row in ROWS:
                    await log.put(row)
                await heard.until(ended=number * len(ROWS))
            assert by_row(heard.messages) == {row: [1, 2, 3] for row in ROWS}
            assert (await log.verify()).is_sound
        assert len(await client.poll(TOPIC)) == 9
