"""The tables of the checkers, which may be larger than memory.

A checker looks at each line once and keeps its facts in tables, by id, payload, key or pointer. For a
short history the tables are dictionaries. For a long one they are in one temporary SQLite file. A bounded
part of the file is in memory, for any number of messages::

    MemoryTables    dict + sorted list of its keys          a test, a simulated run
    DiskTables      (table, key) -> value, WITHOUT ROWID    hours of a real cluster; cache_kib_max

``steps`` counts the table operations, so that a test can show that the work grows in proportion to the
history.
"""

from __future__ import annotations

import marshal
import sqlite3
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

V = TypeVar("V", bound=tuple[Any, ...])
Make = Callable[[Any], V]
LAST = "\U0010ffff"
"""A text above every key."""


class ValueTable(Protocol[V]):
    """Values by key. Keys are ordered texts."""

    def get(self, key: str) -> V | None:
        """Return the value of a key; None if there is none."""

    def put(self, key: str, value: V) -> None:
        """Set the value of a key."""

    def count(self, after: str, through: str) -> int:
        """Count the keys above ``after``, up to and including ``through``."""

    def between(self, after: str, through: str) -> Iterator[tuple[str, V]]:
        """Yield the keys above ``after``, up to ``through``, with their values, in order.

        The caller must not change the table meanwhile.
        """

    def following(self, key: str) -> str | None:
        """Return the next key above ``key``."""


class Tables(Protocol):
    """Makes tables, and counts the operations of all of them."""

    steps: int

    def table(self, make: Make[V]) -> ValueTable[V]:
        """Return a new table of tuples; ``make`` turns a plain tuple into the table's type."""

    def close(self) -> None:
        """Remove all tables."""


class MemoryTables:
    """Tables in dictionaries."""

    def __init__(self) -> None:
        """Begin without tables."""
        self.steps = 0

    def table(self, make: Make[V]) -> ValueTable[V]:
        """Return a new table."""
        del make
        return _MemoryTable(self)

    def close(self) -> None:
        """Do nothing: Python frees the tables."""


class _MemoryTable(Generic[V]):
    """A dictionary. It keeps a sorted list of its keys after the first call that needs one."""

    def __init__(self, tables: MemoryTables) -> None:
        self._tables = tables
        self._values: dict[str, V] = {}
        self._keys: list[str] | None = None

    def get(self, key: str) -> V | None:
        self._tables.steps += 1
        return self._values.get(key)

    def put(self, key: str, value: V) -> None:
        self._tables.steps += 1
        keys = self._keys
        if keys is not None and key not in self._values:
            if keys and key < keys[-1]:
                insort(keys, key)
            else:
                keys.append(key)
        self._values[key] = value

    def count(self, after: str, through: str) -> int:
        self._tables.steps += 1
        keys = self._ordered()
        return max(bisect_right(keys, through) - bisect_right(keys, after), 0)

    def between(self, after: str, through: str) -> Iterator[tuple[str, V]]:
        keys = self._ordered()
        for place in range(bisect_right(keys, after), bisect_right(keys, through)):
            self._tables.steps += 1
            yield keys[place], self._values[keys[place]]

    def following(self, key: str) -> str | None:
        self._tables.steps += 1
        keys = self._ordered()
        place = bisect_right(keys, key)
        return keys[place] if place < len(keys) else None

    def _ordered(self) -> list[str]:
        if self._keys is None:
            self._keys = sorted(self._values)
        return self._keys


class DiskTables:
    """Tables in a private temporary file, which ``close`` removes.

    Args:
        cache_kib_max: The size of the part in memory.
    """

    def __init__(self, cache_kib_max: int = 65_536) -> None:
        self.steps = 0
        # The empty name is a database in a nameless temporary file.
        self.file = sqlite3.connect("", isolation_level=None)
        for pragma in (f"cache_size=-{cache_kib_max}", "journal_mode=OFF", "synchronous=OFF"):
            self.file.execute(f"PRAGMA {pragma}")
        self.file.execute(
            "CREATE TABLE entry (space INT, key TEXT, value BLOB, PRIMARY KEY (space, key))"
            " WITHOUT ROWID"
        )
        self._spaces = count()

    def table(self, make: Make[V]) -> ValueTable[V]:
        """Return a new table."""
        return _DiskTable(self, next(self._spaces), make)

    def close(self) -> None:
        """Close the file, which removes it."""
        self.file.close()


class _DiskTable(Generic[V]):
    def __init__(self, tables: DiskTables, space: int, make: Make[V]) -> None:
        self._tables = tables
        self._space = space
        self._make = make

    def get(self, key: str) -> V | None:
        found = self._ask("SELECT value FROM entry WHERE space = ? AND key = ?", key).fetchone()
        return None if found is None else self._value(found[0])

    def put(self, key: str, value: V) -> None:
        plain: tuple[Any, ...] = tuple(value)
        self._ask("INSERT OR REPLACE INTO entry VALUES (?, ?, ?)", key, marshal.dumps(plain))

    def count(self, after: str, through: str) -> int:
        query = "SELECT count(*) FROM entry WHERE space = ? AND key > ? AND key <= ?"
        return int(self._ask(query, after, through).fetchone()[0])

    def between(self, after: str, through: str) -> Iterator[tuple[str, V]]:
        query = "SELECT key, value FROM entry WHERE space = ? AND key > ? AND key <= ? ORDER BY key"
        for key, value in self._ask(query, after, through):
            self._tables.steps += 1
            yield key, self._value(value)

    def following(self, key: str) -> str | None:
        query = "SELECT min(key) FROM entry WHERE space = ? AND key > ?"
        found: str | None = self._ask(query, key).fetchone()[0]
        return found

    def _ask(self, query: str, *values: str | bytes) -> sqlite3.Cursor:
        self._tables.steps += 1
        return self._tables.file.execute(query, (self._space, *values))

    def _value(self, blob: bytes) -> V:
        # This process wrote the value itself, so it is safe to load.
        return self._make(marshal.loads(blob))  # noqa: S302
