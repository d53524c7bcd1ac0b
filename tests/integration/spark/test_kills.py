"""Jobs whose processes are killed at each step of a batch publish every row once and in order."""

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from broker.client import SyncClient
from broker.testing.broker_process import BrokerProcess
from tests.integration.spark.driver import Driver, kill
from tests.integration.spark.mortal import DEADLINE_S, FEW, STEPS, Gate, Held, Jobs
from tests.integration.spark.standalone import standalone

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

COPIES, COUNTS = 0, 1
SOME = [("stored", COPIES), ("published", COPIES), ("publishing", COUNTS), ("published", COUNTS)]
ALL = list(itertools.product(STEPS, (COPIES, COUNTS)))
NOTED = "noted"
"""The step after the sink's steps: Spark writes that the batch is done."""
EVERY = list(itertools.product((*STEPS, NOTED), (COPIES, COUNTS)))
OF_FEW = list(itertools.product(("publishing", "published", NOTED), (COPIES, COUNTS)))
"""A batch of few rows has no more steps."""
TASKS = list(itertools.product(("begun", "stored"), (COPIES, COUNTS)))
LOCAL = "local-cluster[2,1,1024]"
NIGHTLY = pytest.mark.nightly
PAUSE_S = 1.0


@pytest.fixture
def jobs(client: SyncClient, broker: BrokerProcess, topic: str, tmp_path: Path) -> Jobs:
    jobs = Jobs(broker.url, f"{topic}-words", tmp_path)
    jobs.create(client)
    return jobs


def finish(spark: SparkSession, jobs: Jobs) -> None:
    for output in jobs.outputs():
        query = jobs.start(spark, output)
        query.processAllAvailable()
        query.stop()


@pytest.mark.parametrize(
    "places", [SOME, pytest.param(ALL * 2, marks=[pytest.mark.nightly, pytest.mark.timeout(600)])]
)
def test_a_worker_that_dies_at_any_step_loses_no_row(
    gate: Gate, spark: SparkSession, client: SyncClient, jobs: Jobs, places: list[tuple[str, int]]
) -> None:
    for step, number in places:
        output = jobs.outputs()[number]
        jobs.publish(client, 100)
        gate.hold(step, output)
        query = jobs.start(spark, output)
        gate.held().kill()
        with pytest.raises(StreamingQueryException):
            query.awaitTermination(DEADLINE_S)
    finish(spark, jobs)
    jobs.check(client)


class TestTheBroker:
    """The broker goes away and returns within the clients' deadline: no query ends."""

    @pytest.fixture
    def mortal(self, tmp_path: Path) -> Iterator[BrokerProcess]:
        with BrokerProcess(tmp_path / "data") as broker:
            yield broker

    @staticmethod
    def killed(broker: BrokerProcess, held: Held) -> None:
        broker.kill()
        held.go()
        broker.start()

    @staticmethod
    def paused(broker: BrokerProcess, held: Held) -> None:
        pid = broker.pid
        os.killpg(pid, signal.SIGSTOP)
        held.go()
        timer = threading.Timer(PAUSE_S, os.killpg, (pid, signal.SIGCONT))
        timer.start()
        timer.join()

    @pytest.mark.parametrize(
        "faults",
        [
            (killed, paused),
            pytest.param((killed,), marks=NIGHTLY),
            pytest.param((paused,), marks=NIGHTLY),
        ],
        ids=["in-turn", "killed", "paused"],
    )
    def test_a_fault_of_the_broker_at_any_step_ends_no_query(
        self,
        gate: Gate,
        spark: SparkSession,
        mortal: BrokerProcess,
        tmp_path: Path,
        faults: Sequence[Callable[[BrokerProcess, Held], None]],
    ) -> None:
        with SyncClient(mortal.url, deadline_s=DEADLINE_S) as client:
            jobs = Jobs(mortal.url, "words", tmp_path)
            jobs.create(client)
            query = jobs.start(spark, jobs.copies)
            for step, fault in zip(STEPS, itertools.cycle(faults), strict=False):
                gate.hold(step, jobs.copies)
                jobs.publish(client, 100)
                fault(mortal, gate.held())
                query.processAllAvailable()
            query.stop()
            finish(spark, jobs)
            jobs.check(client)


class TestTheDriver:
    """The driver dies with all its child processes, as a machine does."""

    @pytest.mark.timeout(1800)
    @pytest.mark.parametrize(
        "places",
        [
            [("published", COPIES)],
            pytest.param(EVERY * 3, marks=NIGHTLY),
            pytest.param(OF_FEW, marks=NIGHTLY),
        ],
        ids=["once", "thirty-times", "few-rows"],
    )
    def test_a_driver_that_dies_at_any_step_loses_no_row(
        self,
        gate: Gate,
        client: SyncClient,
        jobs: Jobs,
        tmp_path: Path,
        places: list[tuple[str, int]],
    ) -> None:
        environment = {FEW: "100000"} if places is OF_FEW else None
        for step, number in places:
            output = jobs.outputs()[number]
            jobs.publish(client, 100)
            gate.hold("published" if step == NOTED else step, output)
            with Driver(jobs, tmp_path / "driver.log", environment=environment) as driver:
                held = gate.held()
                if step == NOTED:
                    noted = self.noted(jobs, output)
                    held.go()
                    self.wait_for_a_note(jobs, output, noted)
                driver.kill()
                held.connection.close()
        with Driver(jobs, tmp_path / "driver.log", environment=environment) as driver:
            driver.finish()
        jobs.check(client)

    @staticmethod
    def noted(jobs: Jobs, output: str) -> set[str]:
        folder = jobs.folder / output / "commits"
        return {entry.name for entry in os.scandir(folder)} if folder.is_dir() else set()

    def wait_for_a_note(self, jobs: Jobs, output: str, before: set[str]) -> None:
        """Return when Spark has begun to write its note; the note may be incomplete then."""
        deadline = time.monotonic() + DEADLINE_S
        while self.noted(jobs, output) <= before:
            assert time.monotonic() < deadline, f"no note behind {sorted(before)}"

    @NIGHTLY  # tests/unit/spark/test_sink.py has the rule: messages of a failed attempt are never published.
    @pytest.mark.timeout(600)
    @pytest.mark.parametrize("cluster", ["standalone", LOCAL], ids=["standalone", "local"])
    def test_executors_that_die_lose_no_row(
        self, gate: Gate, client: SyncClient, jobs: Jobs, tmp_path: Path, cluster: str
    ) -> None:
        with ExitStack() as stack:
            if cluster == "standalone":
                cluster = stack.enter_context(standalone(tmp_path))
            driver = stack.enter_context(Driver(jobs, tmp_path / "driver.log", cluster))
            for step, number in TASKS:
                gate.hold(step, jobs.outputs()[number])
                jobs.publish(client, 100)
                held = gate.held()
                kill(self.executor_of(held.pid))
                held.connection.close()
            driver.finish()
        jobs.check(client)

    @staticmethod
    def executor_of(pid: int) -> psutil.Process:
        """Return the executor of a Python worker."""
        for process in psutil.Process(pid).parents():
            if any("CoarseGrainedExecutorBackend" in word for word in process.cmdline()):
                return process
        raise AssertionError(f"process {pid} has no executor")
