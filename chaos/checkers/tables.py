"""The tables of the checkers: values by key, whose keys have an order.

A checker looks at each line once and keeps its facts in tables, by id, payload, key or pointer. ``steps``
counts the table operations, so that a test can show that the work grows in proportion to the history.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

V = TypeVar("V", bound=tuple[Any, ...])
LAST = "\U0010ffff"
"""A text above every key."""


class Tables:
    """Counts the operations of all tables of one judge."""

    def __init__(self) -> None:
        """Begin without an operation."""
        self.steps = 0


class ValueTable(Generic[V]):
    """A table of tuples: a dictionary. It keeps a sorted list of its keys after the first call that needs one."""

    def __init__(self, tables: Tables) -> None:
        """Begin empty."""
        self._tables = tables
        self._values: dict[str, V] = {}
        self._keys: list[str] | None = None

    def get(self, key: str) -> V | None:
        """Return the value of a key; None if there is none."""
        self._tables.steps += 1
        return self._values.get(key)

    def put(self, key: str, value: V) -> None:
        """Set the value of a key."""
        self._tables.steps += 1
        keys = self._keys
        if keys is not None and key not in self._values:
            if keys and key < keys[-1]:
                insort(keys, key)
            else:
                keys.append(key)
        self._values[key] = value

    def count(self, after: str, through: str) -> int:
        """Count the keys above ``after``, up to and including ``through``."""
        self._tables.steps += 1
        keys = self._ordered()
        return max(bisect_right(keys, through) - bisect_right(keys, after), 0)

    def between(self, after: str, through: str) -> Iterator[tuple[str, V]]:
        """Yield the keys above ``after``, up to ``through``, with their values, in order.

        The caller must not change the table meanwhile.
        """
        keys = self._ordered()
        for place in range(bisect_right(keys, after), bisect_right(keys, through)):
            self._tables.steps += 1
            yield keys[place], self._values[keys[place]]

    def following(self, key: str) -> str | None:
        """Return the next key above ``key``."""
        self._tables.steps += 1
        keys = self._ordered()
        place = bisect_right(keys, key)
        return keys[place] if place < len(keys) else None

    def _ordered(self) -> list[str]:
        if self._keys is None:
            self._keys = sorted(self._values)
        return self._keys
