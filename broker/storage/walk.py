"""Reading a whole store in slices: records, rows of a topic, pages of a log, cells of a page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from broker.model import LOG_KEY_MAX, LOG_KEY_MIN, TopicId
from broker.storage.keys import LogId, page_key, space_of
from broker.storage.resolve import Resolver
from broker.storage.table import Cell, Space

ROWS_AT_ONCE: Final = 256
CELLS_AT_ONCE: Final = 512
BYTES_AT_ONCE: Final = 1 << 20
TOPIC_RECORDS: Final = b"topic/"
"""The prefix of the keys of topics' records (topics/registry.py); the topic's own prefix follows."""
KEY_END: Final = b"\xff" * 32
"""A prefix followed by this is above all keys that begin with the prefix."""
RECORDS_END: Final = b"\xff" * 512


async def rows(
    resolver: Resolver, space: Space, first: bytes, last: bytes
) -> AsyncIterator[tuple[bytes, Cell]]:
    """Yield keys in ``[first, last]`` with their heads. Raises Unavailable, StorageCorrupt."""
    while True:
        found = await resolver.read(
            lambda first=first: resolver.table.scan(  # type: ignore[misc]
                space, first, last, limit=ROWS_AT_ONCE
            )
        )
        for each in found:
            yield each
        if len(found) < ROWS_AT_ONCE:
            return
        first = found[-1][0] + b"\0"


def records(resolver: Resolver) -> AsyncIterator[tuple[bytes, Cell]]:
    """Yield the keys of all records with their stored values."""
    return rows(resolver, Space.RECORDS, b"\0", RECORDS_END)


def pages(resolver: Resolver, log: LogId) -> AsyncIterator[tuple[bytes, Cell]]:
    """Yield the keys of a log's pages with their heads, also of pages that are not in the chain."""
    first, last = page_key(log, LOG_KEY_MIN), page_key(log, LOG_KEY_MAX)
    return rows(resolver, space_of(log), first, last)


async def cells(resolver: Resolver, space: Space, row: bytes) -> AsyncIterator[tuple[bytes, bytes]]:
    """Yield all cells of a page but its head, in order."""
    first = b"\0"
    while True:
        found = await resolver.read(
            lambda first=first: resolver.table.cells(  # type: ignore[misc]
                space,
                row,
                first,
                KEY_END,
                cells_max=CELLS_AT_ONCE,
                bytes_max=BYTES_AT_ONCE,
            )
        )
        for each in found.cells:
            yield each
        if not found.more:
            return
        first = found.cells[-1][0] + b"\0"


def topic_of(key: bytes) -> TopicId | None:
    """Return the topic whose record has this key; None: it is not the record of a topic."""
    if not key.startswith(TOPIC_RECORDS):
        return None
    parts = key[len(TOPIC_RECORDS) :].decode(errors="replace").split(":")
    return TopicId(parts[0], parts[1]) if len(parts) == 3 and not parts[2] else None
