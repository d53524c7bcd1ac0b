"""A statement that inserts any number of rows: databases bound the parameters of one execution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, Insert, Table
from typing_extensions import override

INSERTED_AT_ONCE: Final = 1_000
"""How many messages one statement inserts."""


class InsertInParts(Insert):
    """Inserts rows with several executions of one statement, each with the parameters of some rows."""

    inherit_cache = True

    def __init__(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(table)
        self._parts = [
            rows[at : at + INSERTED_AT_ONCE] for at in range(0, len(rows), INSERTED_AT_ONCE)
        ]

    @override
    def _execute_on_connection(
        self, connection: Connection, distilled_params: Any, execution_options: Any
    ) -> Any:
        """Execute each part, and join the rows that they return. SQLAlchemy's connections call this method of a statement."""
        del distilled_params
        execute = partial(super()._execute_on_connection, connection)
        first, *others = [execute(part, execution_options) for part in self._parts]
        return first.merge(*others) if others and first.returns_rows else first
