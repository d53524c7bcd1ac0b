"""Stream jobs, each over real topics."""

import pytest

from broker.streams import Job, Json, StreamBuilder, tumbling
from tests.integration.spark.bed import Bed

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]


def counts(bed: Bed) -> Job:
    builder = StreamBuilder("word-count")
    lines = builder.source(bed.topic("lines"), Json())
    words = lines.flat_map(str.split).filter(lambda word: word != "the")
    words.key_by(lambda word: word).count().to_stream().sink(bed.topic("counts"), Json())
    return builder.build()


def test_words_are_counted_record_by_record(bed: Bed) -> None:
    bed.publish("lines", "a b a", "the b", "a")
    bed.run(counts(bed))
    assert sorted(bed.read("counts")) == [["a", 1], ["a", 2], ["a", 3], ["b", 1], ["b", 2]]
    bed.publish("lines", "b")
    bed.run(counts(bed))
    assert bed.read("counts")[-1] == ["b", 3]


def test_a_window_is_given_out_once_when_it_is_over(bed: Bed) -> None:
    def job() -> Job:
        builder = StreamBuilder("windows", lateness="0s")
        events = builder.source(bed.topic("events"), Json())
        grouped = events.select_timestamp(lambda e: e["t"] * 1000).key_by(lambda e: e["k"])
        counted = grouped.window(tumbling("10s"), late=bed.topic("late")).count()
        counted.to_stream(lambda k, n, w: [k, n, w.start_ms // 1000]).sink(bed.topic("out"), Json())
        return builder.build()

    bed.publish("events", {"k": "a", "t": 1}, {"k": "b", "t": 2}, {"k": "a", "t": 9})
    bed.run(job())
    assert bed.read("out") == []
    bed.publish("events", {"k": "a", "t": 11})
    bed.run(job())
    bed.publish("events", {"k": "a", "t": 3}, {"k": "c", "t": 25})
    bed.run(job())
    assert sorted(bed.read("out")) == [["a", 1, 10], ["a", 2, 0], ["b", 1, 0]]
    assert bed.read("late") == [{"k": "a", "t": 3}]


def test_sql_alone(bed: Bed) -> None:
    builder = StreamBuilder("sql")
    orders = builder.source(bed.topic("orders"), Json("customer STRING, amount DOUBLE"))
    orders.filter("amount > 10").map("struct(customer AS who, amount * 2 AS twice)").sink(
        bed.topic("large"), Json()
    )
    bed.publish("orders", {"customer": "a", "amount": 5}, {"customer": "b", "amount": 50})
    bed.run(builder.build())
    assert bed.read("large") == [{"who": "b", "twice": 100.0}]
