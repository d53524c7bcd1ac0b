"""What a sweep of a LevelDB store may remove, one slice at a time.

A slice is looked for beside the writer and removed by it. Between the two nothing can make a found key
live again: a row key is never written twice, the floor, the dropped state and the deleted generation
that allow the removal are on disk before, and the row at the pointer is left alone. So removals need no
sync of their own; one that a crash undoes is found again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
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
    side_next: bytes | None
    """Where the search for side rows goes on; None: all were looked at."""


class Keys(Protocol):
    """What a search needs of the database."""

    def keys(self, start: bytes, stop: bytes, limit: int) -> list[bytes]:
        """Return at most ``limit`` keys from ``start`` up to, without, ``stop``."""


def log_slice(
    database: Keys,
    hold: HeldLog,
    expired_before_ms: int,
    side_before: RowId,
    limit: int,
    side_start: bytes,
) -> Slice:
    """Return one slice of a message log: below the floor, then ended lives, then old side rows."""
    log, control = hold.log, hold.control
    keys = below_floor(database, log, control, limit)
    rows = len(keys)
    if rows == limit:
        return Slice(keys, rows, more=True, side_next=side_start)
    ended_rows, entries = ended(database, log, control, expired_before_ms, limit - rows)
    rows += len(ended_rows)
    if rows == limit:
        return Slice(keys + ended_rows + entries, rows, more=True, side_next=side_start)
    before = min(side_before, control.pointer)
    side, side_next = old_side_rows(database, log, before, limit - rows, side_start)
    keys = keys + ended_rows + entries + side
    return Slice(keys, rows + len(side), more=side_next is not None, side_next=side_next)


def below_floor(database: Keys, log: LogId, control: Control, limit: int) -> list[bytes]:
    """Return keys of rows strictly below the floor, the row at the pointer left out."""
    prefix = database_prefix(log)
    return database.keys(prefix, prefix + min(control.floor, control.pointer), limit)


def ended(
    database: Keys, log: LogId, control: Control, before_ms: int, limit: int
) -> tuple[list[bytes], list[bytes]]:
    """Return keys of rows whose own lifetime ended before a time, and of the entries that say so."""
    entries, rows = [], []
    prefix = expiry_prefix(log)
    for entry in database.keys(prefix, prefix + _INT64.pack(before_ms), limit):
        row = entry[-ROW_ID_BYTES:]
        if row < control.pointer:
            rows.append(database_prefix(log) + row)
            entries.append(entry)
    return rows, entries


def old_side_rows(
    database: Keys, log: LogId, before: RowId, limit: int, start: bytes
) -> tuple[list[bytes], bytes | None]:
    """Return keys of idempotency rows with an id below ``before``, and where the next slice starts.

    They lie in the order of their hashes, so a slice looks at a stretch of them and goes on behind it;
    None says that all were looked at.
    """
    prefix = side_row_prefix(log, IDEMPOTENCY)
    looked_at_max = limit * SIDE_LOOKED_AT_PER_ROW
    found = database.keys(max(start, prefix), prefix_end(prefix), looked_at_max)
    old = [key for key in found if key[-ROW_ID_BYTES:] < before]
    return old, found[-1] + b"\0" if len(found) == looked_at_max else None


def payload_rows(database: Keys, log: LogId, limit: int) -> list[bytes]:
    """Return keys of a payload log's rows and side rows."""
    prefixes = [database_prefix(log), *(side_row_prefix(log, kind) for kind in _SIDE_KINDS)]
    return _first(database, ((prefix, prefix_end(prefix)) for prefix in prefixes), limit)


def older_generations(database: Keys, topic: TopicId, below: int, limit: int) -> list[bytes]:
    """Return keys of all that belongs to a topic's generations ``1..below - 1``."""
    return _first(database, _generation_ranges(topic, below), limit)


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


def _first(database: Keys, ranges: Iterator[tuple[bytes, bytes]], limit: int) -> list[bytes]:
    found: list[bytes] = []
    for start, stop in ranges:
        if len(found) < limit:
            found += database.keys(start, stop, limit - len(found))
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
