"""A job as a graph of operators: values alone, made by builder.py and read by the rest. Pure.

An operator knows those that it gets records from. A job is what its **ends** need: its sinks and prints. Names are
unique in a job. Operators with state are found again by them, so they count each kind for itself: one that is added
behind the others, or one without state, renames none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from typing_extensions import override

from broker.streams.accumulators import Accumulator
from broker.streams.join_operators import Pairs
from broker.streams.operators import Processor
from broker.streams.serdes import Serde
from broker.streams.windows import Sliding, Windows

Function = Callable[..., Any] | str
"""A function of Python, or SQL over the columns of a value."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Operator:
    """The name and the parents of an operator."""

    name: str
    parents: tuple[Operator, ...] = ()

    @property
    def text(self) -> str:
        """What it is, for people."""
        return self.name


@dataclass(frozen=True, eq=False, kw_only=True)
class Source(Operator):
    """A topic. ``lateness_ms`` is how far the watermark lies behind the times that were seen."""

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
    """The columns of the values that it gives, as SQL has them; None: it gives objects of Python."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Union(Operator):
    """Several streams as one."""


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
    """A processor of the user's."""

    processor: Processor[Any, Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class Join(Operator):
    """Two streams with keys as one."""

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
    """A topic that values are published to, with their keys; None: they are printed."""

    topic: str | None
    serde: Serde[Any]
    has_keys: bool = False

    @property
    @override
    def text(self) -> str:
        """Where it goes."""
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
        """Return all operators, each behind those that it gets records from."""
        found: list[Operator] = []
        for end in self.ends:
            found += [each for each in upstream(end) if each not in found]
        return found


def has_keys(operator: Operator) -> bool:
    """Whether the records that an operator gives have keys."""
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
"""A folder of the checkpoint beside those of the ends, which have their names."""
_NAME: Final = re.compile(r"[\w-][\w.-]{0,99}")


class OperatorNames:
    """Gives operators their names."""

    def __init__(self) -> None:
        """Begin with none."""
        self._counts: Counter[str] = Counter()
        self._taken: set[str] = set()

    def take(self, kind: str, name: str | None) -> str:
        """Return ``name``, or the next one of its kind. Raises ValueError if it is taken, or none for a folder."""
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
    """Yield an operator behind all that it gets records from, each once."""
    seen: set[Operator] = set()

    def visit(one: Operator) -> Iterator[Operator]:
        if one in seen:
            return
        seen.add(one)
        for parent in one.parents:
            yield from visit(parent)
        yield one

    yield from visit(operator)
