"""Topics as sinks: tasks store, one publish makes it visible, and it does so once.

::

    executor  write   task attempt ──> stores its rows in a stage of its own, one for each topic
                                   ──> tells the driver the stages, the query and the number of the batch
    driver    commit  the stages of the attempts that count, in the order of partitions
                                   ──> one publish for each topic, as the query's number so and so

A publish is known to the broker by the query's id and the batch's number. When the driver dies between the
publish and Spark's note of it, Spark runs the same batch once more, and the broker takes that publish for a
duplicate and stores nothing. Stages of attempts that failed, or whose publish was a duplicate, are in no
publish, so that nothing of them is ever seen; the broker sweeps them.

A task that has only a few rows hands them over with its message to the commit. If all do, the commit publishes them
by themselves: that spares a small batch half of its requests, and the broker a payload log for each of its tasks.

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
"""What Spark calls the query and the batch in the properties of a task."""

Connect = Callable[[Settings], SyncClient]


FEW_BYTES_MAX: Final = 64 << 10
FEW_MESSAGES_MAX: Final = 1_000
"""What a task hands over to the commit instead of storing it; all tasks of a commit together ten times that."""


class StoredMessages(NamedTuple):
    """What a task has for a topic: the id of a stage, or a few messages themselves."""

    topic: str
    stage: str = ""
    few: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """What one task attempt has for each of its topics. ``producer`` None: of no stream."""

    stored: tuple[StoredMessages, ...]
    producer: SinkProducer | None = None


class TmsStreamWriter(DataSourceStreamArrowWriter):
    """Publishes the micro-batches of a streaming query.

    Args:
        options: where to.
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

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Store a task's rows in stages."""
        producer = producer_of_task()
        return Staged(
            store(self._connect(self._options.settings), iterator, self._options.topic), producer
        )

    @override
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Publish what the tasks have stored, once."""
        staged = complete(messages)
        producers = {one.producer for one in staged}
        assert len(producers) == 1, f"tasks of one batch name one query and batch: {producers}"
        (producer,) = producers
        assert producer is not None, "tasks of a stream know their query"
        assert producer.number == batchId, f"tasks of batch {producer.number}, not of {batchId}"
        publish(self._connect(self._options.settings), staged, producer)

    @override
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Leave the stages to the broker's sweeper: no publish names them."""


class TmsBatchWriter(DataSourceArrowWriter):
    """Publishes the result of a batch query, all of it or nothing.

    Args:
        options: where to, and the number of the publish if the query may be repeated.
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
        # One of its own makes the publish safe to send again when no answer comes.
        self._producer = options.producer or SinkProducer(uuid.uuid4().hex, 0)

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Store a task's rows in stages."""
        return Staged(store(self._connect(self._options.settings), iterator, self._options.topic))

    @override
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish what the tasks have stored."""
        publish(self._connect(self._options.settings), complete(messages), self._producer)

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
    """Store rows in new stages, one for each topic; a few rows are returned instead.

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
    """Return what the tasks of a batch tell, in the order of partitions."""
    staged = [message for message in messages if isinstance(message, Staged)]
    assert len(staged) == len(messages), "Spark commits when every task has succeeded"
    return staged


def publish(client: SyncClient, staged: Sequence[Staged], producer: SinkProducer) -> None:
    """Publish what tasks have, in their order, as a producer's number; in each topic all of it or nothing."""
    by_topic: dict[str, list[StoredMessages]] = {}
    for one in staged:
        for stored in one.stored:
            by_topic.setdefault(stored.topic, []).append(stored)
    for topic, parts in by_topic.items():
        few = [message for part in parts for message in part.few]
        size = sum(map(size_of, few))
        is_little = len(few) <= 10 * FEW_MESSAGES_MAX and size <= 10 * FEW_BYTES_MAX
        if is_little and not any(part.stage for part in parts):
            client.publish(topic, few, producer=producer)
        else:
            stages = [part.stage or _stored_late(client, part) for part in parts]
            client.publish_stages(topic, stages, producer=producer)


def _stored_late(client: SyncClient, part: StoredMessages) -> str:
    """Store the few messages of a task beside which others have many; return the stage."""
    with client.stage(part.topic) as stage:
        stage.store(part.few, idempotency_key=uuid.uuid4().hex)
        return stage.id
