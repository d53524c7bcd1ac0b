"""Run a job: its queries, their checkpoints, and their progress."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery
from typing_extensions import override

from broker.escapes import escaped
from broker.model import message_id_from_hex, timestamp_of
from broker.spark import publish
from broker.streams import changes, graph
from broker.streams.causes import cause_of
from broker.streams.compiler import Compiler

ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SETTINGS: Final = {
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.session.timeZone": "UTC",  # A text without a zone is the same moment in every session.
}
LETTERS: Final = "letters"
POLL_S: Final = 1.0
WAIT_S_MIN: Final = 0.001
"""Spark refuses a wait of 0 ms."""
PAUSE_S: Final = 0.05
NO_PATH: Final = "PATH_NOT_FOUND"
INITIALIZING: Final = "Initializing sources"
"""Spark's message for a query that has no source yet."""


@dataclass(frozen=True)
class QueryStatus:
    """The progress of the query of one end.

    Attributes:
        name: the name of the end.
        is_running: True if the query runs.
        error: the cause if the query has died.
        batch: the number of its last micro-batch.
        read_per_s, published_per_s: messages a second, in that micro-batch.
        lag_s: the time between the newest message of its topics and the last message that it has read.
        watermark: the time up to which windows are closed, RFC 3339.
        late: records since its start whose window was closed.
        skipped: records since its start that went to the dead letters.
        state_rows, state_bytes: the size of its operators' state.
    """

    name: str
    is_running: bool
    error: str | None = None
    batch: int | None = None
    read_per_s: float = 0.0
    published_per_s: float = 0.0
    lag_s: float | None = None
    watermark: str | None = None
    late: int = 0
    skipped: int = 0
    state_rows: int = 0
    state_bytes: int = 0


@dataclass(frozen=True)
class Status:
    """The progress of a job."""

    job: str
    is_running: bool
    queries: Sequence[QueryStatus]

    def as_dict(self) -> dict[str, Any]:
        """Return the status as a dict for JSON."""
        return asdict(self)


class _QueryCounts(StreamingQueryListener):
    """Adds up the counts of the micro-batches of a job's queries."""

    def __init__(self) -> None:
        self.late: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()

    @override
    def onQueryStarted(self, event: Any) -> None:
        """Do nothing: a new query has no counts."""

    @override
    def onQueryProgress(self, event: Any) -> None:
        query = str(event.progress.id)
        found = event.progress.observedMetrics.get(LETTERS)
        if found is not None:
            self.late[query] += found["late"] or 0
            self.skipped[query] += found["skipped"] or 0
        for operator in event.progress.stateOperators:
            self.late[query] += operator.numRowsDroppedByWatermark

    @override
    def onQueryTerminated(self, event: Any) -> None:
        """Do nothing: the counts stay."""


