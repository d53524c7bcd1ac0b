"""Which changes of a job keep its checkpoint usable, and how the others are refused."""

from collections.abc import Callable
from typing import Any

import pytest

from broker.streams import Json, StreamBuilder, changes, session, tumbling
from broker.streams.builder import GroupedStream, Stream
from broker.streams.changes import JobChanged, check, decode, encode, form_of
from broker.streams.operators import Processor

Words = Stream[Any]
Grouped = GroupedStream[Any, Any]


class Same(Processor[Any, Any]):
    def process(self, key: Any, value: Any, time_ms: int, state: Any) -> Any:
        return [value]


def form(write: Callable[[Words], Any], topic: str = "in", **source: Any) -> Any:
    """Return the form of a job's one end, as a later run reads it."""
    builder = StreamBuilder("job")
    write(builder.source(topic, Json("user STRING"), **source)).sink("out", Json())
    [end] = builder.build().graph.ends
    return decode(encode(form_of(end)))


def grouped(stream: Words) -> Grouped:
    return stream.key_by(str)


def counted(stream: Words) -> Grouped:
    return grouped(stream).count()


def go_on(before: Any, now: Any) -> None:
    check("job", "sink-1", before, now)


@pytest.mark.parametrize(
    "now",
    [
        counted,
        lambda s: s.key_by(repr).count(len),
        lambda s: counted(s.map(str).filter(bool).flat_map(list)),
        lambda s: counted(s).map(str).filter(bool),
        lambda s: counted(s).to_stream(),
        lambda s: counted(s).count().sum(),
        lambda s: grouped(s).max(name="largest").map(str).count(),
    ],
    ids=map(str, range(7)),
)
def test_functions_and_operators_in_the_same_store_may_change(now) -> None:
    go_on(form(counted), form(now))


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        (
            counted,
            lambda s: grouped(s).sum(),
            r"the operator count-1 \(count\), but the job has no such operator",
        ),
        (counted, lambda s: grouped(s).count(name="n"), r"the operator count-1 \(count\)"),
        (counted, grouped, r"the operator count-1 \(count\)"),
        (
            counted,
            lambda s: grouped(s).sum(name="count-1"),
            r"the operator count-1 was count, and is sum",
        ),
        (
            lambda s: grouped(s).window(tumbling("1s")).count(),
            lambda s: grouped(s).window(tumbling("2s")).count(),
            "count-1 was count by tumbling 1000 ms, and is count by tumbling 2000 ms",
        ),
        (
            lambda s: grouped(s).window(tumbling("1s")).count(),
            lambda s: grouped(s).window(session("1s")).count(),
            "is count by sessions with gaps of 1000 ms",
        ),
        (
            counted,
            lambda s: counted(s).to_stream().key_by(str).sum(name="behind"),
            "the operator behind needs its own state",
        ),
        (
            lambda s: counted(s).to_stream().key_by(str).sum(name="behind"),
            counted,
            r"the operator behind \(sum\)",
        ),
        (
            lambda s: grouped(s).process(Same()),
            lambda s: grouped(s).max(name="process-1"),
            "process-1 was process, and is max",
        ),
        (
            counted,
            lambda s: counted(s).window(tumbling("1s")).count(),
            "count-1 was run without times, and count-1, count-2 are run with times",
        ),
        (
            lambda s: grouped(s).window(tumbling("1s")).count(),
            lambda s: s.key_by("user").window(tumbling("1s")).count(),
            "count-1 was run with times, and count-1 is run by Spark itself",
        ),
        (
            lambda s: s.join(s).where(str).equal_to(str).apply(max),
            lambda s: s.left_join(s).where(str).equal_to(str).apply(max),
            "join-1 was inner, the newest of the other side join, and is left",
        ),
    ],
    ids=map(str, range(12)),
)
def test_changes_that_state_cannot_follow_are_refused_by_name(before, now, told: str) -> None:
    with pytest.raises(JobChanged, match=told) as error:
        go_on(form(before), form(now))
    assert str(error.value).startswith("The job job can't go on from its checkpoint (sink-1): ")
    assert str(error.value).endswith("Write it as it was, or give it a new checkpoint.")


def test_its_sources_stay_the_same() -> None:
    with pytest.raises(JobChanged, match="its sources were source-1: in, and are source-1: other"):
        go_on(form(counted), form(counted, "other"))
    with pytest.raises(JobChanged, match="its sources were"):
        go_on(form(counted), form(counted, name="renamed"))


def test_state_of_another_release_is_refused() -> None:
    with pytest.raises(JobChanged, match="another release wrote it"):
        go_on({**form(counted), "version": 0}, form(counted))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"version": 1}', "[" * 100_000])
def test_a_damaged_form_is_refused(text: str) -> None:
    with pytest.raises(JobChanged, match="it is damaged"):
        go_on(changes.settled(decode(text), 1), form(counted))


def test_a_form_counts_once_a_batch_was_committed_in_it() -> None:
    old, new = form(counted), form(lambda s: counted(s).sum())
    stored = decode(encode(changes.pending(old, new, 7)))
    assert changes.settled(stored, 7) == old
    assert changes.settled(stored, 8) == new
    assert changes.pending(old, old, 7) == changes.settled(old, 7) == old
