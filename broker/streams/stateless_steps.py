"""The steps of a stream without state, which run one after the other in one pass over the records.

A step takes a record and gives none, one or several. No step gives None. If a function raises, the record fails at
that step.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from broker.moments import MOMENT_MAX_MS, SECONDS, checked_ms, datetime_ms
from broker.streams.failures import Failures
from broker.streams.stream_records import Letter, StreamRecord
from broker.streams.windows import Window

TIME_MS_MIN: Final = -62_135_596_800_000
"""The first ms of the year 1. The last one of the year 9999 is ``moments.MOMENT_MAX_MS``."""
_PLACE: Final = struct.Struct(">I")

Taken = Iterator[StreamRecord | Letter]
Take = Callable[[StreamRecord], Iterator[StreamRecord]]


class Step(NamedTuple):
    """One step: its name in the plan, and its function."""

    name: str
    take: Take


@dataclass(frozen=True)
class Mapping:
    """Replaces each value."""

    function: Callable[[Any], Any]

    def __call__(self, record: StreamRecord) -> Iterator[StreamRecord]:
        """Yield the record with its new value."""
        value = self.function(record.value)
        if value is not None:
            yield record.having(value)


@dataclass(frozen=True)
class FlatMapping:
    """Replaces each value by several."""

    function: Callable[[Any], Any]

    def __call__(self, record: StreamRecord) -> Iterator[StreamRecord]:
        """Yield a record for each value."""
        for place, value in enumerate(self.function(record.value) or ()):
            if value is not None:
                found = record.having(value)
                found.at = record.at + _PLACE.pack(place)
                yield found


@dataclass(frozen=True)
class Filtering:
    """Passes on the values for which a function is true."""

    function: Callable[[Any], Any]

    def __call__(self, record: StreamRecord) -> Iterator[StreamRecord]:
        """Yield the record, or nothing."""
        if self.function(record.value):
            yield record


@dataclass(frozen=True)
class Tapping:
    """Calls a function with each value, and passes all values on."""

    function: Callable[[Any], Any]

    def __call__(self, record: StreamRecord) -> Iterator[StreamRecord]:
        """Yield the record."""
        self.function(record.value)
        yield record


@dataclass(frozen=True)
class Keying:
    """Gives each record a key."""

    function: Callable[[Any], Any]

    def __call__(self, record: StreamRecord) -> Iterator[StreamRecord]:
        """Yield the record with its key."""
        record.key = self.function(record.value)
        yield record


@dataclass(frozen=True)
class Timing:
    """Gives each record a time from its value: ms since 1970, or a datetime."""

    function: Callable[[Any], Any]

    def __call__(self, record: StreamRecord) -> Iterator[StreamRecord]:
        """Yield the record with its time."""
        record.time_ms = time_ms_of(self.function(record.value))
        yield record


@dataclass(frozen=True)
class ValueFunction:
    """Makes one value of key, value and window."""

    function: Callable[[Any, Any, Window | None], Any]

    def __call__(self, record: StreamRecord) -> Iterator[StreamRecord]:
        """Yield the record with its new value."""
        value = self.function(record.key, record.value, record.window)
        if value is not None:
            yield record.having(value)


@dataclass(frozen=True)
class PairFunction:
    """Makes one value of the two values of a pair."""

    function: Callable[[Any, Any], Any]

    def __call__(self, record: StreamRecord) -> Iterator[StreamRecord]:
        """Yield the record with its new value."""
        value = self.function(*record.value)
        if value is not None:
            yield record.having(value)


def time_ms_of(time: Any) -> int:
    """Return a time in ms.

    Raises TypeError if it is no time, ValueError for a datetime without a time zone, or a time outside the years 1 to
    9999. Such a time can't be a timestamp of Spark, and Spark would stop the job.
    """
    if isinstance(time, datetime):
        if time.utcoffset() is None:
            datetime_ms(time)  # It raises the error of every door.
        return round(time.timestamp() * 1000)
    if isinstance(time, int | float) and not isinstance(time, bool):
        if not TIME_MS_MIN <= time <= MOMENT_MAX_MS:
            raise ValueError(f"the time {time} is outside the years 1 to 9999: give ms since 1970")
        return checked_ms(int(time)) if int(time) in SECONDS else int(time)
    raise TypeError(f"a {type(time).__name__} is no time: give ms since 1970, or a datetime")


def results(given: Taken, failures: Failures, name: str, record: StreamRecord) -> Taken:
    """Yield what an operator gives for a record. If it raises, yield the record's letter at last. Raises Failed."""
    while True:
        try:
            following = next(given, None)
        except BaseException as error:  # noqa: BLE001 - The user's function may raise anything.
            yield failures.letter("error", name, record, error)
            return
        if following is None:
            return
        yield following


def run(
    steps: Sequence[Step], failures: Failures, record: StreamRecord | Letter, at: int = 0
) -> Taken:
    """Run the steps from place ``at`` on, and yield the results of a record. Raises Failed."""
    if isinstance(record, Letter) or at == len(steps):
        yield record
        return
    step = steps[at]
    for following in results(step.take(record), failures, step.name, record):
        yield from run(steps, failures, following, at + 1)
