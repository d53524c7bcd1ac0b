"""The rows that one processor has to read, for one subscription. Pure: the caller gives the time.

A row is in the list once, even if many entries name it. So a row has one message in work at most, and a row with many
messages does not fill the queue::

    offer ──▶ ready ──▶ in work ──▶ (gone)
                ▲           │ its head must wait
                └── due ── waiting

If an entry has no message yet, its put may be in flight. Then the next offer ends the row's wait, too.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from broker.rowlog.cell_keys import Entry, MessageId

READY_MAX: Final = 1_000
WAITING_MAX: Final = 20_000


@dataclass(slots=True)
class _Row:
    """A row: its entries, and its place in the list."""

    entries: dict[Entry, None] = field(default_factory=dict)
    in_work: bool = False
    again: bool = False
    """True if a new entry was offered while it was in work."""
    is_woken: bool = False
    """True if the row was woken while it was in work."""
    is_offered: bool = False
    """True if any entry was offered while the row was in work, also a known one."""
    due: int = 0
    """When the row may be read, ms of the monotonic clock; 0: it does not wait."""
    until_offered: bool = False
    """True if an offer of any of its entries ends its waiting."""
    seen: dict[tuple[MessageId, int], float] = field(default_factory=dict)
    """When its messages, with their numbers of tries, were first seen here."""


class Work:
    """Rows ready, in work and waiting."""

    def __init__(self) -> None:
        """Have no row yet."""
        self._rows: dict[bytes, _Row] = {}
        self._ready: deque[bytes] = deque()
        self._waiting: list[tuple[int, int, bytes]] = []
        self._numbers = count()
        self.overflowed = False
        """True if waiting rows were dropped: only a full scan finds them again."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    @property
    def is_full(self) -> bool:
        """True if no more rows should be offered now."""
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
        elif row.in_work:
            row.is_offered = True
            row.again |= entry not in row.entries
        elif row.due and row.until_offered:
            self._make_ready(entry.row, row)
        row.entries[entry] = None

    def _make_ready(self, key: bytes, row: _Row) -> None:
        row.due = 0
        self._ready.append(key)

    def take(self, now: int) -> bytes | None:
        """Take a row into work, and return its key; None: no row is ready."""
        while self._waiting and self._waiting[0][0] <= now:
            due, _, key = heapq.heappop(self._waiting)
            row = self._rows.get(key)
            if row is not None and row.due == due:
                self._make_ready(key, row)
        if not self._ready:
            return None
        key = self._ready.popleft()
        row = self._rows[key]
        row.in_work, row.again, row.is_offered, row.is_woken = True, False, False, False
        return key

    def entries(self, key: bytes) -> list[Entry]:
        """Return the entries of a row in work, also those offered since it was taken."""
        return list(self._rows[key].entries)

    def seen_at(self, key: bytes, message: MessageId, tries: int, now: float) -> float:
        """Return when a message of a row in work was first seen after so many tries; ``now`` if it is new here."""
        return self._rows[key].seen.setdefault((message, tries), now)

    def keep_seen(self, key: bytes, messages: Iterable[MessageId]) -> None:
        """Forget when other messages and entries of a row in work were seen: they are not there any more."""
        row = self._rows[key]
        there = {*messages, *(entry.message for entry in row.entries)}
        row.seen = {thing: at for thing, at in row.seen.items() if thing[0] in there}

    def settle(self, key: bytes, entry: Entry) -> None:
        """Remove an entry of a row in work."""
        self._rows[key].entries.pop(entry, None)

    def finish(self, key: bytes, due: int = 0, *, until_offered: bool = False) -> None:
        """End the work on a row.

        Args:
            key: the row's key.
            due: when to read it again, ms of the monotonic clock; 0: only for new entries.
            until_offered: True if it shall be read earlier once any of its entries is offered again.
        """
        row = self._rows[key]
        row.in_work, row.until_offered = False, until_offered
        if due and not row.is_woken and not (until_offered and row.is_offered):
            if len(self._waiting) >= WAITING_MAX:
                self.overflowed = True
                del self._rows[key]
                return
            row.due = due
            heapq.heappush(self._waiting, (due, next(self._numbers), key))
        elif due or row.again or row.is_woken:
            self._ready.append(key)
        else:
            del self._rows[key]

    def wake(self, key: bytes) -> None:
        """Make a waiting row ready now, and a row in work as soon as it is finished."""
        row = self._rows.get(key)
        if row is None:
            return
        if row.due:
            self._make_ready(key, row)
        elif row.in_work:
            row.is_woken = True

    @property
    def next_due(self) -> int | None:
        """When the next waiting row is due, ms of the monotonic clock."""
        return self._waiting[0][0] if self._waiting else None
