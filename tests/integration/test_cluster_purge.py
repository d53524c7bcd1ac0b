"""A purge through one node of a cluster on HBase: after the answer no node shows a purged message."""

from __future__ import annotations

import pytest

from broker.client import SyncClient
from broker.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.server("hbase"), pytest.mark.slow]


def test_no_node_shows_messages_that_were_purged_through_another(
    shared_cluster: LocalCluster,
) -> None:
    urls = shared_cluster.urls
    with SyncClient(urls[0]) as client:
        client.create_topic("purged/t")
        client.publish("purged/t", ["a", "b"])
        leader = client.leader("purged/t").url
    other = next(url for url in urls if url != leader)
    with SyncClient(other, follow_leaders=False) as client:
        purged_ms = client.purge("purged/t", "now")
    for url in urls:
        with SyncClient(url, follow_leaders=False) as client:
            assert client.poll("purged/t") == []
            assert client.browse("purged/t").messages == []
            assert client.topic("purged/t").properties["purged_ms"] == str(purged_ms)
    with SyncClient(other, follow_leaders=False) as client:
        client.publish("purged/t", "c")
    for url in urls:
        with SyncClient(url, follow_leaders=False) as client:
            assert [message.payload for message in client.poll("purged/t")] == [b"c"]
