"""A topic as the source of a streaming query: this module plans the range of the next micro-batch.

Spark asks for the latest offset again and again, and most often when the topic is silent. So the source asks the
broker for a range only if there may be one. Else it waits in a long poll, which the broker answers when a message
comes::

    latestOffset ──> there may be messages: range ──> messages: the end of a micro-batch
         ^                                        ──> none, and a heart-beat is due: the heart-beat is the end
         │                                        ──> none, or fewer than wanted ──┐
         └── long poll behind the latest id, at most WAIT_S <──────────────────────┘

A wait is short, because Spark asks the sources of a join one after the other. With Trigger.AvailableNow the latest id
at the start is the goal. Then the source does not wait, and gives no heart-beats (``beats.py``).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from typing_extensions import override

from broker.client.sync import SyncClient
from broker.client.values import Settings, TopicRange
from broker.errors import TopicRecreated
from broker.model import LOG_KEY_BYTES, LOG_KEY_MIN, MessageId, log_key_after
from broker.places import Place
from broker.spark import task_ranges
from broker.spark.beats import Beat, Silence, beat_batch
from broker.spark.clients import client_of
from broker.spark.format_options import SourceOptions
from broker.spark.offsets import (
    Offset,
    SourceOffset,
    beat_ms_of,
    first_offset,
    next_offset,
    offset_at,
    place_in,
    range_of,
)
from broker.spark.record_batches import TaskRange, read_part

WAIT_S: Final = 0.2
WAIT_S_MIN: Final = 0.001
"""The shortest wait for a heart-beat that is almost due."""


@contextmanager
def _of_one_topic() -> Iterator[None]:
    """Say what a query does about TopicRecreated. Raises ValueError."""
    try:
        yield
    except TopicRecreated as error:
        raise ValueError(
            f"{error.message} The checkpoint belongs to the former topic: use a new checkpoint."
        ) from error


class TmsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches in the driver, and reads their parts in executors.

    Args:
        options: the topic and the limits.
        schema: the columns, see ``record_batches.arrow_schema``.
        monotonic: the clock of ``maxTriggerDelay`` and ``heartbeatInterval``, in seconds.
        connect: gives the client, in each process that uses the reader.
    """

    def __init__(
        self,
        options: SourceOptions,
        schema: pa.Schema,
        monotonic: Callable[[], float] = time.monotonic,
        connect: Callable[[Settings], SyncClient] = client_of,
    ) -> None:
        self._options = options
        self._schema = schema
        self._monotonic = monotonic
        self._connect = connect
        self._first: Offset | None = None
        self._goal: MessageId | None = None
        self._latest: Place | None = None
        """The latest id of the topic in the broker's last answer."""
        self._is_at_end = False
        """True if the broker's last answer had no message behind the last micro-batch."""
        self._is_waiting = False
        """True if that answer had some messages, but fewer than ``messages_min``."""
        self._planned: TopicRange | None = None
        self._planned_at: float | None = None
        self._silence: Silence | None = None
        """The present silence of the topic, if there shall be heart-beats."""

    @property
    def _client(self) -> SyncClient:
        return self._connect(self._options.settings)

    @override
    def initialOffset(self) -> Offset:
        """Return the start of a new query. It is always the same, as Spark asks twice."""
        if self._first is None:
            start = self._options.start
            named = start.generation if isinstance(start, SourceOffset) else None
            after = None if named is None else Place(LOG_KEY_MIN + LOG_KEY_MIN, named)
            found = self._client.range(self._options.topic, after=after)
            if not isinstance(start, SourceOffset):
                start = SourceOffset(found.earliest if start == "earliest" else found.latest)
            self._first = first_offset(self._options.topic_name, found.generation, start.after)
        return self._first

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        """Take the present latest id as the end of the query."""
        self._goal = self._client.range(self._options.topic).latest

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        """Return one of the limits, so that Spark knows of a limit; ``latestOffset`` applies all of them."""
        if self._options.messages_max is not None:
            return ReadMaxRows(self._options.messages_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    @override
    def reportLatestOffset(self) -> Offset | None:
        """Return the latest known offset, without a call: Spark asks for it as often as for the next offset."""
        if self._latest is None:
            return None
        return offset_at(self._options.topic_name, self._latest.generation, self._latest.id)

    @override
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the end of the next micro-batch, or ``start`` if there is none yet.

        Raises:
            ValueError: the checkpoint is of another topic, or of an earlier topic of this name.
        """
        after = place_in(start, self._options.topic_name)
        if self._is_waiting:
            threading.Event().wait(min(WAIT_S, max(0.0, self._wait_s())))
        elif self._is_at_end and self._beat_in_s() > 0 and not self._has_come():
            return start
        asked_s = self._monotonic()
        found = self._range(after, limited=not isinstance(limit, ReadAllAvailable))
        self._latest = Place(found.latest, after.generation)
        if self._options.snapshot is not None:
            found = found._replace(
                through=task_ranges.seen_through(self._client, self._options, found)
            )
        begin = found.after
        if start.get("init") and self._starts_with_what_is_there:
            begin = max(begin, found.earliest)
            found = found._replace(after=begin, lost=0)
        is_nothing = found.through <= begin
        self._is_at_end = is_nothing and self._goal is None
        self._is_waiting = not is_nothing and self._is_too_small(found)
        if is_nothing:
            return self._beat(start, begin, found.latest, asked_s)
        if self._is_waiting:
            return start
        self._planned, self._planned_at = found, self._monotonic()
        return next_offset(start, begin, found.through)

    @property
    def _starts_with_what_is_there(self) -> bool:
        return self._options.start != "latest" and not self._options.starts_at_a_message

    def _has_come(self) -> bool:
        """Wait for a message behind the latest id, and return whether one has come."""
        assert self._latest is not None, "asked before"
        start = self._latest._replace(
            id=log_key_after(self._latest.id[:LOG_KEY_BYTES]) + LOG_KEY_MIN
        )
        wait_s = max(WAIT_S_MIN, min(WAIT_S, self._beat_in_s()))
        with _of_one_topic():
            return bool(self._client.poll(self._options.topic, start, limit=1, wait_s=wait_s))

    def _beat_in_s(self) -> float:
        """Return the seconds until the next heart-beat is due, if no message comes; infinite: none is planned."""
        return math.inf if self._silence is None else self._silence.due_s - self._monotonic()

    def _beat(self, start: Offset, begin: MessageId, latest: MessageId, asked_s: float) -> Offset:
        """Return the end of a micro-batch that is a heart-beat, if one is due; else return ``start``.

        The broker was asked at ``asked_s``, and had no message to read behind ``begin``. There may be messages that
        the query's transaction can't see yet. It may see them later, so this is no silence.
        """
        interval_s, silence = self._options.beat_interval_s, self._silence
        if interval_s is None or self._goal is not None or not any(latest) or latest > begin:
            self._silence = None
            return start
        if silence is None or silence.latest != latest:
            told_s, beat_ms = self._monotonic(), start.get("beat", 0)
            self._silence = Silence.begin(latest, told_s, interval_s=interval_s, beat_ms=beat_ms)
            return start
        if asked_s < silence.due_s:
            return start
        self._silence = silence._replace(due_s=asked_s + interval_s)
        return next_offset(start, begin, begin, silence.beat_ms(asked_s))

    def _range(self, after: Place, *, limited: bool) -> TopicRange:
        options = self._options
        with _of_one_topic():
            return self._client.range(
                options.topic,
                after=after,
                through=self._goal,
                messages=options.messages_max if limited else None,
                size=options.bytes_max if limited else None,
            )

    def _is_too_small(self, found: TopicRange) -> bool:
        """Return whether a micro-batch shall wait for more messages. With a goal it need not: no more will come."""
        is_small = found.messages < self._options.messages_min
        return is_small and self._goal is None and self._wait_s() > 0

    def _wait_s(self) -> float:
        """Return how much longer a micro-batch that is too small may wait. The first one does not wait."""
        if not self._options.messages_min or self._planned_at is None:
            return 0.0
        return self._planned_at + self._options.delay_s_max - self._monotonic()

    @override
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the parts of a micro-batch, also of one that an earlier run has planned.

        Raises:
            ValueError: messages have expired before they were read, and ``failOnDataLoss`` is set; or the checkpoint is
                of another topic, or of an earlier topic of this name.
        """
        last = place_in(end, self._options.topic_name)
        parts, beat_ms = self._parts(start, end, last), beat_ms_of(start, end)
        if beat_ms is not None:
            parts.append(InputPartition(Beat(self._options.topic, last.id, beat_ms)))
        return parts

    def _parts(self, start: Offset, end: Offset, last: Place) -> list[InputPartition]:
        after, through = range_of(start, end)
        if after >= through:
            return []
        begin = last._replace(id=after)
        found, self._planned = self._planned, None
        if found is None or (found.after, found.through) != (after, through):
            with _of_one_topic():
                found = self._client.range(self._options.topic, after=begin, through=through)
        task_ranges.check_nothing_lost(self._options, after, found)
        parts = task_ranges.parts_of(self._client, self._options, found)
        return [InputPartition(part) for part in parts]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a part, or a heart-beat."""
        part: Any = partition.value
        if isinstance(part, Beat):
            return iter((beat_batch(part, self._schema),))
        assert isinstance(part, TaskRange), "as partitions() made it"
        return read_part(self._client, part, self._schema)
