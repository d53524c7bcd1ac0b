"""The steps of a stream without state, one after the other in one pass over the records.

A step takes a record and gives none, one or several; a None is given by no step. A function that raises makes
the record fail at that step.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from broker.streams.letters import Failures
from broker.streams.records import Letter, Record
from broker.streams.windows import Window

_PLACE: Final = struct.Struct(">I")

Taken = Iterator[Record | Letter]
Take = Callable[[Record], Iterator[Record]]


class Step(NamedTuple):
    """One step: its name in the plan, and what it does."""

    name: str
    take: Take


def mapping(function: Callable[[Any], Any]) -> Take:
    """Return a step that gives another value in the place of each."""

    def take(record: Record) -> Iterator[Record]:
        value = function(record.value)
        if value is not None:
            yield record.having(value)

    return take


def flat_mapping(function: Callable[[Any], Any]) -> Take:
    """Return a step that gives several values for each."""

    def take(record: Record) -> Iterator[Record]:
        for place, value in enumerate(function(record.value) or ()):
            if value is not None:
                found = record.having(value)
                found.at = record.at + _PLACE.pack(place)
                yield found

    return take


def filtering(function: Callable[[Any], Any]) -> Take:
    """Return a step that gives on those of which a function is true."""

    def take(record: Record) -> Iterator[Record]:
        if function(record.value):
            yield record

    return take


def tapping(function: Callable[[Any], Any]) -> Take:
    """Return a step that calls a function, and gives on all."""

    def take(record: Record) -> Iterator[Record]:
        function(record.value)
        yield record

    return take


def keying(function: Callable[[Any], Any]) -> Take:
    """Return a step that gives each a key."""

    def take(record: Record) -> Iterator[Record]:
        record.key = function(record.value)
        yield record

    return take


def timing(function: Callable[[Any], Any]) -> Take:
    """Return a step that gives each the time that its value has: ms since 1970, or a datetime."""

    def take(record: Record) -> Iterator[Record]:
        record.time_ms = time_ms_of(function(record.value))
        yield record

    return take


def turning(function: Callable[[Any, Any, Window | None], Any]) -> Take:
    """Return a step that makes a value of key, value and window."""

    def take(record: Record) -> Iterator[Record]:
        value = function(record.key, record.value, record.window)
        if value is not None:
            yield record.having(value)

    return take


def time_ms_of(time: Any) -> int:
    """Return a time in ms. Raises TypeError for what is none, ValueError for a datetime without a zone."""
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise ValueError("a time without a zone is not told which moment it is: give it tzinfo")
        return round(time.timestamp() * 1000)
    if isinstance(time, int | float) and not isinstance(time, bool):
        return int(time)
    raise TypeError(f"a {type(time).__name__} is no time: give ms since 1970, or a datetime")


def run(steps: Sequence[Step], failures: Failures, record: Record | Letter, at: int = 0) -> Taken:
    """Yield what becomes of a record behind the steps from place ``at`` on. Raises Failed."""
    if isinstance(record, Letter) or at == len(steps):
        yield record
        return
    step = steps[at]
    given = step.take(record)
    while True:
        try:
            following = next(given, None)
        except Exception as error:  # noqa: BLE001 - The user's function may raise anything.
            yield failures.letter("error", step.name, record, error)
            return
        if following is None:
            return
        yield from run(steps, failures, following, at + 1)
