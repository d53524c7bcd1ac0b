"""What a sweep of a LevelDB store may remove, one slice at a time.

A slice is looked for beside the writer and removed by it. Between the two nothing can make a found key
live again: a row key is never written twice, the floor, the dropped state and the deleted generation
that allow the removal are on disk before, and the row at the pointer is left alone. So removals need no
sync of their own; one that a crash undoes is found again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from broker.model import ROW_ID_BYTES, RowId, TopicId
from broker.storage.control import Control
from broker.storage.keys import (
    CONTROL,
    IDEMPOTENCY,
    OLDER_RANGES,
    PRODUCER,
    LogId,
    generation_prefix,
    prefix_end,
    side_prefix,
)
from broker.storage.leveldb_changes import EXPIRY, expiry_prefix, side_row_prefix
from broker.storage.leveldb_holds import (
    MESSAGES,
    PAYLOADS,
    HeldLog,
    SweepCursor,
    database_prefix,
    table_of,
)

_INT64 = struct.Struct(">q")
_FIRST_GENERATION = 1
SIDE_LOOKED_AT_PER_ROW = 10
"""How many side rows a slice may look at for each that it may remove."""


class Slice(NamedTuple):
    """What one slice removes."""

    keys: list[bytes]
    rows: int
    more: bool
    cursor: SweepCursor
    """Where the next slice goes on, once this one is removed."""


class Keys(Protocol):
    """What a search needs of the database."""

    def keys(self, start: bytes, stop: bytes, limit: int) -> list[bytes]:
        """Return at most ``limit`` keys from ``start`` up to, without, ``stop``."""


def log_slice(
    database: Keys, hold: HeldLog, expired_before_ms: int, side_before: RowId, limit: int
) -> Slice:
    """Return one slice of a message log: below the floor, then ended lives, then old side rows."""
    control, cursor = hold.control, hold.cursor
    prefix = database_prefix(hold.log)
    end = prefix + min(control.floor, control.pointer)
    keys = database.keys(max(prefix, cursor.rows), end, limit)
    if keys:
        cursor = cursor._replace(rows=_behind(keys[-1]))
    left = limit - len(keys)
    if not left:
        return Slice(keys, limit, more=True, cursor=cursor)
    looked_at, ended = _ended(database, hold, expired_before_ms, left)
    keys += ended
    if len(looked_at) == left:
        cursor = cursor._replace(lives=_behind(looked_at[-1]))
        return Slice(keys, limit - left + len(ended) // 2, more=True, cursor=cursor)
    left -= len(ended) // 2
    looked_at, old = _old_side_rows(database, hold, side_before, left)
    more = len(looked_at) == left * SIDE_LOOKED_AT_PER_ROW
    cursor = cursor._replace(lives=b"", side=_behind(looked_at[-1]) if more else b"")
    return Slice(keys + old, limit - left + len(old), more=more, cursor=cursor)


def _behind(key: bytes) -> bytes:
    return key + b"\0"


def _ended(
    database: Keys, hold: HeldLog, before_ms: int, limit: int
) -> tuple[list[bytes], list[bytes]]:
    """Return the entries that were looked at, and keys of ended rows, each with its entry's."""
    prefix = expiry_prefix(hold.log)
    end = prefix + _INT64.pack(before_ms)
    entries = database.keys(max(prefix, hold.cursor.lives), end, limit)
    rows = database_prefix(hold.log)
    gone = []
    for entry in entries:
        row = entry[-ROW_ID_BYTES:]
        if row < hold.control.pointer:
            gone += [rows + row, entry]
    return entries, gone


def _old_side_rows(
    database: Keys, hold: HeldLog, before: RowId, limit: int
) -> tuple[list[bytes], list[bytes]]:
    """Return the idempotency rows that were looked at, and those with an id below ``before``.

    They lie in the order of their hashes, so a slice looks at a stretch of them.
    """
    prefix = side_row_prefix(hold.log, IDEMPOTENCY)
    start, stop = max(prefix, hold.cursor.side), prefix_end(prefix)
    found = database.keys(start, stop, limit * SIDE_LOOKED_AT_PER_ROW)
    before = min(before, hold.control.pointer)
    return found, [key for key in found if key[-ROW_ID_BYTES:] < before]


def payload_rows(database: Keys, log: LogId, limit: int, start: bytes = b"") -> list[bytes]:
    """Return keys of a payload log's rows and side rows, from ``start`` on."""
    prefixes = [database_prefix(log), *(side_row_prefix(log, kind) for kind in _SIDE_KINDS)]
    ranges = ((prefix, prefix_end(prefix)) for prefix in prefixes)
    return _first(database, ranges, limit, start)


def older_generations(
    database: Keys, topic: TopicId, below: int, limit: int, start: bytes = b""
) -> list[bytes]:
    """Return keys of all that belongs to a topic's generations ``1..below - 1``, from ``start`` on."""
    return _first(database, _generation_ranges(topic, below), limit, start)


_SIDE_KINDS = (IDEMPOTENCY, PRODUCER, OLDER_RANGES, EXPIRY)


def _generation_ranges(topic: TopicId, below: int) -> Iterator[tuple[bytes, bytes]]:
    low, high = LogId(topic, _FIRST_GENERATION), LogId(topic, below)
    for table in (MESSAGES, PAYLOADS):
        yield (
            table + generation_prefix(topic, _FIRST_GENERATION),
            table + generation_prefix(topic, below),
        )
        for kind in _SIDE_KINDS:
            yield table + side_prefix(low, kind), table + side_prefix(high, kind)
    # The message log's control row has no generation behind its kind, and lies in the other table.
    yield PAYLOADS + side_prefix(low, CONTROL), PAYLOADS + side_prefix(high, CONTROL)


def _first(
    database: Keys, ranges: Iterable[tuple[bytes, bytes]], limit: int, start: bytes
) -> list[bytes]:
    found: list[bytes] = []
    for first, stop in sorted(ranges):
        if len(found) < limit and start < stop:
            found += database.keys(max(first, start), stop, limit - len(found))
    return found


def compactable(log: LogId, control: Control | None) -> list[tuple[bytes, bytes]]:
    """Return the ranges of keys in which sweeping has left space to give back."""
    table = table_of(log)
    prefix = database_prefix(log)
    swept_to = prefix_end(prefix) if control is None else prefix + control.floor
    first = table + generation_prefix(log.topic, _FIRST_GENERATION)
    rows = (first, max(first, swept_to if log.number is None else prefix_end(prefix)))
    side = table + generation_prefix(log.topic, 0)
    return [rows, (side, prefix_end(side))]
