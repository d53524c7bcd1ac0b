"""Accumulators combine many values into one. Pure.

A job pickles its accumulators, and keeps them as state between micro-batches. So an accumulator's class must be
importable where the job runs. The job does not emit a result of None.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, Self, TypeVar

from typing_extensions import override

from broker.streams.windows import Window

V = TypeVar("V")
R = TypeVar("R")


class Accumulator(ABC, Generic[V, R]):
    """Takes values one by one. A job makes a new one for each key, and for each window of a key."""

    @abstractmethod
    def add(self, value: V) -> None:
        """Add a value."""

    @abstractmethod
    def result(self, window: Window | None) -> R | None:
        """Return the result so far; ``window`` is its window, or None for an aggregate without windows."""

    def merge(self, other: Self) -> None:
        """Add all values of another accumulator, when two sessions become one.

        The other's values may be earlier or later than the own ones.
        """
        raise NotImplementedError(f"{type(self).__name__} needs merge() to be used with sessions")


class Count(Accumulator[Any, int]):
    """The number of values."""

    def __init__(self) -> None:
        """Begin with none."""
        self._count = 0

    @override
    def add(self, value: Any) -> None:
        self._count += 1

    @override
    def result(self, window: Window | None) -> int:
        return self._count

    @override
    def merge(self, other: Count) -> None:
        self._count += other._count


class Sum(Accumulator[Any, Any]):
    """The sum of numbers; None if there are none."""

    def __init__(self) -> None:
        """Begin with none."""
        self._sum: Any = None

    @override
    def add(self, value: Any) -> None:
        self._sum = value if self._sum is None else self._sum + value

    @override
    def result(self, window: Window | None) -> Any:
        return self._sum

    @override
    def merge(self, other: Sum) -> None:
        if other._sum is not None:
            self.add(other._sum)


class Avg(Accumulator[Any, float]):
    """The average of numbers; None if there are none."""

    def __init__(self) -> None:
        """Begin with none."""
        self._sum: Any = 0
        self._count = 0

    @override
    def add(self, value: Any) -> None:
        self._sum += value
        self._count += 1

    @override
    def result(self, window: Window | None) -> float | None:
        return self._sum / self._count if self._count else None

    @override
    def merge(self, other: Avg) -> None:
        self._sum += other._sum
        self._count += other._count


Measured = tuple[Any, V]
"""A pair: the measure by which a value is compared, and the value."""


class _Extreme(Accumulator[Measured[V], V]):
    """The whole value whose measure is the least or the greatest; the first of equal ones."""

    def __init__(self) -> None:
        """Begin with none."""
        self._best: Measured[V] | None = None

    @staticmethod
    @abstractmethod
    def _is_better(measure: Any, than: Any) -> bool: ...

    @override
    def add(self, value: Measured[V]) -> None:
        if self._best is None or self._is_better(value[0], self._best[0]):
            self._best = value

    @override
    def result(self, window: Window | None) -> V | None:
        return None if self._best is None else self._best[1]

    @override
    def merge(self, other: Self) -> None:
        if other._best is not None:
            self.add(other._best)


class Min(_Extreme[V]):
    """The value with the least measure."""

    @staticmethod
    @override
    def _is_better(measure: Any, than: Any) -> bool:
        return bool(measure < than)


class Max(_Extreme[V]):
    """The value with the greatest measure."""

    @staticmethod
    @override
    def _is_better(measure: Any, than: Any) -> bool:
        return bool(measure > than)
