"""Run a job in this process: start Spark, follow the job until it ends, and report its status meanwhile.

The job ends for one of three reasons. It has processed all messages that there were (``--available``). Or it is
asked to stop, by a signal or by the file of ``broker streams stop``. Or a query dies. Its last status says which.
"""

from __future__ import annotations

import importlib
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from broker.client import SyncClient, Trouble
from broker.clock import SystemClock
from broker.errors import TaskFailed, install_command
from broker.streams import graph
from broker.streams.job import Job
from broker.streams.job_control import NAMES, Control, here

if TYPE_CHECKING:
    from broker.streams.queries import JobQueries
    from broker.streams.spark_session import Session


TICK_S: Final = 0.5
EVERY_S: Final = 2.0
"""The time between two reports of a job's status."""


@dataclass(frozen=True)
class JobOptions:
    """The job to run and its options; ``options`` are those of the format ``tms``, with the url."""

    target: str
    checkpoint: str
    options: Mapping[str, str]
    deadline_s: float
    master: str
    conf: Mapping[str, str]
    is_available: bool


Report = Callable[[dict[str, Any]], None]


def run(
    wanted: JobOptions, control: Control, report: Report, on_trouble: Callable[[Trouble], None]
) -> None:
    """Run a job to its end, and report its status with ``report``; ``on_trouble`` as a client's.

    Raises:
        TaskFailed: it can't be started, or it died.
        BrokerError: the broker can't be reached, or a topic does not exist.
    """
    check_spark()
    job = load(wanted.target)
    for end in job.graph.ends:
        if end.name in NAMES:
            raise TaskFailed(f"an end can't be named {end.name}: give it another name.")
    _check_topics(job, wanted, on_trouble)
    with control.locked(), _signals() as signals:
        follower = _Follower(job, wanted, control, report, signals)
        try:
            follower.run()
        except TaskFailed as error:
            follower.report_state("died", error=error.message)
            raise


def check_spark() -> None:
    """Raise TaskFailed unless Spark can be started here."""
    try:
        from broker.streams.spark_session import has_java  # noqa: PLC0415 - The extra may be missing.
    except ModuleNotFoundError as error:
        raise missing(error) from error
    if not has_java():
        raise TaskFailed(
            "Spark needs Java 17 or newer, and the program java was not found: install Java, and set JAVA_HOME or "
            "PATH."
        )


def started(name: str, master: str, conf: Mapping[str, str]) -> Session:
    """Start Spark. Raises TaskFailed."""
    from broker.streams.spark_session import SparkFailed, spark_session, told_short  # noqa: PLC0415

    try:
        with told_short():
            return spark_session(name, master, conf, Path.cwd())
    except SparkFailed as error:
        raise TaskFailed(f"Spark does not start: {error}") from error


def _check_topics(job: Job, wanted: JobOptions, on_trouble: Callable[[Trouble], None]) -> None:
    """Check that all topics exist, before the slow start of Spark. Raises BrokerError, TaskFailed."""
    from broker.spark.format_options import sink_options  # noqa: PLC0415 - With PySpark.

    try:
        settings = sink_options(dict(wanted.options), streaming=True).settings
    except ValueError as error:
        raise TaskFailed(str(error)) from error
    topics = {job.graph.dead_letters}
    for each in job.graph.operators():
        if isinstance(each, graph.Sink) and each.topic is not None:
            topics.add(each.topic)
        if isinstance(each, graph.Source) and "url" not in each.options:
            topics.add(each.topic)
        if isinstance(each, graph.Aggregate | graph.Join) and each.late is not None:
            topics.add(each.late)
    patient = replace(settings, deadline_s=wanted.deadline_s)
    with SyncClient(settings=patient, on_trouble=on_trouble) as client:
        for topic in sorted(filter(None, topics)):
            client.topic(topic)


