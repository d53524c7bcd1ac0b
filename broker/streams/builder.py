"""The classes by which a program writes a stream job.

They are RocketMQ Streams' RStream, GroupedStream, WindowStream and JoinedStream.

::

    builder = StreamBuilder("word-count")
    words = builder.source("shop/lines", Text()).flat_map(str.split)
    words.key_by(lambda word: word).count().sink("shop/counts", Json())
    job = builder.build()

Nothing runs while a program writes a job. A function is one of Python, or SQL over the columns of a value
(``"amount > 100"``). Spark runs SQL without Python, as long as all functions before it are SQL, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic

from typing_extensions import TypeVar, override

from broker import user_code
from broker.streams import graph
from broker.streams.aggregates import Aggregating
from broker.streams.job import Job
from broker.streams.joins import JoinedStream, check_same
from broker.streams.operators import Processor
from broker.streams.serdes import Json, Serde
from broker.streams.windows import Duration, Window, Windows, duration_ms

T = TypeVar("T")
# SQL gives Any: a type checker does not read SQL.
U = TypeVar("U", default=Any)
K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)
W = TypeVar("W", default=Any)
R = TypeVar("R", default=Any)


class StreamBuilder:
    """Collects the streams of one job."""

    def __init__(
        self,
        job_id: str,
        *,
        dead_letters: str | None = None,
        lateness: Duration = "2s",
        idle: Duration = "2s",
        processing_time: bool = False,
    ) -> None:
        """Begin a job.

        Args:
            job_id: names the job, in its queries and letters.
            dead_letters: the topic for records that can't be decoded, or that make a function raise. With None
                the first such record stops the job.
            lateness: how far the watermark lies behind the newest time. A record may be late by so much.
            idle: after so long without a message a topic's time goes on by itself, so that windows close.
            processing_time: take the time when the job reads a record, not the time when it was published.
        """
        if not job_id:
            raise ValueError("A job needs an id, such as word-count.")
        self.job_id = job_id
        self._dead_letters = dead_letters
        self._lateness_ms = _not_negative("lateness", lateness)
        self._idle_ms = _not_negative("idle", idle)
        if not self._idle_ms:
            raise ValueError(f"idle must be at least 1ms, not {idle!r}.")
        self._is_processing_time = processing_time
        self._names = graph.OperatorNames()
        self._ends: list[graph.Sink] = []

    def source(
        self,
        topic: str,
        deserializer: Serde[T],
        *,
        lateness: Duration | None = None,
        name: str | None = None,
        **options: str,
    ) -> Stream[T]:
        """Return the stream of a topic's messages.

        Args:
            topic: the topic.
            deserializer: turns payloads into values.
            lateness: replaces the job's lateness for this topic.
            name: names the operator; the job finds the operator's progress by this name.
            options: options of the format ``tms``. Here ``startingOffsets`` is ``"earliest"`` by default.
        """
        _check_serde(deserializer, "deserialize")
        source = graph.Source(
            name=self._names.take("source", name),
            topic=topic,
            serde=deserializer,
            options={"startingOffsets": "earliest", **options},
            is_processing_time=self._is_processing_time,
            lateness_ms=self._lateness_ms
            if lateness is None
            else _not_negative("lateness", lateness),
        )
        return Stream(self, source)

    def build(self) -> Job:
        """Return the job. Raises ValueError if it has no sink."""
        if not self._ends:
            raise ValueError("The job does nothing: end a stream with sink() or print().")
        found = graph.Graph(self.job_id, tuple(self._ends), self._dead_letters, self._idle_ms)
        return Job(found)

    def name_of(self, kind: str, name: str | None) -> str:
        """Return the name of a new operator. Raises ValueError if it is taken."""
        return self._names.take(kind, name)

    def add_end(self, end: graph.Sink) -> None:
        """Add a sink."""
        self._ends.append(end)


class _Streaming(Generic[T]):
    """The ends that every stream can have: a sink, or a print."""

    def __init__(self, builder: StreamBuilder, operator: graph.Operator) -> None:
        """Be the stream behind an operator."""
        self.builder = builder
        self.operator = operator

    def _then(
        self, kind: str, function: graph.Function, name: str | None, returns: str | None = None
    ) -> graph.Stateless:
        return self._step(kind, function, self.builder.name_of(kind, name), returns)

    def _step(
        self, kind: str, function: graph.Function, name: str, returns: str | None = None
    ) -> graph.Stateless:
        graph.check_function(kind, function, 3 if kind == "to_stream" else 1)
        parents = (self.operator,)
        return graph.Stateless(
            name=name, parents=parents, kind=kind, function=function, returns=returns
        )

    def sink(self, topic: str, serializer: Serde[T], *, name: str | None = None) -> None:
        """Publish each value to a topic, exactly once. A grouped stream publishes its keys, too."""
        self._end("sink", topic, serializer, name)

    def print(self, *, name: str | None = None) -> None:
        """Print each value where the job runs. After a crash it prints some values again."""
        self._end("print", None, Json(), name)

    def _end(self, kind: str, topic: str | None, serde: Serde[Any], name: str | None) -> None:
        _check_serde(serde, "serialize")
        self.builder.add_end(
            graph.Sink(
                name=self.builder.name_of(kind, name),
                parents=(self.operator,),
                topic=topic,
                serde=serde,
                has_keys=isinstance(self, GroupedStream),
            )
        )


class Stream(_Streaming[T]):
    """Values without keys."""

    def select_timestamp(
        self, select: Callable[[T], Any] | str, *, name: str | None = None
    ) -> Stream[T]:
        """Take a record's time from its value.

        A function gives ms since 1970 or a datetime. SQL gives a TIMESTAMP or ms.
        """
        return Stream(self.builder, self._then("select_timestamp", select, name))

    def map(
        self,
        function: Callable[[T], U | None] | str,
        *,
        returns: str | None = None,
        name: str | None = None,
    ) -> Stream[U]:
        """Replace each value; None drops it.

        Args:
            function: gives the new value.
            returns: the SQL type of the new value (``"STRUCT<user: STRING, amount: DOUBLE>"``). With it SQL may
                follow a function of Python. The function gives a struct as a dict.
            name: names the operator.
        """
        return Stream(self.builder, self._then("map", function, name, returns))

    def flat_map(
        self,
        function: Callable[[T], Iterable[U | None] | None] | str,
        *,
        returns: str | None = None,
        name: str | None = None,
    ) -> Stream[U]:
        """Replace each value by several; drop those that are None. SQL gives an array. ``returns``: as in map."""
        return Stream(self.builder, self._then("flat_map", function, name, returns))

    def filter(self, function: Callable[[T], Any] | str, *, name: str | None = None) -> Stream[T]:
        """Keep the values for which a function is true."""
        return Stream(self.builder, self._then("filter", function, name))

    def foreach(self, function: Callable[[T], Any], *, name: str | None = None) -> Stream[T]:
        """Call a function with each value, and pass all values on.

        After a crash the job calls the function again for some values.
        """
        return Stream(self.builder, self._then("foreach", function, name))

    def key_by(
        self, select: Callable[[T], K] | str, *, name: str | None = None
    ) -> GroupedStream[K, T]:
        """Group values by a key."""
        return GroupedStream(self.builder, self._then("key_by", select, name))

    def union(self, *others: Stream[T], name: str | None = None) -> Stream[T]:
        """Merge streams into one."""
        for other in others:
            check_same(self, other)
        parents = (self.operator, *(other.operator for other in others))
        return Stream(
            self.builder, graph.Union(name=self.builder.name_of("union", name), parents=parents)
        )

    def branch(self, *tests: Callable[[T], Any] | str) -> list[Stream[T]]:
        """Return a stream for each test: the values for which this test is the first true one."""
        branches: list[Stream[T]] = []
        left: Stream[T] = self
        for test in tests:
            # A test runs in several branches under one name. So a record at which it fails gets one letter.
            name = self.builder.name_of("branch", None)
            branches.append(Stream(self.builder, left._step("filter", test, name)))
            left = Stream(self.builder, left._step("filter", _negated(test), name))
        return branches

    def join(self, other: Stream[U]) -> JoinedStream[T, U]:
        """Join with another stream: pairs of values with the same key."""
        return JoinedStream(self, other, is_left=False)

    def left_join(self, other: Stream[U]) -> JoinedStream[T, U]:
        """Join with another stream: pair each value of this one with one of the other, or with None."""
        return JoinedStream(self, other, is_left=True)


class GroupedStream(_Streaming[V], Aggregating[K, V], Generic[K, V]):
    """Values with keys. Aggregates give a result for each incoming value."""

    def filter(
        self, function: Callable[[V], Any] | str, *, name: str | None = None
    ) -> GroupedStream[K, V]:
        """Keep the values for which a function is true."""
        return GroupedStream(self.builder, self._then("filter", function, name))

    def map(
        self,
        function: Callable[[V], W | None] | str,
        *,
        returns: str | None = None,
        name: str | None = None,
    ) -> GroupedStream[K, W]:
        """Replace each value, and keep its key; None drops it."""
        return GroupedStream(self.builder, self._then("map", function, name, returns))

    def flat_map(
        self, function: Callable[[V], Iterable[W | None] | None] | str, *, name: str | None = None
    ) -> GroupedStream[K, W]:
        """Replace each value by several with the same key."""
        return GroupedStream(self.builder, self._then("flat_map", function, name))

    def window(self, windows: Windows, *, late: str | None = None) -> WindowedStream[K, V]:
        """Aggregate by window. A record whose window is closed goes to the topic ``late``."""
        if not isinstance(windows, Windows):
            raise TypeError(f"window takes tumbling(), sliding() or session(), not {windows!r}.")
        return WindowedStream(self.builder, self.operator, windows, late)

    def process(
        self, processor: Processor[V, R], *, name: str | None = None
    ) -> GroupedStream[K, R]:
        """Let your own processor work on the records of each key."""
        if not isinstance(processor, Processor):
            raise TypeError(f"process takes an object of your own Processor, not {processor!r}.")
        operator = graph.Process(
            name=self.builder.name_of("process", name),
            parents=(self.operator,),
            processor=processor,
        )
        return GroupedStream(self.builder, operator)

    def ungrouped(self, operator: graph.Operator) -> Stream[Any]:
        """Return the stream behind an operator whose records have no keys."""
        return Stream(self.builder, operator)

    def to_stream(
        self,
        function: Callable[[K, V, Window | None], U] | str | None = None,
        *,
        name: str | None = None,
    ) -> Stream[U]:
        """Make one value of each key, value and window.

        Args:
            function: gets a key, a value, and the value's window or None, and gives a value. SQL uses ``key``,
                ``value``, ``window.start`` and ``window.end``. Without a function the value is the pair of key
                and value.
            name: names the operator.
        """
        return Stream(self.builder, self._then("to_stream", function or _pair, name))

    @override
    def _grouped(self, operator: graph.Operator) -> GroupedStream[K, Any]:
        return GroupedStream(self.builder, operator)


class WindowedStream(Aggregating[K, V]):
    """Values with keys, by window. Aggregates give one result for each key and window, when the window closes."""

    def __init__(
        self, builder: StreamBuilder, operator: graph.Operator, windows: Windows, late: str | None
    ) -> None:
        """Be the stream behind an operator."""
        self.builder = builder
        self.operator = operator
        self._windows = windows
        self._late = late

    @override
    def _grouped(self, operator: graph.Operator) -> GroupedStream[K, Any]:
        return GroupedStream(self.builder, operator)


def _check_serde(serde: object, method: str) -> None:
    user_code.check_plain(getattr(serde, method, None), 1, f"{method} of {serde!r}")


def _pair(key: Any, value: Any, _: Window | None) -> tuple[Any, Any]:
    return key, value


def _not_negative(name: str, duration: Duration) -> int:
    ms = duration_ms(duration)
    if ms < 0:
        raise ValueError(f"{name} must be 0s or more, not {duration!r}.")
    return ms


def _negated(test: Callable[[Any], Any] | str) -> Any:
    if isinstance(test, str):
        return f"NOT coalesce(({test}), false)"
    return lambda value: not test(value)
