"""Records: topics, cursors, pins, claims, settings. They are small and few, and change by compare-and-set.

A record's stored value is a nonce, the data and a checksum. The whole stored value is the version that a
compare-and-set expects. Each write has a new nonce, so a record that changed and changed back has a new version.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final, NamedTuple, Protocol

from broker.long_work import Pace
from broker.storage import entry as entries
from broker.storage.keys import prefix_end
from broker.storage.resolve import NONCE_BYTES, Resolver, random_nonce
from broker.storage.table import Cell, Space

ROWS_AT_ONCE: Final = 128
ROWS_AT_FIRST: Final = 100
BYTES_AT_ONCE: Final = 4 * 1024 * 1024
"""The intended size of one page of a scan. It is estimated from the records of the page before."""


class Record(NamedTuple):
    """A record's value, its version for a compare-and-set, and when the server wrote it (see table.Cell)."""

    value: bytes
    version: bytes
    server_ms: int | None = None


class RecordStore(Protocol):
    """Records by key."""

    async def get(self, key: bytes) -> Record | None:
        """Return the record, or None."""

    async def put_if(self, key: bytes, expected: bytes | None, value: bytes) -> bytes | None:
        """Put ``value`` if the record's version is ``expected`` (None: absent), durably.

        Returns the new version, or None if the record has another version.

        Raises:
            OutcomeUnknown: it may have been put.
        """

    async def remove(self, keys: Sequence[bytes]) -> None:
        """Remove records without comparing them. Their keys must never be used again."""

    async def scan_prefix(self, prefix: bytes) -> list[tuple[bytes, Record]]:
        """Return all records whose key begins with ``prefix``, in key order."""

    def pages(self, prefix: bytes) -> AsyncGenerator[list[tuple[bytes, Record]], None]:
        """Yield the records that ``scan_prefix`` returns, a bounded number at a time."""


class Records:
    """The record store over a table."""

    def __init__(self, resolver: Resolver, nonce: Callable[[], bytes] = random_nonce) -> None:
        """Keep records in the resolver's table. ``nonce`` is for tests."""
        self._resolver = resolver
        self._nonce = nonce

    async def get(self, key: bytes) -> Record | None:
        """Return the record, or None. Raises Unavailable, StorageCorrupt."""
        cell = await self._resolver.head(Space.RECORDS, key)
        return None if cell is None else _record(cell)

    async def put_if(self, key: bytes, expected: bytes | None, value: bytes) -> bytes | None:
        """Put ``value`` if the record's version is ``expected`` (None: absent), durably.

        Returns the new version, or None if the record has another version. If the table answered False to a put
        that it made, and another put came before the read that shows this, the result is None, too.

        Raises:
            Unavailable: certainly not put.
            OutcomeUnknown: it may have been put.
        """
        new = entries.checked(self._nonce() + value)
        done = await self._resolver.put(Space.RECORDS, key, expected, new)
        return new if done else None

    async def remove(self, keys: Sequence[bytes]) -> None:
        """Remove records without comparing them. Their keys must never be used again.

        Raises:
            Unavailable: some may be removed; removing them again is safe.
        """
        await self._resolver.read(lambda: self._resolver.table.delete(Space.RECORDS, keys))

    async def scan_prefix(self, prefix: bytes) -> list[tuple[bytes, Record]]:
        """Return all records whose key begins with ``prefix``, in key order."""
        return [found async for page in self.pages(prefix) for found in page]

    async def pages(self, prefix: bytes) -> AsyncGenerator[list[tuple[bytes, Record]], None]:
        """Yield the records that ``scan_prefix`` returns, at most ROWS_AT_ONCE at a time; fewer if long.

        Between them other work of the loop may run.
        """
        pace = Pace()
        first, last = prefix, prefix_end(prefix) or b"\xff" * 512
        limit = min(ROWS_AT_FIRST, ROWS_AT_ONCE)
        while True:
            rows = await self._resolver.read(
                lambda first=first, limit=limit: self._resolver.table.scan(  # type: ignore[misc]
                    Space.RECORDS, first, last, limit=limit
                )
            )
            yield [(row, _record(cell)) for row, cell in rows if row.startswith(prefix)]
            if len(rows) < limit:
                return
            await pace.step()
            first = rows[-1][0] + b"\0"
            size = sum([len(cell.value) for _, cell in rows])
            limit = max(min(BYTES_AT_ONCE * len(rows) // size, ROWS_AT_ONCE), 1)


def _record(cell: Cell) -> Record:
    value = entries.unchecked(cell.value, "a record")[NONCE_BYTES:]
    return Record(value, cell.value, cell.server_ms)
