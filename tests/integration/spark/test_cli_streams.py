"""``broker streams`` as a user runs it: each command is a process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.client import SyncClient
from broker.testing.broker_process import BrokerProcess
from tests.integration.spark.sessions import FILES
from tests.kit.servers import quick_spark

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

DEADLINE_S = 240
ROOT = Path(__file__).parents[3]
CONF = {
    "spark.driver.extraJavaOptions": " ".join(quick_spark.java_options()),
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.checkpointFileManagerClass": FILES,
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
SPARK = ("--master", "local[2]", *(f"--conf={name}={value}" for name, value in CONF.items()))
MODULE = """
from broker.streams import Json, StreamBuilder, tumbling

def words():
    builder = StreamBuilder("words")
    lines = builder.source("{lines}", Json())
    words = lines.flat_map(str.split)
    words.key_by(lambda word: word).count().to_stream().sink("{counts}", Json())
    return builder.build()

def sums():
    builder = StreamBuilder("sums", lateness="0s")
    orders = builder.source("{orders}", Json("customer STRING, amount DOUBLE"))
    sums = orders.key_by("customer").window(tumbling("1d")).sum("amount")
    sums.to_stream().sink("{counts}", Json())
    return builder.build()

def dying():
    builder = StreamBuilder("dying")
    builder.source("{lines}", Json()).map(lambda line: line / 0).sink("{counts}", Json())
    return builder.build()
"""


class Shop:
    """A folder with jobs in it, and their topics."""

    def __init__(self, folder: Path, client: SyncClient, url: str, topic: str) -> None:
        self.folder = folder
        self.client = client
        self.topics = {name: f"{topic}-{name}" for name in ("lines", "counts", "orders")}
        for name in self.topics.values():
            client.create_topic(name)
        (folder / "shop_jobs.py").write_text(MODULE.format(**self.topics))
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        own = {"BROKER_URL": url, "PYTHONPATH": os.pathsep.join(paths)}
        self._environment = {**os.environ, **quick_spark.environment(), **own}

    def publish(self, name: str, *values: Any) -> None:
        self.client.publish(self.topics[name], [json.dumps(value).encode() for value in values])

    def read(self, name: str) -> list[Any]:
        return [json.loads(message.payload) for message in self.client.poll(self.topics[name])]

    def streams(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "broker.cli", "streams", *words],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    @contextmanager
    def running(self, job: str, checkpoint: str) -> Iterator[subprocess.Popen[str]]:
        """Run a job until the block has ended, with its status as lines of JSON."""
        words = ("run", f"shop_jobs:{job}", "--checkpoint", checkpoint, "--json", *SPARK)
        with subprocess.Popen(
            [sys.executable, "-m", "broker.cli", "streams", *words],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def shop(client: SyncClient, broker: BrokerProcess, topic: str, tmp_path: Path) -> Shop:
    return Shop(tmp_path, client, broker.url, topic)


def has_read(told: dict[str, Any]) -> bool:
    return told["state"] == "running" and told["queries"][0]["state_rows"] > 0


def until_read(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the first status of a job that has finished a micro-batch."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:  # The test's own timeout is the deadline.
        said.append(line)
        told: dict[str, Any] = json.loads(line)
        if has_read(told):
            return told
    raise AssertionError(f"the job ended without a micro-batch: {''.join(said[-3:])}")


def state(shop: Shop, *words: str) -> list[Any]:
    done = shop.streams("state", *words, "--json", *SPARK)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_job_counts_all_messages_and_its_state_shows_the_counts(shop: Shop) -> None:
    shop.publish("lines", "a b a", "b c")
    done = shop.streams("run", "shop_jobs:words", "--checkpoint", "ck", "--available", *SPARK)
    assert done.returncode == 0, done.stderr
    assert sorted(shop.read("counts")) == [["a", 1], ["a", 2], ["b", 1], ["b", 2], ["c", 1]]
    found = sorted(state(shop, "ck", "sink-1"), key=lambda entry: str(entry["key"]))
    assert found == [
        {"operator": "count-1", "key": key, "window": None, "kept": {"count": count}}
        for key, count in (("a", 2), ("b", 2), ("c", 1))
    ]
    told = shop.streams("status", "ck")
    assert told.returncode == 0
    assert told.stdout.startswith("words ended ")
    again = shop.streams("stop", "ck")
    assert again.returncode == 1
    assert "no process runs the job words" in again.stderr


@pytest.mark.nightly
def test_sums_of_windows_that_spark_keeps_are_shown(shop: Shop) -> None:
    orders = [
        {"customer": name, "amount": amount} for name, amount in (("a", 1), ("a", 2), ("b", 4))
    ]
    shop.publish("orders", *orders)
    done = shop.streams("run", "shop_jobs:sums", "--checkpoint", "ck", "--available", *SPARK)
    assert done.returncode == 0, done.stderr
    [found] = state(shop, "ck", "sink-1", "--operator", "sum-1", "--key", "a")
    assert found["kept"] == {"sum": 3.0}
    assert found["window"]["start"].endswith("T00:00:00.000Z")


@pytest.mark.nightly
def test_a_job_runs_until_it_is_asked_to_stop(shop: Shop) -> None:
    shop.publish("lines", "a b")
    with shop.running("words", "ck") as process:
        running = until_read(process)
        told = json.loads(shop.streams("status", "ck", "--json").stdout)
        assert (told["state"], told["pid"]) == ("running", running["pid"])
        second = shop.streams("run", "shop_jobs:words", "--checkpoint", "ck", *SPARK)
        assert second.returncode == 1
        assert f"runs already, as process {running['pid']}" in second.stderr
        stopped = shop.streams("stop", "ck", "--timeout", str(DEADLINE_S), "--json")
        assert stopped.returncode == 0, stopped.stderr
        assert json.loads(stopped.stdout) == {"job": "words", "state": "stopped"}
        assert process.wait(DEADLINE_S) == 0
    assert len(shop.read("counts")) == 2


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_job(shop: Shop, number: signal.Signals) -> None:
    shop.publish("lines", "a b")
    with shop.running("words", "ck") as process:
        until_read(process)
        process.send_signal(number)
        assert process.wait(DEADLINE_S) == 0
    assert json.loads(shop.streams("status", "ck", "--json").stdout)["state"] == "stopped"


@pytest.mark.nightly
def test_a_job_that_was_killed_is_gone(shop: Shop) -> None:
    shop.publish("lines", "a b")
    with shop.running("words", "ck") as process:
        until_read(process)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(DEADLINE_S)
        gone = shop.streams("status", "ck")
    assert gone.returncode == 1
    assert "words is gone" in gone.stdout
    assert "its state is gone" in shop.streams("stop", "ck").stderr


@pytest.mark.nightly
def test_a_job_that_fails_reports_its_error(shop: Shop) -> None:
    shop.publish("lines", "a")
    done = shop.streams("run", "shop_jobs:dying", "--checkpoint", "ck", *SPARK)
    assert done.returncode == 1
    assert "the job dying died (sink-1): map-1 failed at the message " in done.stderr
    assert "TypeError: unsupported operand" in done.stderr
    assert "Traceback" not in done.stderr
    told = json.loads(shop.streams("status", "ck", "--json").stdout)
    assert (told["state"], told["queries"][0]["is_running"]) == ("died", False)


def test_a_missing_topic_is_reported_before_spark_starts(shop: Shop) -> None:
    shop.client.delete_topic(shop.topics["lines"])
    done = shop.streams("run", "shop_jobs:words", "--checkpoint", "ck")
    assert done.returncode == 1
    assert "does not exist" in done.stderr
    assert "WARN" not in done.stderr
