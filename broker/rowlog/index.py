"""The index, hints about rows that may have open messages, in a table of shards; and the list of dead letters.

An entry may come before its message, be stale, or be there twice, and its removal may get lost: the row decides. So
removals are batched, and need not reach the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from broker.rowlog.batcher import Gathering
from broker.rowlog.cell_keys import (
    DEAD_END,
    INDEX_COLUMN,
    OPEN_END,
    Entry,
    entry_of,
    index_key,
    range_start,
    range_stop,
)
from broker.rowlog.ring import Ring
from broker.rowlog.row_table import NotWritten, RowTable, TableError
from broker.rowlog.setup import Setup

SCAN_ENTRIES: Final = 1000
"""How many entries one page has at most, of all shards together; at least one of each shard."""
LATE_S: Final = 5.0
"""How long a page waits for a shard."""


def entries_for(
    ring: Ring, names: Iterable[str], row: bytes, message: tuple[int, int], data: bytes
) -> list[Entry]:
    """Return the entries of a message: one for each subscription."""
    shard, (seq, timestamp) = ring.shard_of(row), message
    return [Entry(shard, name, timestamp, seq, row, data) for name in names]


class _Asked(NamedTuple):
    """A call for a stretch of a shard."""

    start: bytes
    answer: asyncio.Future[list[tuple[Entry, bytes]]]


class Index:
    """The open entries, and the list of dead letters. All methods raise TableError."""

    def __init__(self, rows: RowTable, table: bytes, setup: Callable[[], Awaitable[Setup]]) -> None:
        """Use the table; ``setup`` returns the shards."""
        self._rows = rows
        self._table = table
        self._setup = setup
        self._gathering = Gathering(rows, table)
        self._late: dict[tuple[int, str], _Asked] = {}
        self._removed: dict[bytes, None] = {}
        self._going: set[bytes] = set()
        """The keys whose deletion is in flight: a scan that began before may still show them."""

    async def add(self, entries: Sequence[Entry]) -> None:
        """Add entries in one call."""
        for entry in entries:
            self._removed.pop(index_key(entry), None)
        await self._gathering.put(
            [(index_key(each), {INDEX_COLUMN: each.data}) for each in entries]
        )

    async def remove(self, entries: Sequence[Entry]) -> None:
        """Batch entries for removal; remove them all once there are ``delete_buffer`` of them."""
        self._removed.update(dict.fromkeys(map(index_key, entries)))
        if len(self._removed) >= (await self._setup()).settings.delete_buffer:
            await self.flush()

    async def flush(self) -> None:
        """Remove the batched entries."""
        removed, self._removed = self._removed, {}
        if removed:
            await self._delete(removed.keys())

    async def _delete(self, keys: AbstractSet[bytes]) -> None:
        self._going |= keys
        try:
            await self._rows.delete(self._table, [(key, [INDEX_COLUMN]) for key in keys])
        finally:
            self._going -= keys

    async def pages(self, subscription: str, since: int) -> AsyncIterator[list[Entry]]:
        """Yield pages. Each has a stretch of every shard, sorted by time, row and sequence number.

        A shard that does not answer holds up no other: its entries are left out, and the last page is followed by its
        error. It has one call in flight, whose late answer a later scan uses.
        """
        shards = [shard.id for shard in (await self._setup()).shards]
        limit = max(1, SCAN_ENTRIES // len(shards))
        starts = {
            each: range_start(each, subscription, timestamp=since if since > 0 else None)
            for each in shards
        }
        failed: TableError | None = None
        while starts:
            asked = {each: self._asked(each, subscription, starts[each], limit) for each in starts}
            await asyncio.wait([each.answer for each in asked.values()], timeout=LATE_S)
            found: list[Entry] = []
            for shard in tuple(asked):
                start = asked[shard].start
                try:
                    keys = self._answered(shard, subscription, asked.pop(shard))
                except TableError as error:
                    failed = error
                    del starts[shard]
                    continue
                if start > starts[shard]:
                    continue  # A former scan asked, for a later stretch: ask again, for this one.
                found += [entry for entry, _ in keys if not self._is_going(entry)]
                if len(keys) < limit:
                    del starts[shard]
                else:
                    starts[shard] = keys[-1][1] + b"\0"
            if found:
                yield sorted(found, key=lambda each: (each.timestamp, each.row, each.seq))
        if failed is not None:
            try:
                raise failed
            finally:
                del failed  # The error's traceback keeps this frame.

    def _asked(self, shard: int, subscription: str, start: bytes, limit: int) -> _Asked:
        """Return the call of a shard that is in flight, or was answered late; else a new one."""
        late = self._late.pop((shard, subscription), None)
        if late is not None and (not late.answer.done() or late.start <= start):
            return late
        reading = self._stretch(shard, subscription, start, limit)
        return _Asked(start, asyncio.ensure_future(reading))

    def _answered(self, shard: int, subscription: str, asked: _Asked) -> list[tuple[Entry, bytes]]:
        """Return the answer of a shard. Raises TableError, also if there is none yet."""
        if not asked.answer.done():
            self._late[shard, subscription] = asked
            raise NotWritten(f"shard {shard} of the index does not answer")
        try:
            return asked.answer.result()
        finally:
            del asked  # The error's traceback keeps this frame.

    def close(self) -> None:
        """Cancel the calls that are late."""
        for asked in self._late.values():
            asked.answer.cancel()
        self._late.clear()

    async def _stretch(
        self, shard: int, subscription: str, start: bytes, limit: int
    ) -> list[tuple[Entry, bytes]]:
        stop = range_stop(shard, subscription)
        scanned = await self._rows.scan(self._table, start, stop, [INDEX_COLUMN], limit=limit)
        return list(_entries(scanned, OPEN_END))

    def _is_going(self, entry: Entry) -> bool:
        key = index_key(entry)
        return key in self._removed or key in self._going

    async def count(self, subscription: str, limit: int) -> tuple[int, int]:
        """Scan the subscription's entries of all shards."""
        count, oldest = 0, 0
        async for page in self.pages(subscription, 0):
            oldest = oldest or page[0].timestamp
            count += len(page)
            if count >= limit:
                break
        return count, oldest

    async def lacks(self, entries: Collection[Entry], end: bytes = OPEN_END) -> set[Entry]:
        """Return the entries that are in no shard."""
        shards = (await self._setup()).shards
        keys = {
            index_key(entry._replace(shard=shard.id), end): entry
            for entry in entries
            for shard in shards
        }
        found = await self._rows.get(self._table, list(keys), [INDEX_COLUMN]) if keys else {}
        return set(entries) - {keys[key] for key in found}

    async def all(self, shard: int, start: bytes, limit: int) -> list[tuple[bytes, Entry, bytes]]:
        """Return entries of a shard, of all subscriptions: key, entry, and OPEN_END or DEAD_END."""
        scanned = await self._rows.scan(
            self._table,
            max(start, bytes([shard])),
            bytes([shard + 1]),
            [INDEX_COLUMN],
            limit=limit,
        )
        return [
            (key, *found)
            for key, cells in scanned
            if (found := entry_of(key, cells[INDEX_COLUMN])) is not None
        ]

    # Dead letters.

    async def bury(self, entries: Sequence[Entry]) -> None:
        """List messages as dead letters, and remove their open entries."""
        if not entries:
            return
        await self._rows.put(
            self._table,
            [(index_key(each, DEAD_END), {INDEX_COLUMN: each.data}) for each in entries],
        )
        # At once: another process may revive them, and a later removal would remove the new entry.
        keys = {index_key(each) for each in entries}
        for key in keys:
            self._removed.pop(key, None)
        await self._delete(keys)

    async def unbury(self, entries: Sequence[Entry]) -> None:
        """Remove messages from the list of dead letters."""
        if entries:
            keys = [index_key(each, DEAD_END) for each in entries]
            await self._rows.delete(self._table, [(key, [INDEX_COLUMN]) for key in keys])

    async def count_dead(self, subscription: str, limit: int) -> int:
        """Return how many dead letters a subscription has, counted up to ``limit``."""
        return len(await self.dead(subscription, limit))

    async def dead(self, subscription: str, limit: int, after: Entry | None = None) -> list[Entry]:
        """Return the oldest dead letters of a subscription, at most ``limit``; ``after``: only those behind it."""
        found: list[Entry] = []
        for shard in (await self._setup()).shards:
            if after is None:
                start = range_start(shard.id, subscription, DEAD_END)
            else:
                start = index_key(after._replace(shard=shard.id), DEAD_END) + b"\0"
            stop = range_stop(shard.id, subscription, DEAD_END)
            scanned = await self._rows.scan(self._table, start, stop, [INDEX_COLUMN], limit=limit)
            found += [entry for entry, _ in _entries(scanned, DEAD_END)]
        # In the order of their keys, so that ``after`` leaves none out.
        return sorted(found, key=lambda each: (each.timestamp, each.seq, each.row))[:limit]


def _entries(
    scanned: Sequence[tuple[bytes, dict[bytes, bytes]]], wanted: bytes
) -> Iterable[tuple[Entry, bytes]]:
    for key, cells in scanned:
        found = entry_of(key, cells[INDEX_COLUMN])
        if found is not None and found[1] == wanted:
            yield found[0], key
