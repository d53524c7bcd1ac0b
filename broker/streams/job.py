"""A job: its graph, and the queries that run it.

Each sink or print has its own query, with its own checkpoint in the job's folder::

    checkpoint/<name of the end>     Spark's: offsets, commits and state
    checkpoint/job/<name of the end> the form of the end: its sources and its operators with state, see changes.py

A slow query does not delay another. A job runs as long as all its queries run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from broker.streams import graph, plan_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from broker.streams.queries import JobQueries, Status


class Job:
    """A job that a StreamBuilder has built. It can run once at a time."""

    def __init__(self, found: graph.Graph) -> None:
        """Keep the graph."""
        self.graph = found
        self._running: JobQueries | None = None

    @property
    def id(self) -> str:
        """The job's id."""
        return self.graph.job_id

    def explain(self, form: Literal["text", "svg"] = "text") -> str:
        """Return the plan: as text, or as a picture (SVG)."""
        return plan_text.picture(self.graph) if form == "svg" else plan_text.text(self.graph)

    def start(self, spark: SparkSession, *, checkpoint: str, url: str, **options: str) -> Job:
        """Start the queries; return at once.

        Args:
            spark: the session. The job makes its own session from it, with RocksDB for its state.
            checkpoint: the folder of the job's progress and state. All of Spark's machines must reach it.
            url: the broker's address, or several with commas.
            options: options of the format ``tms`` for sources and sinks, such as ``tokenFile``.

        Raises:
            JobChanged: the checkpoint is from a job with other sources or other operators with state.
            ValueError: the job can't be run as it is written.
            RuntimeError: it runs already.
        """
        self._start(spark, checkpoint, {"url": url, **options}, is_available=False)
        return self

    def run_available(
        self, spark: SparkSession, *, checkpoint: str, url: str, **options: str
    ) -> Job:
        """Process all messages that the topics have now, and stop.

        Windows that have not ended stay open. Raises the same errors as ``start``.
        """
        self._start(spark, checkpoint, {"url": url, **options}, is_available=True)
        self.await_termination()
        return self

    def _start(
        self,
        spark: SparkSession,
        checkpoint: str,
        options: Mapping[str, str],
        *,
        is_available: bool,
    ) -> None:
        from broker.streams.queries import JobQueries  # noqa: PLC0415 - PySpark takes a second, a plan needs none.

        if self.is_running:
            raise RuntimeError(f"The job {self.id} runs already.")
        self._running = JobQueries.start(
            self.graph, spark, checkpoint, options, is_available=is_available
        )

    @property
    def is_running(self) -> bool:
        """Return whether all queries run; False if one has died."""
        return self._running is not None and self._running.is_running

    def stop(self) -> None:
        """Stop the queries. The next start processes the records whose results they have not published."""
        if self._running is not None:
            self._running.stop()

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until the job has ended; return whether it has.

        Raises:
            StreamingQueryException: a query has died; the others were stopped.
        """
        return self._running is None or self._running.await_termination(timeout_s)

    @property
    def status(self) -> Status | None:
        """The job's progress; None before its start."""
        return None if self._running is None else self._running.status()