class JobQueries:
    """The queries of a job."""

    def __init__(
        self,
        job_id: str,
        session: SparkSession,
        queries: Mapping[str, StreamingQuery],
        counts: _QueryCounts,
    ) -> None:
        """Keep the queries; ``start`` makes them."""
        self._job_id = job_id
        self._session = session
        self._queries = queries
        self._counts = counts

    @classmethod
    def start(
        cls,
        found: graph.Graph,
        spark: SparkSession,
        checkpoint: str,
        options: Mapping[str, str],
        *,
        is_available: bool,
    ) -> JobQueries:
        """Start all queries of a job. Raises JobChanged, ValueError."""
        session = _session(spark)
        starter = _Starter(found, session, checkpoint.rstrip("/"), dict(options), is_available)
        frames = starter.frames()
        for end in found.ends:
            starter.check(end)
        counts = _QueryCounts()
        session.streams.addListener(counts)
        queries: dict[str, StreamingQuery] = {}
        try:
            for end in found.ends:
                queries[end.name] = query = starter.start(end, frames[end.name])
                _wait_for_sources(query)
        except BaseException:
            for query in queries.values():
                query.stop()
            session.streams.removeListener(counts)
            raise
        return cls(found.job_id, session, queries, counts)

    @property
    def is_running(self) -> bool:
        """Return whether all queries run."""
        return all(query.isActive for query in self._queries.values())

    def stop(self) -> None:
        """Stop the queries."""
        for query in self._queries.values():
            query.stop()

    def await_termination(self, timeout_s: float | None) -> bool:
        """Wait until all queries have ended; return whether they have. Raises StreamingQueryException."""
        ends_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        waiting = deque(self._queries.values())
        try:
            while waiting:
                left_s = ends_s - time.monotonic()
                if left_s <= 0:
                    return False
                wait_s: Any = max(
                    min(POLL_S, left_s), WAIT_S_MIN
                )  # Spark takes parts of a second, too.
                if not waiting[0].awaitTermination(wait_s):
                    waiting.rotate(-1)
                else:
                    waiting.popleft()
        except StreamingQueryException:
            self.stop()
            raise
        return True

    def status(self) -> Status:
        """Return the job's progress."""
        queries = [self._status(name, query) for name, query in self._queries.items()]
        return Status(self._job_id, self.is_running, queries)

    def _status(self, name: str, query: StreamingQuery) -> QueryStatus:
        error = query.exception()
        progress = query.lastProgress
        status = QueryStatus(
            name,
            query.isActive,
            None if error is None else cause_of(str(error)),
            late=self._counts.late[str(query.id)],
            skipped=self._counts.skipped[str(query.id)],
        )
        if progress is None:
            return status
        return replace(
            status,
            batch=progress.batchId,
            read_per_s=round(progress.processedRowsPerSecond or 0.0, 1),
            published_per_s=round(_published_per_s(progress), 1),
            lag_s=_lag_s(progress),
            watermark=progress.eventTime.get("watermark"),
            state_rows=sum(each.numRowsTotal for each in progress.stateOperators),
            state_bytes=sum(each.memoryUsedBytes for each in progress.stateOperators),
        )


class _Starter:
    """Starts the queries of a job, one for each end."""

    def __init__(
        self,
        found: graph.Graph,
        session: SparkSession,
        checkpoint: str,
        options: dict[str, str],
        is_available: bool,
    ) -> None:
        self._graph = found
        self._session = session
        self._checkpoint = checkpoint
        self._options = options
        self._is_available = is_available

    def frames(self) -> dict[str, DataFrame]:
        """Return the frames of all ends. Raises ValueError if a frame can't be made; no query runs yet."""
        frames = {}
        known: set[str] = set()
        for end in self._graph.ends:
            names = {operator.name for operator in graph.upstream(end)}
            compiler = Compiler(
                self._graph,
                self._session,
                self._options,
                names - known,
                heart_beats=not self._is_available and _is_timed(end),
            )
            frames[end.name] = compiler.messages(end)
            known |= names
        return frames

    def check(self, end: graph.Sink) -> None:
        """Store the form of an end, if the end may go on from its checkpoint. Raises JobChanged."""
        path = f"{self._checkpoint}/job/{end.name}"
        wanted = now = changes.form_of(end)
        stored = None
        lines = self._lines(path)
        if lines:
            stored = changes.decode(lines[0].value)
            batch = self._last_batch(end)
            before = changes.settled(stored, batch)
            changes.check(self._graph.job_id, end.name, before, now)
            wanted = changes.pending(before, now, batch)
        if wanted != stored:
            text = sf.lit(changes.encode(wanted)).alias("value")
            self._session.range(1, numPartitions=1).select(text).write.mode("overwrite").text(path)

    def _lines(self, path: str) -> list[Any]:
        """Return the lines of all files in a folder; none if there is no such folder."""
        try:
            return self._session.read.text(path).select("value", "_metadata.file_name").collect()
        except AnalysisException as error:
            if error.getCondition() != NO_PATH:
                raise
            return []

    def _last_batch(self, end: graph.Sink) -> int:
        """Return the last micro-batch that an end has committed; -1: none."""
        lines = self._lines(f"{self._checkpoint}/{end.name}/commits")
        return max((int(line.file_name) for line in lines), default=-1)

    def start(self, end: graph.Sink, frame: DataFrame) -> StreamingQuery:
        """Start the query of an end."""
        options = self._options
        if "headers" in frame.columns:
            counted = _counted(frame)
            # A letter without a topic is only counted. The values of a print have no topic, either.
            frame = counted if end.topic is None else counted.where("topic IS NOT NULL")
        elif end.topic is not None:  # There are no letters, so all rows go to one topic.
            frame, options = frame.drop("topic"), {**options, "topic": end.topic}
        else:
            frame = frame.withColumn("headers", sf.lit(None).cast("map<string, binary>"))
        writer = frame.writeStream.queryName(f"{self._graph.job_id}/{end.name}").option(
            "checkpointLocation", f"{self._checkpoint}/{end.name}"
        )
        if end.topic is None:
            writer = writer.foreachBatch(self._printed)
        else:
            writer = writer.format("tms").options(**options)
        if self._is_available:
            writer = writer.trigger(availableNow=True)
        return writer.start()

    def _printed(self, frame: DataFrame, batch: int) -> None:
        frame.persist()
        try:
            for row in frame.where("headers IS NULL").collect():
                shown = [_text(part) for part in (row.key, row.value) if part is not None]
                print("\t".join(shown), flush=True)  # noqa: T201 - The user asked for it by print().
            letters = frame.where("headers IS NOT NULL AND topic IS NOT NULL")
            publish(letters, batch, **self._options)
        finally:
            frame.unpersist()


