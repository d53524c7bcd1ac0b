"""Building a job: its names, its plan, and the mistakes that the builder refuses."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from operator import itemgetter
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from typing_extensions import override

from broker.streams import Job, Json, StreamBuilder, Text, session, sliding, tumbling
from broker.streams.accumulators import Count
from broker.streams.graph import Sink, Source, upstream
from broker.streams.operators import Processor, State


@pytest.fixture
def builder() -> StreamBuilder:
    return StreamBuilder("shop", dead_letters="shop/dead")


def larger(builder: StreamBuilder) -> Job:
    orders = builder.source("shop/orders", Json(), name="orders")
    payments = builder.source("shop/<payments>&", Json())
    counted = orders.filter("amount > 1").key_by(lambda o: o["user"]).window(tumbling("1m")).count()
    counted.sink("shop/counts", Json())
    joined = orders.left_join(payments).where(str).equal_to(str).window(sliding("2s", "1s"))
    joined.apply(lambda left, right: left).union(orders.map(str)).print()
    return builder.build()


class TestNames:
    def test_each_kind_is_counted_for_itself(self, builder: StreamBuilder) -> None:
        lines = builder.source("a", Text())
        words = lines.map(str).map(str).key_by(str).count().count()
        words.sink("b", Json())
        [end] = builder.build().graph.ends
        names = [operator.name for operator in upstream(end)]
        assert names == ["source-1", "map-1", "map-2", "key_by-1", "count-1", "count-2", "sink-1"]

    def test_two_jobs_do_not_share_a_count(self) -> None:
        for _ in range(2):
            stream = StreamBuilder("job").source("a", Text())
            assert stream.operator.name == "source-1"

    def test_two_operators_can_not_have_one_name(self, builder: StreamBuilder) -> None:
        builder.source("a", Text(), name="mine")
        with pytest.raises(ValueError, match="Two operators of the job are called mine"):
            builder.source("b", Text()).map(str, name="mine")

    @pytest.mark.parametrize("name", ["", "a/b", "..", "job", "a b"])
    def test_a_name_that_can_not_be_a_folders_is_refused(
        self, builder: StreamBuilder, name: str
    ) -> None:
        with pytest.raises(ValueError, match="can't be the name of an operator"):
            builder.source("a", Text()).sink("b", Text(), name=name)


async def waits(value: Any) -> Any:
    return value


def yields(value: Any) -> Any:
    yield value


class Mine(Processor[Any, Any]):
    @override
    def process(self, key: Any, value: Any, time_ms: int, state: State) -> Any:
        return ()


class Waits:
    async def deserialize(self, payload: bytes) -> Any:
        return payload

    serialize = deserialize


MISTAKES: dict[str, Callable[[Any], object]] = {
    "two arguments": lambda s: s.map(pow),
    "no argument": lambda s: s.filter(lambda: True),
    "asynchronous": lambda s: s.filter(waits),
    "a generator": lambda s: s.map(yields),
    "no function": lambda s: s.foreach(1),
    "a branch": lambda s: s.branch(lambda: True),
    "a key": lambda s: s.key_by(lambda one, other: one),
    "a time": lambda s: s.select_timestamp(waits),
    "to_stream": lambda s: s.key_by(str).to_stream(lambda key, value: value),
    "a selection": lambda s: s.key_by(str).count(lambda: 1),
    "an accumulator": lambda s: s.key_by(str).aggregate(Count()),
    "a class with arguments": lambda s: s.key_by(str).aggregate(Text.serialize),
    "a processor's class": lambda s: s.key_by(str).process(Mine),
    "a window's text": lambda s: s.key_by(str).window("1m"),
    "a join": lambda s: s.join(s).where(str).equal_to(str).apply(lambda pair: pair),
    "a serializer's class": lambda s: s.sink("b", Json),
    "a serializer": lambda s: s.sink("b", Waits()),
    "a deserializer's class": lambda s: s.builder.source("b", Json),
    "a deserializer": lambda s: s.builder.source("b", None),
}


class TestRefusals:
    @pytest.mark.parametrize("mistake", MISTAKES)
    def test_a_function_of_the_wrong_shape_is_refused_where_it_is_written(
        self, builder: StreamBuilder, mistake: str
    ) -> None:
        """In a running job each message would become a dead letter."""
        with pytest.raises(TypeError):
            MISTAKES[mistake](builder.source("a", Text()))

    def test_functions_of_any_kind_are_taken(self, builder: StreamBuilder) -> None:
        lines = builder.source("a", Text()).flat_map(yields).map(partial(pow, 2)).map(itemgetter(0))
        lines.key_by(max).process(Mine()).map(Text().serialize).aggregate(Count).sink("b", Json())
        assert builder.build()

    def test_a_job_needs_an_id_and_an_end(self, builder: StreamBuilder) -> None:
        with pytest.raises(ValueError, match="needs an id"):
            StreamBuilder("")
        builder.source("a", Text()).map(str)
        with pytest.raises(ValueError, match=r"end a stream with sink\(\) or print\(\)"):
            builder.build()

    @pytest.mark.parametrize("option", ["lateness", "idle"])
    def test_no_time_span_is_negative(self, option: str) -> None:
        given: Any = {option: timedelta(seconds=-1)}
        with pytest.raises(ValueError, match=option):
            StreamBuilder("job", **given)

    def test_a_silent_topic_needs_a_time_to_be_idle(self) -> None:
        with pytest.raises(ValueError, match="idle must be at least 1ms, not '0s'"):
            StreamBuilder("job", idle="0s")

    def test_streams_of_two_jobs_can_not_be_combined(self, builder: StreamBuilder) -> None:
        here, there = builder.source("a", Text()), StreamBuilder("other").source("a", Text())
        for together in (here.union, here.join, here.left_join):
            with pytest.raises(ValueError, match="of two jobs, shop and other"):
                together(there)

    def test_only_functions_of_python_and_sql_are_accepted(self, builder: StreamBuilder) -> None:
        wrong: Any = 5
        with pytest.raises(TypeError, match="map takes a function, or SQL as text, not 5"):
            builder.source("a", Text()).map(wrong)

    def test_joins_have_no_sessions(self, builder: StreamBuilder) -> None:
        stream = builder.source("a", Text())
        joined = stream.join(stream).where(str).equal_to(str)
        wrong: Any = session("1s")
        with pytest.raises(TypeError, match="A join has no sessions"):
            joined.window(wrong)


class TestGraph:
    def test_operators_come_behind_those_they_need_and_once(self, builder: StreamBuilder) -> None:
        operators = larger(builder).graph.operators()
        assert len(set(operators)) == len(operators)
        for place, operator in enumerate(operators):
            assert set(operator.parents) <= set(operators[:place])
        assert [each.name for each in operators if isinstance(each, Sink)] == ["sink-1", "print-1"]

    def test_sources_begin_with_the_earliest_message(self, builder: StreamBuilder) -> None:
        source = builder.source("a", Text(), lateness="5s", startingOffsets="latest").operator
        assert isinstance(source, Source)
        assert source.options == {"startingOffsets": "latest"}
        assert source.lateness_ms == 5_000
        assert builder.source("a", Text()).operator.options == {"startingOffsets": "earliest"}

    def test_a_branch_is_of_the_first_test_that_is_true(self, builder: StreamBuilder) -> None:
        def run(stream: Any, value: int) -> bool:
            operator, good = stream.operator, True
            while not isinstance(operator, Source):
                good = good and bool(operator.function(value))
                [operator] = operator.parents
            return good

        branches = builder.source("a", Json()).branch(
            lambda n: n > 10, lambda n: n > 5, lambda n: True
        )
        taken = {n: [run(branch, n) for branch in branches].index(True) for n in (1, 7, 12)}
        assert taken == {1: 2, 7: 1, 12: 0}
        assert all(sum(run(branch, n) for branch in branches) == 1 for n in range(20))

    def test_a_test_of_a_branch_is_one_operator_for_letters(self, builder: StreamBuilder) -> None:
        """It runs in several branches, and a record that it fails at has one letter."""
        branches = builder.source("a", Json()).branch(str.isdigit, str.isalpha)
        names = [[each.name for each in upstream(branch.operator)] for branch in branches]
        assert names == [["source-1", "branch-1"], ["source-1", "branch-1", "branch-2"]]

    def test_sql_branches_put_null_into_the_next_one(self, builder: StreamBuilder) -> None:
        _, second = builder.source("a", Json("n INT")).branch("n > 5", "true")
        [negated] = second.operator.parents
        assert getattr(negated, "function", None) == "NOT coalesce((n > 5), false)"


class TestPlans:
    def test_as_text(self, builder: StreamBuilder) -> None:
        told = larger(builder).explain()
        assert told.splitlines()[0] == "job shop: records that fail go to shop/dead"
        assert "└─ count-1 by tumbling 60000 ms   [state]" in told
        assert "filter-1  amount > 1" in told
        assert "join-1: left, all of sliding 2000 ms every 1000 ms" in told
        assert told.count("orders: shop/orders") == 3

    def test_as_a_picture(self, builder: StreamBuilder) -> None:
        job = larger(builder)
        picture = ET.fromstring(job.explain("svg"))
        space = {"s": "http://www.w3.org/2000/svg"}
        told = [box.text for box in picture.findall(".//s:text", space)]
        assert sorted(map(str, told)) == sorted(each.text for each in job.graph.operators())
        places = [(box.get("x"), box.get("y")) for box in picture.findall(".//s:rect", space)]
        assert len(set(places)) == len(told)
        lines = picture.findall(".//s:path", space)
        assert len(lines) == sum(len(each.parents) for each in job.graph.operators())

    def test_a_job_that_was_not_started_has_no_status(self, builder: StreamBuilder) -> None:
        job = larger(builder)
        assert (job.id, job.is_running, job.status) == ("shop", False, None)
        assert job.await_termination()
        job.stop()
