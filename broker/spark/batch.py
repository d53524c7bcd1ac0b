"""A topic as the source of a batch query: one range, which filters may narrow.

Spark passes filters to a reader only if ``spark.sql.python.filterPushdown.enabled`` is on. While it is off, Spark
refuses a reader that has ``pushFilters``. So the option ``pushDownFilters`` chooses the reader that has it. A filter
narrows the range to whole rows, and Spark applies the filter again. So the range may have too many messages, but
never too few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from typing_extensions import override

from broker.client.sync import SyncClient
from broker.client.values import IdPlace, Settings
from broker.model import LOG_KEY_BYTES, LOG_KEY_MIN, MESSAGE_ID_BYTES, MessageId
from broker.places import Place
from broker.spark import task_ranges
from broker.spark.clients import client_of
from broker.spark.format_options import SourceOptions
from broker.spark.offsets import SourceOffset
from broker.spark.record_batches import TaskRange, read_part

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOWER: Final = (GreaterThan, GreaterThanOrEqual, EqualTo)
_UPPER: Final = (LessThan, LessThanOrEqual, EqualTo)


class TmsBatchReader(DataSourceReader):
    """Plans one range of a topic, and reads its parts in executors.

    Args:
        options: the topic and the range.
        schema: the columns, see ``record_batches.arrow_schema``.
        connect: gives the client, in each process that uses the reader.
    """

    def __init__(
        self,
        options: SourceOptions,
        schema: pa.Schema,
        connect: Callable[[Settings], SyncClient] = client_of,
    ) -> None:
        self._options = options
        self._connect = connect
        self._schema = schema
        self._after: MessageId | None = None
        if isinstance(options.start, SourceOffset):
            self._after = options.start.after
        self._through: MessageId | None = None
        if isinstance(options.end, SourceOffset):
            self._through = options.end.after

    @property
    def _client(self) -> SyncClient:
        return self._connect(self._options.settings)

    @override
    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts of the range.

        Raises:
            ValueError: messages have expired before they were read, and ``failOnDataLoss`` is set.
        """
        after, through = self._after, self._through
        if after is not None and through is not None and after >= through:
            return []
        found = self._client.range(
            self._options.topic,
            after=_in_its_generation(after, self._options.start),
            through=_in_its_generation(through, self._options.end),
        )
        if self._options.starts_at_a_message:
            task_ranges.check_nothing_lost(self._options, found.after, found)
        parts = task_ranges.parts_of(self._client, self._options, found)
        return [InputPartition(part) for part in parts]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a part. If there are no parts, Spark passes a partition with the value None."""
        part = partition.value
        if part is None:
            return iter(())
        assert isinstance(part, TaskRange), "as partitions() made it"
        return read_part(self._client, part, self._schema)


def _in_its_generation(
    identifier: MessageId | None, option: SourceOffset | str | None
) -> IdPlace | None:
    """Return an id with the generation that an option's place names, if it names one."""
    named = option.generation if isinstance(option, SourceOffset) else None
    return identifier if identifier is None or named is None else Place(identifier, named)


class PushingBatchReader(TmsBatchReader):
    """A reader that narrows its range by filters on ``id`` and ``timestamp``."""

    @override
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow the range by the filters, and return all of them, so that Spark applies them again."""
        for filter_ in filters:
            after, through = bounds_of(filter_)
            if after is not None:
                self._after = max(self._after or after, after)
            if through is not None:
                self._through = min(self._through or through, through)
        return filters


def bounds_of(filter_: Filter) -> tuple[MessageId | None, MessageId | None]:
    """Return a range ``(after, through]``; outside of it the filter is never true. None: no bound."""
    if not isinstance(filter_, (*_LOWER, *_UPPER)) or filter_.attribute not in (
        ("id",),
        ("timestamp",),
    ):
        return None, None
    value = filter_.value
    if isinstance(value, bytes):
        least, most = value.ljust(MESSAGE_ID_BYTES, b"\0"), value.ljust(LOG_KEY_BYTES, b"\xff")
        after, through = SourceOffset.of(least).after, most[:LOG_KEY_BYTES] + LOG_KEY_MIN
    elif isinstance(value, datetime):
        time_us = (value - _EPOCH) // timedelta(microseconds=1)
        after, through = (
            SourceOffset.at_time(time_us).after,
            SourceOffset.at_time(time_us + 1).after,
        )
    else:
        return None, None
    return (
        after if isinstance(filter_, _LOWER) else None,
        through if isinstance(filter_, _UPPER) else None,
    )
