"""Topics as sinks: tasks store messages in stages, and one publish makes them visible, exactly once.

::

    executor  write   task attempt ──> stores its rows in its own stages, one for each topic
                                   ──> sends the driver the stages, the query's id and the number of the batch
    driver    commit  takes the stages of the attempts that count, in the order of partitions
                                   ──> one publish for each topic; its producer is the query, its number the batch

The broker knows a publish by the query's id and the batch's number. If the driver dies after the publish, and before
Spark has noted the commit, Spark runs the same batch again. Then the broker takes the second publish for a duplicate
and stores nothing. No publish names the stages of failed attempts or of duplicates, so no consumer ever sees their
messages. The broker's sweeper removes them.

A task with only a few rows puts them into its commit message. If all tasks do so, the commit publishes these rows
without stages. A small batch then needs half as many requests, and the broker makes no payload log for each task.

A batch that goes to several topics is published once in each of them, one after the other.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType
from typing_extensions import override

from broker.client.sync import SyncClient, SyncStage
from broker.client.values import Settings
from broker.spark.clients import client_of
from broker.spark.format_options import SinkOptions, SinkProducer
from broker.spark.sink_rows import MessageRun, Row, check_columns, chunks_of, runs_of, size_of

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Spark's names for the query's id and the batch's number in the properties of a task."""

Connect = Callable[[Settings], SyncClient]

FEW_BYTES_MAX: Final = 64 << 10
FEW_MESSAGES_MAX: Final = 1_000
"""The limits for the rows that a task puts into its commit message. For all tasks of a commit they are ten times this."""


class StoredMessages(NamedTuple):
    """The messages of a task for a topic: the id of a stage, or a few messages themselves."""

    topic: str
    stage: str = ""
    few: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """The messages of one task attempt for each of its topics. ``producer`` None: the task is of a batch query."""

    stored: tuple[StoredMessages, ...]
    producer: SinkProducer | None = None


class _Writer:
    """The steps that both writers have. Spark copies a writer to the tasks; the driver's writer commits.

    Args:
        options: the options of the sink, with the topic.
        schema: the columns of the query's result.
        connect: gives the client, in each process that uses the writer.

    Raises:
        ValueError: the columns can't be published.
    """

    def __init__(
        self, options: SinkOptions, schema: StructType, connect: Connect = client_of
    ) -> None:
        check_columns(schema, options.topic)
        self._options = options
        self._connect = connect

    def _store(self, rows: Iterator[pa.RecordBatch]) -> tuple[StoredMessages, ...]:
        return store(self._connect(self._options.settings), rows, self._options.topic)

    def _publish(self, staged: Sequence[Staged], producer: SinkProducer) -> None:
        publish(self._connect(self._options.settings), staged, producer)


class TmsStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Publishes the micro-batches of a streaming query."""

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Store a task's rows in stages."""
        return Staged(self._store(iterator), producer_of_task())

    @override
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Publish the tasks' messages, once."""
        staged = complete(messages)
        producers = {one.producer for one in staged}
        assert len(producers) == 1, f"tasks of one batch name one query and batch: {producers}"
        (producer,) = producers
        assert producer is not None, "tasks of a stream know their query"
        assert producer.number == batchId, f"tasks of batch {producer.number}, not of {batchId}"
        self._publish(staged, producer)

    @override
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Leave the stages to the broker's sweeper: no publish names them."""


class TmsBatchWriter(_Writer, DataSourceArrowWriter):
    """Publishes the result of a batch query, all of it or nothing.

    ``options.producer`` is given if the query may be repeated. Else each writer is a producer of its own: so the client
    can safely send the publish again if no answer comes.
    """

    def __init__(
        self, options: SinkOptions, schema: StructType, connect: Connect = client_of
    ) -> None:
        super().__init__(options, schema, connect)
        self._producer = options.producer or SinkProducer(uuid.uuid4().hex, 0)

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Store a task's rows in stages."""
        return Staged(self._store(iterator))

    @override
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish the tasks' messages."""
        self._publish(complete(messages), self._producer)

    @override
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Leave the stages to the broker's sweeper: no publish names them."""


def producer_of_task() -> SinkProducer:
    """Return the query and the batch that this task belongs to. Raises RuntimeError outside of a stream."""
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(QUERY_ID)
    number = None if context is None else context.getLocalProperty(BATCH_ID)
    if query is None or number is None:
        raise RuntimeError("This task belongs to no streaming query, so its batch has no number.")
    return SinkProducer(query, int(number))


def store(
    client: SyncClient, batches: Iterator[pa.RecordBatch], topic: str | None
) -> tuple[StoredMessages, ...]:
    """Store rows in new stages, one for each topic. If there are only a few, return them without a stage.

    Each request has an idempotency key, so that the client may send it again when no answer comes.
    """
    runs = (run for batch in batches for run in runs_of(batch, topic))
    few: list[MessageRun] = []
    size = count = 0
    with ExitStack() as stack:
        stages: dict[str, SyncStage] = {}
        for run in runs:
            few.append(run)
            size, count = size + run.nbytes, count + len(run.values)
            if stages or run.ttl_s is not None or size > FEW_BYTES_MAX or count > FEW_MESSAGES_MAX:
                for each in few:
                    if each.topic not in stages:
                        stages[each.topic] = stack.enter_context(client.stage(each.topic))
                    _store_run(stages[each.topic], each)
                few.clear()
        if stages:
            return tuple(StoredMessages(name, stage.id) for name, stage in stages.items())
    messages: dict[str, list[Row]] = {}
    for run in few:
        messages.setdefault(run.topic, []).extend(run.messages())
    return tuple(StoredMessages(name, few=tuple(values)) for name, values in messages.items())


def _store_run(stage: SyncStage, run: MessageRun) -> None:
    for chunk in chunks_of(run):
        stage.store(chunk, ttl_s=run.ttl_s, idempotency_key=uuid.uuid4().hex)


def complete(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    """Return the commit messages of a batch's tasks, in the order of partitions."""
    staged = [message for message in messages if isinstance(message, Staged)]
    assert len(staged) == len(messages), "Spark commits when every task has succeeded"
    return staged


def publish(client: SyncClient, staged: Sequence[Staged], producer: SinkProducer) -> None:
    """Publish the messages of tasks, in their order, with a producer's number; in each topic all of them or none."""
    by_topic: dict[str, list[StoredMessages]] = {}
    for one in staged:
        for stored in one.stored:
            by_topic.setdefault(stored.topic, []).append(stored)
    for topic, parts in by_topic.items():
        few = [message for part in parts for message in part.few]
        size = sum(map(size_of, few))
        fits = len(few) <= 10 * FEW_MESSAGES_MAX and size <= 10 * FEW_BYTES_MAX
        if fits and not any(part.stage for part in parts):
            client.publish(topic, few, producer=producer)
        else:
            stages = [part.stage or _stored_late(client, part) for part in parts]
            client.publish_stages(topic, stages, producer=producer)


def _stored_late(client: SyncClient, part: StoredMessages) -> str:
    """Store the few messages of a task in a stage, since the publish names stages; return the stage."""
    with client.stage(part.topic) as stage:
        stage.store(part.few, idempotency_key=uuid.uuid4().hex)
        return stage.id
