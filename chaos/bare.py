"""Logs without topics over them: rows in, rows out, for programs that are killed and for cases.

What a topic adds (group commit, caches, sweeps) is left out; what is stored is what topics store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from broker.model import ROW_ID_MIN, RowId
from broker.storage.entry import PLAIN, Entry, Mark, Shared, entries_of, messages_of
from broker.storage.hold import LogHold
from broker.storage.keys import LogId
from broker.storage.log import Logs

_BYTES_AT_ONCE = 1 << 20
_CELLS_AT_ONCE = 16


class StoredRow(NamedTuple):
    """One message as it is stored; ``payload`` None is a reference, a rolled back pointer is negative."""

    id: RowId
    payload: bytes | None
    pointer: int | None


async def append(
    hold: LogHold,
    ids: Sequence[RowId],
    payloads: Sequence[bytes],
    shared: Shared = PLAIN,
    marks: Sequence[Mark] = (),
) -> None:
    """Append messages at these ids; ``marks`` go into the last entry. Raises as Hold.append does."""
    added = entries_of(hold.epoch, ids, payloads, shared)
    added[-1].marks = tuple(marks)
    # As topics count: a reference stands for the messages of its payload log, and has no payload.
    payload_bytes = 0 if shared.number is not None else sum(map(len, payloads))
    await hold.append(added, messages=sum(map(messages_of, added)), payload_bytes=payload_bytes)


async def rows_of(
    logs: Logs, log: LogId, after: RowId = ROW_ID_MIN, through: RowId | None = None
) -> list[StoredRow]:
    """Return what lies behind ``after``, up to ``through`` or the end. Raises Unavailable, StorageCorrupt."""
    reader = logs.reader(log, after, through)
    found: list[StoredRow] = []
    while not reader.ended:
        for entry in await reader.next(_BYTES_AT_ONCE):
            found += [row for row in _rows(entry) if _is_between(row.id, after, through)]
    return found


async def back_of(logs: Logs, log: LogId, count: int) -> tuple[list[StoredRow], bool]:
    """Return the last messages, the last first, ``count`` or some more; whether these are all.

    Raises:
        Unavailable, StorageCorrupt: see rows_of.
    """
    reader = logs.reader(log, ROW_ID_MIN)
    found: list[StoredRow] = []
    while not reader.ended and len(found) < count:
        for entry in await reader.before(_CELLS_AT_ONCE, _BYTES_AT_ONCE):
            found += reversed(list(_rows(entry)))
    return found, reader.ended


def _is_between(row: RowId, after: RowId, through: RowId | None) -> bool:
    return row > after and (through is None or row <= through)


def _rows(entry: Entry) -> Iterator[StoredRow]:
    if entry.is_stub:
        return
    for place, row in enumerate(entry.ids()):
        pointer = entry.pointer
        if pointer is not None and entry.is_rolled_back(row):
            pointer = -pointer
        yield StoredRow(row, None if entry.is_reference else entry.payload(place), pointer)
