"""A job as a graph of operators: plain values that builder.py makes, and the other modules read. Pure.

An operator knows its parents: the operators that it gets records from. The **ends** of a job are its sinks and
prints; a job is its ends and all operators upstream of them. Names are unique in a job. A job finds the state of an
operator by its name after a restart, so generated names are numbered for each kind alone. So a new operator behind
the others, or one of another kind, renames none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from typing_extensions import override

from broker import user_code
from broker.streams.accumulators import Accumulator
from broker.streams.join_operators import Pairs
from broker.streams.operators import Processor
from broker.streams.serdes import Serde
from broker.streams.windows import Sliding, Windows

Function = Callable[..., Any] | str
"""A function of Python, or SQL over the columns of a value."""


def check_function(kind: str, function: object, arguments: int = 1) -> None:
    """Check a function where the job is written. In a running job each record would fail, one after the other.

    Raises:
        TypeError: it is neither SQL nor a plain function that takes so many arguments.
    """
    if isinstance(function, str):
        return
    if not callable(function):
        raise TypeError(f"{kind} takes a function, or SQL as text, not {function!r}.")
    name = f"The function of {kind}"
    user_code.check_plain(function, arguments, name, may_yield=kind == "flat_map")


@dataclass(frozen=True, eq=False, kw_only=True)
class Operator:
    """The name and the parents of an operator."""

    name: str
    parents: tuple[Operator, ...] = ()

    @property
    def text(self) -> str:
        """The operator's description, for people."""
        return self.name


@dataclass(frozen=True, eq=False, kw_only=True)
class Source(Operator):
    """A topic. ``lateness_ms`` is how far the watermark lies behind the newest time."""

    topic: str
    serde: Serde[Any]
    options: dict[str, str] = field(default_factory=dict)
    is_processing_time: bool = False
    lateness_ms: int = 0

    @property
    @override
    def text(self) -> str:
        """Its topic."""
        return f"{self.name}: {self.topic}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Stateless(Operator):
    """``kind``: map, flat_map, filter, foreach, key_by, select_timestamp or to_stream."""

    kind: str
    function: Function
    returns: str | None = None
    """The SQL type of the values that it gives; None: it gives objects of Python."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Union(Operator):
    """Several streams merged into one."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Aggregate(Operator):
    """An aggregate of the values of each key; ``kind``: count, sum, min, max, avg or aggregate."""

    kind: str
    make: Callable[[], Accumulator[Any, Any]]
    select: Function | None = None
    windows: Windows | None = None
    late: str | None = None

    @property
    @override
    def text(self) -> str:
        """Its name, and its windows."""
        return self.name if self.windows is None else f"{self.name} by {self.windows}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Process(Operator):
    """A processor that the user wrote."""

    processor: Processor[Any, Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class Join(Operator):
    """A join of two streams with keys."""

    function: Function
    is_left: bool
    windows: Sliding | None = None
    pairs: Pairs = "all"
    late: str | None = None

    @property
    @override
    def text(self) -> str:
        """Its name, and how it joins."""
        kind = "left" if self.is_left else "inner"
        if self.windows is None:
            return f"{self.name}: {kind}, the newest of the other side"
        return f"{self.name}: {kind}, {self.pairs} of {self.windows}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Sink(Operator):
    """A topic to which values are published, with keys if ``has_keys``; topic None: they are printed."""

    topic: str | None
    serde: Serde[Any]
    has_keys: bool = False

    @property
    @override
    def text(self) -> str:
        """Its topic, or its name if it prints."""
        return self.name if self.topic is None else f"{self.name}: {self.topic}"


Stateful = Aggregate | Process | Join


@dataclass(frozen=True)
class Graph:
    """A whole job."""

    job_id: str
    ends: Sequence[Sink]
    dead_letters: str | None
    idle_ms: int

    def operators(self) -> list[Operator]:
        """Return all operators, each after its parents."""
        found: list[Operator] = []
        for end in self.ends:
            found += [each for each in upstream(end) if each not in found]
        return found


def has_keys(operator: Operator) -> bool:
    """Return whether the records of an operator's output have keys."""
    match operator:
        case Aggregate() | Process():
            return True
        case Stateless(kind="key_by"):
            return True
        case Stateless(kind="to_stream"):
            return False
        case Stateless():
            return has_keys(operator.parents[0])
        case _:
            return False


RESERVED: Final = "job"
"""A folder of the checkpoint beside the folders of the ends, which have the names of the ends."""
_NAME: Final = re.compile(r"[\w-][\w.-]{0,99}")


class OperatorNames:
    """Gives operators their names."""

    def __init__(self) -> None:
        """Begin with none."""
        self._counts: Counter[str] = Counter()
        self._taken: set[str] = set()

    def take(self, kind: str, name: str | None) -> str:
        """Return ``name``, or the next generated name of its kind.

        Raises ValueError if the name is taken, or can't be the name of a folder.
        """
        if name is None:
            self._counts[kind] += 1
            name = f"{kind}-{self._counts[kind]}"
        if not _NAME.fullmatch(name) or name == RESERVED:
            raise ValueError(
                f"{name!r} can't be the name of an operator: give letters, digits and - _ . in it, and not {RESERVED}."
            )
        if name in self._taken:
            raise ValueError(f"Two operators of the job are called {name}: give one another name.")
        self._taken.add(name)
        return name


def upstream(operator: Operator) -> Iterator[Operator]:
    """Yield all operators upstream of an operator, each once and after its parents, and the operator last."""
    seen: set[Operator] = set()

    def visit(one: Operator) -> Iterator[Operator]:
        if one in seen:
            return
        seen.add(one)
        for parent in one.parents:
            yield from visit(parent)
        yield one

    yield from visit(operator)
