"""Bound the payload logs that a node keeps open for writing: those that were idle longest are closed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import Final

CLOSED_AT_ONCE: Final = 8


class OpenLogs:
    """The open payload logs of all topics of a node. One takes about 7 KB."""

    def __init__(self, logs_max: int) -> None:
        """Begin with none."""
        self._logs_max = logs_max
        self._open: OrderedDict[object, Callable[[], bool]] = OrderedDict()

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._open)

    def use(self, log: object, close: Callable[[], bool]) -> None:
        """Note that a log is used now. ``close`` closes it, or returns False because it is in use."""
        self._open[log] = close
        self._open.move_to_end(log)
        surplus = min(len(self._open) - self._logs_max, CLOSED_AT_ONCE)
        for oldest in list(islice(self._open, max(surplus, 0))):
            if not self._open[oldest]():
                self._open.move_to_end(oldest)

    def leave(self, log: object) -> None:
        """Note that a log was closed."""
        self._open.pop(log, None)
