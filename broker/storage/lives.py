"""Where in a log rows lie that live shorter than their topic, as far as a hold knows.

A row never changes its life. So a sweep looks at rows that a former hold wrote once, notes where such lives
are, and looks there again when the first of them ends. What the hold itself writes it need not look at: it
knows. A sweep in which no life ends looks at nothing, however long the log is::

    floor      looked to        claimed at                 pointer
      |   [ due 12:40 ] |  unknown  |     [ due 18:05 ]       |
              seen by looking               noted when written

The first sweep of a hold looks at the whole log, in slices. What a look at a stretch that is due missed, since
an old state answered it, stays until the next hold, or the floor, takes it.
"""

from __future__ import annotations

from bisect import bisect_right
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
    """What one hold knows of them, and how far the present round of sweeping has come."""

    def __init__(self) -> None:
        """Begin with nothing known, before the first round."""
        self.is_under_way = False
        """Whether a round has begun and not ended."""
        self._is_at_end = False
        """Whether this round has looked at all that is unknown."""
        self._looked_to = b""
        self._written_from: bytes | None = None
        """Where that begins which the hold wrote; None: it wrote nothing."""
        self._noted_to = b""
        """Where the stretch ends that was last noted when it was written."""
        self._between = 0
        """Rows that it wrote since then."""
        self._stretches: list[Stretch] = []
        """In the order of their keys."""

    # Sweeping.

    def begin(self) -> None:
        """Begin a round."""
        self.is_under_way = True

    def end(self) -> None:
        """End the round: the next one looks again for what is unknown."""
        self.is_under_way = self._is_at_end = False

    def next(self, before_ms: int, start: bytes, stop: bytes) -> tuple[bytes, bytes] | None:
        """Return which rows to look at now, None if this round has nothing more to look at.

        Those of which some life ends before ``before_ms``, then unknown ones; all from ``start`` on, the
        floor, to below ``stop``, the pointer.
        """
        self._stretches = [known for known in self._stretches if known.stop > start]
        for known in self._stretches:
            first = max(known.start, start)
            if known.due_ms < before_ms and first < stop:
                return first, min(known.stop, stop)
        if self._written_from is not None:
            stop = min(stop, self._written_from)
        unknown = max(self._looked_to, start)
        return (unknown, stop) if unknown < stop and not self._is_at_end else None

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
        at = bisect_right(self._stretches, start, key=lambda known: known.stop)
        known = self._stretches[at] if at < len(self._stretches) else None
        if known is not None and known.start <= start:
            stop = _behind(rows[-1]) if more else stop
            found = [] if due_ms is None else [Stretch(start, stop, due_ms, len(rows))]
            rest = [known._replace(start=stop)] if stop < known.stop else []
            self._stretches[at : at + 1] = found + rest
            return
        if start < self._looked_to or (self._written_from or stop) < stop:
            return  # Another round has looked there meanwhile.
        # Of unknown rows only those that were seen are known: the answer may be of an earlier time.
        self._is_at_end = not more
        self._looked_to = _behind(rows[-1]) if rows else start
        if due_ms is not None:
            new = Stretch(start, self._looked_to, due_ms, len(rows))
            before = self._stretches[at - 1] if at else None
            if before is None or before.stop != start or not self._join(at - 1, new):
                self._stretches.insert(at, new)

    # Writing.

    def wrote(self, first: bytes, last: bytes, rows: int, due_ms: int | None) -> None:
        """Note what the hold wrote: rows from ``first`` to ``last``, above all that are there.

        ``due_ms``: when the first of their own lives ends; None: they live as long as the topic lets them.
        """
        if self._written_from is None:
            self._written_from = first
        if due_ms is None:
            self._between += rows
            return
        new = Stretch(first, _behind(last), due_ms, rows)
        before = self._stretches[-1] if self._stretches else None
        # One that is gone by now, or what lay before it, has rows between that nobody counted.
        counted = before is not None and before.stop == self._noted_to
        if not counted or not self._join(-1, new, self._between):
            self._stretches.append(new)
        self._noted_to, self._between = new.stop, 0

    def _join(self, at: int, new: Stretch, between: int = 0) -> bool:
        """Join what follows to a stretch, if few rows are in and between them; whether that was done."""
        before = self._stretches[at]
        rows = before.rows + between + new.rows
        if rows > ROWS_MAX:
            return False
        due_ms = min(before.due_ms, new.due_ms)
        self._stretches[at] = Stretch(before.start, new.stop, due_ms, rows)
        return True


def _behind(key: bytes) -> bytes:
    return key + b"\0"