class _Signals:
    """Records that SIGINT or SIGTERM arrived."""

    def __init__(self) -> None:
        self.came = threading.Event()

    def take(self) -> None:
        """Handle both signals. Call this again after Spark's start, which replaces a handler."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self.came.set())


@contextmanager
def _signals() -> Iterator[_Signals]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signals = _Signals()
    signals.take()
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Follower:
    """Starts a job, and follows it to its end."""

    def __init__(
        self, job: Job, wanted: JobOptions, control: Control, report: Report, signals: _Signals
    ) -> None:
        self._job = job
        self._wanted = wanted
        self._control = control
        self._report = report
        self._signals = signals
        self._clock = SystemClock()
        self._started_ms = self._clock.now_ms()
        self._queries: list[Any] = []

    def run(self) -> None:
        """Run the job to its end. Raises TaskFailed if it dies."""
        from broker.streams.spark_session import SparkFailed, told_short  # noqa: PLC0415 - With PySpark.

        self.report_state("starting")
        session = started(self._job.id, self._wanted.master, self._wanted.conf)
        try:
            with told_short():
                try:
                    self.report_state(self._follow(session))
                finally:
                    session.stop()
        except SparkFailed as error:
            raise TaskFailed(self._death_message(str(error))) from error

    def _follow(self, session: Session) -> str:
        """Follow the job until it ends or must stop; return ``ended`` or ``stopped``. Raises its error if it dies."""
        self._signals.take()
        if self._must_stop():
            return "stopped"
        running = self._start(session)
        due_s = 0.0
        while not self._must_stop():
            if self._is_over(running):
                try:
                    running.await_termination(None)
                finally:
                    self._is_over(running)
                return "ended"
            if time.monotonic() >= due_s:
                self.report_state("running")
                due_s = time.monotonic() + EVERY_S
            self._signals.came.wait(TICK_S)
        running.stop()
        self._is_over(running)
        return "stopped"

    def _start(self, session: Session) -> JobQueries:
        from broker.streams import JobChanged  # noqa: PLC0415 - With PySpark.
        from broker.streams.queries import JobQueries  # noqa: PLC0415

        wanted = self._wanted
        try:
            return JobQueries.start(
                self._job.graph,
                session,
                wanted.checkpoint,
                wanted.options,
                is_available=wanted.is_available,
            )
        except (JobChanged, TypeError, ValueError) as error:
            raise TaskFailed(f"the job {self._job.id} can't run: {error}") from error

    def _is_over(self, running: JobQueries) -> bool:
        """Update the queries' status; return whether one has died or all have ended."""
        status = running.status()
        self._queries = list(status.as_dict()["queries"])
        return any(query.error is not None for query in status.queries) or not any(
            query.is_running for query in status.queries
        )

    def _death_message(self, cause: str) -> str:
        ends = ", ".join(query["name"] for query in self._queries if query["error"])
        return (
            f"the job {self._job.id} died{f' ({ends})' if ends else ''}: {cause}\n"
            "Correct the cause, then run the job again with the same checkpoint: it continues where it died."
        )

    def _must_stop(self) -> bool:
        return self._signals.came.is_set() or self._control.is_asked_to_stop

    def report_state(self, state: str, error: str | None = None) -> None:
        """Report the job's status: in its file, and to ``report``."""
        status = {
            "job": self._job.id,
            "state": state,
            "error": error,
            **here(),
            "started_ms": self._started_ms,
            "told_ms": self._clock.now_ms(),
            "queries": self._queries,
        }
        self._control.write_status(status)
        self._report(status)


def load(target: str) -> Job:
    """Return the job of ``module:name``; modules of the current folder come first. Raises TaskFailed."""
    module_name, _, name = target.partition(":")
    module = _imported(module_name)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise TaskFailed(f"the module {module_name} has no {name}. {_job_names(module)}")
        found = getattr(found, part)
    if callable(found):
        try:
            found = found()
        except Exception as error:
            raise TaskFailed(f"{target} failed: {_error_text(error)}") from error
    if not isinstance(found, Job):
        raise TaskFailed(
            f"{target} is not a job but has type {type(found).__name__}: name a Job, as StreamBuilder.build() returns it, "
            "or a function that returns one."
        )
    return found


def missing(error: ModuleNotFoundError) -> TaskFailed:
    """Return the error about a missing package of stream jobs. Raises ``error`` if the module is our own."""
    package = (error.name or "").partition(".")[0]
    if package == "broker":
        raise error
    return TaskFailed(
        f"stream jobs need the package {package!r} of the extra 'streams': {install_command('streams')}"
    )


def _imported(name: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name in {name, name.partition(".")[0]}:
            raise TaskFailed(
                f"there is no module {error.name} in {folder} or in Python's path."
            ) from error
        raise TaskFailed(f"the module {name} can't be imported: {_error_text(error)}") from error


def _error_text(error: Exception) -> str:
    """Return an error's text, with the file and line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def _job_names(module: Any) -> str:
    names = sorted(name for name, value in vars(module).items() if isinstance(value, Job))
    return f"Its jobs are: {', '.join(names)}." if names else "It has no jobs."
