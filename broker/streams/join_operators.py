"""Join operators, which work on the records of one key in a chain (operators.py). Pure.

A join gives pairs. The step behind it (stateless_steps.PairFunction) makes a value of each pair with the user's
function. So if the function raises at a pair, only this pair fails.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Literal

from typing_extensions import override

from broker.streams.failures import late_letter
from broker.streams.operators import Cell, KeyedOperator
from broker.streams.stateless_steps import Taken
from broker.streams.stream_records import StreamRecord
from broker.streams.windows import Sliding

Pairs = Literal["all", "last"]
LEFT, RIGHT = 0, 1


class Latest(KeyedOperator):
    """A join without windows: it pairs each record with the newest of the other side. The cell is ``{side: value}``.

    An inner join gives a pair for each record of either side, once the other side has a record. A left join gives a
    pair for each left record, with None if there is no right one. A right record only replaces the previous one.
    """

    def __init__(self, name: str, *, is_left: bool) -> None:
        """Keep the kind of join."""
        super().__init__(name)
        self._is_left = is_left

    @override
    def take(self, record: StreamRecord, cell: Cell, watermark_ms: int) -> Taken:
        cell[record.side] = record.value
        if self._is_left:
            if record.side == LEFT:
                yield record.having((record.value, cell.get(RIGHT)))
        elif LEFT in cell and RIGHT in cell:
            yield record.having((cell[LEFT], cell[RIGHT]))


class _OfWindow(KeyedOperator):
    """A join of the records of a window."""

    is_timed = True

    def __init__(
        self, name: str, windows: Sliding, job: str, late: str | None, *, is_left: bool
    ) -> None:
        """Keep the parts; late records go to the topic ``late``."""
        super().__init__(name)
        self._windows = windows
        self._job = job
        self._late = late
        self._is_left = is_left

    @override
    def take(self, record: StreamRecord, cell: Cell, watermark_ms: int) -> Taken:
        for window in self._windows.windows_of(record.time_ms):
            mine = record.having(record.value)
            mine.window = window
            if window not in cell and window.end_ms <= watermark_ms:
                yield late_letter(self._job, self.name, self._late, mine)
            else:
                yield from self._into(mine, record.side, cell.setdefault(window, {}))

    @abstractmethod
    def _into(self, record: StreamRecord, side: int, sides: Cell) -> Taken:
        """Add a record to its window, and yield the pairs that it completes."""

    @override
    def due_ms(self, cell: Cell) -> int | None:
        return min((window.end_ms for window in cell), default=None)

    @override
    def expire(self, key: Any, cell: Cell, watermark_ms: int) -> Taken:
        for window in sorted(each for each in cell if each.end_ms <= watermark_ms):
            for pair in self._at_end(cell.pop(window)):
                yield StreamRecord(pair, b"", window.end_ms - 1, key, window)

    @abstractmethod
    def _at_end(self, sides: Cell) -> Iterator[tuple[Any, Any]]:
        """Yield the pairs that a window gives when it closes."""


class LatestOfWindow(_OfWindow):
    """A join that pairs the newest records of both sides when a window closes: ``{window: {side: value}}``."""

    @override
    def _into(self, record: StreamRecord, side: int, sides: Cell) -> Taken:
        sides[side] = record.value
        yield from ()

    @override
    def _at_end(self, sides: Cell) -> Iterator[tuple[Any, Any]]:
        if LEFT in sides and (self._is_left or RIGHT in sides):
            yield sides[LEFT], sides.get(RIGHT)


class AllOfWindow(_OfWindow):
    """A join of all records of a window: ``{window: {side: values}}``. It gives each pair once both records exist.

    When a window without right records closes, a left join gives its left records with None.
    """

    @override
    def _into(self, record: StreamRecord, side: int, sides: Cell) -> Taken:
        sides.setdefault(side, []).append(record.value)
        for other in sides.get(LEFT if side == RIGHT else RIGHT, ()):
            yield record.having((other, record.value) if side == RIGHT else (record.value, other))

    @override
    def _at_end(self, sides: Cell) -> Iterator[tuple[Any, Any]]:
        if self._is_left and RIGHT not in sides:
            yield from ((left, None) for left in sides.get(LEFT, ()))
