"""The methods by which a program writes a join: ``left.join(right).where(k1).equal_to(k2).window(w).apply(f)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic

from typing_extensions import TypeVar

from broker.streams import graph
from broker.streams.join_operators import Pairs
from broker.streams.windows import Sliding

if TYPE_CHECKING:
    from broker.streams.builder import GroupedStream, Stream

T = TypeVar("T")
U = TypeVar("U")
R = TypeVar("R", default=Any)


class JoinedStream(Generic[T, U]):
    """A join of two streams that has no keys yet."""

    def __init__(self, left: Stream[T], right: Stream[U], *, is_left: bool) -> None:
        """Keep both. Raises ValueError if they are of different jobs."""
        check_same(left, right)
        self._left = left
        self._right = right
        self._is_left = is_left

    def where(self, select: Callable[[T], Any] | str) -> KeyedJoin[T, U]:
        """Set the key of the left stream's values."""
        return KeyedJoin(self._left.key_by(select), self._right, is_left=self._is_left)


class KeyedJoin(Generic[T, U]):
    """A join that has its left key."""

    def __init__(self, left: GroupedStream[Any, T], right: Stream[U], *, is_left: bool) -> None:
        """Keep the sides."""
        self._left = left
        self._right = right
        self._is_left = is_left

    def equal_to(self, select: Callable[[U], Any] | str) -> Joined[T, U]:
        """Set the key of the right stream's values."""
        return Joined(self._left, self._right.key_by(select), is_left=self._is_left)


class Joined(Generic[T, U]):
    """A join that has both keys."""

    def __init__(
        self,
        left: GroupedStream[Any, T],
        right: GroupedStream[Any, U],
        *,
        is_left: bool,
        windows: Sliding | None = None,
        pairs: Pairs = "all",
        late: str | None = None,
    ) -> None:
        """Keep the sides, and how they are joined."""
        self._left = left
        self._right = right
        self._is_left = is_left
        self._windows = windows
        self._pairs: Pairs = pairs
        self._late = late

    def window(
        self, windows: Sliding, *, pairs: Pairs = "all", late: str | None = None
    ) -> Joined[T, U]:
        """Join only records of the same window.

        Args:
            windows: tumbling or sliding.
            pairs: ``all`` gives all pairs of a window, each as soon as it is complete. ``last`` gives the pair of
                the last records of both sides, when the window closes.
            late: the topic of records whose window is closed.
        """
        if not isinstance(windows, Sliding):
            raise TypeError("A join has no sessions: use tumbling() or sliding().")
        return Joined(
            self._left, self._right, is_left=self._is_left, windows=windows, pairs=pairs, late=late
        )

    def apply(
        self, function: Callable[[T, Any], R | None] | str, *, name: str | None = None
    ) -> Stream[R]:
        """Give a value for each pair. A left join gives None as the right value if it found none.

        SQL uses the columns ``left`` and ``right``.
        """
        graph.check_function("apply", function, 2)
        builder = self._left.builder
        operator = graph.Join(
            name=builder.name_of("join", name),
            parents=(self._left.operator, self._right.operator),
            function=function,
            is_left=self._is_left,
            windows=self._windows,
            pairs=self._pairs,
            late=self._late,
        )
        return self._left.ungrouped(operator)


def check_same(one: Stream[Any], other: Stream[Any]) -> None:
    """Raise ValueError unless two streams belong to one job."""
    if one.builder is not other.builder:
        raise ValueError(
            f"The streams are of two jobs, {one.builder.job_id} and {other.builder.job_id}: make both by one builder."
        )
