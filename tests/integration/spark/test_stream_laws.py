"""The laws of stream jobs, each over real topics."""

import http
import json
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from broker.streams import (
    Job,
    JobChanged,
    Json,
    StreamBuilder,
    Text,
    Window,
    session,
    sliding,
    tumbling,
)
from broker.streams.builder import GroupedStream, Stream
from tests.integration.spark.bed import Bed

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

SCHEMA = "k STRING, t BIGINT, n BIGINT"


def event(key: str, second: int, number: int = 1) -> dict[str, Any]:
    return {"k": key, "t": second * 1000, "n": number}


def in_seconds(name: str) -> Any:
    return lambda key, value, window: [
        name,
        key,
        window.start_ms // 1000,
        window.end_ms // 1000,
        value,
    ]


def keyed(stream: Stream[Any]) -> GroupedStream[Any, Any]:
    return stream.select_timestamp(lambda e: e["t"]).key_by(lambda e: e["k"])


class TestWindows:
    @pytest.mark.nightly
    def test_each_kind_gives_each_window_once_by_the_time_of_its_values(self, bed: Bed) -> None:
        def job() -> Job:
            builder = StreamBuilder("windows", lateness="2s")
            events = keyed(builder.source(bed.topic("events"), Json()))
            late = bed.topic("late")
            found = [
                events.window(sliding("10s", "5s"), late=late).sum(lambda e: e["n"]),
                events.window(session("5s")).count(),
                events.window(tumbling("1s")).count().window(tumbling("10s")).sum(),
                events.window(tumbling("10s")).max(lambda e: e["n"]).map(lambda e: e["t"] // 1000),
            ]
            names = ["sliding", "session", "windows", "max"]
            turned = [
                each.to_stream(in_seconds(name)) for each, name in zip(found, names, strict=True)
            ]
            turned[0].union(*turned[1:]).sink(bed.topic("out"), Json())
            return builder.build()

        first = [event("a", 1), event("b", 2, 7), event("a", 7, 7), event("b", 4, 2), event("a", 9)]
        bed.publish("events", *first)
        bed.run(job())  # The watermark is 7 s then, later 12 s and 98 s.
        closed = [["session", "a", 1, 6, 1], ["sliding", "a", -5, 5, 1], ["sliding", "b", -5, 5, 9]]
        assert bed.sorted("out") == closed
        bed.publish("events", event("a", 14), event("b", 3, 9))
        bed.run(job())
        running = job()
        bed.publish("events", event("b", 8), event("c", 100))
        bed.run(running)
        bed.publish("events", event("a", 14, 100))
        late = job()
        bed.run(late)
        out = bed.read("out")
        assert len({json.dumps(row) for row in out}) == len(out)
        assert sorted(row[1:] for row in out if row[0] == "sliding") == [
            ["a", -5, 5, 1],
            ["a", 0, 10, 9],
            ["a", 5, 15, 9],
            ["a", 10, 20, 1],
            ["b", -5, 5, 9],
            ["b", 0, 10, 18],
            ["b", 5, 15, 1],
        ]
        assert sorted(row[1:] for row in out if row[0] == "session") == [
            ["a", 1, 6, 1],
            ["a", 7, 14, 2],
            ["a", 14, 19, 1],
            ["b", 2, 9, 3],
            ["b", 8, 13, 1],
        ]
        assert sorted(row[1:] for row in out if row[0] == "windows") == [
            ["a", 0, 10, 3],
            ["a", 10, 20, 1],
            ["b", 0, 10, 2],
        ]
        assert sorted(row[1:] for row in out if row[0] == "max") == [
            ["a", 0, 10, 7],
            ["a", 10, 20, 14],
            ["b", 0, 10, 3],
        ]
        letters = bed.messages("late")
        bounds = [(int(m.headers["start"]) // 1000, int(m.headers["end"]) // 1000) for m in letters]
        assert sorted(bounds) == [(-5, 5), (0, 10), (5, 15), (10, 20)]
        bed.counted(late, "late", 5)  # Two of them sliding, and one of each other kind.
        assert not late.is_running

    @pytest.mark.nightly
    def test_sql_gives_the_same_as_python(self, bed: Bed) -> None:
        def job() -> Job:
            builder = StreamBuilder("same", lateness="0s")
            sql = builder.source(bed.topic("events"), Json(SCHEMA)).filter("k <> 'left out'")
            timed = sql.select_timestamp("timestamp_millis(t)").key_by("k")
            events = builder.source(bed.topic("events"), Json())
            own = keyed(events.filter(lambda e: e["k"] != "left out"))
            one, other = timed.window(tumbling("10s")), own.window(tumbling("10s"))
            third, fourth = timed.window(sliding("4s", "2s")), own.window(sliding("4s", "2s"))
            several = {
                "count": (one.count(), other.count()),
                "some": (one.count("n"), other.count(lambda e: e["n"])),
                "sum": (third.sum("n"), fourth.sum(lambda e: e["n"])),
                "avg": (third.avg("n"), fourth.avg(lambda e: e["n"])),
            }
            native, python = [], []
            for name, (by_sql, by_python) in several.items():
                start = "string(unix_millis(window.start) DIV 1000)"
                native.append(
                    by_sql.to_stream(f"array('{name}', key, {start}, string(double(value)))")
                )
                python.append(
                    by_python.to_stream(
                        lambda k, v, w, name=name: [name, k, str(w.start_ms // 1000), str(float(v))]
                    )
                )
            native[0].union(*native[1:]).sink(bed.topic("native"), Json())
            python[0].union(*python[1:]).sink(bed.topic("python"), Json())
            return builder.build()

        events = [event("ab"[n % 2], n, n * n) for n in range(20)]
        none = {"k": "none", "t": 3_000, "n": None}
        bed.publish("events", *events, none, event("left out", 2))
        bed.run(job())
        bed.publish("events", event("a", 5), event("z", 100))
        bed.run(job())
        assert len(bed.read("native")) > 40
        assert bed.sorted("native") == bed.sorted("python")

    @pytest.mark.nightly
    def test_a_window_of_a_topic_that_has_gone_silent_is_closed(self, bed: Bed) -> None:
        """The job uses the times of publishing; the times in the values are far behind."""
        builder = StreamBuilder("idle", lateness="0s", idle="300ms")
        native = builder.source(bed.topic("in"), Json(SCHEMA)).key_by("k").window(tumbling("1s"))
        native.count().to_stream("array(key, string(value))").sink(bed.topic("native"), Json())
        events = builder.source(bed.topic("in"), Json())
        own = keyed(events).window(tumbling("10s")).count().to_stream()
        own.sink(bed.topic("python"), Json())
        bed.publish("in", event("a", 1))
        job = bed.start(builder.build())
        try:
            assert bed.taken("native", 1, job) == [["a", "1"]]
            assert bed.taken("python", 1, job) == [["a", 1]]
            assert job.is_running
        finally:
            job.stop()
        assert not job.is_running

    @pytest.mark.nightly
    def test_late_records_without_a_topic_are_only_counted(self, bed: Bed) -> None:
        def job() -> Job:
            builder = StreamBuilder("late", lateness="0s")
            counted = keyed(builder.source(bed.topic("events"), Json())).window(tumbling("1s"))
            counted.count().to_stream(in_seconds("")).sink(bed.topic("out"), Json())
            return builder.build()

        for events in ([event("a", 1), event("a", 50)], [event("a", 60)], [event("b", 2)]):
            bed.publish("events", *events)
            last = job()
            bed.run(last)
        assert [row[1:] for row in bed.read("out")] == [["a", 1, 2, 1], ["a", 50, 51, 1]]
        bed.counted(last, "late", 1)


class TestJoins:
    def sides(self, bed: Bed, builder: StreamBuilder) -> tuple[Stream[Any], Stream[Any]]:
        found = [builder.source(bed.topic(name), Json(SCHEMA)) for name in ("left", "right")]
        one, other = (each.select_timestamp("timestamp_millis(t)") for each in found)
        return one, other

    def test_without_a_window_each_record_joins_the_newest(self, bed: Bed) -> None:
        def job() -> Job:
            builder = StreamBuilder("newest")
            left, right = self.sides(bed, builder)
            for name, join in (("inner", left.join(right)), ("outer", left.left_join(right))):
                joined = join.where(lambda e: e["k"]).equal_to(lambda e: e["k"])
                pairs = joined.apply(lambda one, two: [one["n"], two and two["n"]])
                pairs.sink(bed.topic(name), Json())
            return builder.build()

        bed.publish("left", event("k", 1, 1))
        for number in (10, 20):
            bed.publish("right", event("k", 1, number), event("other", 1, 99))
        bed.publish("left", event("k", 1, 2))
        bed.run(job())
        bed.publish("left", event("k", 1, 3), event("alone", 1, 4))
        bed.run(job())
        assert bed.read("outer")[:3] == [[1, None], [2, 20], [3, 20]]
        assert bed.read("outer")[3:] == [[4, None]]
        assert bed.read("inner") == [[1, 10], [1, 20], [2, 20], [3, 20]]

    @pytest.mark.nightly
    def test_with_a_window_all_pairs_or_the_last_one_are_joined(self, bed: Bed) -> None:
        def job() -> Job:
            builder = StreamBuilder("pairs", lateness="0s")
            left, right = self.sides(bed, builder)
            found = []
            for name, join in (("inner", left.join(right)), ("left", left.left_join(right))):
                joined = join.where(lambda e: e["k"]).equal_to(lambda e: e["k"])
                for pairs in ("all", "last"):
                    windowed = joined.window(tumbling("10s"), pairs=pairs)
                    told = f"{name} {pairs}"
                    found.append(
                        windowed.apply(
                            lambda one, two, told=told: [told, one["n"], two and two["n"]]
                        )
                    )
            found[0].union(*found[1:]).sink(bed.topic("out"), Json())
            native = []
            for name, join in (("inner", left.join(right)), ("left", left.left_join(right))):
                windowed = join.where("k").equal_to("k").window(tumbling("10s"))
                pair = f"array('{name} all', string(left.n), string(right.n))"
                native.append(windowed.apply(pair))
            native[0].union(native[1]).sink(bed.topic("native"), Json())
            return builder.build()

        bed.publish("left", event("k", 1, 1), event("k", 2, 2), event("m", 3, 3), event("k", 12, 4))
        bed.publish("right", event("k", 5, 10), event("k", 6, 20), event("n", 7, 30))
        bed.run(job())
        bed.publish("right", event("end", 50))
        bed.publish("left", event("end too", 50))
        bed.run(job())
        pairs = [[1, 10], [1, 20], [2, 10], [2, 20]]
        alone = [[3, None], [4, None]]
        out = bed.read("out")
        assert sorted(row[1:] for row in out if row[0] == "inner all") == pairs
        assert [row[1:] for row in out if row[0] == "inner last"] == [[2, 20]]
        shown = sorted(map(str, [*pairs, *alone]))
        assert sorted(str(row[1:]) for row in out if row[0] == "left all") == shown
        shown = sorted(map(str, [[2, 20], *alone]))
        assert sorted(str(row[1:]) for row in out if row[0] == "left last") == shown
        native = [[name, int(n), m and int(m)] for name, n, m in bed.read("native")]
        same = [row for row in out if row[0].endswith("all")]
        assert sorted(map(str, native)) == sorted(map(str, same))

    @pytest.mark.nightly
    def test_streams_join_themselves_and_fan_out(self, bed: Bed) -> None:
        builder = StreamBuilder("fans", dead_letters=bed.topic("dead"))
        numbers = builder.source(bed.topic("numbers"), Json(), name="numbers")
        again = builder.source(bed.topic("numbers"), Json(), name="again")
        small, large = numbers.branch(lambda n: n < 10, lambda n: n >= 0)
        small.map(lambda n: ["small", n]).union(
            large.map(lambda n: ["large", n]), again.map(lambda n: ["again", n])
        ).sink(bed.topic("union"), Json())
        joined = numbers.join(numbers).where(lambda n: n % 10).equal_to(lambda n: n % 10)
        joined.apply(lambda one, two: [one, two]).sink(bed.topic("self"), Json())
        large.sink(bed.topic("large"), Json())
        bed.publish("numbers", 1, 11, 2, b"no JSON", {"no": "number"}, 21)
        bed.run(builder.build())
        whole = [["again", n] for n in (1, 2, 11, 21, {"no": "number"})]
        whole += [["large", 11], ["large", 21], ["small", 1], ["small", 2]]
        assert bed.sorted("union") == sorted(whole, key=json.dumps)
        assert bed.sorted("large") == [11, 21]
        assert bed.read("self")[0] == [1, 1]
        assert {max(pair) for pair in bed.read("self")} == {1, 2, 11, 21}
        assert bed.letters("dead") == [
            ("decode", "again", b"no JSON"),
            ("decode", "numbers", b"no JSON"),
            ("error", "branch-1", b'{"no": "number"}'),
            ("error", "key_by-1", b'{"no": "number"}'),
            ("error", "key_by-2", b'{"no": "number"}'),
        ]


class TestFailures:
    def test_each_failing_record_has_one_letter_that_says_why(self, bed: Bed) -> None:
        class Unlucky(Json):
            def serialize(self, value: Any) -> bytes:
                if value == 13:
                    raise ValueError("unlucky")
                return super().serialize(value)

        builder = StreamBuilder("failures", dead_letters=bed.topic("dead"))
        events = builder.source(bed.topic("in"), Json(), name="python")
        good = events.map(lambda e: {**e, "n": 60 // e["n"]}, name="divide")
        grouped = good.key_by(lambda e: {1} if e["k"] == "set" else e["k"], name="key")
        grouped.sum(lambda e: e["n"] + e.get("more", 0), name="total").sink(
            bed.topic("sums"), Unlucky(), name="sums"
        )
        good.map(lambda e: e["k"]).sink(bed.topic("keys"), Text())
        native = builder.source(bed.topic("in"), Json(SCHEMA), name="native")
        native.filter("n > 20").map("k").sink(bed.topic("large"), Text())
        bad = [b"no JSON", {"k": "zero", "n": 0}, {"k": "set", "n": 1}]
        bad += [{"k": "text", "n": 1, "more": "x"}, {"k": "13", "n": 5, "more": 1}]
        good_ones = [{"k": "a", "n": 20}, {"k": "a", "n": 30}]
        bed.publish("in", good_ones[0], *bad, b'{"k": "b", "n": "text"}', good_ones[1])
        job = builder.build()
        bed.run(job)
        assert bed.read("sums") == [3, 5]
        assert [m.payload for m in bed.messages("keys")] == [b"a", b"set", b"text", b"13", b"a"]
        assert [m.payload for m in bed.messages("large")] == [b"a"]
        payloads = [json.dumps(each).encode() for each in bad[1:]]
        found = bed.letters("dead")
        told = [(reason, operator) for reason, operator, _ in found]
        assert told == [
            ("decode", "native"),
            ("decode", "native"),
            ("decode", "python"),
            ("error", "divide"),
            ("error", "divide"),
            ("error", "key"),
            ("error", "sums"),
            ("error", "total"),
        ]
        assert payloads[0] in [payload for _, operator, payload in found if operator == "divide"]
        ids = {m.id.hex().encode(): m.payload for m in bed.messages("in")}
        for letter in bed.messages("dead"):
            assert set(letter.headers) >= {"reason", "job", "operator", "id", "error", "stack"}
            assert letter.headers["id"] in ids
            if letter.headers["reason"] == b"decode" or letter.headers["operator"] == b"divide":
                assert letter.payload == ids[letter.headers["id"]]
        bed.counted(job, "skipped", 8)

    @pytest.mark.parametrize("schema", [None, pytest.param(SCHEMA, marks=pytest.mark.nightly)])
    def test_without_a_topic_the_job_stops_and_names_the_record(self, bed: Bed, schema) -> None:
        builder = StreamBuilder("stops")
        events = builder.source(bed.topic("in"), Json(schema), name="events")
        events.sink(bed.topic("out"), Json())
        bed.publish("in", event("a", 1), b"no JSON")
        message_id = bed.messages("in")[1].id.hex()
        job = bed.start(builder.build())
        with pytest.raises(StreamingQueryException, match=f"events failed at .* {message_id}"):
            job.await_termination(90)
        assert not job.is_running
        assert job.status is not None
        assert job.status.queries[0].error is not None

    @pytest.mark.nightly
    def test_a_function_that_fails_stops_the_job_by_name(self, bed: Bed) -> None:
        builder = StreamBuilder("stops")
        events = builder.source(bed.topic("in"), Json())
        events.key_by(str).count().map(lambda n: 1 // (n - 1), name="mine").print()
        bed.publish("in", 1)
        message_id = bed.messages("in")[0].id.hex()
        with pytest.raises(StreamingQueryException, match=f"mine failed at .* {message_id}"):
            bed.run(builder.build())


@pytest.mark.nightly
def test_keys_are_of_any_content_and_values_are_printed(bed: Bed, capsys) -> None:
    builder = StreamBuilder("keys")
    keys = [None, True, 1, 1.0, "1", "a&&b", b"\xff", ("a", ("b",)), [1, {"x": None}], {"b": 1}]
    keys += [Window(1, 2), http.HTTPStatus.OK, Json("a INT"), "\ud800", -(10**30)]
    numbers = builder.source(bed.topic("numbers"), Json())
    counted = numbers.key_by(lambda n: keys[n]).count()
    counted.to_stream(lambda key, count, _: [keys.index(key), repr(key), count]).print()
    bed.publish("numbers", *range(len(keys)), *range(len(keys)))
    bed.run(builder.build())
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = [[repr(key), count] for key in keys for count in (1, 2)]
    assert sorted(row[1:] for row in shown) == sorted(expected)


@pytest.mark.nightly
def test_heart_beats_are_not_printed(bed: Bed, capsys: pytest.CaptureFixture[str]) -> None:
    builder = StreamBuilder("beats", idle="500ms", lateness="0s")
    events = builder.source(bed.topic("events"), Json())
    windows = events.key_by(str).window(tumbling("1s")).count().to_stream()
    events.map(lambda e: [e, 1]).union(windows).print()
    bed.publish("events", "a")
    job = bed.start(builder.build())
    printed = ""
    while printed.count("\n") < 2 and not job.await_termination(1):
        printed += capsys.readouterr().out
    job.stop()
    assert printed == '["a",1]\n["a",1]\n'


class TestChanges:
    def job(self, bed: Bed, windows: Any = None, *, more: bool = False) -> Job:
        builder = StreamBuilder("changing", lateness="0s")
        source = builder.source(bed.topic("in"), Json())
        step = (lambda e: {**e, "k": e["k"].lower()}) if more else (lambda e: e)
        grouped = keyed(source.map(step))
        counted = grouped.count() if windows is None else grouped.window(windows).count()
        found: Any = counted.map(lambda n: n + 100).count() if more else counted
        found.to_stream().sink(bed.topic("out"), Json())
        return builder.build()

    @pytest.mark.nightly
    def test_state_goes_on_with_other_functions_and_more_operators(self, bed: Bed) -> None:
        bed.publish("in", event("a", 1), event("a", 1))
        bed.run(self.job(bed))
        bed.publish("in", event("A", 1))
        bed.run(self.job(bed, more=True))
        bed.publish("in", event("a", 1))
        bed.run(self.job(bed, more=True))
        assert bed.read("out") == [["a", 1], ["a", 2], ["a", 1], ["a", 2]]
        with pytest.raises(JobChanged, match="has no such operator"):
            bed.run(self.job(bed))
        with pytest.raises(JobChanged, match="count-1 was count, and is count by tumbling 1000 ms"):
            bed.run(self.job(bed, tumbling("1s")))


@pytest.mark.nightly
def test_sql_follows_a_function_that_says_what_it_returns(bed: Bed) -> None:
    builder = StreamBuilder("typed", dead_letters=bed.topic("dead"), lateness="0s")
    lines = builder.source(bed.topic("lines"), Text(), name="lines")
    typed = lines.map(
        lambda line: {"k": line[0], "n": int(line[1:]) if line[1:] != "x" else "x"},
        returns="STRUCT<k: STRING, n: BIGINT>",
        name="parse",
    )
    typed.filter("n > 1").map("concat(k, n)").sink(bed.topic("out"), Text())
    again = typed.filter("n > 1").map(lambda value: value["n"])
    again.key_by(lambda n: n % 2).sum().sink(bed.topic("sums"), Json())
    bed.publish("lines", b"a1", b"b2", b"c", b"dx", b"\xff", b"e4")
    bed.run(builder.build())
    assert [m.payload for m in bed.messages("out")] == [b"b2", b"e4"]
    assert bed.read("sums") == [2, 6]
    assert [m.key for m in bed.messages("sums")] == [b"0", b"0"]
    assert bed.letters("dead") == [
        ("decode", "lines", b"\xff"),
        ("error", "parse", b"c"),
        ("error", "parse", b"dx"),
    ]
