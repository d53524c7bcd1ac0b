"""Spark over nodes on HBase and ZooKeeper: leaders are killed or paused during a batch, and drivers are killed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.client import SyncClient
from broker.local import LocalCluster, Member
from tests.integration.spark.driver import Driver
from tests.integration.spark.mortal import DEADLINE_S, STEPS, Gate, Held, Jobs
from tests.integration.spark.test_deployments import run_and_die

pytestmark = [
    pytest.mark.integration,
    pytest.mark.server("hbase"),
    pytest.mark.nightly,
    pytest.mark.timeout(900),
]


def killed(leader: Member, held: Held, meanwhile: Callable[[], None]) -> None:
    leader.kill()
    held.go()
    meanwhile()
    leader.start()


def paused(leader: Member, held: Held, meanwhile: Callable[[], None]) -> None:
    leader.pause()
    held.go()
    meanwhile()
    leader.resume()


def test_on_three_nodes_over_hbase(shared_cluster: LocalCluster, tmp_path: Path) -> None:
    nodes = {node.url: node for node in shared_cluster.nodes if node.url is not None}
    url = ",".join(nodes)
    log = tmp_path / "driver.log"
    with Gate() as gate, SyncClient(url, deadline_s=DEADLINE_S) as client:
        jobs = Jobs(url, "spark-words", tmp_path)
        jobs.create(client)
        with Driver(jobs, log) as driver:
            for output in jobs.outputs():
                for step, fault in zip(STEPS, itertools.cycle((killed, paused)), strict=False):
                    gate.hold(step, output)
                    jobs.publish(client, 100)
                    held = gate.held()
                    leader = nodes[client.leader(output).url]
                    fault(leader, held, lambda: jobs.publish(client, 100))
            driver.finish()
        jobs.check(client)
        run_and_die(gate, client, jobs, lambda: Driver(jobs, log))
        for topic in (jobs.words, *jobs.outputs()):
            client.delete_topic(topic)
