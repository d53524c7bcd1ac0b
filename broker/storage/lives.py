"""Where in a log rows lie that live shorter than their topic, as far as a sweeper has looked.

A row never changes its life. So what was looked at need not be looked at again before the first life in it
ends, and a sweep of a log of which nothing ends looks at what is new, however long the log is::

    floor                                     looked to        pointer
      |      [ due 12:40 ]      [ due 18:05 ]     |  new  new     |
             looked at again once it is due

A hold begins without any knowledge: the first sweep after a claim looks at the whole log. What a look at a
stretch that is due missed, since an old state answered it, stays until the next hold, or the floor, takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

ROWS_MAX = 2_000
"""Neighbouring stretches are joined up to so many rows: few of them, and none that takes long."""


class Stretch(NamedTuple):
    """Rows with ``start <= key < stop``; the first of their lives to end does so at ``due_ms``."""

    start: bytes
    stop: bytes
    due_ms: int
    rows: int


class Lives:
    """What one hold knows of them, and how far the present round has come."""

    def __init__(self) -> None:
        """Begin with nothing looked at, before the first round."""
        self.is_under_way = False
        """Whether a round has begun and not ended."""
        self._is_at_end = False
        """Whether this round has looked at all that is new."""
        self._looked_to = b""
        self._stretches: list[Stretch] = []
        """In the order of their keys, all below ``_looked_to``."""

    def begin(self) -> None:
        """Begin a round."""
        self.is_under_way = True

    def end(self) -> None:
        """End the round: the next one looks for new rows again."""
        self.is_under_way = self._is_at_end = False

    def next(self, before_ms: int, start: bytes, stop: bytes) -> tuple[bytes, bytes] | None:
        """Return which rows to look at now, None if this round has nothing more to look at.

        Those of which some life ends before ``before_ms``, then those that are new; all from ``start``
        on, the floor, to below ``stop``.
        """
        self._stretches = [known for known in self._stretches if known.stop > start]
        for known in self._stretches:
            if known.due_ms < before_ms:
                return max(known.start, start), known.stop
        new = max(self._looked_to, start)
        return (new, stop) if new < stop and not self._is_at_end else None

    def looked(
        self,
        asked: tuple[bytes, bytes],
        rows: Sequence[bytes],
        *,
        more: bool,
        due_ms: int | None,
    ) -> None:
        """Note what a look at what ``next`` gave showed.

        Args:
            asked: what ``next`` gave.
            rows: the keys that were there.
            more: whether there may be more.
            due_ms: when the first of those lives ends that have not ended yet; None: there are none.
        """
        start, stop = asked
        is_new = start >= self._looked_to
        if more or is_new:
            # Of new rows only those that were seen are known: the answer may be one of an earlier time.
            stop = rows[-1] + b"\0" if rows else start
        found = [] if due_ms is None else [Stretch(start, stop, due_ms, len(rows))]
        if is_new:
            self._is_at_end, self._looked_to = not more, stop
            self._add(found)
            return
        at = next(at for at, known in enumerate(self._stretches) if known.stop > start)
        known = self._stretches[at]
        rest = [known._replace(start=stop)] if stop < known.stop else []
        self._stretches[at : at + 1] = found + rest

    def _add(self, found: list[Stretch]) -> None:
        last = self._stretches[-1] if self._stretches else None
        for new in found:
            if last is not None and last.stop == new.start and last.rows + new.rows <= ROWS_MAX:
                due_ms, rows = min(last.due_ms, new.due_ms), last.rows + new.rows
                self._stretches[-1] = Stretch(last.start, new.stop, due_ms, rows)
            else:
                self._stretches.append(new)
