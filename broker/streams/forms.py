"""The forms that a branch of a flow has on its way through the compiler, and how one becomes another."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from broker.streams import graph, operators
from broker.streams.passes import RecordReader
from broker.streams.stateless_steps import Step


@dataclass(frozen=True)
class Branch:
    """A frame and the steps behind it.

    ``columns`` is set as long as all is SQL: the frame of sql_columns.py; ``source`` as long as nothing was done. Else
    ``reader`` reads ``frame``, or Spark calls ``parts`` for each key if ``is_keyed``.
    """

    frame: DataFrame
    lateness_ms: int = 0
    source: graph.Source | None = None
    columns: DataFrame | None = None
    reader: RecordReader | None = None
    parts: tuple[operators.KeyedOperator | Step, ...] = ()
    is_keyed: bool = False
    is_behind_state: bool = False
    """Whether an operator with state is before it: then no watermark can be made of its times."""
    letters: tuple[DataFrame, ...] = ()
    """Frames of messages that were split off."""
    owned: frozenset[str] = frozenset()
    """The operators of which it has the letters: what is in several branches of a query fails in each."""


Flow = list[Branch]
"""A stream: what it is put together from."""


def behind(flow: Flow, frame: DataFrame, **form: Any) -> Branch:
    """Return the branch behind an operator with state that takes all of a flow."""
    letters = tuple(each for branch in flow for each in branch.letters)
    owned = frozenset().union(*(branch.owned for branch in flow))
    return Branch(frame, is_behind_state=True, letters=letters, owned=owned, **form)


def is_of(operators: Collection[str]) -> Any:
    """Return whether a row's letter is of one of some operators."""
    owner = sf.element_at("headers", sf.lit("operator")).cast("string")
    return owner.isin(*operators) if operators else sf.lit(False)


def check_times(branch: Branch, name: str) -> None:
    """Raise ValueError if an operator that needs times is behind one with state."""
    if branch.is_behind_state:
        raise ValueError(
            f"{name} needs the times of its records, but is behind an operator with state and another key: publish to "
            "a topic there, and begin with a source of it here."
        )


def step_alone(part: operators.KeyedOperator | Step) -> Step:
    """Return a part of a pass, which has no state."""
    assert isinstance(part, Step), "operators are run by key"
    return part


@dataclass(frozen=True)
class Measured:
    """A function: gives a value with its measure, None if it has none."""

    select: Any

    def __call__(self, value: Any) -> Any:
        """Return the pair, or None."""
        measure = value if self.select is None else self.select(value)
        return None if measure is None else (measure, value)
