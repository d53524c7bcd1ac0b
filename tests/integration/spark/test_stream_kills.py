"""A stream job with every kind of operator is killed at each step of each query; it publishes every result once."""

import itertools
import os
import signal
import sys
from pathlib import Path

import pytest

from broker.client import SyncClient
from broker.testing.broker_process import BrokerProcess
from tests.integration.spark import mortal_job
from tests.integration.spark.driver import Driver
from tests.integration.spark.mortal import STEPS, Gate

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.timeout(900),
]

FORMAT = Path(__file__).parent / "mortal_format"
MORE = 60
HELD_S = 240.0
"""Six queries begin at once, each with some Python processes."""
DRIVER, WORKER = "driver", "worker"
SOME = [("published", "windows", DRIVER), ("stored", "latest", WORKER)]
ALL = list(itertools.product(STEPS, mortal_job.ENDS, (DRIVER, WORKER)))


class JobDriver(Driver):
    """The job's process."""

    def __init__(self, url: str, prefix: str, folder: Path) -> None:
        path = os.pathsep.join([str(FORMAT), os.environ.get("PYTHONPATH", ""), str(Path.cwd())])
        # Python would search its start folder, which has the product's module, before FORMAT.
        self._environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
        self._log = folder / "driver.log"
        module = "tests.integration.spark.mortal_job"
        self._command = [sys.executable, "-m", module, url, prefix, str(folder)]


@pytest.mark.parametrize(
    "places",
    [SOME, pytest.param(ALL, marks=pytest.mark.timeout(3_600))],
    ids=["some", "all"],
)
def test_every_operator_publishes_each_result_once_in_spite_of_kills(
    gate: Gate,
    client: SyncClient,
    broker: BrokerProcess,
    topic: str,
    tmp_path: Path,
    places: list[tuple[str, str, str]],
) -> None:
    for end in ("dead", *mortal_job.ENDS):
        client.create_topic(f"{topic}-{end}")
    count = 0
    for step, end, mortal in places:
        client.publish(topic, mortal_job.payloads(count, MORE))
        count += MORE
        gate.hold(step, f"{topic}-{end}")
        with JobDriver(broker.url, topic, tmp_path) as driver:
            held = gate.held(HELD_S)
            if mortal == DRIVER:
                driver.kill()
                held.connection.close()
            else:
                with held.connection:
                    os.kill(held.pid, signal.SIGKILL)
                driver.kill()
    with JobDriver(broker.url, topic, tmp_path) as driver:
        driver.finish()
    mortal_job.check(client, topic, count)
