"""Spark over a cluster: leaders die in the middle of a batch, and drivers do."""

from pathlib import Path

import pytest

from broker.client import SyncClient
from broker.testing.cluster import LocalCluster
from tests.integration.spark.driver import Driver
from tests.integration.spark.mortal import DEADLINE_S, Gate, Jobs
from tests.integration.spark.test_deployments import run_and_die

pytestmark = [pytest.mark.integration, pytest.mark.nightly, pytest.mark.timeout(900)]


def test_on_three_nodes_over_hbase(shared_cluster: LocalCluster, tmp_path: Path) -> None:
    url = ",".join(node.url for node in shared_cluster.nodes)
    log = tmp_path / "driver.log"
    with Gate() as gate, SyncClient(url, deadline_s=DEADLINE_S) as client:
        jobs = Jobs(url, "spark-words", tmp_path)
        jobs.create(client)
        with Driver(jobs, log) as driver:
            for step in ("stored", "publishing"):
                gate.hold(step, jobs.copies)
                jobs.publish(client, 100)
                held = gate.held()
                leader = client.leader(jobs.copies).url
                (node,) = [each for each in shared_cluster.nodes if each.url == leader]
                node.kill()
                held.go()
                jobs.publish(client, 100)
                node.start()
            driver.finish()
        jobs.check(client)
        run_and_die(gate, client, jobs, lambda: Driver(jobs, log))
