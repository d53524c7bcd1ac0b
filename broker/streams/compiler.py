"""Compile a job's graph to frames of Spark: one frame of messages for each end, for its own query.

A **flow** is a stream inside the compiler: a list of branches that no operator has merged yet. A branch is a frame,
and the steps that one pass shall run on it::

    only SQL so far               sql_columns.py: Spark's own operators on columns
    functions of Python           one pass of Python for all steps up to the next operator with state
    the operators of one key_by   one chain, one state store, one pass of Python (passes.KeyedPass)

A query has one watermark: the least of its sources' watermarks, as of the previous micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from broker.streams import graph, join_operators, native, operators, sql_columns, stateless_steps
from broker.streams.failures import Failures
from broker.streams.forms import (
    Branch,
    Flow,
    Measured,
    behind,
    check_times,
    is_of,
    step_alone,
)
from broker.streams.operators import Chain
from broker.streams.passes import (
    KeyedPass,
    MessageWriter,
    Pass,
    RowWriter,
    SourceReader,
    TypedPass,
    Write,
    read_values,
)
from broker.streams.stateless_steps import Step
from broker.streams.stream_records import lists_of

STEPS: Final[dict[str, Callable[[Any], stateless_steps.Take]]] = {
    "map": stateless_steps.Mapping,
    "flat_map": stateless_steps.FlatMapping,
    "filter": stateless_steps.Filtering,
    "foreach": stateless_steps.Tapping,
    "key_by": stateless_steps.Keying,
    "select_timestamp": stateless_steps.Timing,
}
REKEYING: Final = ("key_by", "to_stream")


@dataclass(frozen=True)
class Compiler:
    """Makes the frame of one end. ``options`` are those of the sources."""

    job: graph.Graph
    spark: SparkSession
    options: dict[str, str]
    owned: Collection[str]
    """The operators whose letters this end's query publishes. Each operator belongs to one query."""
    heart_beats: bool = field(default=True)
    _claimed: set[str] = field(default_factory=set, init=False)
    """The operators that a branch has claimed. In a self-join the compiler compiles each source twice."""

    @property
    def _failures(self) -> Failures:
        return Failures(self.job.job_id, self.job.dead_letters)

    def messages(self, end: graph.Sink) -> DataFrame:
        """Return the messages of an end, with its letters: topic, value, key and headers.

        A frame without a column ``headers`` has no letters. Raises ValueError if one query can't run the operators.
        """
        flow = self._claim_all(self._flow(end.parents[0]), end.name)
        return _together([self._messages_of(branch, end) for branch in flow])

    def _messages_of(self, branch: Branch, end: graph.Sink) -> DataFrame:
        branch = self._in_columns(branch) or branch
        if branch.columns is not None and type(end.serde) in native.NATIVE:
            found = sql_columns.messages(branch.columns, end)
            letters = list(branch.letters)
        else:
            branch = self._in_python(branch)
            write = MessageWriter(
                end.name, end.topic, end.serde, self._failures, has_keys=end.has_keys
            )
            rows = self._run(branch, write).where("value IS NOT NULL")  # A beat has no value.
            key = sf.when(sf.col("headers").isNull(), sf.col("key")).alias("key")
            found = rows.select("topic", "value", key, "headers")
            letters = list(branch.letters)
        return _together([found, *letters])

    def _claim(self, branch: Branch, name: str) -> Branch:
        """Return a branch that owns an operator's letters, if this query owns the operator and no branch has it."""
        if name not in self.owned or name in self._claimed:
            return branch
        return replace(branch, owned=branch.owned | {name})

    def _claim_all(self, flow: Flow, name: str) -> Flow:
        claimed = [self._claim(branch, name) for branch in flow]
        self._claimed.add(name)
        return claimed

    # Operators.

    def _flow(self, operator: graph.Operator) -> Flow:
        match operator:
            case graph.Source():
                return self._claim_all([self._source(operator)], operator.name)
            case graph.Union():
                return [branch for parent in operator.parents for branch in self._flow(parent)]
            case graph.Stateless():
                flow = self._claim_all(self._flow(operator.parents[0]), operator.name)
                return [self._step(branch, operator) for branch in flow]
            case graph.Aggregate():
                flow = self._claim_all(self._flow(operator.parents[0]), operator.name)
                return self._aggregate(flow, operator)
            case graph.Process():
                flow = self._claim_all(self._flow(operator.parents[0]), operator.name)
                return self._chain(
                    flow, operators.ProcessorOperator(operator.name, operator.processor)
                )
            case graph.Join():
                return self._join(operator)
            case _:
                pass
        raise TypeError(f"{operator.name} is no operator of a job")

    def _source(self, source: graph.Source) -> Branch:
        given = {**self.options, **source.options, "topic": source.topic}
        if self.heart_beats:
            given["heartbeatInterval"] = f"{self.job.idle_ms}ms"
        frame = self.spark.readStream.format("tms").options(**given).load()
        return Branch(frame, source.lateness_ms, source)

    def _step(self, branch: Branch, step: graph.Stateless) -> Branch:
        if isinstance(step.function, str):
            in_columns = self._in_columns(branch)
            if in_columns is None or in_columns.columns is None:
                raise ValueError(
                    f"{step.name} is SQL, but the values before it are objects of Python: give the map before it "
                    "returns=, with their type."
                )
            columns = sql_columns.stepped(in_columns.columns, step)
            if step.kind != "select_timestamp":
                return replace(in_columns, columns=columns)
            return self._without_errors(in_columns, columns, step, sql_columns.TIMELESS)
        branch = self._in_python(branch)
        kind = STEPS.get(step.kind, stateless_steps.ValueFunction)
        made = Step(step.name, kind(step.function))
        after = replace(branch, parts=(*branch.parts, made))
        return after if step.returns is None else self._typed(after, step)

    def _typed(self, branch: Branch, step: graph.Stateless) -> Branch:
        """Return a branch in columns, behind a function with ``returns``."""
        kept = "_beat BOOLEAN, _at BINARY, _time TIMESTAMP, _payload BINARY, _headers MAP<STRING, BINARY>"
        schema = f"{kept}, value {step.returns}"
        if branch.is_keyed or graph.has_keys(step):
            raise ValueError(
                f"{step.name} has returns=, which is only for values without keys: use it before key_by, or publish to "
                "a topic and use it behind a source of that topic."
            )
        assert branch.reader is not None
        run = [*map(step_alone, branch.parts)]
        work = TypedPass(branch.reader, run, self._failures, step.name, str(step.returns))
        frame = branch.frame.mapInArrow(work, schema)
        letters = frame.where(sf.col("_payload").isNotNull()).select(
            sf.lit(self.job.dead_letters).alias("topic"),
            sf.col("_payload").alias("value"),
            sf.lit(None).cast("binary").alias("key"),
            sf.col("_headers").alias("headers"),
        )
        found = frame.where(sf.col("_payload").isNull()).select(
            "_beat",
            "_at",
            "_time",
            sf.lit(None).cast("string").alias("_key"),
            sf.lit(None).cast("struct<start: timestamp, end: timestamp>").alias("_window"),
            "value",
        )
        split = (letters.where(is_of(branch.owned)),) if self.job.dead_letters else ()
        return replace(
            branch, columns=found, reader=None, parts=(), letters=(*branch.letters, *split)
        )

    def _aggregate(self, flow: Flow, operator: graph.Aggregate) -> Flow:
        select = operator.select
        in_columns = [self._in_columns(branch) for branch in flow]
        frames = [
            (branch.columns, branch.lateness_ms)
            for branch in in_columns
            if branch is not None and branch.columns is not None
        ]
        if native.can_aggregate(operator) and len(frames) == len(flow):
            for branch in flow:
                check_times(branch, operator.name)
            found = sql_columns.aggregated(frames, operator)
            return [behind([branch for branch in in_columns if branch], found, columns=found)]
        if isinstance(select, str):
            raise TypeError(
                f"{operator.name} selects by SQL. SQL is only for count, sum and avg of windows without a topic for late "
                "records, and all functions before must be SQL, too. Give it a function of Python."
            )
        if operator.kind in {"min", "max"}:
            select = Measured(select)
        work: operators.KeyedOperator
        if operator.windows is None:
            work = operators.RunningAggregate(operator.name, operator.make, select)
        else:
            work = operators.Windowed(
                operator.name,
                operator.make,
                select,
                operator.windows,
                self.job.job_id,
                operator.late,
            )
        return self._chain(flow, work)

    def _chain(self, flow: Flow, work: operators.KeyedOperator) -> Flow:
        if len(flow) == 1 and flow[0].is_keyed and flow[0].columns is None:
            [branch] = flow
            names = [part.name for part in branch.parts if isinstance(part, Step)]
            kinds = {each.name: each.kind for each in self._stateless()}
            if not any(kinds.get(name) in REKEYING for name in names):
                return [replace(branch, parts=(*branch.parts, work))]
        rows = self._rows(flow, work, is_timed=work.is_timed)
        return [behind(flow, rows, parts=(work,), is_keyed=True)]

    def _stateless(self) -> list[graph.Stateless]:
        return [each for each in self.job.operators() if isinstance(each, graph.Stateless)]

    def _join(self, join: graph.Join) -> Flow:
        claimed = join.name in self._claimed
        flows = [self._flow(parent) for parent in join.parents]
        for flow in flows:
            flow[:] = [branch if claimed else self._claim(branch, join.name) for branch in flow]
        self._claimed.add(join.name)
        if isinstance(join.function, str):
            return [self._joined(join, *flows)]
        work = self._join_work(join)
        sides = [
            self._rows(flow, work, is_timed=work.is_timed, side=side)
            for side, flow in enumerate(flows)
        ]
        pairs = sides[0].unionByName(sides[1])
        made = Step(join.name, stateless_steps.PairFunction(join.function))
        return [behind([*flows[0], *flows[1]], pairs, parts=(work, made), is_keyed=True)]

    def _join_work(self, join: graph.Join) -> operators.KeyedOperator:
        if join.windows is None:
            return join_operators.Latest(join.name, is_left=join.is_left)
        kind = join_operators.AllOfWindow if join.pairs == "all" else join_operators.LatestOfWindow
        return kind(join.name, join.windows, self.job.job_id, join.late, is_left=join.is_left)

    def _joined(self, join: graph.Join, left: Flow, right: Flow) -> Branch:
        """Return a branch with all pairs of a window, which Spark joins by itself."""
        if join.windows is None or join.pairs != "all" or join.late is not None:
            raise TypeError(
                f"{join.name} makes values by SQL. SQL is only for joins of all pairs of a window without a topic for "
                "late records. Give apply() a function of Python."
            )
        found: Flow = []
        sides = []
        for flow in (left, right):
            frames = []
            for branch in flow:
                check_times(branch, join.name)
                in_columns = self._in_columns(branch)
                if in_columns is None or in_columns.columns is None:
                    raise TypeError(
                        f"{join.name} makes values by SQL, but its streams have objects of Python. Give apply() a "
                        "function of Python."
                    )
                found.append(in_columns)
                frames.append((in_columns.columns, branch.lateness_ms))
            sides.append(frames)
        pairs = sql_columns.paired(sql_columns.joined(sides[0], sides[1], join), str(join.function))
        return behind(found, pairs, columns=pairs)

    # Conversions between the forms of a branch.

    def _in_columns(self, branch: Branch) -> Branch | None:
        """Return a branch in columns; None if its values are objects of Python."""
        if branch.columns is not None:
            return branch
        if branch.source is None or not native.is_decoded_here(branch.source):
            return None
        decoded = sql_columns.decoded(
            branch.source, branch.frame, keeps_payload=self.job.dead_letters is not None
        )
        return self._without_errors(
            replace(branch, source=None), decoded, branch.source, sql_columns.UNREADABLE
        )

    def _without_errors(
        self,
        branch: Branch,
        columns: DataFrame,
        operator: graph.Operator,
        fault: sql_columns.Fault,
    ) -> Branch:
        is_owner = operator.name in branch.owned
        good, letters = sql_columns.without_errors(
            columns, operator, self.job, fault, is_owner=is_owner
        )
        return replace(branch, columns=good, letters=(*branch.letters, *letters))

    def _in_python(self, branch: Branch) -> Branch:
        if branch.columns is not None:
            frame = sql_columns.as_values(branch.columns)
            return replace(
                branch, frame=frame, columns=None, source=None, reader=read_values, is_keyed=False
            )
        if branch.source is not None and getattr(branch.source.serde, "schema", None) is not None:
            # Spark applies a schema, also for functions of Python.
            in_columns = self._in_columns(branch)
            if in_columns is not None:
                return self._in_python(in_columns)
        if branch.source is not None:
            reader = SourceReader(
                branch.source.name,
                branch.source.serde,
                self._failures,
                is_processing_time=branch.source.is_processing_time,
            )
            return replace(branch, source=None, reader=reader)
        return branch

    def _run(self, branch: Branch, write: Write) -> DataFrame:
        """Run the steps of a branch, and return its rows."""
        if not branch.is_keyed:
            assert branch.reader is not None
            work = Pass(branch.reader, [*map(step_alone, branch.parts)], write, self._failures)
            rows = branch.frame.mapInArrow(work, work.columns)
        else:
            chain = Chain(branch.parts, self._failures)
            mode = "EventTime" if chain.is_timed else "None"
            grouped = branch.frame.groupBy("key")
            keyed_work = KeyedPass(chain, write)
            schema = lists_of(keyed_work.columns)
            lists = grouped.transformWithState(keyed_work, schema, "Append", mode)
            rows = lists.select(sf.inline(sf.arrays_zip(*lists.columns)))
        return rows.where(sf.col("headers").isNull() | is_of(branch.owned))

    def _row_writer(self, branch: Branch, work: operators.KeyedOperator, side: int) -> RowWriter:
        keying = [
            part.name
            for part in branch.parts
            if isinstance(part, Step) and isinstance(part.take, stateless_steps.Keying)
        ]
        made_by = branch.parts[-1].name if branch.parts else work.name
        return RowWriter(keying[-1] if keying else made_by, made_by, self._failures, side)

    def _rows(
        self, flow: Flow, work: operators.KeyedOperator, *, is_timed: bool, side: int = 0
    ) -> DataFrame:
        """Run the steps of all branches, and return their rows as one frame, for an operator with state."""
        found = []
        for branch in flow:
            if is_timed:
                check_times(branch, work.name)
            rows = self._run(self._in_python(branch), self._row_writer(branch, work, side))
            if is_timed:
                timed = rows.withColumn("t", sf.timestamp_millis("time"))
                marked = timed.withWatermark("t", f"{branch.lateness_ms} milliseconds")
                rows = marked.where("kind <> 1 OR t IS NULL").drop("t")
            else:
                rows = rows.where("kind <> 1")
            found.append(rows)
        return reduce(DataFrame.unionByName, found)


def _together(messages: Sequence[DataFrame]) -> DataFrame:
    return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), messages)
