"""Filters bound the range of a batch query."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from broker.client.values import Settings, TopicRange
from broker.model import LOG_KEY_MIN, log_key
from broker.spark.batch import PushingBatchReader, TmsBatchReader, bounds_of
from broker.spark.format_options import SourceOptions
from broker.spark.offsets import SourceOffset
from broker.spark.record_batches import SCHEMA, arrow_schema

FILTERS = {
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
    EqualTo: lambda a, b: a == b,
}
MS = st.integers(1, 5)
IDS = st.builds(
    lambda ms, seq, rest: log_key(ms, seq) + rest,
    MS,
    st.integers(0, 2),
    st.sampled_from([LOG_KEY_MIN, b"\0\0\0\0\0\0\0\1\0\1"]),
)


def ident(number: int) -> bytes:
    return log_key(number, 0) + LOG_KEY_MIN


def is_inside(identifier: bytes, filter_) -> bool:
    after, through = bounds_of(filter_)
    row = identifier[:10]
    return (after is None or row > after[:10]) and (through is None or row <= through[:10])


@given(IDS, IDS, st.integers(1, 20), st.sampled_from(sorted(FILTERS, key=str)))
def test_no_message_for_which_a_filter_on_ids_is_true_is_left_out(
    identifier: bytes, bound: bytes, length: int, kind
) -> None:
    filter_ = kind(("id",), bound[:length])
    if FILTERS[kind](identifier, bound[:length]):
        assert is_inside(identifier, filter_)


@given(IDS, st.integers(0, 6_000), st.sampled_from(sorted(FILTERS, key=str)))
def test_a_filter_on_times_leaves_out_whole_milliseconds_only(
    identifier: bytes, time_us: int, kind
) -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    filter_ = kind(("timestamp",), epoch + timedelta(microseconds=time_us))
    published_us = int.from_bytes(identifier[:8], "big") * 1000
    if FILTERS[kind](published_us, time_us):
        assert is_inside(identifier, filter_)


@pytest.mark.parametrize(
    "filter_",
    [IsNotNull(("id",)), EqualTo(("topic",), "t"), GreaterThan(("value",), b"a"), None],
)
def test_other_filters_bound_nothing(filter_) -> None:
    assert bounds_of(filter_) == (None, None)


def test_filters_narrow_the_range_and_are_all_applied_again() -> None:
    asked = {}

    class Topic:
        def range(self, topic, **given):
            asked.update(given)
            raise LookupError("asked")

    options = SourceOptions(
        settings=Settings(), topic="t", start=SourceOffset(ident(3)), end="latest"
    )
    reader = PushingBatchReader(options, arrow_schema(SCHEMA), lambda _: Topic())
    filters = [
        GreaterThan(("id",), ident(1)),
        GreaterThan(("id",), ident(7)),
        LessThan(("id",), ident(20)),
        LessThan(("id",), ident(10)),
        IsNotNull(("id",)),
    ]
    assert list(reader.pushFilters(filters)) == filters
    with pytest.raises(LookupError):
        reader.partitions()
    assert asked == {"after": SourceOffset.of(ident(7)).after, "through": ident(10)}


@pytest.mark.parametrize("is_time", [False, True])
def test_only_a_start_at_a_message_misses_expired_messages(is_time: bool) -> None:
    found = TopicRange(
        earliest=ident(4),
        latest=ident(9),
        after=ident(1),
        through=ident(9),
        messages=5,
        size=50,
        lost=3,
        ends=[ident(9)],
    )

    class Topic:
        def range(self, topic, **given):
            return found

    start = SourceOffset(ident(1), is_time)
    options = SourceOptions(settings=Settings(), topic="t", start=start)
    reader = TmsBatchReader(options, arrow_schema(SCHEMA), lambda _: Topic())
    if is_time:
        assert len(reader.partitions()) == 1
    else:
        with pytest.raises(ValueError, match="At least 3 messages"):
            reader.partitions()
