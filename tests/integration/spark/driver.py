"""A driver with both jobs, as a separate process: started, killed with all its child processes, started again.

    python -m tests.integration.spark.driver URL TOPIC FOLDER MASTER OUTPUT…

A master behind ``connect:`` is reached through Spark Connect.

It prints *ready* once the jobs run. At the end of its input it processes all available messages, and ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil
from pyspark.sql import SparkSession

from tests.integration.spark.mortal import Jobs
from tests.integration.spark.sessions import connected_session, spark_session

MODULE = "tests.integration.spark.driver"
READY = "ready\n"
STOP_S = 120.0
CONNECT = "connect:"


class Driver:
    """The driver's process; a context manager. ``kill`` leaves no child process."""

    def __init__(
        self,
        jobs: Jobs,
        log: Path,
        master: str = "local[2]",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._log = log
        self._environment = {**os.environ, **(environment or {})}
        self._command = [sys.executable, "-m", MODULE, jobs.url, jobs.words]
        self._command += [str(jobs.folder), master, *jobs.outputs()]

    def __enter__(self) -> Self:
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line != READY:
            self.kill()
            raise AssertionError(f"the driver said {line!r}: {self._log.read_text()[-4000:]}")
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill it and all its child processes, as the end of a machine does."""
        below: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            below = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        for process in below:
            kill(process)
        psutil.wait_procs(below, STOP_S)
        self.process.wait(STOP_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def finish(self) -> None:
        """Let it process all available messages and end."""
        _, _ = self.process.communicate(timeout=STOP_S)
        assert self.process.returncode == 0, self._log.read_text()[-4000:]


def kill(process: psutil.Process) -> None:
    """Kill a process, if it still exists."""
    with suppress(psutil.NoSuchProcess):
        process.kill()


def session_of(folder: Path, master: str) -> SparkSession:
    """Return a session of the master, or through Spark Connect, which starts its own server."""
    if master.startswith(CONNECT):
        return connected_session(folder, master.removeprefix(CONNECT))
    return spark_session(folder, master)


def main(url: str, words: str, folder: str, master: str, *outputs: str) -> None:
    local = Path(folder) / f"spark-{os.getpid()}"
    session = session_of(local, master)
    jobs = Jobs(url, words, Path(folder))
    queries = [jobs.start(session, output) for output in outputs]
    sys.stderr.write(f"Spark {session.version} at {master}\n")
    sys.stdout.write(READY)
    sys.stdout.flush()
    sys.stdin.read()
    for query in queries:
        query.processAllAvailable()
        query.stop()
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
