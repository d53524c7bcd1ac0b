"""Spark's own cluster on this machine: a master and workers, with the programs of the PySpark package."""

import json
import os
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import ClassVar

from broker.local.servers.process import free_ports
from broker.testing.server_process import ServerProcess
from tests.kit.servers import quick_spark

HOST = "127.0.0.1"
MEMORY = "1g"


def _spark_class() -> Sequence[str]:
    return [f"{quick_spark.environment()['SPARK_HOME']}/bin/spark-class"]


class Master(ServerProcess):
    """The master, which assigns workers to applications."""

    name: ClassVar[str] = "spark-master"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder=folder, environment={**os.environ, **quick_spark.environment()})
        self._port, self._web_port = free_ports(2)
        self.url = f"spark://{HOST}:{self._port}"
        self.workers_wanted = 0

    def command(self) -> Sequence[str]:
        where = ("--host", HOST, "--port", str(self._port), "--webui-port", str(self._web_port))
        return [*_spark_class(), "org.apache.spark.deploy.master.Master", *where]

    def answers(self) -> bool:
        with urllib.request.urlopen(f"http://{HOST}:{self._web_port}/json/") as reply:
            if "json" not in reply.headers.get_content_type():
                return False  # An HTML page: the JSON interface is not ready yet.
            told = json.load(reply)
        return told["status"] == "ALIVE" and told["aliveworkers"] >= self.workers_wanted


class Worker(ServerProcess):
    """A worker, which runs executors of one core; it is ready once its master knows it."""

    name: ClassVar[str] = "spark-worker"

    def __init__(self, folder: Path, master: Master) -> None:
        environment = {**quick_spark.environment(), "PYSPARK_PYTHON": sys.executable}
        super().__init__(folder=folder, environment={**os.environ, **environment})
        self._master = master
        master.workers_wanted += 1

    def command(self) -> Sequence[str]:
        size = ("--host", HOST, "--cores", "1", "--memory", MEMORY, "--webui-port", "0")
        where = ("--work-dir", str(self.folder / "work"), self._master.url)
        return [*_spark_class(), "org.apache.spark.deploy.worker.Worker", *size, *where]

    def answers(self) -> bool:
        return self._master.answers()


@contextmanager
def standalone(folder: Path, workers: int = 2) -> Iterator[str]:
    """Run a cluster, and yield the URL of its master."""
    with ExitStack() as stack:
        master = stack.enter_context(Master(folder / "master"))
        for number in range(workers):
            stack.enter_context(Worker(folder / f"worker{number}", master))
        yield master.url
