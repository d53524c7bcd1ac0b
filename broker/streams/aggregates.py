"""The methods by which a program adds aggregates to a stream."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from broker import user_code
from broker.streams import accumulators, graph
from broker.streams.accumulators import Accumulator

if TYPE_CHECKING:
    from broker.streams.builder import GroupedStream, StreamBuilder
    from broker.streams.windows import Windows

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")

Select = Callable[[V], Any] | str | None


class Aggregating(Generic[K, V]):
    """The aggregates of grouped and windowed streams."""

    builder: StreamBuilder
    operator: graph.Operator
    _windows: Windows | None = None
    _late: str | None = None

    @abstractmethod
    def _grouped(self, operator: graph.Operator) -> GroupedStream[K, Any]:
        """Return the stream behind an operator."""

    def _aggregated(
        self,
        kind: str,
        make: Callable[[], Accumulator[Any, Any]],
        select: graph.Function | None,
        name: str | None,
    ) -> GroupedStream[K, Any]:
        user_code.check_plain(make, 0, f"What {kind} makes")
        if select is not None:
            graph.check_function(kind, select)
        operator = graph.Aggregate(
            name=self.builder.name_of(kind, name),
            parents=(self.operator,),
            kind=kind,
            make=make,
            select=select,
            windows=self._windows,
            late=self._late,
        )
        return self._grouped(operator)

    def count(self, select: Select[V] = None, *, name: str | None = None) -> GroupedStream[K, int]:
        """Count values; with ``select``, only those for which it is not None."""
        return self._aggregated("count", accumulators.Count, select, name)

    def sum(self, select: Select[V] = None, *, name: str | None = None) -> GroupedStream[K, Any]:
        """Add numbers; leave out None."""
        return self._aggregated("sum", accumulators.Sum, select, name)

    def avg(self, select: Select[V] = None, *, name: str | None = None) -> GroupedStream[K, float]:
        """Give the average of numbers; leave out None."""
        return self._aggregated("avg", accumulators.Avg, select, name)

    def min(self, select: Select[V] = None, *, name: str | None = None) -> GroupedStream[K, V]:
        """Give the whole value with the least ``select``; the first of equal ones."""
        return self._aggregated("min", accumulators.Min, select, name)

    def max(self, select: Select[V] = None, *, name: str | None = None) -> GroupedStream[K, V]:
        """Give the whole value with the greatest ``select``; the first of equal ones."""
        return self._aggregated("max", accumulators.Max, select, name)

    def aggregate(
        self, make: Callable[[], Accumulator[V, R]], *, name: str | None = None
    ) -> GroupedStream[K, R]:
        """Aggregate by your own accumulator; ``make`` is its class, or a function that makes one."""
        return self._aggregated("aggregate", make, None, name)
