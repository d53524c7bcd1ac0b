"""Read back the state of a job from Spark's state store: a thin shell around state_view.py.

The state is that of the last committed micro-batch, so the job may run meanwhile. Spark's workers find the wanted
entries. This process gets no more than ``entries_max`` of them from each place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from broker.errors import TaskFailed
from broker.streams import changes, state_view
from broker.streams.changes import Store
from broker.streams.passes import STATE
from broker.streams.state_view import Columns, StateEntry, StateLocation


class NoState(TaskFailed):
    """There is no such state; the text says which state exists."""


class JobEndState:
    """The state of one end of a job."""

    def __init__(self, spark: SparkSession, checkpoint: str, end: str) -> None:
        """Find the state of the end. Raises NoState."""
        self._spark = spark
        self._path = f"{checkpoint.rstrip('/')}/{end}"
        try:
            [line] = spark.read.text(f"{checkpoint.rstrip('/')}/job/{end}").collect()
        except (AnalysisException, ValueError) as error:
            raise NoState(
                f"{checkpoint} has no checkpoint of an end called {end}: broker streams status names the ends of a job."
            ) from error
        self._stores: Sequence[Store] = changes.decode(line.value).get("stores", ())

    @property
    def operators(self) -> list[str]:
        """The names of the operators with state."""
        return [name for store in self._stores for name in store["operators"]]

    def entries(self, operator: str | None, key: str | None, entries_max: int) -> list[StateEntry]:
        """Return at most ``entries_max`` entries, of one operator and of one key as text; None stands for any.

        Raises NoState.
        """
        if not self.operators:
            raise NoState("Its operators keep no state.")
        if operator is not None and operator not in self.operators:
            raise NoState(
                f"No operator {operator} keeps state there. These do: {', '.join(self.operators)}."
            )
        found: Iterator[StateEntry] = (
            entry
            for place in self._places()
            for side in place.sides
            for entry in self._of(place, side, operator, key, entries_max)
        )
        return list(islice(found, entries_max))

    def _places(self) -> list[StateLocation]:
        try:
            rows = self._spark.read.format("state-metadata").load(self._path).collect()
        except PySparkException as error:
            raise NoState("No micro-batch of it has been committed yet.") from error
        return sorted({StateLocation(row.operatorId, row.operatorName) for row in rows})

    def _of(
        self,
        place: StateLocation,
        side: str | None,
        operator: str | None,
        key: str | None,
        rows_max: int,
    ) -> Iterator[StateEntry]:
        entries = partial(
            _entries, place.is_chain, state_view.name_of(place, self._stores), side, operator, key
        )
        is_wanted = sf.udf(partial(_is_any, entries), "boolean", useArrow=False)
        rows = self._rows(place, side).where(is_wanted("key", "value")).limit(rows_max)
        for row in rows.collect():
            yield from entries(row.key, row.value)

    def _rows(self, place: StateLocation, side: str | None) -> DataFrame:
        reader = self._spark.read.format("statestore").option("operatorId", place.number)
        if place.is_chain:
            reader = reader.option("stateVarName", STATE)
        if side is not None:
            reader = reader.option("joinSide", side)
        return reader.load(self._path).select("key", "value")


def _is_any(entries: Any, key: Row, value: Row) -> bool:
    return any(True for _ in entries(key, value))


def _entries(  # noqa: PLR0913, PLR0917 - Bound here, called with a row.
    is_chain: bool,
    name: str,
    side: str | None,
    operator: str | None,
    key_text: str | None,
    key: Row,
    value: Row,
) -> Iterator[StateEntry]:
    """Yield the wanted entries of a row of a state store."""
    found: Iterator[StateEntry]
    if is_chain:
        found = state_view.of_cells(bytes(key[0]), bytes(value[0]))
    else:
        found = iter([state_view.of_columns(name, side, _columns(key), _columns(value))])
    for entry in found:
        if state_view.is_wanted(entry, operator, key_text):
            yield entry


def _columns(row: Row) -> Columns:
    return row.asDict(recursive=True)
