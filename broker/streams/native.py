"""Decide which operators Spark runs by itself on columns, as long as all operators before them are SQL, too. Pure."""

from __future__ import annotations

from typing import Final

from broker.streams import graph
from broker.streams.serdes import Bytes, Json, Text

NATIVE: Final = (Bytes, Json, Text)
AGGREGATES: Final = ("count", "sum", "avg")
"""The aggregates for which Spark gives the same results as this package.

Spark's min and max are not among them: of equal values Spark gives any, and this package gives the first.
"""


def is_decoded_here(source: graph.Source) -> bool:
    """Return whether Spark can decode a source's messages."""
    serde = source.serde
    return type(serde) in NATIVE and (not isinstance(serde, Json) or serde.schema is not None)


def can_aggregate(operator: graph.Aggregate) -> bool:
    """Return whether Spark can run an aggregate by itself.

    It can if the aggregate has windows, no topic for late records, and no function of Python.
    """
    return (
        operator.kind in AGGREGATES
        and operator.windows is not None
        and operator.late is None
        and not callable(operator.select)
    )


def is_native(operator: graph.Operator) -> bool:
    """Return whether an operator gives columns of Spark."""
    match operator:
        case graph.Source():
            return is_decoded_here(operator)
        case graph.Stateless(returns=str()):
            return True
        case graph.Stateless():
            own = isinstance(operator.function, str)
        case graph.Aggregate():
            own = can_aggregate(operator)
        case graph.Join():
            own = isinstance(operator.function, str)
        case graph.Union():
            own = True
        case _:
            own = False
    return own and all(map(is_native, operator.parents))