def _text(part: Any) -> str:
    text = bytes(part).decode("utf-8", "backslashreplace")
    return escaped(text) if sys.stdout.isatty() else text


def _session(spark: SparkSession) -> SparkSession:
    """Return a new session with the settings of the user's session, and those that a job needs."""
    session = spark.newSession()
    for name, value in {**spark.conf.getAll, **SETTINGS}.items():
        if session.conf.isModifiable(name):
            session.conf.set(name, value)
    return session


def _wait_for_sources(query: StreamingQuery) -> None:
    """Wait until a query has its sources, or has died.

    A query starts a process of Python for each source, and Spark waits 10 s for a process. On a small machine many
    processes at once take longer, so queries start one after the other.
    """
    pause = threading.Event()
    while query.isActive and query.status["message"] == INITIALIZING:
        pause.wait(PAUSE_S)


def _counted(frame: DataFrame) -> DataFrame:
    """Return a frame that counts its letters as Spark runs it."""
    reason = sf.element_at("headers", sf.lit("reason")).cast("string")
    return frame.observe(
        LETTERS,
        sf.count_if(reason == "late").alias("late"),
        sf.count_if(reason.isin("decode", "error")).alias("skipped"),
    )


def _is_timed(end: graph.Sink) -> bool:
    return any(
        isinstance(each, graph.Process)
        or (isinstance(each, graph.Aggregate | graph.Join) and each.windows is not None)
        for each in graph.upstream(end)
    )


def _published_per_s(progress: Any) -> float:
    seconds = progress.durationMs.get("triggerExecution", 0) / 1000
    rows = max(progress.sink.numOutputRows, 0)
    return float(rows / seconds) if seconds else 0.0


def _lag_s(progress: Any) -> float | None:
    """Return the lag of the slowest source, in seconds."""
    lags = []
    for source in progress.sources:
        ends = [json.loads(text) for text in (source.endOffset, source.latestOffset) if text]
        if len(ends) == 2 and all(isinstance(end, dict) and "id" in end for end in ends):
            read, latest = (timestamp_of(message_id_from_hex(end["id"])) for end in ends)
            lags.append(max(latest - read, 0) / 1000)
    return max(lags, default=None)
