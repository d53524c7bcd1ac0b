"""The records of a job, and their form between Spark's processes.

A **record** is a value with its key, its time and its place. A **beat** has no value; it says that a topic has reached
a time. A **letter** is a message for another topic than the job's result. It is made of a record that can't be
decoded, that made a function raise, or whose window was closed already.

Between two processes each of them is a row of the same columns::

    kind   RECORD, BEAT or LETTER         key       as key_codec.py has it; none: empty
    at     the message's id, and behind it the place of each flat_map's result: it orders the records of a key
    time   ms since 1970                  value     pickled; a letter's payload as it is
    start, end   of the window that a result is of      side   which stream of a join it is from
    topic, headers   a letter's

For an operator with state Spark needs much time for each row and cell, and little for their contents. So the records
of a key go to the operator together, in one row (``packed_rows``). The results of a key come back as one row of lists.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from broker.streams.windows import Window

RECORD: Final = 0
BEAT: Final = 1
LETTER: Final = 2

COLUMNS: Final = (
    "kind TINYINT, at BINARY, time BIGINT, key BINARY, value BINARY, side TINYINT, start BIGINT, end BIGINT, "
    "topic STRING, headers MAP<STRING, BINARY>"
)
MESSAGES: Final = "key BINARY, value BINARY, topic STRING, headers MAP<STRING, BINARY>"
"""The columns of messages and letters. Only letters have headers."""
NO_KEY: Final = b""

Row = tuple[Any, ...]
"""The columns of a row, in their order."""


def kinds_of(columns: str) -> dict[str, str]:
    """Return the names of columns, with their types."""
    found = (part.partition(" ") for part in re.split(r", (?=[a-z])", columns))
    return {name: kind for name, _, kind in found}


def lists_of(columns: str) -> str:
    """Return the columns of a row of lists: each column as an array."""
    return ", ".join(f"{name} ARRAY<{kind}>" for name, kind in kinds_of(columns).items())


class StreamRecord:
    """A value inside a job. ``payload`` is its message, as long as the message is known."""

    __slots__ = ("at", "key", "payload", "side", "time_ms", "value", "window")

    def __init__(
        self,
        value: Any,
        at: bytes,
        time_ms: int,
        key: Any = None,
        window: Window | None = None,
        payload: bytes | None = None,
    ) -> None:
        """Keep the parts."""
        self.value = value
        self.at = at
        self.time_ms = time_ms
        self.key = key
        self.window = window
        self.payload = payload
        self.side = 0

    def having(self, value: Any) -> StreamRecord:
        """Return the same record with another value."""
        return StreamRecord(value, self.at, self.time_ms, self.key, self.window, self.payload)

    def row(self, key: bytes) -> Row:
        """Return the record as a row; ``key`` is the encoded key. Raises the errors of pickle."""
        start, end = self.window or (None, None)
        value = pickle.dumps(self.value, pickle.HIGHEST_PROTOCOL)
        return (RECORD, self.at, self.time_ms, key, value, self.side, start, end, None, None)


class Letter(NamedTuple):
    """A message for another topic; ``topic`` None: the job only counts it."""

    topic: str | None
    payload: bytes
    headers: Mapping[str, bytes]

    def row(self) -> Row:
        """Return the letter as a row."""
        return (LETTER, b"", 0, NO_KEY, self.payload, 0, None, None, self.topic, dict(self.headers))


def packed_rows(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield one row for all records of a key, with the records in its value; yield beats and letters as they are.

    The time of the row is the latest time of its records, for the watermark. All rows of a pass have the same side.
    """
    by_key: dict[bytes, list[Row]] = {}
    for row in rows:
        if row[0] == RECORD:
            by_key.setdefault(row[3], []).append(row)
        else:
            yield row
    for key, mine in by_key.items():
        time_ms = max(row[2] for row in mine)
        inside = [
            (at, time, value, start, end) for _, at, time, _, value, _, start, end, *_ in mine
        ]
        value = pickle.dumps(inside, pickle.HIGHEST_PROTOCOL)
        yield (RECORD, b"", time_ms, key, value, mine[0][5], None, None, None, None)


def unpacked_records(
    row: Sequence[Any], key: Any, unreadable: Callable[[StreamRecord, BaseException], Letter]
) -> Iterator[StreamRecord | Letter]:
    """Yield the records of a row of ``packed_rows``; ``key`` is the decoded key.

    A class of the user's may pickle an object that it can't make again: ``unreadable`` makes the letter of such a record.
    """
    side = row[5]
    for at, time_ms, value, start, end in pickle.loads(row[4]):  # noqa: S301 - The job's own.
        window = None if start is None else Window(start, end)
        record = StreamRecord(None, at, time_ms, key, window)
        record.side = side
        try:
            record.value = pickle.loads(value)  # noqa: S301 - The same.
        except BaseException as error:  # noqa: BLE001 - The user's class may raise anything.
            record.payload = b""
            yield unreadable(record, error)
        else:
            yield record


def beat_row(time_ms: int) -> Row:
    """Return a beat as a row."""
    return (BEAT, b"", time_ms, NO_KEY, None, 0, None, None, None, None)
