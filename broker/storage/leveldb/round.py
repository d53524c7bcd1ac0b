"""One write of the table: the changes of many callers, checked one after the other.

A change sees the heads that the earlier changes of the round have put. It reads the database before it adds
anything to the batch, so a change that fails has added nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from broker.storage.leveldb.layout import cells_prefix, has_cells, head_key
from broker.storage.table import HEAD, Space

_EMPTY_BATCH_BYTES = 12
"""LevelDB's batch header: sequence number and count."""


class WriteBatch(Protocol):
    """The methods of a write batch that a round uses."""

    def put(self, key: bytes, value: bytes, /) -> None:
        """Add a key."""

    def delete(self, key: bytes, /) -> None:
        """Remove a key."""

    def write(self) -> None:
        """Write the whole batch atomically, and sync it."""

    def approximate_size(self) -> int:
        """Return the size of the batch until now."""


class WritableDatabase(Protocol):
    """The methods of the database that the writer uses."""

    def get(self, key: bytes) -> bytes | None:
        """Return a value."""

    def batch(self) -> WriteBatch:
        """Return an empty write batch, which will be synced."""

    def keys_of(self, prefix: bytes) -> list[bytes]:
        """Return all keys with a prefix."""

    def reopen(self) -> None:
        """Probe the disk, close and reopen. Raises OSError or BrokerError if that fails."""


class ChangeRequest(NamedTuple):
    """The arguments of one change of the port."""

    space: Space
    row: bytes
    expected: bytes | None
    puts: Mapping[bytes, bytes]
    deletes: Sequence[bytes]
    clear: bool


class Postponed(Exception):
    """The change must see cells that this round puts, so it has to wait for the next round."""


class RecentHeads:
    """A bounded cache of heads that are on disk, as the last writes left them.

    The writer thread adds the heads that it wrote; they replace older ones. A read may add a head only if no head
    was dropped since the read began. Otherwise the dropped head may have been newer.
    """

    def __init__(self, heads_max: int = 16_384, bytes_max: int = 1024) -> None:
        """Start empty; a head above ``bytes_max`` bytes (a large record) is not kept."""
        self._heads: dict[bytes, bytes] = {}
        self._heads_max = heads_max
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self.losses = 0
        """How many times the cache has dropped heads."""
        self.get = self._heads.get

    def remember(self, key: bytes, head: bytes | None) -> None:
        """Keep a head. If it is None or long, drop the row from the cache."""
        with self._lock:
            self._heads.pop(key, None)
            if head is None or len(head) > self._bytes_max:
                self.losses += 1
                return
            self._heads[key] = head
            if len(self._heads) > self._heads_max:
                del self._heads[next(iter(self._heads))]
                self.losses += 1

    def learn(self, key: bytes, head: bytes | None, losses: int) -> None:
        """Keep a head that was read, unless ``losses`` changed since the read began."""
        if head is None or len(head) > self._bytes_max:
            return
        with self._lock:
            if losses == self.losses and len(self._heads) < self._heads_max:
                self._heads.setdefault(key, head)

    def forget(self) -> None:
        """Drop all heads, because the database may have changed."""
        with self._lock:
            self._heads.clear()
            self.losses += 1


class Round:
    """The contents of one write."""

    def __init__(self, database: WritableDatabase, recent: RecentHeads) -> None:
        """Start empty."""
        self._database = database
        self._recent = recent
        self.batch = database.batch()
        self._heads: dict[bytes, bytes | None] = {}
        self._indexed: list[bytes] = []
        self._touched: set[bytes] = set()

    def change(self, request: ChangeRequest) -> bool:
        """Add a change if its head is as expected; return whether it was. Raises Postponed."""
        key = head_key(request.space, request.row)
        if self._head(key) != request.expected:
            return False
        if has_cells(request.space):
            self._change_cells(request)
        head = request.puts[HEAD]
        self._heads[key] = head
        self.batch.put(key, head)
        return True

    def _change_cells(self, request: ChangeRequest) -> None:
        prefix = cells_prefix(request.space, request.row)
        if request.clear:
            self._clear(prefix)
        for column in request.deletes:
            self.batch.delete(prefix + column)
        for column, value in request.puts.items():
            if column != HEAD:
                self.batch.put(prefix + column, value)
        if request.deletes or len(request.puts) > 1:
            self._touched.add(prefix)

    def put(self, space: Space, heads: Mapping[bytes, bytes]) -> None:
        """Put heads without comparing them."""
        for row, head in heads.items():
            key = head_key(space, row)
            self._heads.pop(key, None)
            self._indexed.append(key)
            self._heads[key] = head
            self.batch.put(key, head)

    def delete(self, space: Space, rows: Sequence[bytes]) -> list[bytes]:
        """Remove whole rows; return the prefixes of those that had other cells. Raises Postponed."""
        prefixes = [cells_prefix(space, row) for row in rows] if has_cells(space) else []
        had_cells = self._clear(*prefixes)
        for row in rows:
            key = head_key(space, row)
            self._heads[key] = None
            self.batch.delete(key)
        return had_cells

    def _clear(self, *prefixes: bytes) -> list[bytes]:
        if not self._touched.isdisjoint(prefixes):
            raise Postponed
        found = {prefix: self._database.keys_of(prefix) for prefix in prefixes}
        for keys in found.values():
            for key in keys:
                self.batch.delete(key)
        return [prefix for prefix, keys in found.items() if keys]

    def _head(self, key: bytes) -> bytes | None:
        if key in self._heads:
            return self._heads[key]
        head = self._recent.get(key)
        return self._database.get(key) if head is None else head

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to write."""
        return self.batch.approximate_size() <= _EMPTY_BATCH_BYTES

    def confirm(self) -> None:
        """Remember the heads, after the write."""
        for key in self._indexed:
            # Index rows are many and rarely compared, so they must not push other heads out of the cache.
            if key in self._heads:
                del self._heads[key]
                self._recent.remember(key, None)
        for key, head in self._heads.items():
            self._recent.remember(key, head)
