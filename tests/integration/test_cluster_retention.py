"""The leader of a topic, and no other node, removes expired messages from HBase while the nodes serve."""

from __future__ import annotations

import threading
import time
import urllib.request

import pytest

from broker.client import SyncClient
from broker.local import LocalCluster, Member, Sizes
from broker.testing.hbase_server import HBaseServer
from broker.testing.local_state import state_of

pytestmark = [pytest.mark.integration, pytest.mark.server("hbase"), pytest.mark.slow]

DEADLINE_S = 60.0
SWEPT = 'broker_swept_rows_total{kind="expired"'
EACH, SLICE = 25, 10
SETTINGS = {
    "sweep.sweep_interval_s": 0.5,
    "sweep.sweep_margin_s": 0.0,
    "sweep.sweep_rest_s": 0.0,
    "sweep.sweep_rows_max": SLICE,
}


def swept(node: Member) -> int:
    """Return the number of rows that a node has removed."""
    with urllib.request.urlopen(f"{node.url}/metrics", timeout=DEADLINE_S) as reply:
        lines = reply.read().decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(SWEPT))


def test_the_leader_of_a_topic_sweeps_it(hbase_server: HBaseServer) -> None:
    with LocalCluster(Sizes(nodes=2), gateway=hbase_server.gateway, settings=SETTINGS) as cluster:
        topics = [f"swept/topic-{number}" for number in range(4)]
        with SyncClient(cluster.urls) as client:
            for topic in topics:
                client.create_topic(topic, ttl_s=1)
                for number in range(EACH):
                    client.publish(topic, b"%d" % number)
            led = [client.leader(topic).url for topic in topics]
            due = {node.url: EACH * led.count(node.url) for node in cluster.nodes}
            deadline, pause = time.monotonic() + DEADLINE_S, threading.Event()
            while (gone := {node.url: swept(node) for node in cluster.nodes}) != due:
                assert time.monotonic() < deadline, f"{gone}, not {due}; {state_of(cluster)}"
                pause.wait(0.2)
            for topic in topics:
                assert client.poll(topic) == []
                client.set_topic(topic, {"ttl": "3600"})
                client.publish(topic, b"after")
                # A message below the floor is never shown again.
                assert [one.payload for one in client.poll(topic)] == [b"after"]
                assert client.leader(topic).url == led[topics.index(topic)]
