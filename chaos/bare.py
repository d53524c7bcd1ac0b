"""Logs without topics: append rows and read rows, for the appender and for cases.

They have no group commit, no caches and no sweeper, which topics add. They store the same data as topics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from broker.model import LOG_KEY_MIN, LogKey
from broker.storage.entry import PLAIN, Entry, Mark, Shared, entries_of
from broker.storage.hold import LogHold
from broker.storage.keys import LogId
from broker.storage.log import Logs
from broker.storage.reference import messages_of

_BYTES_AT_ONCE = 1 << 20
_CELLS_AT_ONCE = 16


class StoredRow(NamedTuple):
    """One stored message. ``payload`` is None for a reference; the pointer is negative after a rollback."""

    id: LogKey
    payload: bytes | None
    pointer: int | None


async def append(
    hold: LogHold,
    ids: Sequence[LogKey],
    payloads: Sequence[bytes],
    shared: Shared = PLAIN,
    marks: Sequence[Mark] = (),
) -> None:
    """Append messages at these ids; ``marks`` go into the last entry. Raises like ``LogHold.append``."""
    added = entries_of(hold.epoch, ids, payloads, shared)
    added[-1].marks = tuple(marks)
    # Count like topics: a reference counts as the messages of its payload log, and has no payload.
    payload_bytes = 0 if shared.number is not None else sum(map(len, payloads))
    await hold.append(added, messages=sum(map(messages_of, added)), payload_bytes=payload_bytes)


async def rows_of(
    logs: Logs, log: LogId, after: LogKey = LOG_KEY_MIN, through: LogKey | None = None
) -> list[StoredRow]:
    """Return the rows in (``after``, ``through``], or to the end. Raises Unavailable, StorageCorrupt."""
    reader = logs.reader(log, after, through)
    found: list[StoredRow] = []
    while not reader.ended:
        for entry in await reader.next(_BYTES_AT_ONCE):
            found += [row for row in _rows(entry) if _is_between(row.id, after, through)]
    return found


async def back_of(logs: Logs, log: LogId, count: int) -> tuple[list[StoredRow], bool]:
    """Return at least ``count`` of the last messages, the newest first, and True if these are all.

    Raises:
        Unavailable, StorageCorrupt: see rows_of.
    """
    reader = logs.reader(log, LOG_KEY_MIN)
    found: list[StoredRow] = []
    while not reader.ended and len(found) < count:
        for entry in await reader.before(_CELLS_AT_ONCE, _BYTES_AT_ONCE):
            found += reversed(list(_rows(entry)))
    return found, reader.ended


def _is_between(key: LogKey, after: LogKey, through: LogKey | None) -> bool:
    return key > after and (through is None or key <= through)


def _rows(entry: Entry) -> Iterator[StoredRow]:
    if entry.is_stub:
        return
    for place, key in enumerate(entry.ids()):
        pointer = entry.pointer
        if pointer is not None and entry.is_rolled_back(key):
            pointer = -pointer
        yield StoredRow(key, None if entry.is_reference else entry.payload(place), pointer)
