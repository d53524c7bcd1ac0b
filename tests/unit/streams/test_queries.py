"""The queries of a job, without Spark."""

from __future__ import annotations

from typing import Any

from broker.streams.queries import JobQueries


class Query:
    """A query that notes for how long its end is awaited; it ends at the second wait, or never."""

    def __init__(self, *, ends: bool = False) -> None:
        self.ends = ends
        self.waits: list[float] = []

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802 - Spark's name.
        self.waits.append(timeout)
        return self.ends and len(self.waits) > 1


def running(*queries: Query) -> JobQueries:
    named: Any = dict(enumerate(queries))
    counts: Any = None
    return JobQueries("job", counts, named, counts)


def test_a_wait_for_many_queries_is_no_longer_than_asked() -> None:
    queries = [Query() for _ in range(5)]
    assert not running(*queries).await_termination(0.05)
    assert 0 < max(wait for query in queries for wait in query.waits) <= 0.05


def test_all_queries_are_awaited() -> None:
    queries = [Query(ends=True) for _ in range(3)]
    assert running(*queries).await_termination(None)
    assert [len(query.waits) for query in queries] == [2, 2, 2]
