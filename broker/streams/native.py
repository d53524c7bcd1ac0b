"""Which operators Spark runs by itself, on columns, as long as all before them are SQL, too. Pure."""

from __future__ import annotations

from typing import Final

from broker.streams import graph
from broker.streams.serdes import Bytes, Json, Text

NATIVE: Final = (Bytes, Json, Text)
AGGREGATES: Final = ("count", "sum", "avg")
"""Those that Spark gives as this package does. Of equal least values it gives any."""


def is_decoded_here(source: graph.Source) -> bool:
    """Whether Spark can decode a source's messages."""
    serde = source.serde
    return type(serde) in NATIVE and (not isinstance(serde, Json) or serde.schema is not None)


def can_aggregate(operator: graph.Aggregate) -> bool:
    """Whether Spark can do an aggregate by itself: a plain one of windows that drop what is late."""
    return (
        operator.kind in AGGREGATES
        and operator.windows is not None
        and operator.late is None
        and not callable(operator.select)
    )


def is_native(operator: graph.Operator) -> bool:
    """Whether an operator gives columns of Spark's."""
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
