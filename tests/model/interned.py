"""Values with numbers, so that states of a search are hashed and compared as small numbers."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any


class Interned:
    """Values, each kept once; its place is its name."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._places: dict[Hashable, int] = {}

    def place(self, key: Hashable, value: Any = None) -> int:
        """Return the place of the value that ``key`` identifies; keep ``value`` there (None: the key itself)."""
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = len(self.values)
            self.values.append(key if value is None else value)
        return place
