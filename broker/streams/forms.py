"""The forms that a branch of a flow can have inside the compiler."""

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
    """A frame and the steps behind it, in one of four forms.

    * ``source`` is set as long as no step is behind the source.
    * ``columns`` is set as long as all steps are SQL: it is a frame of sql_columns.py.
    * With ``is_keyed`` Spark calls ``parts`` for each key.
    * Else ``reader`` reads ``frame``, and a pass runs ``parts``.
    """

    frame: DataFrame
    lateness_ms: int = 0
    source: graph.Source | None = None
    columns: DataFrame | None = None
    reader: RecordReader | None = None
    parts: tuple[operators.KeyedOperator | Step, ...] = ()
    is_keyed: bool = False
    is_behind_state: bool = False
    """True if an operator with state is before this branch. Then Spark can make no watermark of its times."""
    letters: tuple[DataFrame, ...] = ()
    """Frames of letters that the compiler has split off."""
    owned: frozenset[str] = frozenset()
    """The operators whose letters this branch publishes.

    An operator in several branches of a query fails in each of them, and one letter is enough.
    """


Flow = list[Branch]
"""A stream, as the branches that make it up."""


def behind(flow: Flow, frame: DataFrame, **form: Any) -> Branch:
    """Return the branch behind an operator with state that reads a whole flow."""
    letters = tuple(each for branch in flow for each in branch.letters)
    owned = frozenset().union(*(branch.owned for branch in flow))
    return Branch(frame, is_behind_state=True, letters=letters, owned=owned, **form)


def is_of(operators: Collection[str]) -> Any:
    """Return a condition: the row's letter is from one of these operators."""
    owner = sf.element_at("headers", sf.lit("operator")).cast("string")
    return owner.isin(*operators) if operators else sf.lit(False)


def check_times(branch: Branch, name: str) -> None:
    """Raise ValueError if an operator that needs times is behind an operator with state."""
    if branch.is_behind_state:
        raise ValueError(
            f"{name} needs the times of its records, but an operator with state and another key is before it. Publish "
            "that operator's results to a topic, and read this topic by another source."
        )


def step_alone(part: operators.KeyedOperator | Step) -> Step:
    """Return a part of a pass, which must be a step without state."""
    assert isinstance(part, Step), "operators are run by key"
    return part


@dataclass(frozen=True)
class Measured:
    """A function that gives the pair of a value's measure and the value, or None if there is no measure."""

    select: Any

    def __call__(self, value: Any) -> Any:
        """Return the pair, or None."""
        measure = value if self.select is None else self.select(value)
        return None if measure is None else (measure, value)
