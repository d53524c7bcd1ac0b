"""The rows that one processor has to look at, for one subscription. Pure: it is given the time.

A row is in it once, however many entries name it. So a row has one message in work at most, and a hot row does not
fill the queue::

    offer ──▶ ready ──▶ in work ──▶ (gone)
                ▲           │ its head must wait
                └── due ── waiting
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from broker.rowlog.cell_keys import Entry

READY_MAX: Final = 1_000
WAITING_MAX: Final = 20_000


@dataclass(slots=True)
class _Row:
    """A row: its entries, and where it stands."""

    entries: dict[Entry, None] = field(default_factory=dict)
    in_work: bool = False
    again: bool = False
    due: int = 0
    """When it may be looked at, ms since 1970; 0: it does not wait."""


class Work:
    """Rows ready, in work and waiting."""

    def __init__(self) -> None:
        """Begin with none."""
        self._rows: dict[bytes, _Row] = {}
        self._ready: deque[bytes] = deque()
        self._waiting: list[tuple[int, int, bytes]] = []
        self._numbers = count()
        self.overflowed = False
        """Whether rows that wait were forgotten: only a full scan finds them again."""

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self._rows)

    @property
    def is_full(self) -> bool:
        """Whether no more should be offered now."""
        return len(self._ready) >= READY_MAX

    @property
    def oldest(self) -> int | None:
        """The time of the oldest entry that is not settled, ms since 1970."""
        return min(
            (entry.timestamp for row in self._rows.values() for entry in row.entries), default=None
        )

    def offer(self, entry: Entry) -> None:
        """Note that a row may have an open message."""
        row = self._rows.get(entry.row)
        if row is None:
            row = self._rows[entry.row] = _Row()
            self._ready.append(entry.row)
        elif row.in_work and entry not in row.entries:
            row.again = True
        row.entries[entry] = None

    def take(self, now: int) -> tuple[bytes, list[Entry]] | None:
        """Take a row into work; None: none is ready."""
        while self._waiting and self._waiting[0][0] <= now:
            due, _, key = heapq.heappop(self._waiting)
            row = self._rows.get(key)
            if row is not None and row.due == due:
                row.due = 0
                self._ready.append(key)
        if not self._ready:
            return None
        key = self._ready.popleft()
        row = self._rows[key]
        row.in_work, row.again = True, False
        return key, list(row.entries)

    def entries(self, key: bytes) -> list[Entry]:
        """Return the entries of a row in work, with those that came meanwhile."""
        return list(self._rows[key].entries)

    def settle(self, key: bytes, entry: Entry) -> None:
        """Forget an entry of a row in work."""
        self._rows[key].entries.pop(entry, None)

    def finish(self, key: bytes, due: int = 0) -> None:
        """End the work on a row; ``due``: it is looked at again then, ms since 1970."""
        row = self._rows[key]
        row.in_work = False
        if due:
            if len(self._waiting) >= WAITING_MAX:
                self.overflowed = True
                del self._rows[key]
                return
            row.due = due
            heapq.heappush(self._waiting, (due, next(self._numbers), key))
        elif row.again:
            self._ready.append(key)
        else:
            del self._rows[key]

    def wake(self, key: bytes) -> None:
        """Look at a row now that waits."""
        row = self._rows.get(key)
        if row is None:
            return
        if row.due:
            row.due = 0
            self._ready.append(key)
        elif row.in_work:
            row.again = True

    @property
    def next_due(self) -> int | None:
        """When the next row that waits is due, ms since 1970."""
        return self._waiting[0][0] if self._waiting else None
