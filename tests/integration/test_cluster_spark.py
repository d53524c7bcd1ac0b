"""Spark over a cluster of nodes on HBase and ZooKeeper, whose leaders are killed and paused within batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from broker.client import SyncClient
from broker.testing.cluster import LocalCluster, Member
from tests.integration.spark.driver import Driver
from tests.integration.spark.mortal import DEADLINE_S, STEPS, Gate, Jobs

pytestmark = [
    pytest.mark.integration,
    pytest.mark.server("hbase"),
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.timeout(900),
]


def killed(leader: Member, go: Callable[[], None]) -> None:
    leader.kill()
    go()


def paused(leader: Member, go: Callable[[], None]) -> None:
    leader.pause()
    go()


def test_leaders_that_fail_in_a_batch_end_no_query(
    shared_cluster: LocalCluster, tmp_path: Path
) -> None:
    nodes = {node.url: node for node in shared_cluster.nodes if node.url is not None}
    url = ",".join(nodes)
    with Gate() as gate, SyncClient(url, deadline_s=DEADLINE_S) as client:
        jobs = Jobs(url, "spark/words", tmp_path)
        jobs.create(client)
        with Driver(jobs, tmp_path / "driver.log") as driver:
            for output in jobs.outputs():
                for step, fault in zip(STEPS, (killed, paused) * 2, strict=True):
                    gate.hold(step, output)
                    jobs.publish(client, 100)
                    held = gate.held()
                    leader = nodes[client.leader(output).url]
                    fault(leader, held.go)
                    # The others take the topic over; the words' topic may be another node's.
                    jobs.publish(client, 100)
                    if fault is killed:
                        leader.start()
                    else:
                        leader.resume()
            driver.finish()
        jobs.check(client)
        for topic in (jobs.words, *jobs.outputs()):
            client.delete_topic(topic)
