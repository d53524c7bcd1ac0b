"""The jobs run through Spark Connect and with the oldest supported Spark; their drivers are killed twice for each job."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.client import SyncClient
from broker.local.servers import downloads
from broker.local.servers.cache_folder import cache_folder
from broker.testing.broker_process import BrokerProcess
from tests.integration.spark.driver import Driver
from tests.integration.spark.mortal import Gate, Jobs
from tests.kit.servers.recipes import ALL

pytestmark = [pytest.mark.integration, pytest.mark.nightly, pytest.mark.timeout(900)]


def run_and_die(gate: Gate, client: SyncClient, jobs: Jobs, start: Callable[[], Driver]) -> None:
    """Kill the driver before and after a publish of each job; then let it finish, and check."""
    for step, output in itertools.product(("publishing", "published"), jobs.outputs()):
        jobs.publish(client, 100)
        gate.hold(step, output)
        with start() as driver:
            held = gate.held()
            driver.kill()
            held.connection.close()
    with start() as driver:
        driver.finish()
    jobs.check(client)


def test_through_spark_connect(
    gate: Gate, client: SyncClient, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    jobs = Jobs(broker.url, f"{topic}-words", tmp_path, counting=False)
    jobs.create(client)
    log = tmp_path / "driver.log"
    run_and_die(gate, client, jobs, lambda: Driver(jobs, log, "connect:local[2]"))


def test_with_the_oldest_spark_that_is_supported(
    gate: Gate, client: SyncClient, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    downloads.fetch("pyspark", ALL["pyspark"], print)
    (folder,) = cache_folder().glob("pyspark-4.2.*")
    before = filter(None, [os.environ.get("PYTHONPATH")])
    environment = {"PYTHONPATH": os.pathsep.join([str(folder), *before])}
    jobs = Jobs(broker.url, f"{topic}-words", tmp_path)
    jobs.create(client)
    log = tmp_path / "driver.log"
    run_and_die(gate, client, jobs, lambda: Driver(jobs, log, environment=environment))
    assert f"Spark {folder.name.removeprefix('pyspark-')} " in log.read_text()
